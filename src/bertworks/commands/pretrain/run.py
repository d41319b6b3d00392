"""Pretrain a BERT: a recipe and a prepared corpus in, a run folder out; interrupted, it continues exactly.

Started by torchrun, many processes share each batch and what is measured; the first alone tells, and writes all but
the parts of a model that is spread over them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import nn

from bertworks.commands.pretrain.batches import Rows
from bertworks.commands.pretrain.build import build, start_of, write_model
from bertworks.commands.pretrain.consistency import agree, facts_to_agree_on
from bertworks.commands.pretrain.micro_batch import fitted
from bertworks.commands.pretrain.recipe import Recipe, as_toml, seconds_of, write_down
from bertworks.commands.pretrain.samples import blanks_of, filled_blanks
from bertworks.commands.run_facts import changes, facts_of, now, piece_counts
from bertworks.corpus.corpus import Corpus
from bertworks.disk import read_json, write_json
from bertworks.errors import BertworksError, FolderError, MissingPartError
from bertworks.models.provenance import folders_of, hashes_of
from bertworks.objectives.registry import Objective
from bertworks.parallel.machine import peak_bytes
from bertworks.records import EventsWriter, HeldOutRecord, Records, StepRecord, read_records
from bertworks.reports.pretrain import write_report
from bertworks.sampling.batch import Batch
from bertworks.training.checkpoint import Checkpoint, checkpoint_name, load_checkpoint
from bertworks.training.checkpoint_writer import Saver, newest
from bertworks.training.devices import Precision, device_of
from bertworks.training.evaluation import evaluate
from bertworks.training.health import Health, Warning  # noqa: A004
from bertworks.training.interrupt import asked_to_stop
from bertworks.training.loop import Draw, Standing, Step, Training, num_processes, train
from bertworks.training.optimizer import PaperAdam
from bertworks.training.process_group import any_of, exchange, is_first, joined, shared
from bertworks.training.schedule import ByClock, ByStep, Moment, Pace
from bertworks.training.sharding import gathered, is_sharded, load_own, shard
from bertworks.training.stateful import Carrying


class Witness(Protocol):
    """Somebody who sees every batch and what each step made of the parameters: a proof needs one."""

    def drawn(self, batches: Sequence[Batch]) -> None: ...

    def stepped(self, number: int, module: nn.Module, optimizer: PaperAdam) -> None: ...


@dataclass(frozen=True, slots=True)
class PretrainRequest:
    """What to run. `start` is an existing model to go on from: a folder, or a name on the hub.

    `shard` spreads the model over the processes, instead of giving each the whole. `stop_after` ends the run after so
    many steps in this call (for tests and proofs).
    """

    recipe: Recipe
    corpus: Path
    out: Path
    vocabulary: str | None = None
    start: str | None = None
    device: str = "auto"
    shard: bool = False
    stop_after: int | None = None
    witness: Witness | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """Something to tell a person: a step, held-out scores, a saved checkpoint, a warning or a note.

    With a step come the seconds that are left, and the losses to compare with: of knowing how frequent pieces are, and
    of guessing.
    """

    step: Step | None = None
    seconds_left: float = 0.0
    compared: tuple[float, float] = (math.nan, math.nan)
    held_out: HeldOutRecord | None = None
    saved: Path | None = None
    warning: str = ""
    note: str = ""


class _Best(NamedTuple):
    """The best held-out scores so far; the smaller one is better. Losses of different lengths do not compare, so the
    later phase goes first."""

    minus_phase: int = 1
    loss: float = math.inf
    step: int = 0

    @property
    def name(self) -> str:
        return f"step-{self.step:08d}"


@dataclass(slots=True)
class _Run:
    """What a run holds while it goes."""

    request: PretrainRequest
    corpus: Corpus
    module: Objective
    optimizer: PaperAdam
    rows: Rows
    precision: Precision
    health: Health
    facts: dict[str, Any]
    digest: str  # what must be equal for a checkpoint to fit
    blanks: tuple[str, ...]
    standing: Standing = field(default_factory=Standing)
    carrying: Carrying = field(default_factory=Carrying)
    best: _Best = field(default_factory=_Best)
    measured: HeldOutRecord | None = None  # the last one
    num_saved_steps: int = 0  # the step of the last checkpoint
    saver: Saver | None = None


def pretrain(request: PretrainRequest) -> Iterator[Told]:
    """Run, or continue, and yield what happens. At the end the run folder holds the model in `model/`.

    Under torchrun every process has to call it, and only the first one is told anything.
    """
    with joined():
        for told in _pretrain(request):
            if is_first():
                yield told


def _pretrain(request: PretrainRequest) -> Iterator[Told]:
    run, notes = _open(request)
    yield from (Told(note=note) for note in notes)
    checkpoint, damaged = newest(request.out / "checkpoints", run.module)
    yield from (Told(warning=text) for text in damaged)
    pace = _pace(request)
    if checkpoint is not None:
        _resume(run, checkpoint)
        yield Told(note=f"continuing after step {run.standing.step:,}")
    exchange("")  # all must have read what is now cut and written
    with contextlib.ExitStack() as stack:
        records = stack.enter_context(_records(run, checkpoint)) if is_first() else None
        run.saver = stack.enter_context(_saver(run))
        yield from _mirrored(run, records, checkpoint)
        yield from _steps(run, records, pace, stack.enter_context(asked_to_stop()))


def _saver(run: _Run) -> Saver:
    return Saver(run.request.out / "checkpoints", run.module, run.digest, run.precision.device.type != "cpu")


def _records(run: _Run, checkpoint: Checkpoint | None) -> Records:
    write_json(run.request.out / "run.json", run.facts)
    return Records.open(run.request.out, run.standing.step if checkpoint else None)


def _mirrored(run: _Run, records: Records | None, checkpoint: Checkpoint | None) -> Iterator[Told]:
    """Have TensorBoard's events written besides, where it is installed."""
    if records is None:
        return
    try:
        records.mirror(EventsWriter(run.request.out, run.standing.step if checkpoint else None))
    except MissingPartError as error:
        yield Told(note=f"no TensorBoard events: {error}")


