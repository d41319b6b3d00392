"""Fine-tune: a pretrained model and labelled files in, a run folder with a fine-tuned model out; resumable exactly."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks.commands.finetune.batches import FinetuneBatches
from bertworks.commands.finetune.build import build_module
from bertworks.commands.finetune.checks import (
    check_pair_order,
    check_split,
    check_target_metric,
    leak_warnings,
    length_warnings,
    train_coverage_events,
)
from bertworks.commands.finetune.collapse import Collapse, TrainingEvidence, find_collapse, predicts_one_class
from bertworks.commands.finetune.defaults import default_learning_rate, resolve_defaults, run_table
from bertworks.commands.finetune.feature_cache import FeatureCache
from bertworks.commands.finetune.finish import FinishedRun, finish_run
from bertworks.commands.finetune.recipe import FinetuneRecipe, parse_target_metric
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.pretrain.build import new_model_folder
from bertworks.commands.run_info import resolve_run_precision
from bertworks.disk import sha256
from bertworks.errors import BertworksError, FolderError, InputError, SettingsError
from bertworks.inference.predictor import Predictor
from bertworks.models.folder import ModelFolder, read_folder
from bertworks.models.hub import fetch
from bertworks.parallel.process_group import check_single_process
from bertworks.records import Records, ScoreRecord, StepRecord, read_records
from bertworks.reports.finetune import WindowCoverage
from bertworks.sampling.causal import NextTokenTargets
from bertworks.sampling.masking import Masker
from bertworks.settings import from_table, to_toml, write_recipe
from bertworks.tasks.contract import ScaledTask, Task, TaskScores, WeightedTask
from bertworks.tasks.module import TaskModule
from bertworks.tasks.registry import task_of
from bertworks.text.document import Counts
from bertworks.training.checkpoint import keep_last, load_checkpoint, load_latest_checkpoint, save_checkpoint
from bertworks.training.devices import Precision, device_of
from bertworks.training.interrupt import STOP_MESSAGE, catch_stop_signals
from bertworks.training.loop import Step, Training, TrainState, train
from bertworks.training.optimizer import BertAdam, freeze
from bertworks.vocabulary.text_coverage import TextCoverage
from bertworks.vocabulary.tokenizer import Tokenizer

# The loss on dev, beside its metrics in the records of a run.
DEV_LOSS = "loss"


@dataclass(slots=True, kw_only=True)
class _FinetuneRun:
    request: FinetuneRequest
    predictor: Predictor
    optimizer: BertAdam
    batches: FinetuneBatches
    precision: Precision
    examples: dict[str, list[Any]]
    digest: str
    folder: Path
    coverage: WindowCoverage
    default_learning_rate: float
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

    A run whose model collapsed to one class is restarted with other settings, up to `max_restarts` times.
    """
    check_single_process("fine-tuning")
    recipe, messages, learning_rates = request.recipe, list[str](), list[float]()
    for attempt in range(request.recipe.max_restarts + 1):
        folder = request.output if attempt == 0 else request.output / f"restart-{attempt}"
        run, attempt_events = _open(replace(request, recipe=recipe), folder)
        if attempt == 0:
            first_recipe, events = run.request.recipe, attempt_events
            yield from events
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
        warnings=[*(event.warning for event in events if event.warning), *messages],
        notes=[event.note for event in events if event.note and event.note != run.coverage.describe()],
    )
    yield from finish_run(finished)


def _open(request: FinetuneRequest, folder: Path) -> tuple[_FinetuneRun, list[FinetuneEvent]]:
    """Read the files, build the model, run all checks, and write the recipe."""
    device = device_of(request.device)
    precision, precision_note = resolve_run_precision(request.recipe.precision, folder, device)
    base = read_base(request)
    counts = Counts()
    examples = read_examples(request, counts)
    resolution = resolve_defaults(request.recipe, base, examples, run_table(folder))
    recipe = replace(resolution.recipe, precision=precision)
    request = replace(request, recipe=recipe)
    task = _make_task(request, examples["train"])
    module = build_module(base, task, recipe, torch.Generator().manual_seed(recipe.seed))
    window_rule = recipe.window_rule(task.default_window_rule, module.encoder.config.max_length)
    check_pair_order(window_rule, task, examples["train"])
    featurize = partial(task.featurize, tokenizer=base.tokenizer, window_rule=window_rule)
    all_features = [featurize(example) for example in examples["train"]]
    coverage = WindowCoverage.from_features(all_features, window_rule)
    new_coverage = partial(TextCoverage, base.tokenizer, module.encoder.reads_characters)
    events = [FinetuneEvent(note=f"{count:,} {description}") for description, count in counts.items() if count]
    events += [
        FinetuneEvent(note=precision_note),
        *([FinetuneEvent(note=resolution.describe())] if resolution.reasons else []),
        FinetuneEvent(note=coverage.describe()),
        *length_warnings(all_features, window_rule),
        *train_coverage_events(all_features, new_coverage()),
    ]
    events += leak_warnings(examples)
    for split in ("dev", "test"):
        events += check_split(split, examples.get(split, []), featurize, new_coverage())
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
    _write_recipe(folder, request)
    run = _FinetuneRun(
        request=request,
        predictor=predictor,
        optimizer=BertAdam(module, recipe.optimizer, layerwise),
        batches=batches,
        precision=Precision(precision, device),
        examples=examples,
        digest=_digest(request),
        folder=folder,
        coverage=coverage,
        default_learning_rate=default_learning_rate(base),
    )
    return run, events


