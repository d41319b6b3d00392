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

from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.build import build, resolve_model_init, write_model
from bertworks.commands.pretrain.consistency import check_consistency, run_fingerprint
from bertworks.commands.pretrain.micro_batch import fit_recipe_to_memory
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.samples import fill_masked_sentences, sample_masked_sentences
from bertworks.commands.run_facts import collect_run_info, count_tokens, describe_changes, now
from bertworks.corpus.corpus import Corpus
from bertworks.disk import read_json, write_json
from bertworks.errors import BertworksError, FolderError, MissingDependencyError
from bertworks.models.provenance import folders_of, hashes_of
from bertworks.objectives.registry import Objective
from bertworks.parallel.machine import peak_bytes
from bertworks.records import EventsWriter, HeldOutRecord, Records, StepRecord, read_records
from bertworks.reports.pretrain import write_report
from bertworks.sampling.batch import Batch
from bertworks.settings import parse_duration, to_toml, write_recipe
from bertworks.training.checkpoint import Checkpoint, checkpoint_name, load_checkpoint
from bertworks.training.checkpoint_writer import CheckpointWriter, load_latest_for_module
from bertworks.training.devices import Precision, device_of
from bertworks.training.evaluation import evaluate
from bertworks.training.health import HealthMonitor, HealthWarning
from bertworks.training.interrupt import catch_stop_signals
from bertworks.training.loop import GetBatches, Step, Training, TrainState, train, world_size
from bertworks.training.optimizer import BertAdam
from bertworks.training.process_group import all_gather, any_process, is_main_process, process_group, wrap_ddp
from bertworks.training.schedule import Schedule, ScheduleStep, StepSchedule, TimeSchedule
from bertworks.training.sharding import gather_parameters, is_sharded, load_local_state_dict, shard
from bertworks.training.stateful import StatefulBatches


class StepObserver(Protocol):
    """Somebody who sees every batch and what each step made of the parameters: a proof needs one."""

    def on_batches(self, batches: Sequence[Batch]) -> None: ...

    def on_step(self, step: int, module: nn.Module, optimizer: BertAdam) -> None: ...


@dataclass(frozen=True, slots=True)
class PretrainRequest:
    """What to run. `start` is an existing model to go on from: a folder, or a name on the hub.

    `shard` spreads the model over the processes, instead of giving each the whole. `stop_after` ends the run after so
    many steps in this call (for tests and proofs).
    """

    recipe: PretrainRecipe
    corpus: Path
    output: Path
    vocabulary: str | None = None
    init_model: str | None = None
    device: str = "auto"
    shard: bool = False
    stop_after: int | None = None
    observer: StepObserver | None = None


@dataclass(frozen=True, slots=True)
class TrainEvent:
    """Something to tell a person: a step, held-out scores, a saved checkpoint, a warning or a note.

    With a step come the seconds that are left, and the losses to compare with: of knowing how frequent pieces are, and
    of guessing.
    """

    step: Step | None = None
    seconds_left: float = 0.0
    reference_losses: tuple[float, float] = (math.nan, math.nan)
    held_out: HeldOutRecord | None = None
    checkpoint_path: Path | None = None
    warning: str = ""
    note: str = ""


class _BestEvaluation(NamedTuple):
    """The best held-out scores so far; the smaller one is better. Losses of different lengths do not compare, so the
    later phase goes first."""

    minus_phase: int = 1
    loss: float = math.inf
    step: int = 0

    @property
    def name(self) -> str:
        return f"step-{self.step:08d}"


@dataclass(slots=True)
class _PretrainRun:
    """What a run holds while it goes."""

    request: PretrainRequest
    corpus: Corpus
    module: Objective
    optimizer: BertAdam
    batches: PretrainBatches
    precision: Precision
    health: HealthMonitor
    run_info: dict[str, Any]
    digest: str  # what must be equal for a checkpoint to fit
    masked_sentences: tuple[str, ...]
    train_state: TrainState = field(default_factory=TrainState)
    stateful_batches: StatefulBatches = field(default_factory=StatefulBatches)
    best: _BestEvaluation = field(default_factory=_BestEvaluation)
    last_evaluation: HeldOutRecord | None = None  # the last one
    last_saved_step: int = 0  # the step of the last checkpoint
    saver: CheckpointWriter | None = None