def _open(request: PretrainRequest) -> tuple[_Run, list[str]]:
    """Open the corpus, build the model, check that it all fits, and write the recipe down."""
    corpus = Corpus.open(request.corpus, request.vocabulary)
    device = device_of(request.device)
    precision = Precision(request.recipe.precision, device)
    start = start_of(request.recipe, corpus.tokenizer, request.start)
    facts_file = request.out / "run.json"
    before = read_json(facts_file, "the facts of a run") if facts_file.exists() else {}
    num_shards = num_processes() if request.shard else 1
    agree(facts_to_agree_on(request.recipe, corpus, start.digest, {"shard": request.shard, "device": device.type}))
    recipe, notes = fitted(request.recipe, start.sizes, before.get("micro_batch", 0), device, num_shards)
    rows = Rows(corpus, recipe)
    counts = piece_counts(corpus)
    module, about = build(start, recipe, counts)
    module.to(device)
    if num_shards > 1:
        shard(module, module.encoder.layers, precision)
    facts = facts_of(corpus, counts, recipe.micro_batch, before) | folders_of(request.start, corpus.folder)
    facts["sharded"] = num_shards > 1
    notes += about
    notes += changes(before, facts)
    notes.append(
        f"a loss of {facts['ln_v']:.2f} is guessing, {facts['unigram_entropy']:.2f} is knowing only how frequent "
        f"pieces are; {sum(p.numel() for p in module.parameters()):,} parameters"
    )
    if is_first():
        write_down(request.out, as_toml(request.recipe), (".recipe.toml.*.part",))
    return _Run(
        replace(request, recipe=recipe),
        corpus,
        module,
        PaperAdam(module, recipe.optimizer, recipe.depths, start.sizes.num_layers),
        rows,
        precision,
        Health(facts["unigram_entropy"], facts["ln_v"]),
        facts,
        recipe_hash(recipe, corpus, start.digest),
        blanks_of(corpus, 6),
    ), notes


