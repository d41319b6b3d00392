"""Pretrain a BERT: a recipe and a prepared corpus in, a run folder out; interrupted, it continues exactly."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks.disk import write_json, write_text
from bertworks.encoders.bert import Bert
from bertworks.encoders.families import ENCODERS
from bertworks.errors import BertworksError, FolderError, SettingsError
from bertworks.examples.corpus import Corpus
from bertworks.examples.shard import map_shard
from bertworks.examples.text_shard import read_text
from bertworks.models.folder import write_folder
from bertworks.models.names import joined, to_theirs
from bertworks.objectives.heads import MASKED_NAMES, PAIR_NAMES
from bertworks.objectives.pretraining import Pretraining
from bertworks.runs.machine import available_bytes, machine
from bertworks.runs.recipe import Recipe, as_toml, seconds_of
from bertworks.runs.rows import Rows
from bertworks.tasks.fill import Filler
from bertworks.training.checkpoint import Checkpoint, keep_last, last_good, load_checkpoint, save_checkpoint
from bertworks.training.evaluation import evaluate
from bertworks.training.health import Health, Warning  # noqa: A004
from bertworks.training.loop import Standing, Step, Training, train
from bertworks.training.memory import fitting_micro_batch, step_bytes
from bertworks.training.optimizer import PaperAdam
from bertworks.training.pace import ByClock, ByStep, Moment, Pace
from bertworks.training.records import HeldOutRecord, Records, SampleRecord, StepRecord, read_records
from bertworks.training.report import write_report
from bertworks.vocabulary.tokenizer import Encoding


@dataclass(frozen=True, slots=True)
class PretrainRequest:
    """What to run. `stop_after` ends the run after so many steps in this call (for tests and proofs)."""

    recipe: Recipe
    corpus: Path
    out: Path
    vocabulary: str | None = None
    stop_after: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """Something to tell a person: a step, held-out scores, a saved checkpoint, a warning or a note."""

    step: Step | None = None
    held_out: HeldOutRecord | None = None
    saved: Path | None = None
    warning: str = ""
    note: str = ""


@dataclass(slots=True)
class _Run:
    """What a run holds while it goes."""

    request: PretrainRequest
    corpus: Corpus
    module: Pretraining
    optimizer: PaperAdam
    rows: Rows
    health: Health
    facts: dict[str, Any]
    blanks: tuple[str, ...]
    standing: Standing = field(default_factory=Standing)
    best: tuple[float, str] = (math.inf, "")
    warnings: list[str] = field(default_factory=list)


def pretrain(request: PretrainRequest) -> Iterator[Told]:
    """Run, or continue, and yield what happens. At the end the run folder holds the model in `model/`."""
    run, notes = _open(request)
    yield from (Told(note=note) for note in notes)
    checkpoint, damaged = last_good(request.out / "checkpoints")
    yield from (Told(warning=text) for text in damaged)
    pace = _pace(request)
    if checkpoint is not None:
        _resume(run, checkpoint)
        yield Told(note=f"continuing after step {run.standing.step:,}")
    with Records.open(request.out, run.standing.step if checkpoint else None) as records, _asked_to_stop() as stop:
        yield from _steps(run, records, pace, stop)


def _open(request: PretrainRequest) -> tuple[_Run, list[str]]:
    """Open the corpus, build the model, check that it all fits, and write the recipe down."""
    recipe = request.recipe
    corpus = Corpus.open(request.corpus, request.vocabulary)
    sizes = recipe.model.sizes(corpus.tokenizer.size)
    recipe, notes = _fitted(recipe, sizes)
    generator = torch.Generator().manual_seed(recipe.seed)
    module = Pretraining(Bert(sizes, generator), recipe.objective, generator)
    if recipe.compile:
        for layer in module.encoder.layers:
            layer.compile(dynamic=False)
    entropy = unigram_entropy(corpus)
    facts = {
        "ln_v": math.log(corpus.tokenizer.size),
        "unigram_entropy": entropy,
        "machine": machine(),
        "corpus": _described(corpus),
        "started": _now(),
    }
    notes.append(
        f"a loss of {facts['ln_v']:.2f} is guessing, {entropy:.2f} is knowing only how frequent pieces are; "
        f"{sum(p.numel() for p in module.parameters()):,} parameters"
    )
    _write_down(request, recipe)
    rows = Rows(corpus, recipe)
    optimizer = PaperAdam(module, recipe.optimizer)
    blanks = _blanks(corpus, 6)
    return _Run(replace(request, recipe=recipe), corpus, module, optimizer, rows, Health(entropy), facts, blanks), notes


def _fitted(recipe: Recipe, sizes: Any) -> tuple[Recipe, list[str]]:
    """Choose a micro-batch that fits into memory; the effective batch stays as it is."""
    longest = max(phase.length for phase in recipe.phases)
    available = available_bytes()
    wanted = recipe.micro_batch or recipe.batch
    found = fitting_micro_batch(sizes, wanted, longest, int(0.8 * available))
    if found is None:
        raise SettingsError(
            f"one example of length {longest} needs about {step_bytes(sizes, 1, longest) / 2**30:.1f} GiB, and "
            f"{available / 2**30:.1f} GiB are free; choose a smaller model or length"
        )
    notes = [f"a step takes about {step_bytes(sizes, found, longest) / 2**30:.2f} GiB"]
    if found < wanted:
        notes.append(f"micro-batches of {found} instead of {wanted}, so that it fits; the batch stays {recipe.batch}")
    return replace(recipe, micro_batch=found), notes


def _write_down(request: PretrainRequest, recipe: Recipe) -> None:
    """Write the resolved recipe, or check that the folder's is the same."""
    path = request.out / "recipe.toml"
    text = as_toml(replace(recipe, micro_batch=request.recipe.micro_batch))
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise FolderError(
            f"{request.out} holds a run of another recipe (see {path}); choose another folder with --out, or start "
            f"with that recipe to continue it"
        )
    if not path.exists() and request.out.exists() and any(request.out.iterdir()):
        raise FolderError(f"{request.out} already holds something else; choose an empty or new folder with --out")
    write_text(path, text)