def pretrain(request: PretrainRequest) -> Iterator[TrainEvent]:
    """Run, or continue, and yield what happens. At the end the run folder holds the model in `model/`.

    Under torchrun every process has to call it, and only the first one is told anything.
    """
    with process_group():
        for told in _pretrain(request):
            if is_main_process():
                yield told


def _pretrain(request: PretrainRequest) -> Iterator[TrainEvent]:
    run, notes = _open(request)
    yield from (TrainEvent(note=note) for note in notes)
    checkpoint, damaged = load_latest_for_module(request.output / "checkpoints", run.module)
    yield from (TrainEvent(warning=text) for text in damaged)
    pace = _build_schedule(request)
    if checkpoint is not None:
        _resume(run, checkpoint)
        yield TrainEvent(note=f"continuing after step {run.train_state.step:,}")
    all_gather("")  # all must have read what is now cut and written
    with contextlib.ExitStack() as stack:
        records = stack.enter_context(_open_records(run, checkpoint)) if is_main_process() else None
        run.saver = stack.enter_context(_create_saver(run))
        yield from _mirror_to_tensorboard(run, records, checkpoint)
        yield from _train_steps(run, records, pace, stack.enter_context(catch_stop_signals()))


def _create_saver(run: _PretrainRun) -> CheckpointWriter:
    return CheckpointWriter(
        run.request.output / "checkpoints", run.module, run.digest, run.precision.device.type != "cpu"
    )


def _open_records(run: _PretrainRun, checkpoint: Checkpoint | None) -> Records:
    write_json(run.request.output / "run.json", run.run_info)
    return Records.open(run.request.output, run.train_state.step if checkpoint else None)


def _mirror_to_tensorboard(
    run: _PretrainRun, records: Records | None, checkpoint: Checkpoint | None
) -> Iterator[TrainEvent]:
    """Have TensorBoard's events written besides, where it is installed."""
    if records is None:
        return
    try:
        records.mirror(EventsWriter(run.request.output, run.train_state.step if checkpoint else None))
    except MissingDependencyError as error:
        yield TrainEvent(note=f"no TensorBoard events: {error}")


def _open(request: PretrainRequest) -> tuple[_PretrainRun, list[str]]:
    """Open the corpus, build the model, check that it all fits, and write the recipe down."""
    corpus = Corpus.open(request.corpus, request.vocabulary)
    device = device_of(request.device)
    precision = Precision(request.recipe.precision, device)
    start = resolve_model_init(request.recipe, corpus.tokenizer, request.init_model)
    facts_file = request.output / "run.json"
    before = read_json(facts_file, "the facts of a run") if facts_file.exists() else {}
    num_shards = world_size() if request.shard else 1
    check_consistency(
        run_fingerprint(request.recipe, corpus, start.digest, {"shard": request.shard, "device": device.type})
    )
    recipe, notes = fit_recipe_to_memory(request.recipe, start.config, before.get("micro_batch", 0), device, num_shards)
    rows = PretrainBatches(corpus, recipe)
    counts = count_tokens(corpus)
    module, about = build(start, recipe, counts)
    module.to(device)
    if num_shards > 1:
        shard(module, module.encoder.layers, precision)
    facts = collect_run_info(corpus, counts, recipe.micro_batch_size, before) | folders_of(
        request.init_model, corpus.folder
    )
    facts["sharded"] = num_shards > 1
    notes += about
    notes += describe_changes(before, facts)
    notes.append(
        f"a loss of {facts['ln_v']:.2f} is guessing, {facts['unigram_entropy']:.2f} is knowing only how frequent "
        f"pieces are; {sum(p.numel() for p in module.parameters()):,} parameters"
    )
    if is_main_process():
        write_recipe(request.output, to_toml(request.recipe), (".recipe.toml.*.part",))
    return _PretrainRun(
        replace(request, recipe=recipe),
        corpus,
        module,
        BertAdam(module, recipe.optimizer, recipe.layerwise, start.config.num_hidden_layers),
        rows,
        precision,
        HealthMonitor(facts["unigram_entropy"], facts["ln_v"]),
        facts,
        recipe_hash(recipe, corpus, start.digest),
        sample_masked_sentences(corpus, 6),
    ), notes