def recipe_hash(recipe: Recipe, corpus: Corpus, start: str = "") -> str:
    """Return what must be equal for a checkpoint to fit: the recipe, the pieces it learns from, what it began with."""
    free = ("micro_batch", "save_every", "recompute")  # what may change: it does not change the outcome
    kept = {name: value for name, value in asdict(recipe).items() if name not in free}
    told = [kept, corpus.pieces_manifest["shards"], start]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _resume(run: _Run, checkpoint: Checkpoint) -> None:
    """Put the run where the checkpoint left it."""
    if checkpoint.recipe != run.digest:
        raise FolderError(
            f"{checkpoint.folder} was made with another recipe or corpus; choose another folder with --out, or use "
            f"the recipe and corpus of that run"
        )
    load_own(run.module, checkpoint.model)
    run.standing = checkpoint.standing
    run.optimizer.restore(checkpoint.optimizer, run.standing.step - run.standing.num_overflowed)
    run.carrying.restore(checkpoint.optimizer)
    run.num_saved_steps = run.standing.step
    for record in read_records(run.request.out):
        if isinstance(record, HeldOutRecord) and record.step <= run.standing.step:
            _remember(run, record)


def _remember(run: _Run, record: HeldOutRecord) -> None:
    """Keep in mind what was measured, and whether it is the best. An untrained model is never the best."""
    run.measured = record
    loss = record.loss
    if record.step and math.isfinite(loss):
        run.best = min(run.best, _Best(-_phase_numbers(run.request.recipe)[record.phase], loss, record.step))


def _phase_numbers(recipe: Recipe) -> dict[str, int]:
    """Return the number of each phase by the name it has in records."""
    return {str(phase.length): number for number, phase in enumerate(recipe.phases)}


def _pace(request: PretrainRequest) -> Pace:
    """Return the pace of the recipe; one by the clock follows what was recorded, as far as that goes."""
    recipe = request.recipe
    budget = seconds_of(recipe.budget)
    if budget is None:
        return ByStep(tuple(phase.steps for phase in recipe.phases), recipe.warmup, recipe.rate, recipe.schedule)
    numbers = _phase_numbers(recipe)
    recorded = {
        record.step - 1: Moment(numbers[record.phase], record.rate)
        for record in read_records(request.out)
        if isinstance(record, StepRecord)
    }
    shares = tuple(phase.share for phase in recipe.phases)
    return ByClock(budget, shares, recipe.warmup_rate, recipe.rate, recorded, recipe.schedule)


def _steps(run: _Run, records: Records | None, pace: Pace, stop: list[str]) -> Iterator[Told]:
    recipe, witness, first = run.request.recipe, run.request.witness, run.standing.step
    assert run.saver is not None
    draw = _draw(run)
    trainable = shared(run.module, lambda: draw(0, 0)[0])
    training = Training(run.module, trainable, run.optimizer, pace, draw, recipe.seed, run.precision, run.carrying)
    if first == 0:  # what an untrained model says, to compare with
        yield from _evaluated(run, records, 0)
    for step in train(training, run.standing):
        if records is not None:
            records.add(_record(step, recipe))
        if witness is not None:
            witness.stepped(step.number, run.module, run.optimizer)
        yield Told(step, _seconds_left(recipe, step), (run.facts["unigram_entropy"], run.facts["ln_v"]))
        yield from _looked_after(run, run.health.step(step))
        if step.number % recipe.evaluate_every == 0:
            yield from _evaluated(run, records, step.phase)
        leaves = any_of(bool(stop)) or run.request.stop_after == step.number - first
        if leaves or step.number % recipe.save_every == 0 or run.best.step == step.number:
            yield from _saved(run, records)
        if leaves:
            yield from (Told(saved=path) for path in run.saver.finish())
            yield Told(note=stop[0] if stop else f"stopped after {step.number - first} steps, as asked")
            if records is not None:
                yield Told(note=f"report so far: {write_report(run.request.out)}")
            return
    if run.measured is None or run.measured.step != run.standing.step:
        yield from _evaluated(run, records, len(recipe.phases) - 1)
    if run.num_saved_steps != run.standing.step:
        yield from _saved(run, records)
    yield from (Told(saved=path) for path in run.saver.finish())
    if is_first():
        yield from _finished(run)


