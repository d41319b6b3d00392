"""Fine-tune: a pretrained model and labelled files in, a run folder with a fine-tuned model out; resumable exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from bertworks.commands.finetune.adaptation import Adaptation, adapt
from bertworks.commands.finetune.collapse import Collapse, TrainingEvidence, find_collapse
from bertworks.commands.finetune.defaults import default_learning_rate
from bertworks.commands.finetune.feature_cache import FeatureCache
from bertworks.commands.finetune.finish import FinishedRun, finish_run
from bertworks.commands.finetune.open_run import FinetuneRun, open_run
from bertworks.commands.finetune.recipe import parse_target_metric
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.errors import BertworksError
from bertworks.folder_lock import lock_folder
from bertworks.parallel.process_group import check_single_process
from bertworks.records import Records, ScoreRecord, StepRecord, read_records
from bertworks.tasks.contract import ScaledTask, WeightedTask
from bertworks.training.checkpoint import (
    checkpoint_name,
    keep_last,
    load_checkpoint,
    restore_latest_checkpoint,
    save_checkpoint,
)
from bertworks.training.interrupt import STOP_MESSAGE, catch_stop_signals
from bertworks.training.loop import Step, Training, train

# The loss on dev, beside its metrics in the records of a run.
DEV_LOSS = "loss"


def run_finetune(request: FinetuneRequest) -> Iterator[FinetuneEvent]:
    """Fine-tune, or resume, and yield what happens. At the end the run folder holds the model in `model/`.

    A run whose model collapsed to one class is restarted with other settings, up to `max_restarts` times.
    """
    check_single_process("fine-tuning")
    with lock_folder(request.output):
        yield from _finetune(request)


def _finetune(request: FinetuneRequest) -> Iterator[FinetuneEvent]:
    recipe, messages, learning_rates = request.recipe, list[str](), list[float]()
    for attempt in range(request.recipe.max_restarts + 1):
        folder = request.output if attempt == 0 else request.output / f"restart-{attempt}"
        run, attempt_events = open_run(replace(request, recipe=recipe), folder)
        if attempt == 0:
            first_recipe, events = run.request.recipe, attempt_events
            yield from events
        if recipe.adapt.epochs and not (yield from _adapt(run, request.recipe.seed)):
            return
        yield from _fill_feature_cache(run)
        if not (yield from _train(run)):
            return
        step = yield from _restore_best(run)
        learning_rates.append(run.request.recipe.learning_rate)
        collapse = _find_collapse(run, learning_rates)
        if collapse is None:
            break
        messages.append(collapse.describe(is_last=attempt == request.recipe.max_restarts))
        yield FinetuneEvent(warning=messages[-1])
        recipe = replace(run.request.recipe, seed=request.recipe.seed + 1_000 * (attempt + 1), **collapse.changes)
    if isinstance(run.module.task, ScaledTask):
        run.module.task = run.module.task.unscale(run.module.head)
    finished = FinishedRun(
        request=run.request,
        first_recipe=first_recipe,
        predictor=run.predictor,
        examples=run.examples,
        step=step,
        records=run.folder,
        coverage=run.coverage,
        sentence_files=run.sentence_files,
        warnings=[*(event.warning for event in events if event.warning), *messages],
        notes=[event.note for event in events if event.note and event.note != run.coverage.describe()],
    )
    yield from finish_run(finished)


def _adapt(run: FinetuneRun, seed: int) -> Generator[FinetuneEvent, None, bool]:
    """Adapt the encoder to the training texts, or load the adapted one; return whether that is complete."""
    adaptation = Adaptation(
        request=replace(run.request, recipe=replace(run.request.recipe, seed=seed)),
        base=run.base,
        predictor=run.predictor,
        features=run.batches.features,
        dev=run.examples.get("dev", ()),
        precision=run.precision,
    )
    return (yield from adapt(adaptation))


def _fill_feature_cache(run: FinetuneRun) -> Iterator[FinetuneEvent]:
    """Compute the features of train and dev once, if the recipe freezes the encoder."""
    recipe, predictor = run.request.recipe, run.predictor
    if not recipe.feature_layers:
        return
    dev_features = (
        run.module.task.featurize(example, predictor.tokenizer, predictor.window_rule)
        for example in run.examples.get("dev", [])
    )
    dev_sequences = (sequence for features in dev_features for sequence in features.sequences)
    cache = FeatureCache(
        run.request.feature_folder or run.request.output / "features",
        predictor,
        itertools.chain(run.batches.sequences, dev_sequences),
        recipe.feature_precision,
    )
    yield FinetuneEvent(
        note=f"the encoder is frozen; a recurrent head is trained with learning rate {recipe.learning_rate:g}; "
        f"{cache.description}"
    )
    yield from (FinetuneEvent(note=message) for message in cache.fill())
    run.module.feature_cache = cache


def _train(run: FinetuneRun) -> Generator[FinetuneEvent, None, bool]:
    """Train from the latest checkpoint on; return whether the run is complete, rather than interrupted."""
    restored, damaged = restore_latest_checkpoint(run.folder / "checkpoints", run.module, run.optimizer, run.digest)
    yield from (FinetuneEvent(warning=message) for message in damaged)
    if restored is not None:
        run.train_state = restored
        yield FinetuneEvent(note=f"resuming after step {run.train_state.step:,}")
    with (
        Records.open(run.folder, restored.step if restored else None) as records,
        catch_stop_signals() as stop_signals,
    ):
        for record in read_records(run.folder):  # cut to the resumed step
            if isinstance(record, ScoreRecord) and record.split == "dev":
                _update_best(run, record)
        if restored is not None:
            _remove_superseded(run)
        return (yield from _train_steps(run, records, stop_signals))


def _train_steps(run: FinetuneRun, records: Records, stop_signals: list[str]) -> Generator[FinetuneEvent, None, bool]:
    recipe, first_step = run.request.recipe, run.train_state.step
    device = run.precision.device
    training = Training(
        module=run.module,
        trainable=run.module,
        optimizer=run.optimizer,
        schedule=recipe.make_schedule(run.num_steps),
        get_batches=lambda phase, step: [batch.to(device) for batch in run.batches.get_batches(phase, step)],
        seed=recipe.seed,
        precision=run.precision,
    )
    eval_steps = max(1, int(run.batches.num_steps / recipe.evals_per_epoch))
    if _stop_reason(run):
        return True
    for step in train(training, run.train_state):
        records.add(_step_record(step))
        yield FinetuneEvent(step=step, num_steps=run.num_steps)
        should_exit = bool(stop_signals) or run.request.stop_after == step.number - first_step
        should_evaluate = step.number % eval_steps == 0 or step.number == run.num_steps
        if should_evaluate:
            yield from _evaluate_dev(run, records)
            run.module.train()
        if should_evaluate or should_exit:
            _save(run, records)
        if should_exit:
            yield FinetuneEvent(note=STOP_MESSAGE, is_interrupted=bool(stop_signals))
            return False
        if reason := _stop_reason(run):
            yield FinetuneEvent(note=f"stopped early at step {step.number:,}: {reason}")
            break
    return True


def _step_record(step: Step) -> StepRecord:
    if not math.isfinite(step.grad_norm) and not step.has_overflow:
        raise BertworksError(
            f"step {step.number}: the gradient norm is {step.grad_norm}; lower --learning-rate or use more warmup"
        )
    return step.to_record("finetune")


def _evaluate_dev(run: FinetuneRun, records: Records) -> Iterator[FinetuneEvent]:
    """Score dev, and update the best score."""
    if "dev" not in run.examples:
        return
    scores = run.module.task.score(run.predictor.predict(run.examples["dev"]))
    loss = {} if scores.loss is None else {DEV_LOSS: scores.loss}
    record = ScoreRecord(run.train_state.step, "dev", {**scores.metrics, **loss})
    records.add(record)
    _update_best(run, record)
    if run.best is record:
        run.best_scores = scores
    yield FinetuneEvent(score=record)


def _update_best(run: FinetuneRun, record: ScoreRecord) -> None:
    """Select the record with the best main metric, among equals the one with the lowest loss, then the latest."""

    def rank(one: ScoreRecord) -> tuple[float, float]:
        return one.metrics[run.module.task.main_metric], -one.metrics.get(DEV_LOSS, 0.0)

    if run.best is None or rank(record) > rank(run.best):
        run.best, run.num_evals_without_improvement = record, 0
    else:
        run.best = record if rank(record) == rank(run.best) else run.best
        run.num_evals_without_improvement += 1


def _stop_reason(run: FinetuneRun) -> str:
    """Return why training stops early; empty if it does not."""
    recipe = run.request.recipe
    target = parse_target_metric(recipe.target_metric)
    if target is not None and run.best is not None and run.best.metrics.get(target[0], -math.inf) >= target[1]:
        return f"{target[0]} reached {run.best.metrics[target[0]]:.4f}"
    if recipe.patience and run.num_evals_without_improvement >= recipe.patience:
        return f"{run.num_evals_without_improvement} evaluations without improvement"
    return ""


def _save(run: FinetuneRun, records: Records) -> None:
    records.sync()
    folder = run.folder / "checkpoints"
    save_checkpoint(folder, run.module.state_dict(), run.optimizer.state(), run.train_state, run.digest)
    _remove_superseded(run)


def _remove_superseded(run: FinetuneRun) -> None:
    """Remove all checkpoints but the newest, the one of this step, and the best."""
    steps = {run.train_state.step} | ({run.best.step} if run.best else set())
    keep_last(run.folder / "checkpoints", 1, {checkpoint_name(step) for step in steps})


def _restore_best(run: FinetuneRun) -> Generator[FinetuneEvent, None, int]:
    """Load the checkpoint with the best dev score; return its step."""
    if run.best is None or run.best.step == run.train_state.step:
        return run.train_state.step
    checkpoint = load_checkpoint(run.folder / "checkpoints" / f"step-{run.best.step:08d}")
    run.module.load_state_dict(dict(checkpoint.model))
    yield FinetuneEvent(note=f"using the model of step {run.best.step:,}, the best on dev")
    return run.best.step


def _find_collapse(run: FinetuneRun, learning_rates: Sequence[float]) -> Collapse | None:
    """Return whether the best model predicts one class for everything, and why; `learning_rates` were tried so far."""
    if "dev" not in run.examples:
        return None
    # Without scores, the best model is of an earlier call, which was interrupted.
    scores = run.best_scores or run.module.task.score(run.predictor.predict(run.examples["dev"]))
    if "confusion" not in scores.details:
        return None
    steps = (record for record in read_records(run.folder) if isinstance(record, StepRecord))
    evidence = TrainingEvidence(
        recipe=run.request.recipe,
        losses=[record.losses["task"] for record in steps],
        default_learning_rate=default_learning_rate(run.base, run.request.recipe.optimizer.name),
        tried_learning_rates=learning_rates,
        can_weight_classes=isinstance(run.module.task, WeightedTask),
    )
    return find_collapse(scores.details["confusion"], scores.details["labels"], evidence)
