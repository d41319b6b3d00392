"""Fine-tune: a pretrained model and labelled files in, a run folder with a fine-tuned model out; resumable exactly."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bertworks.commands.finetune.adaptation import Adaptation, adapt
from bertworks.commands.finetune.batches import FinetuneBatches
from bertworks.commands.finetune.build import build_module
from bertworks.commands.finetune.checks import (
    check_pair_order,
    check_split,
    check_target_metric,
    leak_warnings,
    length_warnings,
)
from bertworks.commands.finetune.collapse import describe_collapse
from bertworks.commands.finetune.feature_cache import FeatureCache
from bertworks.commands.finetune.finish import FinishedRun, finish_run
from bertworks.commands.finetune.recipe import parse_target_metric
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run_recipe import hashed_settings, write_run_recipe
from bertworks.commands.pretrain.build import new_model_folder
from bertworks.commands.run_info import resolve_run_precision
from bertworks.disk import sha256
from bertworks.errors import BertworksError, FolderError, InputError
from bertworks.inference.predictor import Predictor
from bertworks.models.folder import ModelFolder, read_folder
from bertworks.models.hub import fetch
from bertworks.parallel.process_group import check_single_process
from bertworks.records import Records, ScoreRecord, StepRecord, read_records
from bertworks.reports.finetune import WindowCoverage
from bertworks.sampling.causal import NextTokenTargets
from bertworks.sampling.masking import Masker
from bertworks.tasks.contract import ScaledTask, Task, TaskScores
from bertworks.tasks.module import TaskModule
from bertworks.tasks.registry import task_of
from bertworks.text.document import Counts
from bertworks.training.checkpoint import keep_last, load_checkpoint, load_latest_checkpoint, save_checkpoint
from bertworks.training.devices import Precision, device_of
from bertworks.training.interrupt import STOP_MESSAGE, catch_stop_signals
from bertworks.training.loop import Step, Training, TrainState, train
from bertworks.training.optimizer import BertAdam, freeze
from bertworks.vocabulary.tokenizer import Tokenizer

# What happens after a model collapsed to one class.
_RESTART = "The run is restarted with another seed."
_NO_RESTART = "There are no restarts left: the model is saved as it is, and predicts one class for everything."


@dataclass(slots=True, kw_only=True)
class _FinetuneRun:
    request: FinetuneRequest
    base: ModelFolder
    predictor: Predictor
    optimizer: BertAdam
    batches: FinetuneBatches
    precision: Precision
    examples: dict[str, list[Any]]
    digest: str
    folder: Path
    coverage: WindowCoverage
    train_state: TrainState = field(default_factory=TrainState)
    best: ScoreRecord | None = None
    num_evals_without_improvement: int = 0
    last_scores: TaskScores | None = None

    @property
    def module(self) -> TaskModule:
        return self.predictor.module

    @property
    def num_steps(self) -> int:
        return self.batches.num_steps * self.request.recipe.epochs


def run_finetune(request: FinetuneRequest) -> Iterator[FinetuneEvent]:
    """Fine-tune, or resume, and yield what happens. At the end the run folder holds the model in `model/`.

    A run whose model collapsed to one class is restarted with another seed, up to `max_restarts` times.
    """
    check_single_process("fine-tuning")
    collapses: list[str] = []
    for attempt in range(request.recipe.max_restarts + 1):
        recipe = replace(request.recipe, seed=request.recipe.seed + 1_000 * attempt)
        folder = request.output if attempt == 0 else request.output / f"restart-{attempt}"
        run, events = _open(replace(request, recipe=recipe), folder)
        yield from (events if attempt == 0 else [])
        if recipe.adapt.epochs and not (yield from _adapt(run, request.recipe.seed)):
            return
        yield from _fill_feature_cache(run)
        if not (yield from _train(run)):
            return
        is_last = attempt == request.recipe.max_restarts
        collapse = _describe_collapse(run, _NO_RESTART if is_last else _RESTART)
        if collapse is not None:
            collapses.append(collapse)
            yield FinetuneEvent(warning=collapse)
        if collapse is None or is_last:
            break
    step = yield from _restore_best(run)
    if isinstance(run.module.task, ScaledTask):
        run.module.task = run.module.task.unscale(run.module.head)
    finished = FinishedRun(
        request=run.request,
        predictor=run.predictor,
        examples=run.examples,
        step=step,
        records=run.folder,
        coverage=run.coverage,
        warnings=[*(event.warning for event in events if event.warning), *collapses],
        notes=[event.note for event in events if event.note and event.note != run.coverage.describe()],
    )
    yield from finish_run(finished)


def _open(request: FinetuneRequest, folder: Path) -> tuple[_FinetuneRun, list[FinetuneEvent]]:
    """Read the files, build the model, run all checks, and write the recipe."""
    device = device_of(request.device)
    precision, precision_note = resolve_run_precision(request.recipe.precision, folder, device)
    recipe = replace(request.recipe, precision=precision)
    request = replace(request, recipe=recipe)
    base = read_folder(fetch(request.model)) if request.model else new_model_folder(recipe.model, request.vocabulary)
    counts = Counts()
    examples = _read_examples(request, counts)
    task = task_of(request.task).from_examples(examples["train"], request.settings)
    module = build_module(base, task, recipe, torch.Generator().manual_seed(recipe.seed))
    window_rule = recipe.window_rule(task.default_window_rule, module.encoder.config.max_length)
    check_pair_order(window_rule, task, examples["train"])
    featurize = partial(task.featurize, tokenizer=base.tokenizer, window_rule=window_rule)
    all_features = [featurize(example) for example in examples["train"]]
    coverage = WindowCoverage.from_features(all_features, window_rule)
    events = [FinetuneEvent(note=f"{count:,} {description}") for description, count in counts.items() if count]
    events += [
        FinetuneEvent(note=precision_note),
        FinetuneEvent(note=coverage.describe()),
        *length_warnings(all_features, window_rule),
    ]
    events += leak_warnings(examples)
    for split in ("dev", "test"):
        events += check_split(split, examples.get(split, []), featurize)
    batches = FinetuneBatches(all_features, task, base.tokenizer, recipe.batch_size, recipe.seed)
    if recipe.mlm_weight or recipe.lm_weight:
        batches.corruption = Masker(base.tokenizer) if recipe.mlm_weight else NextTokenTargets()
    module.to(device)
    num_layers = module.encoder.config.num_hidden_layers
    layerwise = recipe.layerwise.resolve(batches.num_steps * recipe.epochs, num_layers)
    freeze(module, layerwise)
    module.encoder.set_precision(precision)
    predictor = Predictor(module, base.tokenizer, window_rule)
    check_target_metric(recipe, predictor, examples.get("dev"))
    digest = _digest(request)
    write_run_recipe(folder, request.task, recipe)
    run = _FinetuneRun(
        request=request,
        base=base,
        predictor=predictor,
        optimizer=BertAdam(module, recipe.optimizer, layerwise),
        batches=batches,
        precision=Precision(precision, device),
        examples=examples,
        digest=digest,
        folder=folder,
        coverage=coverage,
    )
    return run, events


def _read_examples(request: FinetuneRequest, counts: Counts) -> dict[str, list[Any]]:
    """Return the examples of each split; of train as many as the recipe says, evenly spaced."""
    task: type[Task] = task_of(request.task)
    examples: dict[str, list[Any]] = {}
    for split, path in (("train", request.train), ("dev", request.dev), ("test", request.test)):
        if path is not None:
            examples[split] = list(task.read(path, request.columns_of(split), counts))
    for split, split_examples in examples.items():
        if not split_examples:
            raise InputError(f"{getattr(request, split)} has no examples; check the file")
    train_examples, limit = examples["train"], request.recipe.max_train_examples
    if 0 < limit < len(train_examples):
        examples["train"] = [train_examples[index * len(train_examples) // limit] for index in range(limit)]
    return examples


def _digest(request: FinetuneRequest) -> str:
    """Return a hash of all inputs; a checkpoint can be resumed only with the same ones."""
    files = [sha256(path) for path in request.files]
    vocabulary = "" if request.vocabulary is None else Tokenizer.load(request.vocabulary).hash
    recipe = hashed_settings(request.recipe)
    inputs = [request.task, request.model, vocabulary, files, recipe, request.columns, request.settings]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _adapt(run: _FinetuneRun, seed: int) -> Generator[FinetuneEvent, None, bool]:
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


def _fill_feature_cache(run: _FinetuneRun) -> Iterator[FinetuneEvent]:
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


def _train(run: _FinetuneRun) -> Generator[FinetuneEvent, None, bool]:
    """Train from the latest checkpoint on; return whether the run is complete, rather than interrupted."""
    checkpoint, damaged = load_latest_checkpoint(run.folder / "checkpoints")
    yield from (FinetuneEvent(warning=message) for message in damaged)
    if checkpoint is not None:
        if checkpoint.recipe != run.digest:
            raise FolderError(f"{checkpoint.folder} was made with other data or settings; choose another --output")
        run.module.load_state_dict(dict(checkpoint.model))
        run.train_state = checkpoint.train_state
        run.optimizer.restore(checkpoint.optimizer, run.train_state.step - run.train_state.num_overflows)
        for record in read_records(run.folder):
            if isinstance(record, ScoreRecord) and record.split == "dev" and record.step <= run.train_state.step:
                _update_best(run, record)
        yield FinetuneEvent(note=f"resuming after step {run.train_state.step:,}")
    with (
        Records.open(run.folder, run.train_state.step if checkpoint else None) as records,
        catch_stop_signals() as stop_signals,
    ):
        return (yield from _train_steps(run, records, stop_signals))


def _train_steps(run: _FinetuneRun, records: Records, stop_signals: list[str]) -> Generator[FinetuneEvent, None, bool]:
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
    eval_steps = max(1, run.batches.num_steps // recipe.evals_per_epoch)
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
    return StepRecord(
        step=step.number,
        phase="finetune",
        losses=step.losses,
        learning_rate=step.learning_rate,
        seconds=step.seconds,
        num_tokens=step.num_tokens,
        grad_norm=step.grad_norm,
    )


def _evaluate_dev(run: _FinetuneRun, records: Records) -> Iterator[FinetuneEvent]:
    """Score dev, and update the best score."""
    if "dev" not in run.examples:
        return
    run.last_scores = run.module.task.score(run.predictor.predict(run.examples["dev"]))
    record = ScoreRecord(run.train_state.step, "dev", dict(run.last_scores.metrics))
    records.add(record)
    _update_best(run, record)
    yield FinetuneEvent(score=record)


def _update_best(run: _FinetuneRun, record: ScoreRecord) -> None:
    main_metric = run.module.task.main_metric
    if run.best is None or record.metrics[main_metric] > run.best.metrics[main_metric]:
        run.best, run.num_evals_without_improvement = record, 0
    else:
        run.num_evals_without_improvement += 1


def _stop_reason(run: _FinetuneRun) -> str:
    """Return why training stops early; empty if it does not."""
    recipe = run.request.recipe
    target = parse_target_metric(recipe.target_metric)
    if target is not None and run.best is not None and run.best.metrics.get(target[0], -math.inf) >= target[1]:
        return f"{target[0]} reached {run.best.metrics[target[0]]:.4f}"
    if recipe.patience and run.num_evals_without_improvement >= recipe.patience:
        return f"{run.num_evals_without_improvement} evaluations without improvement"
    return ""


def _save(run: _FinetuneRun, records: Records) -> None:
    records.sync()
    folder = run.folder / "checkpoints"
    save_checkpoint(folder, run.module.state_dict(), run.optimizer.state(), run.train_state, run.digest)
    keep_last(folder, 1, {f"step-{run.best.step:08d}"} if run.best else set())


def _restore_best(run: _FinetuneRun) -> Generator[FinetuneEvent, None, int]:
    """Load the checkpoint with the best dev score; return its step."""
    if run.best is None or run.best.step == run.train_state.step:
        return run.train_state.step
    checkpoint = load_checkpoint(run.folder / "checkpoints" / f"step-{run.best.step:08d}")
    run.module.load_state_dict(dict(checkpoint.model))
    yield FinetuneEvent(note=f"using the model of step {run.best.step:,}, the best on dev")
    return run.best.step


def _describe_collapse(run: _FinetuneRun, remedy: str) -> str | None:
    """Return a message if the model predicts one class for everything."""
    if run.last_scores is None and "dev" in run.examples:  # no step in this call: the run was complete before
        run.last_scores = run.module.task.score(run.predictor.predict(run.examples["dev"]))
    if run.last_scores is None or "confusion" not in run.last_scores.details:
        return None
    return describe_collapse(run.last_scores.details["confusion"], run.last_scores.details["labels"], remedy)
