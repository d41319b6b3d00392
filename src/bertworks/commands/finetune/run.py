"""Fine-tune: a pretrained model and labelled files in, a run folder with a sealed model out; exact when interrupted."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertworks.commands.finetune.batches import FinetuneBatches
from bertworks.commands.finetune.collapse import describe_collapse
from bertworks.commands.finetune.feature_cache import FeatureCache
from bertworks.commands.finetune.finish import FinishedRun, finish_run
from bertworks.commands.finetune.recipe import FinetuneRecipe, parse_target_metric
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.pretrain.build import new_model_folder
from bertworks.datasets.overlap import overlap
from bertworks.disk import sha256
from bertworks.encoders.families import initialise_part
from bertworks.encoders.stack import Encoder
from bertworks.errors import BertworksError, FolderError, InputError, SettingsError
from bertworks.inference.predictor import TRUNCATED_TOKENS, Predictor
from bertworks.models.folder import ModelFolder, load_encoder, read_folder
from bertworks.models.hub import fetch
from bertworks.models.tensor_names import load_into
from bertworks.objectives.heads import MlmHead
from bertworks.records import Records, ScoreRecord, StepRecord, read_records
from bertworks.reports.finetune import WindowCoverage
from bertworks.sampling.causal import NextTokenTargets
from bertworks.sampling.masking import Masker
from bertworks.sampling.windows import WindowRule
from bertworks.settings import to_toml, write_recipe
from bertworks.tasks.contract import Features, ScaledTask, Task, TaskScores, examples_in
from bertworks.tasks.module import AuxiliaryLoss, TaskModule
from bertworks.tasks.recurrent_head import RecurrentSettings
from bertworks.tasks.registry import task_of
from bertworks.text.document import Counts
from bertworks.training.checkpoint import keep_last, load_checkpoint, load_latest_checkpoint, save_checkpoint
from bertworks.training.devices import Precision, device_of
from bertworks.training.interrupt import STOP_MESSAGE, catch_stop_signals
from bertworks.training.loop import Training, TrainState, train
from bertworks.training.optimizer import BertAdam, freeze
from bertworks.training.process_group import check_single_process
from bertworks.vocabulary.tokenizer import Tokenizer

# What is done about a model that calls everything one class.
_ANOTHER_SEED = "The run is started again with another seed."
_NO_MORE_SEEDS = "No other seed is tried, and the model is kept as it is: it tells nothing apart."
# Of how many dev examples the score is taken only to see which figures it has.
_NUM_PROBE_EXAMPLES = 32


@dataclass(slots=True)
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
    """Fine-tune, or continue, and yield what happens. At the end the run folder holds the model in `model/`.

    A run whose model calls everything one class is begun again with another seed, as often as the tuning says.
    """
    check_single_process("fine-tuning")
    reasons: list[str] = []
    for attempt in range(request.recipe.max_restarts + 1):
        tuning = replace(request.recipe, seed=request.recipe.seed + 1_000 * attempt)
        folder = request.output if attempt == 0 else request.output / f"restart-{attempt}"
        run, notes = _open(replace(request, recipe=tuning), folder)
        yield from (notes if attempt == 0 else [])
        yield from _fill_feature_cache(run)
        if not (yield from _train(run)):
            return
        is_last = attempt == request.recipe.max_restarts
        reason = _collapse_reason(run, _NO_MORE_SEEDS if is_last else _ANOTHER_SEED)
        if reason is not None:
            reasons.append(reason)
            yield FinetuneEvent(warning=reason)
        if reason is None or is_last:
            break
    step = run.train_state.step
    if run.best is not None and run.best.step != step:
        step = run.best.step
        best = load_checkpoint(run.folder / "checkpoints" / f"step-{step:08d}")
        run.module.load_state_dict(dict(best.model))
        yield FinetuneEvent(note=f"the model is that of step {step:,}, the best on dev")
    if isinstance(run.module.task, ScaledTask):
        run.module.task = run.module.task.unscale(run.module.head)
    warnings = [*(one.warning for one in notes if one.warning), *reasons]
    found = [one.note for one in notes if one.note and one.note != run.coverage.describe()]
    end = FinishedRun(run.request, run.predictor, run.examples, step, run.folder, run.coverage, warnings, found)
    yield from finish_run(end)


def _open(request: FinetuneRequest, folder: Path) -> tuple[_FinetuneRun, list[FinetuneEvent]]:
    """Read the files, build the model, check what can be checked, and write the recipe down."""
    tuning, device = request.recipe, device_of(request.device)
    base = read_folder(fetch(request.model)) if request.model else new_model_folder(tuning.model, request.vocabulary)
    kind = task_of(request.task)
    counts = Counts()
    cases = {
        split: list(kind.read(path, request.columns_of(split), counts))
        for split, path in (("train", request.train), ("dev", request.dev), ("test", request.test))
        if path is not None
    }
    for split, some in cases.items():
        if not some:
            raise InputError(f"{getattr(request, split)} holds no example; check the file")
    cases["train"] = _subsample(cases["train"], tuning.max_train_examples)
    task = kind.from_examples(cases["train"], request.settings)
    generator = torch.Generator().manual_seed(tuning.seed)
    module = _build_module(base, task, tuning, generator)
    rule = tuning.window_rule(task.default_window_rule, module.encoder.config.max_position_embeddings)
    _check_pair_order(rule, task, cases["train"])
    questions = [task.featurize(case, base.tokenizer, rule) for case in cases["train"]]
    notes = [FinetuneEvent(note=f"{count:,} {what}") for what, count in counts.items() if count]
    coverage = WindowCoverage.from_features(questions, rule)
    notes += [FinetuneEvent(note=coverage.describe()), *_length_warnings(questions, rule), *_leak_warnings(cases)]
    for split in ("dev", "test"):
        notes += _check_split(
            split, cases.get(split, []), partial(task.featurize, tokenizer=base.tokenizer, window_rule=rule)
        )
    drawer = FinetuneBatches(questions, task, base.tokenizer, tuning.batch_size, tuning.seed)
    if tuning.mlm_weight or tuning.lm_weight:
        drawer.corruption = Masker(base.tokenizer) if tuning.mlm_weight else NextTokenTargets()
    module.to(device)
    num_layers = module.encoder.config.num_hidden_layers
    depths = tuning.layerwise.resolve(drawer.num_steps * tuning.epochs, num_layers)
    freeze(module, depths, num_layers)
    optimizer = BertAdam(module, tuning.optimizer, depths, num_layers)
    predictor = Predictor(module, base.tokenizer, rule)
    _check_target_metric(tuning, predictor, cases.get("dev"))
    digest = _digest(request)
    text = f"task = {json.dumps(request.task)}\n" + to_toml(tuning)
    write_recipe(folder, text, ("restart-*", ".*"))
    precision = Precision(tuning.precision, device)
    return _FinetuneRun(request, predictor, optimizer, drawer, precision, cases, digest, folder, coverage), notes


def _check_pair_order(window_rule: WindowRule, task: Task, examples: Sequence[Any]) -> None:
    """Refuse two orders of what is no pair, or has an order."""
    if window_rule.pair_order == "both" and (task.head_kind != "rows" or all(len(case.texts) < 2 for case in examples)):
        raise SettingsError("orders = both is for pairs of texts that are classified or scored; leave it out here")


def _build_module(base: ModelFolder, task: Task, recipe: FinetuneRecipe, generator: torch.Generator) -> TaskModule:
    encoder = load_encoder(base, generator)[0] if base.tensors else base.family.build(base.encoder_config, generator)
    if recipe.dropout is not None:
        encoder.set_dropout(recipe.dropout)
    encoder.activation_checkpointing = recipe.activation_checkpointing
    auxiliary = _auxiliary(base, encoder, recipe, generator)
    return TaskModule(encoder, task, generator, auxiliary, _recurrent_settings(recipe))


def _recurrent_settings(recipe: FinetuneRecipe) -> RecurrentSettings | None:
    """Return what a recurrent head is to be built of, if there is to be one."""
    if recipe.feature_layers:
        return RecurrentSettings(recipe.feature_layers, recipe.recurrent_hidden_size)
    return (
        RecurrentSettings("last", recipe.recurrent_hidden_size, freeze_encoder=False)
        if recipe.head == "recurrent"
        else None
    )


def _subsample(examples: list[Any], max_examples: int) -> list[Any]:
    """Return so many of the cases, evenly spread over them; all if there are not more, or for 0."""
    if not 0 < max_examples < len(examples):
        return examples
    return [examples[number * len(examples) // max_examples] for number in range(max_examples)]


def _auxiliary(
    base: ModelFolder, encoder: Encoder, recipe: FinetuneRecipe, generator: torch.Generator
) -> AuxiliaryLoss | None:
    """Return what is learned beside the task; refuse what the model cannot be asked."""
    if recipe.lm_weight:
        if encoder.attention != "left":
            raise SettingsError(
                "an auxiliary loss of next pieces is for a model that reads to the left; ask for masked"
            )
        return AuxiliaryLoss(None, recipe.lm_weight)
    if not recipe.mlm_weight:
        return None
    if "masked" not in base.family.heads:
        raise SettingsError(f"a model of the family '{encoder.config.model_type}' fills no blanks; ask for next pieces")
    head = MlmHead(encoder.config)
    initialise_part(head, encoder.config, generator)
    if not load_into(head, base.tensors, base.family.heads["masked"]).loaded_keys:
        nn.init.zeros_(head.norm.weight)  # silent at first: what it does not know yet must not move the encoder
    return AuxiliaryLoss(head, recipe.mlm_weight)


def _check_split(split: str, examples: Sequence[Any], featurize: Callable[[Any], Features]) -> list[FinetuneEvent]:
    """Ask all of a split, so that a label that training never saw, or that lacks, is found now, not after an hour."""
    without = [case for case in examples if case.label is None]
    if without and (split == "dev" or len(without) < len(examples)):
        raise InputError(f"{without[0].place}: there is no label; fill it in, or name its column with --label")
    num_cut = sum(featurize(case).num_truncated for case in examples)
    found = [FinetuneEvent(note=f"{split}: {num_cut:,} {TRUNCATED_TOKENS}")] if num_cut else []
    if without:
        found.append(FinetuneEvent(note=f"{split} has no labels and is not scored; `predict` tells what they are"))
    return found


def _length_warnings(all_features: Sequence[Features], window_rule: WindowRule) -> list[FinetuneEvent]:
    """Return a warning if some examples are too long to be learned from; refuse if all are."""
    count = sum(not question.is_trainable for question in all_features)
    if count == len(all_features):
        raise InputError(
            f"no training example fits into a row of {window_rule.max_length} places; give longer ones with --length"
        )
    told = f"{count:,} training examples do not fit into a row of {window_rule.max_length} places; nothing is learned from them"
    return [FinetuneEvent(warning=told)] if count else []


def _leak_warnings(examples: Mapping[str, Sequence[Any]]) -> list[FinetuneEvent]:
    """Return a warning for each other split that shares texts with train."""
    found = []
    for split in ("dev", "test"):
        shared = overlap(_texts(examples["train"]), _texts(examples.get(split, ())))
        if shared.count:
            example = " / ".join(shared.examples[0])[:80]
            found.append(
                FinetuneEvent(
                    warning=f"{shared.count:,} of {shared.total:,} {split} texts also stand in train, so that its "
                    f"score flatters; the first: {example}"
                )
            )
    return found


def _texts(examples: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    return (texts for case in examples for texts in examples_in(case))


def _digest(request: FinetuneRequest) -> str:
    """Return what must be equal for a checkpoint to fit."""
    files = [sha256(path) for path in request.files]
    begun = "" if request.vocabulary is None else Tokenizer.load(request.vocabulary).hash
    told = [request.task, request.model, begun, files, asdict(request.recipe), request.columns, request.settings]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _fill_feature_cache(run: _FinetuneRun) -> Iterator[FinetuneEvent]:
    """Compute what a frozen model says of train and dev, once; a run without features has nothing to do."""
    tuning, predictor = run.request.recipe, run.predictor
    if not tuning.feature_layers:
        return
    dev = (
        run.module.task.featurize(case, predictor.tokenizer, predictor.window_rule)
        for case in run.examples.get("dev", [])
    )
    rows = itertools.chain(run.batches.sequences, (row for question in dev for row in question.sequences))
    kept = FeatureCache(
        run.request.feature_folder or run.request.output / "features", predictor, rows, tuning.feature_precision
    )
    yield FinetuneEvent(
        note=f"the model is frozen, a recurrent head learns at a rate of {tuning.learning_rate:g}; {kept.description}"
    )
    yield from (FinetuneEvent(note=text) for text in kept.fill())
    run.module.feature_cache = kept


def _check_target_metric(recipe: FinetuneRecipe, predictor: Predictor, dev: Sequence[Any] | None) -> None:
    """Refuse, before anything is learned, to wait for what dev will never tell."""
    if dev is None and (recipe.target_metric or recipe.patience):
        raise SettingsError("--until and --patience look at the scores of dev; name a labelled file with --dev")
    goal = parse_target_metric(recipe.target_metric)
    if goal is None or dev is None:
        return
    some = dev[:: max(1, len(dev) // _NUM_PROBE_EXAMPLES)]
    figures = predictor.module.task.score(predictor.predict(some)).metrics
    known = [name for name in figures if not name.endswith(("_error", "loss"))]  # which are better when lower
    if goal[0] not in known:
        raise SettingsError(
            f"--until {recipe.target_metric}: dev has no figure '{goal[0]}'; choose one of: {', '.join(known)}"
        )


def _train(run: _FinetuneRun) -> Generator[FinetuneEvent, None, bool]:
    """Do the steps; return whether the run came to its end."""
    checkpoint, damaged = load_latest_checkpoint(run.folder / "checkpoints")
    yield from (FinetuneEvent(warning=text) for text in damaged)
    if checkpoint is not None:
        if checkpoint.recipe != run.digest:
            raise FolderError(f"{checkpoint.folder} was made with other data or settings; choose another --out")
        run.module.load_state_dict(dict(checkpoint.model))
        run.train_state = checkpoint.train_state
        run.optimizer.restore(checkpoint.optimizer, run.train_state.step - run.train_state.num_overflows)
        for record in read_records(run.folder):
            if isinstance(record, ScoreRecord) and record.split == "dev" and record.step <= run.train_state.step:
                _update_best(run, record)
        yield FinetuneEvent(note=f"continuing after step {run.train_state.step:,}")
    with (
        Records.open(run.folder, run.train_state.step if checkpoint else None) as records,
        catch_stop_signals() as stop,
    ):
        return (yield from _train_steps(run, records, stop))


def _train_steps(run: _FinetuneRun, records: Records, stop: list[str]) -> Generator[FinetuneEvent, None, bool]:
    tuning, first = run.request.recipe, run.train_state.step
    device = run.precision.device
    draw = lambda phase, step: [batch.to(device) for batch in run.batches.get_batches(phase, step)]  # noqa: E731
    pace = tuning.make_schedule(run.num_steps)
    training = Training(run.module, run.module, run.optimizer, pace, draw, tuning.seed, run.precision)
    every = max(1, run.batches.num_steps // tuning.evals_per_epoch)
    if _should_stop(run):
        return True
    for step in train(training, run.train_state):
        if not math.isfinite(step.grad_norm) and not step.has_overflow:
            raise BertworksError(
                f"step {step.number}: the gradients are {step.grad_norm}; lower --rate or lengthen the warmup"
            )
        records.add(
            StepRecord(
                step.number, "tune", step.losses, step.learning_rate, step.seconds, step.num_tokens, step.grad_norm
            )
        )
        yield FinetuneEvent(step=step, num_steps=run.num_steps)
        leaves = bool(stop) or run.request.stop_after == step.number - first
        measures = step.number % every == 0 or step.number == run.num_steps
        if measures:
            yield from _evaluate_dev(run, records)
            run.module.train()
        if measures or leaves:
            _save(run, records)
        if leaves:
            yield FinetuneEvent(note=STOP_MESSAGE)
            return False
        if _should_stop(run):
            yield FinetuneEvent(note=f"stopped early at step {step.number:,}: {_stop_reason(run)}")
            break
    return True


def _evaluate_dev(run: _FinetuneRun, records: Records) -> Iterator[FinetuneEvent]:
    """Score dev, and remember whether it is the best."""
    if "dev" not in run.examples:
        return
    run.last_scores = run.module.task.score(run.predictor.predict(run.examples["dev"]))
    record = ScoreRecord(run.train_state.step, "dev", dict(run.last_scores.metrics))
    records.add(record)
    _update_best(run, record)
    yield FinetuneEvent(score=record)


def _update_best(run: _FinetuneRun, record: ScoreRecord) -> None:
    main = run.module.task.main_metric
    if run.best is None or record.metrics[main] > run.best.metrics[main]:
        run.best, run.num_evals_without_improvement = record, 0
    else:
        run.num_evals_without_improvement += 1


def _should_stop(run: _FinetuneRun) -> bool:
    return bool(_stop_reason(run))


def _stop_reason(run: _FinetuneRun) -> str:
    tuning = run.request.recipe
    goal = parse_target_metric(tuning.target_metric)
    if goal is not None and run.best is not None and run.best.metrics.get(goal[0], -math.inf) >= goal[1]:
        return f"{goal[0]} reached {run.best.metrics[goal[0]]:.4f}"
    if tuning.patience and run.num_evals_without_improvement >= tuning.patience:
        return f"{run.num_evals_without_improvement} measurements without a better one"
    return ""


def _save(run: _FinetuneRun, records: Records) -> None:
    records.sync()
    folder = run.folder / "checkpoints"
    save_checkpoint(folder, run.module.state_dict(), run.optimizer.state(), run.train_state, run.digest)
    keep_last(folder, 1, {f"step-{run.best.step:08d}"} if run.best else set())


def _collapse_reason(run: _FinetuneRun, remedy: str) -> str | None:
    """Return why the run has to be begun again, if its model calls everything one class."""
    if run.last_scores is None and "dev" in run.examples:  # this call did no step: the run had come to its end before
        run.last_scores = run.module.task.score(run.predictor.predict(run.examples["dev"]))
    if run.last_scores is None or "confusion" not in run.last_scores.details:
        return None
    return describe_collapse(run.last_scores.details["confusion"], run.last_scores.details["labels"], remedy)
