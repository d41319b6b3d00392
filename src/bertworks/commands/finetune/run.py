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

from bertworks.commands.finetune.batches import Drawer
from bertworks.commands.finetune.collapse import collapsed
from bertworks.commands.finetune.feature_cache import KeptFeatures
from bertworks.commands.finetune.finish import Finished, sealed
from bertworks.commands.finetune.recipe import Tuning, goal_of
from bertworks.commands.finetune.request import FinetuneRequest, Told
from bertworks.commands.pretrain.build import fresh_folder
from bertworks.commands.pretrain.recipe import as_toml, write_down
from bertworks.datasets.overlap import overlap
from bertworks.disk import sha256
from bertworks.encoders.families import initialise_part
from bertworks.encoders.stack import Stack
from bertworks.errors import BertworksError, FolderError, InputError, SettingsError
from bertworks.inference.predictor import CUT_OFF, Predictor
from bertworks.models.folder import ModelFolder, encoder_of, read_folder
from bertworks.models.hub import fetch
from bertworks.models.tensor_names import load_into
from bertworks.objectives.heads import MaskedHead
from bertworks.records import Records, ScoreRecord, StepRecord, read_records
from bertworks.reports.finetune import Coverage
from bertworks.sampling.causal import NextPieces
from bertworks.sampling.masking import Masker
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.contract import Question, Scaled, Scored, Task, examples_in
from bertworks.tasks.module import Auxiliary, TaskModule
from bertworks.tasks.recurrent_head import RecurrentSettings
from bertworks.tasks.registry import task_of
from bertworks.text.document import Counts
from bertworks.training.checkpoint import keep_last, last_good, load_checkpoint, save_checkpoint
from bertworks.training.devices import Precision, device_of
from bertworks.training.interrupt import LEFT, asked_to_stop
from bertworks.training.loop import Standing, Training, train
from bertworks.training.optimizer import PaperAdam, freeze
from bertworks.training.process_group import check_alone
from bertworks.vocabulary.tokenizer import Tokenizer

# What is done about a model that calls everything one class.
_ANOTHER_SEED = "The run is started again with another seed."
_NO_MORE_SEEDS = "No other seed is tried, and the model is kept as it is: it tells nothing apart."
# Of how many dev examples the score is taken only to see which figures it has.
_ENOUGH_TO_NAME = 32


@dataclass(slots=True)
class _Run:
    request: FinetuneRequest
    predictor: Predictor
    optimizer: PaperAdam
    drawer: Drawer
    precision: Precision
    cases: dict[str, list[Any]]
    digest: str
    folder: Path
    coverage: Coverage
    standing: Standing = field(default_factory=Standing)
    best: ScoreRecord | None = None
    num_worse: int = 0
    last: Scored | None = None

    @property
    def module(self) -> TaskModule:
        return self.predictor.module

    @property
    def num_steps(self) -> int:
        return self.drawer.num_steps * self.request.tuning.epochs


def finetune(request: FinetuneRequest) -> Iterator[Told]:
    """Fine-tune, or continue, and yield what happens. At the end the run folder holds the model in `model/`.

    A run whose model calls everything one class is begun again with another seed, as often as the tuning says.
    """
    check_alone("fine-tuning")
    reasons: list[str] = []
    for attempt in range(request.tuning.restarts + 1):
        tuning = replace(request.tuning, seed=request.tuning.seed + 1_000 * attempt)
        folder = request.out if attempt == 0 else request.out / f"restart-{attempt}"
        run, notes = _open(replace(request, tuning=tuning), folder)
        yield from (notes if attempt == 0 else [])
        yield from _features(run)
        if not (yield from _trained(run)):
            return
        is_last = attempt == request.tuning.restarts
        reason = _collapsed(run, _NO_MORE_SEEDS if is_last else _ANOTHER_SEED)
        if reason is not None:
            reasons.append(reason)
            yield Told(warning=reason)
        if reason is None or is_last:
            break
    step = run.standing.step
    if run.best is not None and run.best.step != step:
        step = run.best.step
        best = load_checkpoint(run.folder / "checkpoints" / f"step-{step:08d}")
        run.module.load_state_dict(dict(best.model))
        yield Told(note=f"the model is that of step {step:,}, the best on dev")
    if isinstance(run.module.task, Scaled):
        run.module.task = run.module.task.unscaled(run.module.head)
    warnings = [*(one.warning for one in notes if one.warning), *reasons]
    found = [one.note for one in notes if one.note and one.note != run.coverage.words()]
    end = Finished(run.request, run.predictor, run.cases, step, run.folder, run.coverage, warnings, found)
    yield from sealed(end)


