"""Task-adaptive pretraining: the training texts of a task and a base model in, an adapted model folder out.

It is a run of its own in the subfolder `adapt` of a fine-tuning run: metrics.jsonl, checkpoints while it lasts, and at
its end the adapted model in `model/`, with which the task, and every restart of it, begins. Only training texts are
trained on, without their labels; on texts of dev the loss is measured.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.commands.finetune.adapt_settings import AdaptSettings
from bertworks.commands.finetune.batches import FinetuneBatches
from bertworks.commands.finetune.build import build_lm_module, masking_of, objective_on_sequences
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.pretrain.build import write_model
from bertworks.errors import BertworksError, FolderError
from bertworks.inference.predictor import Predictor
from bertworks.models.folder import ModelFolder, read_folder
from bertworks.models.provenance import hashes_of
from bertworks.models.sentence_files import read_sentence_files
from bertworks.models.tensor_names import load_into
from bertworks.objectives.mlm import MlmModule
from bertworks.objectives.objective import ObjectiveModule
from bertworks.objectives.registry import objective_of
from bertworks.records import HeldOutRecord, Records, StepRecord, read_records
from bertworks.reports.page import format_duration
from bertworks.tasks.contract import Features
from bertworks.tasks.module import TaskModule
from bertworks.training.checkpoint import checkpoint_name, keep_last, restore_latest_checkpoint, save_checkpoint
from bertworks.training.devices import Precision
from bertworks.training.evaluation import evaluate
from bertworks.training.interrupt import STOP_MESSAGE, catch_stop_signals
from bertworks.training.loop import Step, Training, TrainState, train
from bertworks.training.optimizer import AdamSettings, BertAdam
from bertworks.training.schedule import StepSchedule

PHASE = "adapt"  # the name of the subfolder and of the phase in records
# Of the steps, as in the paper.
_WARMUP_RATIO = 0.06
# The loss is measured on about so many texts of dev at the beginning, and this many times more, with a checkpoint.
_NUM_DEV_EXAMPLES = 256
_NUM_EVALUATIONS = 10
# The time that the adaptation will take is said after this many steps.
_TIMED_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """What to adapt, and to what.

    request     of the run, with its first seed also in a restart with another one
    base        the model to start from
    predictor   the tokenizer, window rule and task of the run, and the module that gets the adapted weights
    features    the training examples
    dev         examples whose loss is measured
    """

    request: FinetuneRequest
    base: ModelFolder
    predictor: Predictor
    features: Sequence[Features]
    dev: Sequence[Any]
    precision: Precision

    @property
    def settings(self) -> AdaptSettings:
        return self.request.recipe.adapt

    @property
    def seed(self) -> int:
        return self.request.recipe.seed

    @property
    def folder(self) -> Path:
        return self.request.output / PHASE

    def batches_of(self, features: Sequence[Features]) -> FinetuneBatches:
        """Return batches of examples with the targets of the model's objective."""
        task, tokenizer = self.predictor.module.task, self.predictor.tokenizer
        batches = FinetuneBatches(features, task, tokenizer, self.settings.batch_size, self.seed)
        objective = objective_of(objective_on_sequences(self.base, task))
        batches.corruption = objective.corruption(tokenizer, masking_of(self.base))
        return batches

    def dev_batches(self) -> FinetuneBatches | None:
        """Return batches of a part of dev, evenly spaced; None without dev, or if nothing in it can be predicted."""
        task, tokenizer = self.predictor.module.task, self.predictor.tokenizer
        sample = self.dev[:: max(1, len(self.dev) // _NUM_DEV_EXAMPLES)]
        features = [task.featurize(example, tokenizer, self.predictor.window_rule) for example in sample]
        sequences = (sequence for example_features in features for sequence in example_features.sequences)
        has_targets = any(not np.isin(sequence.input_ids, tokenizer.specials.ids).all() for sequence in sequences)
        return self.batches_of(features) if has_targets else None


@dataclass(slots=True, kw_only=True)
class _AdaptationRun:
    adaptation: Adaptation
    module: ObjectiveModule
    optimizer: BertAdam
    batches: FinetuneBatches
    dev_batches: FinetuneBatches | None
    digest: str
    train_state: TrainState = field(default_factory=TrainState)

    @property
    def num_steps(self) -> int:
        return self.batches.num_steps * self.adaptation.settings.epochs

    @property
    def eval_steps(self) -> int:
        return max(1, self.num_steps // _NUM_EVALUATIONS)


def adapt(adaptation: Adaptation) -> Generator[FinetuneEvent, None, bool]:
    """Adapt the model, or resume, and load the adapted weights; return whether it is complete, not interrupted.

    An adaptation that is complete is only loaded.
    """
    digest = _digest(adaptation)
    model = adaptation.folder / "model"
    if not model.is_dir():
        run, notes = _open(adaptation, digest)
        yield from (FinetuneEvent(note=note) for note in notes)
        if not (yield from _train(run)):
            return False
        yield from _finish(run)
    adapted = read_folder(model)
    if adapted.metadata.get("digest") != digest:
        raise FolderError(f"{model} was made with other data or settings; choose another --output")
    _load_adapted(adapted, adaptation.predictor.module)
    return True


def _digest(adaptation: Adaptation) -> str:
    """Return a hash of all that the adapted weights depend on."""
    digest = hashlib.sha256()
    for features in adaptation.features:
        for sequence in features.sequences:
            digest.update(f"{len(sequence)}:".encode())
            digest.update(sequence.input_ids.tobytes() + sequence.token_type_ids.tobytes())
    base = [adaptation.request.model, hashes_of(adaptation.request.model or None), adaptation.base.config]
    settings = [asdict(adaptation.settings), adaptation.seed, adaptation.precision.name]
    digest.update(json.dumps([base, settings], sort_keys=True).encode())
    return digest.hexdigest()[:16]


def _open(adaptation: Adaptation, digest: str) -> tuple[_AdaptationRun, list[str]]:
    """Build the module and the batches; return them with notes on what will happen."""
    task, settings = adaptation.predictor.module.task, adaptation.settings
    module, is_head_new = build_lm_module(adaptation.base, task, adaptation.request.recipe)
    module.to(adaptation.precision.device)
    run = _AdaptationRun(
        adaptation=adaptation,
        module=module,
        optimizer=BertAdam(module, AdamSettings()),
        batches=adaptation.batches_of(adaptation.features),
        dev_batches=adaptation.dev_batches(),
        digest=digest,
    )
    objective = objective_on_sequences(adaptation.base, task)
    notes = [
        f"adapting the model to the training texts before their labels are learned: objective {objective}, "
        f"{run.num_steps:,} steps ({settings.epochs:,} epochs of {run.batches.num_steps:,}), learning rate "
        f"{settings.learning_rate:g}"
    ]
    if is_head_new:
        notes.append(f"the model has no weights of the {objective} head: a new one is trained")
        if isinstance(module, MlmModule):
            module.mlm_head.init_unigram_bias(_count_tokens(adaptation))
    return run, notes


def _count_tokens(adaptation: Adaptation) -> npt.NDArray[np.int64]:
    """Return the frequency of each token in the training texts; special tokens are never predicted."""
    sequences = (sequence for features in adaptation.features for sequence in features.sequences)
    all_ids = np.concatenate([sequence.input_ids for sequence in sequences])
    counts = np.bincount(all_ids, minlength=adaptation.base.encoder_config.vocab_size)
    counts[list(adaptation.predictor.tokenizer.specials.ids)] = 0
    return counts


def _train(run: _AdaptationRun) -> Generator[FinetuneEvent, None, bool]:
    """Train from the latest checkpoint on; return whether the adaptation is complete, rather than interrupted."""
    folder = run.adaptation.folder
    restored, damaged = restore_latest_checkpoint(folder / "checkpoints", run.module, run.optimizer, run.digest)
    yield from (FinetuneEvent(warning=message) for message in damaged)
    if restored is not None:
        run.train_state = restored
        keep_last(folder / "checkpoints", 1, {checkpoint_name(restored.step)})
        yield FinetuneEvent(note=f"resuming the adaptation after step {run.train_state.step:,}")
    with (
        Records.open(folder, restored.step if restored else None) as records,
        catch_stop_signals() as stop_signals,
    ):
        return (yield from _train_steps(run, records, stop_signals))


def _train_steps(
    run: _AdaptationRun, records: Records, stop_signals: list[str]
) -> Generator[FinetuneEvent, None, bool]:
    adaptation, first_step, start = run.adaptation, run.train_state.step, run.train_state.seconds
    device = adaptation.precision.device
    training = Training(
        module=run.module,
        trainable=run.module,
        optimizer=run.optimizer,
        schedule=StepSchedule(
            (run.num_steps,), round(_WARMUP_RATIO * run.num_steps), adaptation.settings.learning_rate
        ),
        get_batches=lambda phase, step: [batch.to(device) for batch in run.batches.get_lm_batches(phase, step)],
        seed=adaptation.seed,
        precision=adaptation.precision,
    )
    if first_step == 0:
        yield from _evaluate(run, records)
    for step in train(training, run.train_state):
        records.add(_step_record(step))
        yield FinetuneEvent(step=step, phase=PHASE, num_steps=run.num_steps)
        if step.number - first_step == _TIMED_STEPS:
            seconds = (step.seconds - start) / _TIMED_STEPS * (run.num_steps - step.number)
            yield FinetuneEvent(note=f"the adaptation will take about {format_duration(seconds)}")
        should_exit = bool(stop_signals) or adaptation.request.stop_after == step.number - first_step
        should_evaluate = step.number % run.eval_steps == 0 or step.number == run.num_steps
        if should_evaluate:
            yield from _evaluate(run, records)
        if should_evaluate or should_exit:
            _save(run, records)
        if should_exit:
            yield FinetuneEvent(note=STOP_MESSAGE, is_interrupted=bool(stop_signals))
            return False
    return True


def _step_record(step: Step) -> StepRecord:
    if not math.isfinite(step.grad_norm) and not step.has_overflow:
        raise BertworksError(
            f"adapt, step {step.number}: the gradient norm is {step.grad_norm}; lower adapt.learning_rate"
        )
    return step.to_record(PHASE)


def _evaluate(run: _AdaptationRun, records: Records) -> Iterator[FinetuneEvent]:
    """Measure the loss on texts of dev, always with the same targets."""
    if run.dev_batches is None:
        return
    batches = (batch for step in range(run.dev_batches.num_steps) for batch in run.dev_batches.get_lm_batches(0, step))
    scores = evaluate(run.module, batches, run.adaptation.precision)
    record = HeldOutRecord(
        step=run.train_state.step,
        phase=PHASE,
        losses=scores.losses,
        perplexity=math.exp(min(scores.loss, 700.0)),
        accuracy=scores.accuracy,
    )
    records.add(record)
    name = next(iter(scores.losses))
    yield FinetuneEvent(
        note=f"adapt, step {record.step:,}: on dev texts {name} loss {record.loss:.3f}, accuracy {record.accuracy:.1%}"
    )


def _save(run: _AdaptationRun, records: Records) -> None:
    records.sync()
    folder = run.adaptation.folder / "checkpoints"
    save_checkpoint(folder, run.module.state_dict(), run.optimizer.state(), run.train_state, run.digest)
    keep_last(folder, 1, set())


def _finish(run: _AdaptationRun) -> Iterator[FinetuneEvent]:
    """Write the adapted model, and remove the checkpoints, which it replaces."""
    adaptation = run.adaptation
    base, folder = adaptation.base, adaptation.folder
    held_out = [record for record in read_records(folder) if isinstance(record, HeldOutRecord)]
    metadata = {
        "objective": objective_on_sequences(base, adaptation.predictor.module.task),
        "recipe": {"masking": asdict(masking_of(base)), "adapt": asdict(adaptation.settings), "seed": adaptation.seed},
        "scores": {"held_out_loss": held_out[-1].loss} if held_out else {},
        "digest": run.digest,
        **hashes_of(adaptation.request.model or None),
    }
    sentence_files = read_sentence_files(base.path)
    write_model(folder / "model", run.module, adaptation.predictor.tokenizer, metadata, sentence_files=sentence_files)
    keep_last(folder / "checkpoints", 0, set())
    losses = f"; loss on dev texts {held_out[0].loss:.3f} before, {held_out[-1].loss:.3f} after" if held_out else ""
    yield FinetuneEvent(
        note=f"adapted in {format_duration(run.train_state.seconds)}{losses}; the adapted model: {folder / 'model'}"
    )


def _load_adapted(adapted: ModelFolder, module: TaskModule) -> None:
    """Load the encoder of an adapted model, and its MLM head if the task has an auxiliary loss with one."""
    load_into(module.encoder, adapted.tensors, adapted.family.tensor_names(adapted.encoder_config))
    if module.mlm_head is not None:
        load_into(module.mlm_head, adapted.tensors, adapted.family.heads["mlm"])
