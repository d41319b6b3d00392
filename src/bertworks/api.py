"""The Python library: plain arguments in, models, folders and scores out; the functions behind `import bertworks`.

Paths may be strings. Recipe keys without an argument of their own go into `settings`: {"optimizer.beta2": 0.98}.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertworks.arguments import check_arguments
from bertworks.errors import InputError
from bertworks.live_progress import EventCallback, RunWatch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from bertworks.commands.compare.run import CompareReport
    from bertworks.model import Model
    from bertworks.vocabulary.tokenizer import Tokenizer

PathLike = str | Path
# (inputs, labels), rows, a table, or the path of a file: see `tasks.memory`.
Labelled = Any


@check_arguments
def train_vocabulary(
    sources: PathLike | Sequence[PathLike] = (),
    output: PathLike = "vocab",
    *,
    texts: Any = None,
    vocab_size: int = 30_000,
    kind: str = "wordpiece",
    cased: bool = False,
    min_count: int = 2,
    workers: int | None = None,
) -> Tokenizer:
    """Train a vocabulary on files, folders or globs, write it to `output`, and return its tokenizer.

    `texts` are documents in memory: a list, an iterator, or a table with a column of texts.
    """
    from bertworks.commands.vocab import VocabularyRequest
    from bertworks.commands.vocab import train_vocabulary as run
    from bertworks.text.sources import TextSource
    from bertworks.vocabulary.training import VocabularySettings

    settings = VocabularySettings(kind=kind, vocab_size=vocab_size, cased=cased, min_count=min_count)
    if texts is None and not _paths(sources):
        raise InputError("there is no text; give files or folders, or texts=[…]")
    with _text_files(sources, texts) as paths:
        request = VocabularyRequest(tuple(map(TextSource, paths)), Path(output))
        return run(request, settings, workers).tokenizer


@check_arguments
def prepare(
    sources: PathLike | Sequence[PathLike] = (),
    *,
    vocabulary: PathLike,
    output: PathLike,
    texts: Any = None,
    held_out: PathLike | Sequence[PathLike] = (),
    held_out_ratio: float = 0.01,
    workers: int | None = None,
) -> Path:
    """Clean, deduplicate and tokenize text into a corpus folder; return its path.

    `sources` are files, folders or globs; an interrupted call continues. `texts` are documents in memory: a list, an
    iterator, or a table with a column of texts; if such a call is interrupted, remove the folder and begin anew.
    """
    from bertworks.commands.prepare import PrepareRequest
    from bertworks.commands.prepare import prepare as run
    from bertworks.corpus.units import PrepareSettings
    from bertworks.text.sources import TextSource

    evaluation = [TextSource(path, split="held-out") for path in _paths(held_out)]
    with _text_files(sources, texts) as paths:
        request = PrepareRequest(
            sources=(*map(TextSource, paths), *evaluation),
            vocabulary=Path(vocabulary),
            output=Path(output),
            settings=PrepareSettings(held_out_ratio=held_out_ratio),
        )
        return run(request, workers)


@check_arguments
def pretrain(
    recipe: PathLike = "mini",
    *,
    data: PathLike,
    output: PathLike,
    budget: str = "",
    learning_rate: float | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    precision: str | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    on_event: EventCallback | None = None,
    progress: bool | None = None,
    track: str | Sequence[str] = (),
) -> Model:
    """Pretrain by a recipe on a corpus folder, or resume, and return the model in `output`/model.

    Ctrl-C saves a checkpoint and raises KeyboardInterrupt; the same call continues bit-exactly. `on_event` receives
    every TrainEvent. A bar shows the progress in a notebook and on a terminal, unless `progress` is False or `on_event`
    is given. `track` names experiment trackers that get every record: wandb, mlflow.
    """
    options = {
        "budget": budget or None, "learning_rate": learning_rate, "batch_size": batch_size, "seed": seed,
        "precision": precision,
    }  # fmt: skip
    watch = RunWatch(on_event, progress, track)
    return _pretrain(str(recipe), None, data, output, {**options, **(settings or {})}, device, watch)


@check_arguments
def adapt(
    model: PathLike | Model,
    *,
    data: PathLike,
    output: PathLike,
    recipe: PathLike = "adapt",
    budget: str = "",
    learning_rate: float | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    precision: str | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    on_event: EventCallback | None = None,
    progress: bool | None = None,
    track: str | Sequence[str] = (),
) -> Model:
    """Continue pretraining a model on the corpus of a domain, and return the adapted model; see `pretrain`."""
    options = {
        "budget": budget or None, "learning_rate": learning_rate, "batch_size": batch_size, "seed": seed,
        "precision": precision,
    }  # fmt: skip
    watch = RunWatch(on_event, progress, track)
    return _pretrain(str(recipe), _model_name(model), data, output, {**options, **(settings or {})}, device, watch)


def _pretrain(
    recipe: str,
    init_model: str | None,
    data: PathLike,
    output: PathLike,
    settings: Mapping[str, Any],
    device: str,
    watch: RunWatch,
) -> Model:
    from bertworks.commands.pretrain.recipe import read_pretrain_recipe
    from bertworks.commands.pretrain.request import PretrainRequest
    from bertworks.commands.pretrain.run import run_pretrain
    from bertworks.model import load
    from bertworks.settings import recipe_path

    request = PretrainRequest(
        recipe=read_pretrain_recipe(recipe_path(recipe), settings),
        corpus=Path(data),
        output=Path(output),
        init_model=init_model,
        device=device,
    )
    watch.consume(run_pretrain(request), request.output)
    return load(Path(output) / "model")


@check_arguments
def finetune(
    task: str,
    *,
    model: PathLike | Model,
    train: Labelled,
    output: PathLike | None = None,
    dev: Labelled | None = None,
    test: Labelled | None = None,
    recipe: PathLike | None = None,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    max_length: int | None = None,
    seed: int | None = None,
    precision: str | None = None,
    device: str = "auto",
    columns: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    on_event: EventCallback | None = None,
    progress: bool | None = None,
    track: str | Sequence[str] = (),
) -> Model:
    """Fine-tune a model for a task on labelled data, or resume, and return the fine-tuned model.

    task      classify, regress, choose, tag, answer or translate
    model     a folder, the name of a packaged model or one on the hub, or a loaded Model
    train     (texts, labels); a list or an iterator of (text, label) or of dicts; a dict of columns, a pandas or polars
              frame, a `datasets.Dataset`; or the path of a TSV, CSV or JSON Lines file. `dev` selects the best
              checkpoint, `test` is scored at the end
    output    the run folder; without one the run is in a temporary folder until Python exits
    columns   names of columns by role: {"text": "sms", "label": "class"}; guessed where left out
    settings  other keys of the recipe: {"patience": 3, "optimizer.weight_decay": 0.1}
    on_event  receives every FinetuneEvent
    progress  whether to show a bar; None: in a notebook and on a terminal, unless `on_event` is given
    track     experiment trackers that get every record of the run: wandb, mlflow

    An input of another task is what its model predicts from: (text, text) for pairs, (question, context) with its
    answers as label, (prompt, choices) with the index of the right one, words with their tags, or a text with its
    entities: [(start, end, label), …].
    """
    from bertworks.commands.finetune.recipe import read_finetune_recipe
    from bertworks.commands.finetune.request import FinetuneRequest
    from bertworks.commands.finetune.run import run_finetune
    from bertworks.model import load
    from bertworks.settings import recipe_path
    from bertworks.tasks.memory import locate_rows, store_data
    from bertworks.tasks.registry import task_of

    options: dict[str, Any] = {
        "learning_rate": learning_rate, "batch_size": batch_size, "epochs": epochs, "max_length": max_length,
        "seed": seed, "precision": precision, **(settings or {}),
    }  # fmt: skip
    finetune_recipe = read_finetune_recipe(None if recipe is None else recipe_path(str(recipe), "finetune"), options)
    task_class = task_of(task)
    if train is None:
        raise InputError("train is None; give labelled data: (texts, labels), a list of rows, a frame, or a path")
    base = _model_name(model)
    folder = _temporary_folder() if output is None else Path(output)
    with locate_rows():
        files = store_data({"train": train, "dev": dev, "test": test}, task_class, folder)
        request = FinetuneRequest(
            task=task,
            model=base,
            train=files["train"],
            output=folder,
            dev=files.get("dev"),
            test=files.get("test"),
            recipe=finetune_recipe,
            columns={"": dict(columns or {})},
            device=device,
        )
        RunWatch(on_event, progress, track).consume(run_finetune(request), folder)
    return load(folder / "model")


@check_arguments
def evaluate(
    model: PathLike | Model,
    data: Labelled,
    *,
    columns: Mapping[str, str] | None = None,
    precision: str | None = None,
) -> dict[str, float]:
    """Return the metrics of a fine-tuned model on labelled data: a file, or what `finetune` takes in memory.

    Columns that are not named are those of its training data, if this has them.
    """
    from bertworks.commands.evaluate import evaluate_data
    from bertworks.inference.finetuned import predictor_of

    predictor = predictor_of(_load(model, precision))
    result = evaluate_data(predictor, data, columns or {})
    for warning in result.warnings:
        warnings.warn(warning.message, stacklevel=3)
    return dict(result.scores.metrics)


@check_arguments
def predict(model: PathLike | Model, texts: Any, *, precision: str | None = None) -> Any:
    """Return the predictions of a fine-tuned model for texts, pairs or dicts of fields; see `Model.predict`."""
    return _load(model, precision).predict(texts)


@check_arguments
def encode(
    model: PathLike | Model,
    texts: str | Iterable[str],
    *,
    pooling: str | None = None,
    truncate: bool = False,
    prompt_name: str | None = None,
    precision: str | None = None,
) -> npt.NDArray[np.float32]:
    """Return one vector per text, (N, D), or that of a single text, (D,); see `Model.encode`."""
    vectors: npt.NDArray[np.float32] = _load(model, precision).encode(
        texts, pooling, truncate=truncate, prompt_name=prompt_name
    )
    return vectors


@check_arguments
def export(
    model: PathLike | Model,
    to: str,
    output: PathLike,
    *,
    data: PathLike | None = None,
    columns: Mapping[str, str] | None = None,
    difference: float | None = None,
    cosine: float | None = None,
    points: float | None = None,
) -> dict[str, Any]:
    """Export a model to onnx, openvino, safetensors-fp16 or int8, and return its certificate of parity."""
    from bertworks.exporters.export import ExportRequest
    from bertworks.exporters.export import export as run

    request = ExportRequest(
        model=_model_name(model), target=to, output=Path(output), data=None if data is None else Path(data),
        columns=columns or {}, difference=difference, cosine=cosine, points=points,
    )  # fmt: skip
    return run(request).certificate


@check_arguments
def serve(
    models: PathLike | Model | Sequence[PathLike | Model],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: PathLike | None = None,
    engine: str | None = None,
    precision: str | None = None,
) -> None:
    """Serve models (loaded ones, folders or NAME=FOLDER, or one bundle) over HTTP until the process is stopped."""
    from bertworks.serving.server import ServeRequest, listen, load_app
    from bertworks.serving.server import serve as run

    several = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    names = [_model_name(model) for model in several]
    if not names:
        raise InputError("there is no model to serve; give a folder or a loaded Model")
    request = ServeRequest(
        models=tuple(names), host=host, port=port,
        key_file=None if api_key_file is None else Path(api_key_file), engine=engine,
        precision=precision,
    )  # fmt: skip
    with listen(host, port) as sock:
        run(load_app(request), sock)


@check_arguments
def compare(
    recipe: PathLike,
    *,
    output: PathLike,
    data: PathLike | None = None,
    sets: PathLike | None = None,
    budget: str | None = None,
    seeds: Sequence[int] | None = None,
    device: str = "auto",
    on_event: EventCallback | None = None,
) -> CompareReport:
    """Pretrain and fine-tune the members of a comparison under equal budgets; return the report."""
    from bertworks.commands.compare.recipe import read_compare_recipe
    from bertworks.commands.compare.run import CompareRequest
    from bertworks.commands.compare.run import compare as run

    options = {
        "corpus": None if data is None else Path(data), "sets": None if sets is None else Path(sets), "budget": budget,
        "seeds": None if seeds is None else tuple(seeds),
    }  # fmt: skip
    settings = read_compare_recipe(str(recipe), {key: value for key, value in options.items() if value is not None})
    return run(CompareRequest(settings, Path(output), device), on_event=on_event or (lambda event: None))


@contextlib.contextmanager
def _text_files(sources: PathLike | Sequence[PathLike], texts: Any) -> Iterator[list[str]]:
    """Yield the paths of text to read; texts in memory are in a temporary file."""
    from bertworks.datasets.memory_texts import write_texts

    with tempfile.TemporaryDirectory(prefix="bertworks-") as folder:
        paths = _paths(sources)
        if texts is not None:
            paths.append(str(Path(folder) / "texts.jsonl"))
            write_texts(texts, Path(paths[-1]))
        yield paths


def _load(model: PathLike | Model, precision: str | None) -> Model:
    from bertworks.model import Model, load

    return model if isinstance(model, Model) else load(model, precision=precision)


def _model_name(model: PathLike | Model) -> str:
    """Return the folder of a loaded model, or the name that was given."""
    from bertworks.model import Model, check_name

    return str(model.folder if isinstance(model, Model) else check_name(model))


def _temporary_folder() -> Path:
    """Return a new folder that is removed when Python exits, and say so."""
    folder = tempfile.mkdtemp(prefix="bertworks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    warnings.warn(
        f"no output was given: the run is in {folder} until Python exits; keep the model with model.save(FOLDER)",
        stacklevel=4,
    )
    return Path(folder)


def _paths(paths: PathLike | Sequence[PathLike]) -> list[str]:
    return [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
