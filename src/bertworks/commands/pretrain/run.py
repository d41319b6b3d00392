"""Pretrain a model: a recipe and a prepared corpus in, a run folder out; an interrupted run resumes exactly.

Under torchrun all processes share each batch and each evaluation; only the main process yields events and writes files,
except for the shards of a sharded model.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.build import build, resolve_model_init, shorten_phases, write_model
from bertworks.commands.pretrain.consistency import check_consistency, run_fingerprint
from bertworks.commands.pretrain.corpus_check import CorpusCheck
from bertworks.commands.pretrain.micro_batch import fit_recipe_to_memory
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.request import PretrainRequest, TrainEvent
from bertworks.commands.pretrain.run_recipe import read_earlier_recipe, recipe_hash, write_run_recipe
from bertworks.commands.pretrain.run_schedule import EvaluationSteps, build_schedule
from bertworks.commands.pretrain.samples import fill_masked_sentences, sample_masked_sentences
from bertworks.commands.run_info import (
    collect_run_info,
    count_tokens,
    describe_changes,
    now,
    resolve_run_precision,
)
from bertworks.corpus.corpus import Corpus
from bertworks.disk import read_json, write_json
from bertworks.errors import BertworksError, FolderError, MissingDependencyError
from bertworks.models.provenance import folders_of, hashes_of, languages_of
from bertworks.objectives.objective import ObjectiveModule
from bertworks.parallel.machine import peak_bytes
from bertworks.parallel.process_group import (
    all_gather,
    any_process,
    is_main_process,
    lock_run,
    process_group,
    world_size,
)
from bertworks.records import HeldOutRecord, Records, read_records
from bertworks.reports.pretrain import write_pretrain_report
from bertworks.reports.pretrain_verdict import read_verdict
from bertworks.sampling.batch import Batch
from bertworks.settings import parse_duration
from bertworks.training.checkpoint import Checkpoint, checkpoint_name, load_checkpoint
from bertworks.training.checkpoint_writer import CheckpointWriter, load_latest_for_module
from bertworks.training.data_parallel import wrap_ddp
from bertworks.training.devices import Precision, device_of
from bertworks.training.ema import averaged_weights, use_averaged_weights
from bertworks.training.evaluation import evaluate
from bertworks.training.events import EventsWriter
from bertworks.training.health import HealthMonitor, HealthWarning
from bertworks.training.interrupt import catch_stop_signals
from bertworks.training.loop import GetBatches, Step, Training, TrainState, train
from bertworks.training.optimizer import BertAdam
from bertworks.training.schedule import Schedule
from bertworks.training.sharding import gather_parameters, is_sharded, load_local_state_dict, shard
from bertworks.training.stateful import StatefulBatches


class _BestEvaluation(NamedTuple):
    """The best held-out evaluation so far; the smallest tuple is the best.

    Losses at different lengths cannot be compared, so a later phase wins. Of consecutive phases with the same length,
    the first one counts.
    """

    minus_phase: int = 1
    loss: float = math.inf
    step: int = 0

    @property
    def checkpoint_name(self) -> str:
        return checkpoint_name(self.step)


@dataclass(slots=True, kw_only=True)
class _PretrainRun:
    """The parts and the progress of a run."""

    request: PretrainRequest
    corpus: Corpus
    corpus_check: CorpusCheck
    module: ObjectiveModule
    optimizer: BertAdam
    batches: PretrainBatches
    precision: Precision
    health: HealthMonitor
    run_info: dict[str, Any]
    digest: str  # of the recipe, corpus and initial model: what must be equal for a checkpoint to be resumed
    masked_sentences: tuple[str, ...]
    evaluation_steps: EvaluationSteps
    sentence_files: Mapping[str, bytes]
    train_state: TrainState = field(default_factory=TrainState)
    stateful_batches: StatefulBatches = field(default_factory=StatefulBatches)
    best: _BestEvaluation = field(default_factory=_BestEvaluation)
    last_evaluation: HeldOutRecord | None = None
    last_saved_step: int = 0
    saver: CheckpointWriter | None = None


def run_pretrain(request: PretrainRequest) -> Iterator[TrainEvent]:
    """Start or continue a run and yield its events. At the end the run folder holds the model in `model/`.

    Under torchrun every process has to call it; only the main process gets events.
    """
    with process_group(), lock_run(request.output):
        for event in _pretrain(request):
            if is_main_process():
                yield event


def _pretrain(request: PretrainRequest) -> Iterator[TrainEvent]:
    run, notes = _open(request)
    yield from (TrainEvent(note=note) for note in notes)
    checkpoint, damaged = load_latest_for_module(request.output / "checkpoints", run.module)
    yield from (TrainEvent(warning=text) for text in damaged)
    schedule = build_schedule(request.recipe, request.output)
    if checkpoint is not None:
        _resume(run, checkpoint)
        yield TrainEvent(note=f"continuing after step {run.train_state.step:,}")
    all_gather("")  # a barrier: the records are truncated next, and all processes must have read them
    with contextlib.ExitStack() as stack:
        records = stack.enter_context(_open_records(run, checkpoint)) if is_main_process() else None
        all_gather("")  # the records are cut to the resumed step
        _restore_evaluations(run)
        run.saver = stack.enter_context(_create_saver(run))
        if checkpoint is not None:
            run.saver.remove_superseded(run.best.checkpoint_name, checkpoint.folder.name)
        yield from _mirror_to_tensorboard(run, records, checkpoint)
        yield from _train_steps(run, records, schedule, stack.enter_context(catch_stop_signals()))


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
    """Write TensorBoard events as well, if tensorboard is installed."""
    if records is None:
        return
    try:
        records.mirror(EventsWriter(run.request.output, run.train_state.step if checkpoint else None))
    except MissingDependencyError as error:
        yield TrainEvent(note=f"no TensorBoard events: {error}")


def _open(request: PretrainRequest) -> tuple[_PretrainRun, list[str]]:
    """Open the corpus, build the model, check that both fit the request, and write the recipe."""
    corpus = Corpus.open(request.corpus, request.vocabulary)
    corpus_check = CorpusCheck(corpus)
    device = device_of(request.device)
    precision_name, precision_note = resolve_run_precision(request.recipe.precision, request.output, device)
    request = replace(request, recipe=replace(request.recipe, precision=precision_name))
    precision = Precision(precision_name, device)
    model_init = resolve_model_init(request.recipe, corpus.tokenizer, request.init_model)
    recipe, length_notes = shorten_phases(request.recipe, model_init.config)
    request = replace(request, recipe=recipe)
    run_info_path = request.output / "run.json"
    previous = read_json(run_info_path, "the run.json of a run") if run_info_path.exists() else {}
    earlier = read_earlier_recipe(request.output, request.recipe)
    num_shards = world_size() if request.shard else 1
    options = {"shard": request.shard, "device": device.type}
    check_consistency(run_fingerprint(request.recipe, corpus, model_init.digest, options))
    recipe, notes = fit_recipe_to_memory(
        request.recipe, model_init.config, previous.get("micro_batch_size", 0), device, num_shards
    )
    batches = PretrainBatches(corpus, recipe)
    token_counts = count_tokens(corpus)
    module, model_notes = build(model_init, recipe, token_counts)
    module.to(device)
    if num_shards > 1:
        shard(module, module.encoder.layers, precision)
    run_info = collect_run_info(corpus, token_counts, recipe.micro_batch_size, previous)
    run_info |= folders_of(request.init_model, corpus.folder)
    run_info |= {"sharded": num_shards > 1, "precision": precision.name}
    notes += [precision_note, *length_notes, *model_notes]
    notes += [*describe_changes(previous, run_info), *_describe_run(recipe, run_info, module)]
    run_info["earlier_recipes"] = list(previous.get("earlier_recipes", []))
    if earlier is not None:
        run_info["earlier_recipes"].append(recipe_hash(earlier, corpus, model_init.digest))
        notes.append(f"continuing with another schedule: the run ends after step {recipe.num_steps:,}")
    if is_main_process():
        if earlier is not None:  # its checkpoints must be known as those of this run before its recipe is replaced
            write_json(run_info_path, run_info)
        write_run_recipe(request.output, request.recipe, earlier)
    return _PretrainRun(
        request=replace(request, recipe=recipe),
        corpus=corpus,
        corpus_check=corpus_check,
        module=module,
        optimizer=BertAdam(module, recipe.optimizer, recipe.layerwise, recipe.ema_decay),
        batches=batches,
        precision=precision,
        health=HealthMonitor(run_info["unigram_entropy"], run_info["uniform_loss"]),
        run_info=run_info,
        digest=recipe_hash(recipe, corpus, model_init.digest),
        masked_sentences=sample_masked_sentences(corpus, 6),
        evaluation_steps=EvaluationSteps(recipe, request.output),
        sentence_files=model_init.sentence_files,
    ), notes


def _describe_run(recipe: PretrainRecipe, run_info: Mapping[str, Any], module: ObjectiveModule) -> Iterator[str]:
    if recipe.ema_decay:
        yield f"evaluations and the model use an exponential moving average of the weights ({recipe.ema_decay})"
    yield (
        f"baselines: uniform loss (ln V) {run_info['uniform_loss']:.2f}, unigram entropy "
        f"{run_info['unigram_entropy']:.2f}; {sum(p.numel() for p in module.parameters()):,} parameters"
    )


def _resume(run: _PretrainRun, checkpoint: Checkpoint) -> None:
    """Restore the run from a checkpoint."""
    if checkpoint.recipe not in (run.digest, *run.run_info["earlier_recipes"]):
        raise FolderError(
            f"{checkpoint.folder} was written with another recipe or corpus; choose another --output folder, or use "
            f"the recipe and corpus of that run"
        )
    load_local_state_dict(run.module, checkpoint.model)
    run.train_state = checkpoint.train_state
    run.optimizer.restore(checkpoint.optimizer, run.train_state.step - run.train_state.num_overflows)
    run.stateful_batches.restore(checkpoint.optimizer)
    run.last_saved_step = run.train_state.step
    run.evaluation_steps.resume_after(run.train_state.step, run.train_state.seconds)


def _restore_evaluations(run: _PretrainRun) -> None:
    """Restore the last and the best evaluation from the records of a resumed run."""
    for record in read_records(run.request.output):
        if isinstance(record, HeldOutRecord):
            _update_best(run, record)


def _update_best(run: _PretrainRun, record: HeldOutRecord) -> None:
    """Remember the last and the best evaluation. An untrained model is never the best."""
    run.last_evaluation = record
    if record.step and math.isfinite(record.loss):
        recipe = run.request.recipe
        phase = recipe.phase_indices()[record.phase]
        while phase and recipe.phases[phase - 1].max_length == recipe.phases[phase].max_length:
            phase -= 1  # losses at the same length can be compared
        run.best = min(run.best, _BestEvaluation(-phase, record.loss, record.step))


def _train_steps(
    run: _PretrainRun, records: Records | None, schedule: Schedule, stop_requests: list[str]
) -> Iterator[TrainEvent]:
    recipe, observer, first_step = run.request.recipe, run.request.observer, run.train_state.step
    get_batches = _make_batch_loader(run)
    training = Training(
        module=run.module,
        trainable=wrap_ddp(run.module, lambda: get_batches(0, 0)[0]),
        optimizer=run.optimizer,
        schedule=schedule,
        get_batches=get_batches,
        seed=recipe.seed,
        precision=run.precision,
        stateful_batches=run.stateful_batches,
    )
    if first_step == 0:  # the untrained model, as a baseline
        yield from _evaluate(run, records, 0)
    for step in train(training, run.train_state):
        run.corpus_check.raise_error()
        if records is not None:
            records.add(step.to_record(recipe.resolve_phases()[step.phase].name))
        if observer is not None:
            observer.on_step(step.number, run.module, run.optimizer)
        baselines = (run.run_info["unigram_entropy"], run.run_info["uniform_loss"])
        seconds_left = _seconds_left(recipe, step)
        yield TrainEvent(step=step, num_steps=recipe.num_steps, seconds_left=seconds_left, reference_losses=baselines)
        yield from _handle_warning(run, run.health.check_step(step))
        if run.evaluation_steps.is_due(step.number, step.seconds):
            yield from _evaluate(run, records, step.phase)
        should_stop = any_process(bool(stop_requests)) or run.request.stop_after == step.number - first_step
        if should_stop or step.number % recipe.save_steps == 0 or run.best.step == step.number:
            yield from _save_checkpoint(run, records)
        if should_stop:
            yield from _stop(run, stop_requests, step.number - first_step)
            return
    if run.last_evaluation is None or run.last_evaluation.step != run.train_state.step:
        yield from _evaluate(run, records, len(recipe.phases) - 1)
    if run.last_saved_step != run.train_state.step:
        yield from _save_checkpoint(run, records)
    yield from _finish_saving(run)
    if is_main_process():
        yield from _write_results(run)


def _finish_saving(run: _PretrainRun) -> Iterator[TrainEvent]:
    assert run.saver is not None
    yield from (TrainEvent(checkpoint_path=path) for path in run.saver.finish())


def _stop(run: _PretrainRun, stop_requests: list[str], num_steps: int) -> Iterator[TrainEvent]:
    """End a run before its last step: because the user asked for it, or after `stop_after` steps."""
    yield from _finish_saving(run)
    note = stop_requests[0] if stop_requests else f"stopped after {num_steps} steps, as requested"
    yield TrainEvent(note=note, is_interrupted=bool(stop_requests))
    if is_main_process():
        yield TrainEvent(note=f"report so far: {write_pretrain_report(run.request.output)}")


def _seconds_left(recipe: PretrainRecipe, step: Step) -> float:
    """Estimate the remaining time: the rest of the budget, or that of the remaining steps at the mean speed so far."""
    budget = parse_duration(recipe.budget)
    if budget is not None:
        return max(0.0, budget - step.seconds)
    assert recipe.num_steps is not None
    return step.seconds / step.number * (recipe.num_steps - step.number)


def _make_batch_loader(run: _PretrainRun) -> GetBatches:
    """Return the function that loads the batches of a step, reporting them to the observer if there is one."""
    observer = run.request.observer

    def get_batches(phase: int, step: int) -> Sequence[Batch]:
        batches = run.batches.get_batches(phase, step)
        if observer is not None:
            observer.on_batches(batches)
        return [batch.to(run.precision.device) for batch in batches]

    return get_batches


def _evaluate(run: _PretrainRun, records: Records | None, phase: int) -> Iterator[TrainEvent]:
    """Evaluate on the held-out split, each process on its part of it, and record the scores and sample predictions."""
    batches, num_scored = run.batches.get_held_out_batches(phase)
    with use_averaged_weights(run.module, run.optimizer.weight_average):
        scores = evaluate(run.module, batches, run.precision, num_scored)
        with gather_parameters(run.module, run.precision):
            samples = list(
                fill_masked_sentences(run.module, run.corpus.tokenizer, run.masked_sentences, run.train_state.step)
            )
    record = HeldOutRecord(
        step=run.train_state.step,
        phase=run.request.recipe.resolve_phases()[phase].name,
        losses=scores.losses,
        perplexity=math.exp(min(scores.loss, 50.0)),
        accuracy=scores.accuracy,
        pair_accuracy=scores.accuracies.get("nsp"),
    )
    if records is not None:
        records.add(record)
        for sample in samples:
            records.add(sample)
    _update_best(run, record)
    yield TrainEvent(held_out=record)
    yield from _handle_warning(run, run.health.check_held_out(scores.loss, run.train_state.step))


def _write_results(run: _PretrainRun) -> Iterator[TrainEvent]:
    """Write the model with the best held-out loss, and the report."""
    assert run.last_evaluation is not None
    loss, tensors, folder = run.last_evaluation.loss, None, run.request.output / "model"
    checkpoints = run.request.output / "checkpoints"
    if run.best.step not in (0, run.last_evaluation.step):
        try:
            best = load_checkpoint(checkpoints / run.best.checkpoint_name)
            tensors = averaged_weights(best.model, best.optimizer)
        except FolderError as error:
            yield from _handle_warning(run, HealthWarning(f"{error}; the model is that of the last step"))
        else:
            loss = run.best.loss
            yield TrainEvent(note=f"the model is that of {run.best.checkpoint_name}, which had the best held-out loss")
    if tensors is None and is_sharded(run.module):  # no process has all weights, but the checkpoint has
        last = load_checkpoint(checkpoints / checkpoint_name(run.train_state.step))
        tensors = averaged_weights(last.model, last.optimizer)
    recipe = run.request.recipe
    metadata = {"objective": recipe.objective, "recipe": asdict(recipe), "scores": {"held_out_loss": loss}}
    metadata |= {**hashes_of(run.request.init_model, run.corpus.folder), **languages_of(run.corpus.manifest)}
    with use_averaged_weights(run.module, run.optimizer.weight_average):
        write_model(folder, run.module, run.corpus.tokenizer, metadata, tensors, run.sentence_files)
    run.run_info["finished"] = now()
    write_json(run.request.output / "run.json", run.run_info)
    verdict = read_verdict(run.request.output)
    yield TrainEvent(warning=verdict.text) if verdict.has_failed else TrainEvent(note=verdict.text)
    yield TrainEvent(note=f"model: {folder}")
    yield TrainEvent(note=f"report: {write_pretrain_report(run.request.output)}")


def _handle_warning(run: _PretrainRun, warning: HealthWarning | None) -> Iterator[TrainEvent]:
    if warning is None:
        return
    run.run_info["warnings"].append(warning.text)
    yield TrainEvent(warning=warning.text)
    if warning.should_stop:
        raise BertworksError(warning.text)


def _save_checkpoint(run: _PretrainRun, records: Records | None) -> Iterator[TrainEvent]:
    if run.corpus_check.is_running:
        yield TrainEvent(note="comparing the rest of the corpus with its hashes before the first checkpoint")
    run.corpus_check.finish()
    run.last_saved_step = run.train_state.step
    run.run_info["peak_gib"] = [float(peak) for peak in all_gather(f"{peak_bytes(run.precision.device) / 2**30:.2f}")]
    if records is not None:
        records.sync()
    assert run.saver is not None
    paths = run.saver.save(run.optimizer, run.train_state, run.best.checkpoint_name, run.stateful_batches.tensors())
    if records is not None:
        write_json(run.request.output / "run.json", run.run_info)
    yield from (TrainEvent(checkpoint_path=path) for path in paths)