def recipe_hash(recipe: Recipe, corpus: Corpus) -> str:
    """Return what must be equal for a checkpoint to fit: the recipe and the pieces it is trained on."""
    told = [asdict(replace(recipe, micro_batch=0, save_every=0)), corpus.pieces_manifest["shards"]]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _resume(run: _Run, checkpoint: Checkpoint) -> None:
    """Put the run where the checkpoint left it."""
    if checkpoint.recipe != recipe_hash(run.request.recipe, run.corpus):
        raise FolderError(
            f"{checkpoint.folder} was made with another recipe or corpus; choose another folder with --out, or use "
            f"the recipe and corpus of that run"
        )
    run.module.load_state_dict(dict(checkpoint.model))
    run.optimizer.restore(checkpoint.optimizer, checkpoint.standing.step)
    run.standing = checkpoint.standing
    for record in read_records(run.request.out):
        if isinstance(record, HeldOutRecord) and record.step <= run.standing.step:
            run.best = min(run.best, (record.losses["masked"], f"step-{record.step:08d}"))


def _pace(request: PretrainRequest) -> Pace:
    """Return the pace of the recipe; one by the clock follows what was recorded, as far as that goes."""
    recipe = request.recipe
    budget = seconds_of(recipe.budget)
    if budget is None:
        return ByStep(tuple(phase.steps for phase in recipe.phases), recipe.warmup, recipe.rate)
    labels = {str(phase.length): number for number, phase in enumerate(recipe.phases)}
    recorded = {
        record.step - 1: Moment(labels[record.phase], record.rate)
        for record in read_records(request.out)
        if isinstance(record, StepRecord)
    }
    shares = tuple(phase.share for phase in recipe.phases)
    return ByClock(budget, shares, recipe.warmup_rate, recipe.rate, recorded)


def _steps(run: _Run, records: Records, pace: Pace, stop: list[str]) -> Iterator[Told]:
    recipe = run.request.recipe
    training = Training(run.module, run.module, run.optimizer, pace, run.rows.draw, recipe.seed)
    first = run.standing.step
    if first == 0:  # what an untrained model says, to compare with
        yield from _evaluated(run, records, 0)
    for step in train(training, run.standing):
        phase = str(recipe.phases[step.phase].length)
        records.add(StepRecord(step.number, phase, step.losses, step.rate, step.seconds, step.pieces, step.norm))
        yield Told(step=step)
        yield from _looked_after(run, run.health.step(step))
        if step.number % recipe.evaluate_every == 0:
            yield from _evaluated(run, records, step.phase)
        leaves = bool(stop) or run.request.stop_after == step.number - first
        if leaves or step.number % recipe.save_every == 0:
            yield _saved(run, records)
        if leaves:
            yield Told(note=stop[0] if stop else f"stopped after {step.number - first} steps, as asked")
            return
    if run.standing.step % recipe.evaluate_every or run.standing.step == first:
        yield from _evaluated(run, records, len(recipe.phases) - 1)
    yield _saved(run, records)
    yield from _finished(run)


def _evaluated(run: _Run, records: Records, phase: int) -> Iterator[Told]:
    """Measure the held-out split, and remember which checkpoint is the best."""
    scores = evaluate(run.module, run.rows.held_out(phase))
    length = str(run.request.recipe.phases[phase].length)
    record = HeldOutRecord(
        run.standing.step,
        length,
        scores.losses,
        math.exp(min(scores.losses["masked"], 50.0)),
        scores.accuracies["masked"],
        scores.accuracies.get("pair"),
    )
    records.add(record)
    for sample in _samples(run):
        records.add(sample)
    run.best = min(run.best, (scores.losses["masked"], f"step-{run.standing.step:08d}"))
    yield Told(held_out=record)
    yield from _looked_after(run, run.health.held_out(scores.losses["masked"], run.standing.step))