def read_base(request: FinetuneRequest) -> ModelFolder:
    """Return the model that a request fine-tunes: a folder, or a new one without weights."""
    if request.model:
        return read_folder(fetch(request.model))
    return new_model_folder(request.recipe.model, request.vocabulary)


def _make_task(request: FinetuneRequest, examples: Sequence[Any]) -> Task:
    task = task_of(request.task).from_examples(examples, request.settings)
    if not request.recipe.class_weights:
        return task
    if not isinstance(task, WeightedTask):
        raise SettingsError(f"class_weights are for classify; the task is {request.task}")
    return task.with_class_weights(request.recipe.class_weights, examples)


def _write_recipe(folder: Path, request: FinetuneRequest) -> None:
    """Write recipe.toml, or check that the one there trains the same model; one of an earlier version may lack keys."""
    text = f"task = {json.dumps(request.task)}\n" + to_toml(request.recipe)
    table = run_table(folder)
    with contextlib.suppress(SettingsError):
        is_same_task = table.pop("task", None) == request.task
        recipe = replace(from_table(FinetuneRecipe, table, str(folder)), baselines=request.recipe.baselines)
        if is_same_task and recipe == request.recipe:
            text = (folder / "recipe.toml").read_text(encoding="utf-8")
    write_recipe(folder, text, ("restart-*", ".*"))


def read_examples(request: FinetuneRequest, counts: Counts | None = None) -> dict[str, list[Any]]:
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
    recipe = asdict(request.recipe)
    del recipe["baselines"]  # they do not change the model
    for name in ("class_weights",):  # keys that were added later count only if they are set
        if not recipe[name]:
            del recipe[name]
    if request.recipe.optimizer.name == "adam":
        recipe["optimizer"] = {k: v for k, v in recipe["optimizer"].items() if k not in ("name", "momentum")}
    if recipe["evals_per_epoch"].is_integer():  # once an integer
        recipe["evals_per_epoch"] = int(recipe["evals_per_epoch"])
    inputs = [request.task, request.model, vocabulary, files, recipe, request.columns, request.settings]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()[:16]


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
    loss = {} if run.last_scores.loss is None else {DEV_LOSS: run.last_scores.loss}
    record = ScoreRecord(run.train_state.step, "dev", {**run.last_scores.metrics, **loss})
    records.add(record)
    _update_best(run, record)
    yield FinetuneEvent(score=record)


def _update_best(run: _FinetuneRun, record: ScoreRecord) -> None:
    """Select the record with the best main metric, among equals the one with the lowest loss, then the latest."""

    def rank(one: ScoreRecord) -> tuple[float, float]:
        return one.metrics[run.module.task.main_metric], -one.metrics.get(DEV_LOSS, 0.0)

    if run.best is None or rank(record) > rank(run.best):
        run.best, run.num_evals_without_improvement = record, 0
    else:
        run.best = record if rank(record) == rank(run.best) else run.best
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


def _find_collapse(run: _FinetuneRun, learning_rates: Sequence[float]) -> Collapse | None:
    """Return whether the best model predicts one class for everything, and why; `learning_rates` were tried so far."""
    if "dev" not in run.examples:
        return None
    if run.last_scores is None or predicts_one_class(run.last_scores.details.get("confusion", np.zeros((1, 1)))):
        # No step in this call: the run was complete before. Or the last model collapsed, but the best one may not have.
        run.last_scores = run.module.task.score(run.predictor.predict(run.examples["dev"]))
    if "confusion" not in run.last_scores.details:
        return None
    steps = (record for record in read_records(run.folder) if isinstance(record, StepRecord))
    evidence = TrainingEvidence(
        recipe=run.request.recipe,
        losses=[record.losses["task"] for record in steps],
        default_learning_rate=run.default_learning_rate,
        tried_learning_rates=learning_rates,
        can_weight_classes=isinstance(run.module.task, WeightedTask),
    )
    return find_collapse(run.last_scores.details["confusion"], run.last_scores.details["labels"], evidence)