def _seconds_left(recipe: Recipe, step: Step) -> float:
    """Return how long the steps that are left will take, if they take as long as those before."""
    budget = seconds_of(recipe.budget)
    if budget is not None:
        return max(0.0, budget - step.seconds)
    return step.seconds / step.number * (sum(phase.steps for phase in recipe.phases) - step.number)


def _draw(run: _Run) -> Draw:
    """Return what draws the rows of a step, before the eyes of the witness if there is one."""
    witness = run.request.witness

    def draw(phase: int, step: int) -> Sequence[Batch]:
        batches = run.rows.draw(phase, step)
        if witness is not None:
            witness.drawn(batches)
        return [batch.to(run.precision.device) for batch in batches]

    return draw


def _record(step: Step, recipe: Recipe) -> StepRecord:
    phase = str(recipe.phases[step.phase].length)
    return StepRecord(step.number, phase, step.losses, step.rate, step.seconds, step.pieces, step.norm)


def _evaluated(run: _Run, records: Records | None, phase: int) -> Iterator[Told]:
    """Measure the held-out split, each process some of it, and remember which checkpoint is the best."""
    batches, num_counted = run.rows.held_out(phase)
    scores = evaluate(run.module, batches, run.precision, num_counted)
    length = str(run.request.recipe.phases[phase].length)
    record = HeldOutRecord(
        run.standing.step,
        length,
        scores.losses,
        math.exp(min(scores.loss, 50.0)),
        scores.accuracy,
        scores.accuracies.get("pair"),
    )
    with gathered(run.module, run.precision):
        samples = list(filled_blanks(run.module, run.corpus.tokenizer, run.blanks, run.standing.step))
    if records is not None:
        records.add(record)
        for sample in samples:
            records.add(sample)
    _remember(run, record)
    yield Told(held_out=record)
    yield from _looked_after(run, run.health.held_out(scores.loss, run.standing.step))


def _finished(run: _Run) -> Iterator[Told]:
    """Write the model with the best held-out loss, and the report."""
    assert run.measured is not None
    loss, tensors, folder = run.measured.loss, None, run.request.out / "model"
    checkpoints = run.request.out / "checkpoints"
    if run.best.step not in (0, run.measured.step):
        try:
            tensors = load_checkpoint(checkpoints / run.best.name).model
        except FolderError as error:
            yield from _looked_after(run, Warning(f"{error}; the model is that of the last step"))
        else:
            loss = run.best.loss
            yield Told(note=f"the model is that of {run.best.name}, which had the best held-out loss")
    if tensors is None and is_sharded(run.module):  # no process has it whole, but the disk
        tensors = load_checkpoint(checkpoints / checkpoint_name(run.standing.step)).model
    recipe = run.request.recipe
    told = {"objective": recipe.objective, "recipe": asdict(recipe), "scores": {"held_out_loss": loss}}
    told |= hashes_of(run.request.start, run.corpus.folder)
    write_model(folder, run.module, run.corpus.tokenizer, told, tensors)
    run.facts["finished"] = now()
    write_json(run.request.out / "run.json", run.facts)
    yield Told(note=f"model: {folder}")
    yield Told(note=f"report: {write_report(run.request.out)}")


def _looked_after(run: _Run, warning: Warning | None) -> Iterator[Told]:
    if warning is None:
        return
    run.facts["warnings"].append(warning.text)
    yield Told(warning=warning.text)
    if warning.stops:
        raise BertworksError(warning.text)


def _saved(run: _Run, records: Records | None) -> Iterator[Told]:
    run.num_saved_steps = run.standing.step
    run.facts["peak_gib"] = [float(one) for one in exchange(f"{peak_bytes(run.precision.device) / 2**30:.2f}")]
    if records is not None:
        records.sync()
    assert run.saver is not None
    paths = run.saver.save(run.optimizer, run.standing, run.best.name, run.carrying.tensors())
    if records is not None:
        write_json(run.request.out / "run.json", run.facts)
    yield from (Told(saved=path) for path in paths)