def _open(request: FinetuneRequest, folder: Path) -> tuple[_Run, list[Told]]:
    """Read the files, build the model, check what can be checked, and write the recipe down."""
    tuning, device = request.tuning, device_of(request.device)
    base = read_folder(fetch(request.model)) if request.model else fresh_folder(tuning.model, request.vocabulary)
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
    cases["train"] = _spread(cases["train"], tuning.examples)
    task = kind.learned(cases["train"], request.settings)
    generator = torch.Generator().manual_seed(tuning.seed)
    module = _built(base, task, tuning, generator)
    rule = tuning.rule(task.default_rule, module.encoder.sizes.positions)
    _check_orders(rule, task, cases["train"])
    questions = [task.ask(case, base.tokenizer, rule) for case in cases["train"]]
    notes = [Told(note=f"{count:,} {what}") for what, count in counts.items() if count]
    coverage = Coverage.of(questions, rule)
    notes += [Told(note=coverage.words()), *_too_long(questions, rule), *_leaks(cases)]
    for split in ("dev", "test"):
        notes += _asked(split, cases.get(split, []), partial(task.ask, tokenizer=base.tokenizer, rule=rule))
    drawer = Drawer(questions, task, base.tokenizer, tuning.batch, tuning.seed)
    if tuning.masked_weight or tuning.next_weight:
        drawer.hider = Masker(base.tokenizer) if tuning.masked_weight else NextPieces()
    module.to(device)
    num_layers = module.encoder.sizes.num_layers
    depths = tuning.depths.over(drawer.num_steps * tuning.epochs, num_layers)
    freeze(module, depths, num_layers)
    optimizer = PaperAdam(module, tuning.optimizer, depths, num_layers)
    predictor = Predictor(module, base.tokenizer, rule)
    _check_goal(tuning, predictor, cases.get("dev"))
    digest = _digest(request)
    text = f"task = {json.dumps(request.task)}\n" + as_toml(tuning)
    write_down(folder, text, ("restart-*", ".*"))
    precision = Precision(tuning.precision, device)
    return _Run(request, predictor, optimizer, drawer, precision, cases, digest, folder, coverage), notes


def _check_orders(rule: WindowRule, task: Task, cases: Sequence[Any]) -> None:
    """Refuse two orders of what is no pair, or has an order."""
    if rule.orders == "both" and (task.head_kind != "rows" or all(len(case.texts) < 2 for case in cases)):
        raise SettingsError("orders = both is for pairs of texts that are classified or scored; leave it out here")


def _built(base: ModelFolder, task: Task, tuning: Tuning, generator: torch.Generator) -> TaskModule:
    encoder = encoder_of(base, generator)[0] if base.tensors else base.family.build(base.sizes, generator)
    if tuning.dropout is not None:
        encoder.set_dropout(tuning.dropout)
    encoder.recomputes = tuning.recompute
    auxiliary = _auxiliary(base, encoder, tuning, generator)
    return TaskModule(encoder, task, generator, auxiliary, _recurrent(tuning))


def _recurrent(tuning: Tuning) -> RecurrentSettings | None:
    """Return what a recurrent head is to be built of, if there is to be one."""
    if tuning.features:
        return RecurrentSettings(tuning.features, tuning.recurrent_width)
    return RecurrentSettings("last", tuning.recurrent_width, freezes=False) if tuning.head == "recurrent" else None


