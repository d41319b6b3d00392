"""Open a fine-tuning run: a request in; files read, settings resolved, model built and checked, a FinetuneRun out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

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
from bertworks.commands.finetune.defaults import Resolution, resolve_defaults
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run_recipe import hashed_settings, run_table, write_run_recipe
from bertworks.commands.pretrain.build import new_model_folder
from bertworks.commands.run_info import resolve_run_precision
from bertworks.disk import sha256
from bertworks.errors import InputError, SettingsError
from bertworks.inference.predictor import Predictor
from bertworks.models.folder import ModelFolder, read_folder
from bertworks.models.hub import fetch
from bertworks.models.sentence_files import read_sentence_files
from bertworks.records import ScoreRecord
from bertworks.reports.finetune import WindowCoverage
from bertworks.sampling.causal import NextTokenTargets
from bertworks.sampling.masking import Masker
from bertworks.tasks.contract import ConsistentTask, Features, Task, TaskScores, WeightedTask
from bertworks.tasks.distillation import can_distill, fit_distillation, held_out_error
from bertworks.tasks.module import TaskModule
from bertworks.tasks.registry import task_of
from bertworks.text.document import Counts
from bertworks.training.devices import Precision, device_of
from bertworks.training.loop import TrainState
from bertworks.training.optimizer import BertAdam, freeze
from bertworks.vocabulary.text_coverage import TextCoverage
from bertworks.vocabulary.tokenizer import Tokenizer

# So many examples tell how many sequences an example has.
_NUM_SAMPLED_EXAMPLES = 100


@dataclass(slots=True, kw_only=True)
class FinetuneRun:
    """A run in memory: its request with resolved settings, the model, the batches, and where training stands."""

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
    best_scores: TaskScores | None = None
    sentence_files: dict[str, bytes] = field(default_factory=dict)

    @property
    def module(self) -> TaskModule:
        return self.predictor.module

    @property
    def num_steps(self) -> int:
        return self.batches.num_steps * self.request.recipe.epochs


def open_run(request: FinetuneRequest, folder: Path) -> tuple[FinetuneRun, list[FinetuneEvent]]:
    """Read the files, resolve the settings, build the model, run all checks, and write the recipe."""
    device = device_of(request.device)
    precision, precision_note = resolve_run_precision(request.recipe.precision, folder, device)
    base = read_base(request)
    counts = Counts()
    examples = read_examples(request, counts)
    resolution = resolve_request(request, base, examples, run_table(folder))
    recipe = replace(resolution.recipe, precision=precision)
    request = replace(request, recipe=recipe)
    task = _make_task(request, examples["train"])
    module = build_module(base, task, recipe, torch.Generator().manual_seed(recipe.seed))
    window_rule = recipe.window_rule(task.default_window_rule, module.encoder.config.max_length)
    check_pair_order(window_rule, task, examples["train"])
    predictor = Predictor(module, base.tokenizer, window_rule)
    notes = [*(f"{count:,} {description}" for description, count in counts.items() if count), precision_note]
    notes += [] if base.source is None else base.source.notes
    notes += [resolution.describe()] if resolution.reasons else []
    all_features = [task.featurize(example, base.tokenizer, window_rule) for example in examples["train"]]
    coverage = WindowCoverage.from_features(all_features, window_rule)
    events = [FinetuneEvent(note=note) for note in (*notes, coverage.describe())]
    events += _check_examples(predictor, all_features, examples)
    batches = FinetuneBatches(all_features, task, base.tokenizer, recipe.batch_size, recipe.seed)
    if recipe.mlm_weight or recipe.lm_weight:
        batches.corruption = Masker(base.tokenizer) if recipe.mlm_weight else NextTokenTargets()
    if recipe.distill_weight:
        if not can_distill(type(task), examples["train"]):
            raise SettingsError(f"distill_weight is for classify and single texts; the task is {task.name}")
        featurize = partial(task.featurize, tokenizer=base.tokenizer, window_rule=window_rule)
        batches.distillation = fit_distillation(task, examples["train"], featurize, base.tokenizer.specials.pad)
    module.to(device)
    num_layers = module.encoder.config.depth
    layerwise = recipe.layerwise.resolve(batches.num_steps * recipe.epochs, num_layers)
    freeze(module, layerwise)
    module.encoder.set_precision(precision)
    check_target_metric(recipe, predictor, examples.get("dev"))
    write_run_recipe(folder, request.task, recipe)
    run = FinetuneRun(
        request=request,
        base=base,
        predictor=predictor,
        optimizer=BertAdam(module, recipe.optimizer, layerwise),
        batches=batches,
        precision=Precision(precision, device),
        examples=examples,
        digest=_digest(request),
        folder=folder,
        coverage=coverage,
        sentence_files=read_sentence_files(base.path),
    )
    return run, events


def resolve_request(
    request: FinetuneRequest,
    base: ModelFolder,
    examples: Mapping[str, Sequence[Any]],
    previous: Mapping[str, Any] | None = None,
) -> Resolution:
    """Resolve the defaults of a request, from the model, the examples and what is known of task and dataset."""
    return resolve_defaults(
        request.recipe,
        base,
        examples,
        previous,
        is_symmetric=request.is_symmetric,
        can_r_drop=issubclass(task_of(request.task), ConsistentTask),
        teacher_error=_teacher_error(request, examples["train"]),
        sequences_per_example=_sequences_per_example(request, base, examples["train"]),
    )


def _teacher_error(request: FinetuneRequest, examples: Sequence[Any]) -> Callable[[], float] | None:
    task = task_of(request.task)
    if not can_distill(task, examples):
        return None
    return lambda: held_out_error(task.from_examples(examples, request.settings), examples)


def _sequences_per_example(request: FinetuneRequest, base: ModelFolder, examples: Sequence[Any]) -> float:
    """Return the mean over a sample of the examples; at least 1, also where a sequence has several examples."""
    task = task_of(request.task).from_examples(examples, request.settings)
    window_rule = request.recipe.window_rule(task.default_window_rule, base.encoder_config.max_length)
    features = [
        task.featurize(example, base.tokenizer, window_rule)
        for example in examples[:: -(-len(examples) // _NUM_SAMPLED_EXAMPLES)]
    ]
    num_sequences = sum(len(example_features.sequences) for example_features in features)
    return max(1.0, num_sequences / sum(example_features.num_examples for example_features in features))


def _check_examples(
    predictor: Predictor, all_features: Sequence[Features], examples: Mapping[str, Sequence[Any]]
) -> list[FinetuneEvent]:
    """Check the features of train and the examples of all splits; return warnings and notes."""
    module, tokenizer, window_rule = predictor.module, predictor.tokenizer, predictor.window_rule
    featurize = partial(module.task.featurize, tokenizer=tokenizer, window_rule=window_rule)
    new_coverage = partial(TextCoverage, tokenizer, module.encoder.reads_characters)
    events = [
        *length_warnings(all_features, window_rule),
        *train_coverage_events(all_features, new_coverage()),
        *leak_warnings(examples),
    ]
    for split in ("dev", "test"):
        events += check_split(split, examples.get(split, []), featurize, new_coverage())
    return events


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
    recipe = hashed_settings(request.recipe)
    inputs = [request.task, request.model, vocabulary, files, recipe, request.columns, request.settings]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()[:16]
