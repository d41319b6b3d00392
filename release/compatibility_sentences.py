"""The table of sentence-transformers' modules: a list of modules in, a row of measured differences out.

Each model is built by sentence-transformers on a small BERT with random weights, and saved. Its vectors are compared
with ours: in Python, of a text that is too long, fine-tuned here and loaded there, exported, and over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer import modules

import bertworks
from compatibility_cells import Cell, Part, Row, largest, measure, refusal
from compatibility_models import PeerModels, serve_once
from compatibility_vocabularies import LINES, make_tokenizer

HEADER = ("modules", "vectors", "long text, truncated", "fine-tune", "export", "serve")
SIZE, OUTPUT_SIZE, MAX_LENGTH = 24, 10, 48
TEXTS = [*LINES]
LONG_TEXTS = [" ".join(LINES)]
PROMPTS = {"query": "search: ", "passage": "the text: "}
POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """A row: what builds the modules after the encoder, the arguments of SentenceTransformer, and a prompt's name.

    `is_refused` states that we do not compute these modules, and say so.
    """

    build: Callable[[], list[Any]] = lambda: [modules.Pooling(SIZE)]
    arguments: dict[str, Any] = field(default_factory=dict)
    prompt_name: str | None = None
    encoder_arguments: dict[str, Any] = field(default_factory=dict)
    is_static: bool = False
    is_router: bool = False
    is_refused: bool = False


def _dense(activation: Any, in_features: int = SIZE, **settings: Any) -> Any:
    return modules.Dense(in_features, OUTPUT_SIZE, activation_function=activation, **settings)


def _layer_norm(size: int) -> Any:
    norm = modules.LayerNorm(size)
    torch.nn.init.normal_(norm.norm.weight, 1.0, 0.2)
    torch.nn.init.normal_(norm.norm.bias, 0.0, 0.2)
    return norm


SENTENCE_MODELS = {
    **{
        f"`Pooling`: {mode}": SentenceModel(lambda mode=mode: [modules.Pooling(SIZE, mode)])  # type: ignore[misc]
        for mode in POOLING_MODES
    },
    "`Pooling`: cls, max and mean": SentenceModel(lambda: [modules.Pooling(SIZE, ("cls", "max", "mean"))]),
    "`Pooling`, `Normalize`": SentenceModel(lambda: [modules.Pooling(SIZE), modules.Normalize()]),
    "`Pooling`, `Dense` (tanh)": SentenceModel(lambda: [modules.Pooling(SIZE), _dense(torch.nn.Tanh())]),
    "`Pooling`, `Dense` (identity, no bias), `Normalize`": SentenceModel(
        lambda: [modules.Pooling(SIZE), _dense(torch.nn.Identity(), bias=False), modules.Normalize()]
    ),
    "`Pooling`, `Dense` with a residual connection": SentenceModel(
        lambda: [modules.Pooling(SIZE), _dense(torch.nn.GELU(), use_residual=True)]
    ),
    "`Pooling`, `Normalize`, `Dense`": SentenceModel(
        lambda: [modules.Pooling(SIZE), modules.Normalize(), _dense(torch.nn.Tanh())]
    ),
    "`Pooling`, `Dropout`, `LayerNorm`, `Normalize`": SentenceModel(
        lambda: [modules.Pooling(SIZE), modules.Dropout(0.1), _layer_norm(SIZE), modules.Normalize()]
    ),
    "default prompt": SentenceModel(arguments={"prompts": PROMPTS, "default_prompt_name": "query"}),
    "prompt by name": SentenceModel(arguments={"prompts": PROMPTS}, prompt_name="passage"),
    "default prompt, `include_prompt` false": SentenceModel(
        lambda: [modules.Pooling(SIZE, "mean", include_prompt=False)],
        {"prompts": PROMPTS, "default_prompt_name": "query"},
    ),
    "`truncate_dim` (Matryoshka)": SentenceModel(
        lambda: [modules.Pooling(SIZE), modules.Normalize()], {"truncate_dim": 8}
    ),
    "`max_seq_length`": SentenceModel(encoder_arguments={"max_seq_length": 12}),
    "`do_lower_case`": SentenceModel(encoder_arguments={"do_lower_case": True}),
    "`StaticEmbedding`": SentenceModel(list, is_static=True),
    "`StaticEmbedding`, `Normalize`": SentenceModel(lambda: [modules.Normalize()], is_static=True),
    "`Router` for queries and documents": SentenceModel(list, is_router=True, is_refused=True),
    "`WeightedLayerPooling`, `Pooling`": SentenceModel(
        lambda: [modules.WeightedLayerPooling(SIZE, 2, 1), modules.Pooling(SIZE)],
        encoder_arguments={"config_kwargs": {"output_hidden_states": True}},
        is_refused=True,
    ),
    "`CNN`, `Pooling`": SentenceModel(lambda: [modules.CNN(SIZE, SIZE), modules.Pooling(3 * SIZE)], is_refused=True),
    "`LSTM`, `Pooling`": SentenceModel(lambda: [modules.LSTM(SIZE, 12), modules.Pooling(SIZE)], is_refused=True),
}


def write_base(folder: Path) -> Path:
    """Write the encoder of all rows, and return its folder."""
    models = PeerModels("bert", folder)
    models.model(transformers.AutoModel)
    return models.path(transformers.AutoModel)


def measure_sentence_model(name: str, base: Path, folder: Path) -> Row:
    """Return the row of a model; `base` is the folder of its encoder."""
    model = SENTENCE_MODELS[name]
    torch.manual_seed(0)
    peer = _build(model, base)
    path = folder / "model"
    peer.save(str(path))
    if model.is_refused:
        return Row(name, (refusal(lambda: [str(bertworks.load(path).encode(TEXTS).shape)]), *[Cell("–")] * 4))
    theirs = peer.encode(TEXTS, prompt_name=model.prompt_name)
    cells = [
        measure(lambda: _vectors(model, peer, path, TEXTS)),
        Cell("–") if model.is_static else measure(lambda: _vectors(model, peer, path, LONG_TEXTS)),
        measure(lambda: _finetuning(path, folder)),
        Cell("–") if model.is_static else measure(lambda: _export(model, theirs, path, folder)),
        measure(lambda: _serving(model, theirs, path)),
    ]
    return Row(name, tuple(cells))


def _build(model: SentenceModel, base: Path) -> Any:
    if model.is_static:
        tokenizer = make_tokenizer("BertTokenizer")
        weights = torch.randn(len(tokenizer), SIZE, generator=torch.Generator().manual_seed(0))
        first = modules.StaticEmbedding(tokenizer, embedding_weights=weights)
    else:
        first = modules.Transformer(str(base), **{"max_seq_length": MAX_LENGTH, **model.encoder_arguments})
    if model.is_router:
        routes = {route: [first, modules.Pooling(SIZE)] for route in ("query", "document")}
        return SentenceTransformer(modules=[modules.Router(routes)], device="cpu").eval()
    return SentenceTransformer(modules=[first, *model.build()], device="cpu", **model.arguments).eval()


def _vectors(model: SentenceModel, peer: Any, path: Path, texts: list[str]) -> Iterator[Part]:
    """Compare the vectors of texts; those longer than the model reads are truncated on both sides."""
    ours = bertworks.load(path, precision="fp32")
    prompt = PROMPTS[model.prompt_name] if model.prompt_name else ""
    vectors = ours.encode([prompt + text for text in texts], truncate=True)
    yield largest("", [(vectors, peer.encode(texts, prompt_name=model.prompt_name))])


def _finetuning(path: Path, folder: Path) -> Iterator[Part]:
    """Fine-tune the model here, and compare its vectors with those of sentence-transformers, which loads the folder."""
    labelled = folder / "labelled.tsv"
    rows = [f"{text}\t{'ab'[index % 2]}" for index, text in enumerate(TEXTS * 2)]
    labelled.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    settings = {"max_restarts": 0}
    bertworks.finetune(
        "classify", model=path, train=labelled, output=folder / "run", epochs=1, learning_rate=1e-3, precision="fp32",
        settings=settings, on_event=lambda event: None,
    )  # fmt: skip
    tuned = folder / "run" / "model"
    ours = bertworks.load(tuned, precision="fp32").encode(TEXTS, truncate=True)
    yield largest("", [(ours, SentenceTransformer(str(tuned), device="cpu").encode(TEXTS))])


def _export(model: SentenceModel, theirs: Any, path: Path, folder: Path) -> Iterator[Part]:
    bertworks.export(path, "onnx", folder / "onnx")
    prompt = PROMPTS[model.prompt_name] if model.prompt_name else ""
    vectors = bertworks.load(folder / "onnx").encode([prompt + text for text in TEXTS], truncate=True)
    yield largest("ONNX", [(vectors, theirs)], 1e-4)


def _serving(model: SentenceModel, theirs: Any, path: Path) -> Iterator[Part]:
    if model.prompt_name:
        body = {"inputs": TEXTS, "normalize": False, "truncate": True, "prompt_name": model.prompt_name}
        yield largest("", [(serve_once(path, "/embed", body), theirs)])
        return
    answer = serve_once(path, "/v1/models/model/embed", {"inputs": TEXTS, "truncate": True})
    yield largest("", [(answer["vectors"], theirs)])


def measure_reranker(base: Path, folder: Path) -> Row:
    """Return the row of a CrossEncoder: scores of pairs in Python and over HTTP."""
    torch.manual_seed(0)
    peer = CrossEncoder(str(base), num_labels=1, device="cpu")
    peer.save_pretrained(str(folder / "model"))
    pairs = [(LINES[0], text) for text in TEXTS]
    theirs = peer.predict(pairs, activation_fn=torch.nn.Identity())

    def scores() -> Iterator[Part]:
        predictions = bertworks.load(folder / "model", precision="fp32").predict(pairs)
        yield largest("scores", [([prediction.value for prediction in predictions], theirs)])

    def reranking() -> Iterator[Part]:
        body = {"query": LINES[0], "texts": TEXTS, "raw_scores": True}
        ranks = serve_once(folder / "model", "/rerank", body)
        by_index = {rank["index"]: rank["score"] for rank in ranks}
        yield largest("`/rerank`", [([by_index[index] for index in range(len(TEXTS))], theirs)])

    return Row("`CrossEncoder`, one label", (measure(scores), *[Cell("–")] * 3, measure(reranking)))