def _spread(cases: list[Any], most: int) -> list[Any]:
    """Return so many of the cases, evenly spread over them; all if there are not more, or for 0."""
    if not 0 < most < len(cases):
        return cases
    return [cases[number * len(cases) // most] for number in range(most)]


def _auxiliary(base: ModelFolder, encoder: Stack, tuning: Tuning, generator: torch.Generator) -> Auxiliary | None:
    """Return what is learned beside the task; refuse what the model cannot be asked."""
    if tuning.next_weight:
        if encoder.own_reads != "left":
            raise SettingsError(
                "an auxiliary loss of next pieces is for a model that reads to the left; ask for masked"
            )
        return Auxiliary(None, tuning.next_weight)
    if not tuning.masked_weight:
        return None
    if "masked" not in base.family.heads:
        raise SettingsError(f"a model of the family '{encoder.sizes.family}' fills no blanks; ask for next pieces")
    head = MaskedHead(encoder.sizes)
    initialise_part(head, encoder.sizes, generator)
    if not load_into(head, base.tensors, base.family.heads["masked"]).loaded:
        nn.init.zeros_(head.norm.weight)  # silent at first: what it does not know yet must not move the encoder
    return Auxiliary(head, tuning.masked_weight)


def _asked(split: str, cases: Sequence[Any], ask: Callable[[Any], Question]) -> list[Told]:
    """Ask all of a split, so that a label that training never saw, or that lacks, is found now, not after an hour."""
    without = [case for case in cases if case.label is None]
    if without and (split == "dev" or len(without) < len(cases)):
        raise InputError(f"{without[0].place}: there is no label; fill it in, or name its column with --label")
    num_cut = sum(ask(case).num_cut for case in cases)
    found = [Told(note=f"{split}: {num_cut:,} {CUT_OFF}")] if num_cut else []
    if without:
        found.append(Told(note=f"{split} has no labels and is not scored; `predict` tells what they are"))
    return found


def _too_long(questions: Sequence[Question], rule: WindowRule) -> list[Told]:
    """Return a warning if some examples are too long to be learned from; refuse if all are."""
    count = sum(not question.teaches for question in questions)
    if count == len(questions):
        raise InputError(f"no training example fits into a row of {rule.length} places; give longer ones with --length")
    told = f"{count:,} training examples do not fit into a row of {rule.length} places; nothing is learned from them"
    return [Told(warning=told)] if count else []


def _leaks(cases: Mapping[str, Sequence[Any]]) -> list[Told]:
    """Return a warning for each other split that shares texts with train."""
    found = []
    for split in ("dev", "test"):
        shared = overlap(_texts(cases["train"]), _texts(cases.get(split, ())))
        if shared.count:
            example = " / ".join(shared.examples[0])[:80]
            found.append(
                Told(
                    warning=f"{shared.count:,} of {shared.total:,} {split} texts also stand in train, so that its "
                    f"score flatters; the first: {example}"
                )
            )
    return found


def _texts(cases: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    return (texts for case in cases for texts in examples_in(case))


def _digest(request: FinetuneRequest) -> str:
    """Return what must be equal for a checkpoint to fit."""
    files = [sha256(path) for path in request.files]
    begun = "" if request.vocabulary is None else Tokenizer.load(request.vocabulary).hash
    told = [request.task, request.model, begun, files, asdict(request.tuning), request.columns, request.settings]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _features(run: _Run) -> Iterator[Told]:
    """Compute what a frozen model says of train and dev, once; a run without features has nothing to do."""
    tuning, predictor = run.request.tuning, run.predictor
    if not tuning.features:
        return
    dev = (run.module.task.ask(case, predictor.tokenizer, predictor.rule) for case in run.cases.get("dev", []))
    rows = itertools.chain(run.drawer.rows, (row for question in dev for row in question.rows))
    kept = KeptFeatures(run.request.kept or run.request.out / "features", predictor, rows, tuning.feature_precision)
    yield Told(note=f"the model is frozen, a recurrent head learns at a rate of {tuning.rate:g}; {kept.place}")
    yield from (Told(note=text) for text in kept.fill())
    run.module.kept = kept


def _check_goal(tuning: Tuning, predictor: Predictor, dev: Sequence[Any] | None) -> None:
    """Refuse, before anything is learned, to wait for what dev will never tell."""
    if dev is None and (tuning.until or tuning.patience):
        raise SettingsError("--until and --patience look at the scores of dev; name a labelled file with --dev")
    goal = goal_of(tuning.until)
    if goal is None or dev is None:
        return
    some = dev[:: max(1, len(dev) // _ENOUGH_TO_NAME)]
    figures = predictor.module.task.score(predictor.predict(some)).figures
    known = [name for name in figures if not name.endswith(("_error", "loss"))]  # which are better when lower
    if goal[0] not in known:
        raise SettingsError(f"--until {tuning.until}: dev has no figure '{goal[0]}'; choose one of: {', '.join(known)}")


def _trained(run: _Run) -> Generator[Told, None, bool]:
    """Do the steps; return whether the run came to its end."""
    checkpoint, damaged = last_good(run.folder / "checkpoints")
    yield from (Told(warning=text) for text in damaged)
    if checkpoint is not None:
        if checkpoint.recipe != run.digest:
            raise FolderError(f"{checkpoint.folder} was made with other data or settings; choose another --out")
        run.module.load_state_dict(dict(checkpoint.model))
        run.standing = checkpoint.standing
        run.optimizer.restore(checkpoint.optimizer, run.standing.step - run.standing.num_overflowed)
        for record in read_records(run.folder):
            if isinstance(record, ScoreRecord) and record.split == "dev" and record.step <= run.standing.step:
                _remember(run, record)
        yield Told(note=f"continuing after step {run.standing.step:,}")
    with (
        Records.open(run.folder, run.standing.step if checkpoint else None) as records,
        asked_to_stop() as stop,
    ):
        return (yield from _steps(run, records, stop))


def _steps(run: _Run, records: Records, stop: list[str]) -> Generator[Told, None, bool]:
    tuning, first = run.request.tuning, run.standing.step
    device = run.precision.device
    draw = lambda phase, step: [batch.to(device) for batch in run.drawer.draw(phase, step)]  # noqa: E731
    pace = tuning.pace(run.num_steps)
    training = Training(run.module, run.module, run.optimizer, pace, draw, tuning.seed, run.precision)
    every = max(1, run.drawer.num_steps // tuning.evaluations)
    if _is_over(run):
        return True
    for step in train(training, run.standing):
        if not math.isfinite(step.norm) and not step.overflowed:
            raise BertworksError(
                f"step {step.number}: the gradients are {step.norm}; lower --rate or lengthen the warmup"
            )
        records.add(StepRecord(step.number, "tune", step.losses, step.rate, step.seconds, step.pieces, step.norm))
        yield Told(step=step, num_steps=run.num_steps)
        leaves = bool(stop) or run.request.stop_after == step.number - first
        measures = step.number % every == 0 or step.number == run.num_steps
        if measures:
            yield from _measured(run, records)
            run.module.train()
        if measures or leaves:
            _saved(run, records)
        if leaves:
            yield Told(note=LEFT)
            return False
        if _is_over(run):
            yield Told(note=f"stopped early at step {step.number:,}: {_why_over(run)}")
            break
    return True


def _measured(run: _Run, records: Records) -> Iterator[Told]:
    """Score dev, and remember whether it is the best."""
    if "dev" not in run.cases:
        return
    run.last = run.module.task.score(run.predictor.predict(run.cases["dev"]))
    record = ScoreRecord(run.standing.step, "dev", dict(run.last.figures))
    records.add(record)
    _remember(run, record)
    yield Told(score=record)


def _remember(run: _Run, record: ScoreRecord) -> None:
    main = run.module.task.main
    if run.best is None or record.figures[main] > run.best.figures[main]:
        run.best, run.num_worse = record, 0
    else:
        run.num_worse += 1


def _is_over(run: _Run) -> bool:
    return bool(_why_over(run))


def _why_over(run: _Run) -> str:
    tuning = run.request.tuning
    goal = goal_of(tuning.until)
    if goal is not None and run.best is not None and run.best.figures.get(goal[0], -math.inf) >= goal[1]:
        return f"{goal[0]} reached {run.best.figures[goal[0]]:.4f}"
    if tuning.patience and run.num_worse >= tuning.patience:
        return f"{run.num_worse} measurements without a better one"
    return ""


def _saved(run: _Run, records: Records) -> None:
    records.sync()
    folder = run.folder / "checkpoints"
    save_checkpoint(folder, run.module.state_dict(), run.optimizer.state(), run.standing, run.digest)
    keep_last(folder, 1, {f"step-{run.best.step:08d}"} if run.best else set())


def _collapsed(run: _Run, remedy: str) -> str | None:
    """Return why the run has to be begun again, if its model calls everything one class."""
    if run.last is None and "dev" in run.cases:  # this call did no step: the run had come to its end before
        run.last = run.module.task.score(run.predictor.predict(run.cases["dev"]))
    if run.last is None or "confusion" not in run.last.details:
        return None
    return collapsed(run.last.details["confusion"], run.last.details["labels"], remedy)