def _samples(run: _Run) -> Iterator[SampleRecord]:
    """Yield blanks of held-out text as the model fills them now: the first place hidden in each of a few examples."""
    tokenizer = run.corpus.tokenizer
    filler = Filler(run.module.encoder, run.module.masked, tokenizer)
    was_training = run.module.training
    for text in run.blanks:
        found = filler.fill(text)
        blanks = tuple(tuple((one.piece, one.probability) for one in blank) for blank in found.blanks)
        yield SampleRecord(run.standing.step, text, blanks)
    run.module.train(was_training)


def _blanks(corpus: Corpus, count: int) -> tuple[str, ...]:
    """Return sentences of held-out documents with one whole word each replaced by [MASK], always the same ones."""
    tokenizer = corpus.tokenizer
    mask = tokenizer.pieces[tokenizer.specials.mask]
    found: list[str] = []
    for shard in corpus.manifest["shards"]:
        for document, split in read_text(corpus.folder / shard["file"]):
            for sentence in document.sentences if split == "held-out" else ():
                encoding = tokenizer.encode(sentence.strip())
                whole = _whole_pieces(encoding)
                if 8 <= len(encoding) <= 40 and whole:
                    start, end = whole[len(whole) // 2]
                    found.append(f"{sentence[:start]}{mask}{sentence[end:]}".strip())
                    break  # one of a document
            if len(found) == count:
                return tuple(found)
    return tuple(found)


def _whole_pieces(encoding: Encoding) -> list[tuple[int, int]]:
    """Return the offsets of words that are a single piece of at least four letters, or one ideograph."""
    words = Counter(word for word in encoding.words if word is not None)
    return [
        offset
        for offset, word, piece in zip(encoding.offsets, encoding.words, encoding.pieces, strict=True)
        if offset is not None
        and word is not None
        and words[word] == 1
        and piece.isalpha()
        and (len(piece) >= 4 or not piece.isascii())
    ]


def _finished(run: _Run) -> Iterator[Told]:
    """Write the model with the best held-out loss, and the report."""
    best = run.request.out / "checkpoints" / run.best[1]
    if best.exists() and run.best[1] != f"step-{run.standing.step:08d}":
        run.module.load_state_dict(dict(load_checkpoint(best).model))
        yield Told(note=f"the model is that of {run.best[1]}, which had the best held-out loss")
    recipe = run.request.recipe
    sizes = run.module.encoder.sizes
    told = {"objective": recipe.objective, "recipe": asdict(recipe), "scores": {"held_out_loss": run.best[0]}}
    names = joined({"encoder": ENCODERS["bert"].names_of(sizes), "masked": MASKED_NAMES, "pair": PAIR_NAMES})
    if run.module.pair is None:
        names = {ours: theirs for ours, theirs in names.items() if not ours.startswith("pair.")}
    config = ENCODERS["bert"].config_of(sizes, ["BertForPreTraining"])
    folder = run.request.out / "model"
    write_folder(folder, config, to_theirs(run.module.state_dict(), names), run.corpus.tokenizer, told)
    run.facts["finished"] = _now()
    write_json(run.request.out / "run.json", {**run.facts, "warnings": run.warnings})
    yield Told(note=f"model: {folder}")
    yield Told(note=f"report: {write_report(run.request.out)}")


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _looked_after(run: _Run, warning: Warning | None) -> Iterator[Told]:
    if warning is None:
        return
    run.warnings.append(warning.text)
    yield Told(warning=warning.text)
    if warning.stops:
        raise BertworksError(warning.text)


def _saved(run: _Run, records: Records) -> Told:
    records.sync()
    folder = run.request.out / "checkpoints"
    digest = recipe_hash(run.request.recipe, run.corpus)
    path = save_checkpoint(folder, run.module.state_dict(), run.optimizer.state(), run.standing, digest)
    keep_last(folder, 2, {run.best[1]})
    write_json(run.request.out / "run.json", {**run.facts, "warnings": run.warnings})
    return Told(saved=path)


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[list[str]]:
    """Turn SIGTERM and Ctrl-C into a wish that is granted after the step: save, and leave."""
    wish: list[str] = []
    before = {}

    def remember(number: int, frame: object) -> None:
        if wish:
            raise KeyboardInterrupt
        wish.append("asked to stop: saved; the same command continues")

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError):  # not in the main thread: then somebody else handles signals
            before[number] = signal.signal(number, remember)
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def unigram_entropy(corpus: Corpus, most: int = 20_000_000) -> float:
    """Return the entropy of the pieces of a corpus in nats, from at most so many of them."""
    counts = np.zeros(corpus.tokenizer.size, dtype=np.int64)
    for shard in corpus.pieces_manifest["shards"]:
        counts += np.bincount(map_shard(corpus.pieces_folder / shard["file"]).ids, minlength=len(counts))
        if counts.sum() > most:
            break
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _described(corpus: Corpus) -> dict[str, Any]:
    told = corpus.pieces_manifest
    return {
        "documents": corpus.manifest["documents"],
        "sentences": corpus.manifest["sentences"],
        "pieces": told["counts"]["pieces"],
        "vocabulary": f"{told['kind']}, {told['size']:,} pieces",
    }