def recipe_hash(recipe: PretrainRecipe, corpus: Corpus, init_digest: str = "") -> str:
    """Return what must be equal for a checkpoint to fit: the recipe, the pieces it learns from, what it began with."""
    free = ("micro_batch", "save_every", "recompute")  # what may change: it does not change the outcome
    kept = {name: value for name, value in asdict(recipe).items() if name not in free}
    told = [kept, corpus.tokens_manifest["shards"], init_digest]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _resume(run: _PretrainRun, checkpoint: Checkpoint) -> None:
    """Put the run where the checkpoint left it."""
    if checkpoint.recipe != run.digest:
        raise FolderError(
            f"{checkpoint.folder} was made with another recipe or corpus; choose another folder with --out, or use "
            f"the recipe and corpus of that run"
        )
    load_local_state_dict(run.module, checkpoint.model)
    run.train_state = checkpoint.train_state
    run.optimizer.restore(checkpoint.optimizer, run.train_state.step - run.train_state.num_overflows)
    run.stateful_batches.restore(checkpoint.optimizer)
    run.last_saved_step = run.train_state.step
    for record in read_records(run.request.output):
        if isinstance(record, HeldOutRecord) and record.step <= run.train_state.step:
            _update_best(run, record)


def _update_best(run: _PretrainRun, record: HeldOutRecord) -> None:
    """Keep in mind what was measured, and whether it is the best. An untrained model is never the best."""
    run.last_evaluation = record
    loss = record.loss
    if record.step and math.isfinite(loss):
        run.best = min(run.best, _BestEvaluation(-_phase_indices(run.request.recipe)[record.phase], loss, record.step))


def _phase_indices(recipe: PretrainRecipe) -> dict[str, int]:
    """Return the number of each phase by the name it has in records."""
    return {str(phase.max_length): number for number, phase in enumerate(recipe.phases)}


def _build_schedule(request: PretrainRequest) -> Schedule:
    """Return the pace of the recipe; one by the clock follows what was recorded, as far as that goes."""
    recipe = request.recipe
    budget = parse_duration(recipe.budget)
    if budget is None:
        return StepSchedule(
            tuple(phase.steps for phase in recipe.phases), recipe.warmup_steps, recipe.learning_rate, recipe.schedule
        )
    numbers = _phase_indices(recipe)
    recorded = {
        record.step - 1: ScheduleStep(numbers[record.phase], record.learning_rate)
        for record in read_records(request.output)
        if isinstance(record, StepRecord)
    }
    shares = tuple(phase.budget_ratio for phase in recipe.phases)
    return TimeSchedule(budget, shares, recipe.warmup_ratio, recipe.learning_rate, recorded, recipe.schedule)


def _train_steps(
    run: _PretrainRun, records: Records | None, schedule: Schedule, stop_requests: list[str]
) -> Iterator[TrainEvent]:
    recipe, witness, first = run.request.recipe, run.request.observer, run.train_state.step
    assert run.saver is not None
    draw = _make_batch_loader(run)
    trainable = wrap_ddp(run.module, lambda: draw(0, 0)[0])
    training = Training(
        run.module, trainable, run.optimizer, schedule, draw, recipe.seed, run.precision, run.stateful_batches
    )
    if first == 0:  # what an untrained model says, to compare with
        yield from _evaluate(run, records, 0)
    for step in train(training, run.train_state):
        if records is not None:
            records.add(_step_record(step, recipe))
        if witness is not None:
            witness.on_step(step.number, run.module, run.optimizer)
        yield TrainEvent(step, _seconds_left(recipe, step), (run.run_info["unigram_entropy"], run.run_info["ln_v"]))
        yield from _handle_warning(run, run.health.check_step(step))
        if step.number % recipe.eval_steps == 0:
            yield from _evaluate(run, records, step.phase)
        leaves = any_process(bool(stop_requests)) or run.request.stop_after == step.number - first
        if leaves or step.number % recipe.save_steps == 0 or run.best.step == step.number:
            yield from _save_checkpoint(run, records)
        if leaves:
            yield from (TrainEvent(checkpoint_path=path) for path in run.saver.finish())
            yield TrainEvent(
                note=stop_requests[0] if stop_requests else f"stopped after {step.number - first} steps, as asked"
            )
            if records is not None:
                yield TrainEvent(note=f"report so far: {write_report(run.request.output)}")
            return
    if run.last_evaluation is None or run.last_evaluation.step != run.train_state.step:
        yield from _evaluate(run, records, len(recipe.phases) - 1)
    if run.last_saved_step != run.train_state.step:
        yield from _save_checkpoint(run, records)
    yield from (TrainEvent(checkpoint_path=path) for path in run.saver.finish())
    if is_main_process():
        yield from _finish(run)


def _seconds_left(recipe: PretrainRecipe, step: Step) -> float:
    """Return how long the steps that are left will take, if they take as long as those before."""
    budget = parse_duration(recipe.budget)
    if budget is not None:
        return max(0.0, budget - step.seconds)
    return step.seconds / step.number * (sum(phase.steps for phase in recipe.phases) - step.number)


def _make_batch_loader(run: _PretrainRun) -> GetBatches:
    """Return what draws the rows of a step, before the eyes of the witness if there is one."""
    witness = run.request.observer

    def draw(phase: int, step: int) -> Sequence[Batch]:
        batches = run.batches.get_batches(phase, step)
        if witness is not None:
            witness.on_batches(batches)
        return [batch.to(run.precision.device) for batch in batches]

    return draw


def _step_record(step: Step, recipe: PretrainRecipe) -> StepRecord:
    phase = str(recipe.phases[step.phase].max_length)
    return StepRecord(
        step.number, phase, step.losses, step.learning_rate, step.seconds, step.num_tokens, step.grad_norm
    )


def _evaluate(run: _PretrainRun, records: Records | None, phase: int) -> Iterator[TrainEvent]:
    """Measure the held-out split, each process some of it, and remember which checkpoint is the best."""
    batches, num_counted = run.batches.get_held_out_batches(phase)
    scores = evaluate(run.module, batches, run.precision, num_counted)
    length = str(run.request.recipe.phases[phase].max_length)
    record = HeldOutRecord(
        run.train_state.step,
        length,
        scores.losses,
        math.exp(min(scores.loss, 50.0)),
        scores.accuracy,
        scores.accuracies.get("pair"),
    )
    with gather_parameters(run.module, run.precision):
        samples = list(
            fill_masked_sentences(run.module, run.corpus.tokenizer, run.masked_sentences, run.train_state.step)
        )
    if records is not None:
        records.add(record)
        for sample in samples:
            records.add(sample)
    _update_best(run, record)
    yield TrainEvent(held_out=record)
    yield from _handle_warning(run, run.health.check_held_out(scores.loss, run.train_state.step))


def _finish(run: _PretrainRun) -> Iterator[TrainEvent]:
    """Write the model with the best held-out loss, and the report."""
    assert run.last_evaluation is not None
    loss, tensors, folder = run.last_evaluation.loss, None, run.request.output / "model"
    checkpoints = run.request.output / "checkpoints"
    if run.best.step not in (0, run.last_evaluation.step):
        try:
            tensors = load_checkpoint(checkpoints / run.best.name).model
        except FolderError as error:
            yield from _handle_warning(run, HealthWarning(f"{error}; the model is that of the last step"))
        else:
            loss = run.best.loss
            yield TrainEvent(note=f"the model is that of {run.best.name}, which had the best held-out loss")
    if tensors is None and is_sharded(run.module):  # no process has it whole, but the disk
        tensors = load_checkpoint(checkpoints / checkpoint_name(run.train_state.step)).model
    recipe = run.request.recipe
    told = {"objective": recipe.objective, "recipe": asdict(recipe), "scores": {"held_out_loss": loss}}
    told |= hashes_of(run.request.init_model, run.corpus.folder)
    write_model(folder, run.module, run.corpus.tokenizer, told, tensors)
    run.run_info["finished"] = now()
    write_json(run.request.output / "run.json", run.run_info)
    yield TrainEvent(note=f"model: {folder}")
    yield TrainEvent(note=f"report: {write_report(run.request.output)}")


def _handle_warning(run: _PretrainRun, warning: HealthWarning | None) -> Iterator[TrainEvent]:
    if warning is None:
        return
    run.run_info["warnings"].append(warning.text)
    yield TrainEvent(warning=warning.text)
    if warning.should_stop:
        raise BertworksError(warning.text)


def _save_checkpoint(run: _PretrainRun, records: Records | None) -> Iterator[TrainEvent]:
    run.last_saved_step = run.train_state.step
    run.run_info["peak_gib"] = [float(one) for one in all_gather(f"{peak_bytes(run.precision.device) / 2**30:.2f}")]
    if records is not None:
        records.sync()
    assert run.saver is not None
    paths = run.saver.save(run.optimizer, run.train_state, run.best.name, run.stateful_batches.tensors())
    if records is not None:
        write_json(run.request.output / "run.json", run.run_info)
    yield from (TrainEvent(checkpoint_path=path) for path in paths)
