"""One member of a comparison with one seed: a Job in; pretrained, fine-tuned on every task and scored, a Done out.

A job is a pure function of what it holds, in a folder of its own, so it does not matter who does it, where or how
often; what is finished there is not done again:

  pretrain/                          the run; its last model is the one measured at the whole budget
  at-NNN/point.json                  what pretraining came to after NNN percent of the budget; before the end its model/
  tuned/MEMBER/at-NNN/TASK/          a fine-tuning run
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bertworks.commands.compare.cost import Cost, cost_of, fitted, total_steps
from bertworks.commands.compare.recipe import Comparison, MemberRecipe, TaskRecipe, budget_of, folder_name
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.request import Told as TuningTold
from bertworks.commands.finetune.sweep import outcome_of, settled
from bertworks.commands.finetune.targets import target_of
from bertworks.commands.pretrain.batches import Rows
from bertworks.commands.pretrain.build import build, start_of, write_model
from bertworks.commands.pretrain.recipe import Recipe
from bertworks.commands.pretrain.run import PretrainRequest, pretrain, recipe_hash
from bertworks.commands.pretrain.run import Told as PretrainTold
from bertworks.commands.run_facts import piece_counts
from bertworks.corpus.corpus import Corpus
from bertworks.disk import read_json, write_json
from bertworks.errors import BertworksError, FolderError
from bertworks.records import StepRecord, read_records
from bertworks.training.checkpoint import last_good
from bertworks.training.evaluation import evaluate
from bertworks.training.interrupt import LEFT

Told = PretrainTold | TuningTold | str
Tell = Callable[[Told], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done: the comparison, the member that is pretrained, the seed, and where.

    `vocabulary` is the member's among those of the corpus, if there are several.
    """

    comparison: Comparison
    corpus: Path
    member: str
    seed: int
    out: Path
    vocabulary: str | None = None
    device: str = "auto"

    @property
    def folder(self) -> Path:
        return self.out / "runs" / folder_name(self.member) / f"seed-{self.seed}"

    @property
    def title(self) -> str:
        return f"{self.member}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Point:
    """What pretraining came to after a share of the budget. `held_out` is the loss of `asks`, on held-out text."""

    share: float
    steps: int
    pieces: int
    seconds: float
    flops: float
    parameters: int
    asks: str
    held_out: float


@dataclass(frozen=True, slots=True)
class Score:
    """What a member came to on a task with one seed, from the model of a point: the main figure on dev."""

    member: str
    seed: int
    point: Point
    task: str
    figure: str
    value: float


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be done, and why."""

    member: str
    seed: int
    what: str
    error: str


@dataclass(slots=True)
class Done:
    """What a job came to. `left` says that it was asked to stop before its end."""

    title: str
    points: list[tuple[str, int, Point]] = field(default_factory=list)  # member, seed
    scores: list[Score] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    left: bool = False


class _LeftError(Exception):
    """Somebody asked to stop: the job is left as it is, and goes on when it is done again."""


def do(job: Job, tell: Tell = lambda told: None) -> Done:
    """Do a job, or what of it is not finished. An error of one part is kept, and the others go on."""
    done = Done(job.title)
    members = job.comparison.sharing(job.member)
    try:
        points = _tried(job, done, members, "pretraining", lambda: list(_pretrained(job, tell))) or []
        for point, model in points:
            for member in members:
                done.points.append((member.name, job.seed, point))
                for task in job.comparison.tasks:
                    _scored(job, done, _Entry(member, task, point, model), tell)
    except _LeftError:
        done.left = True
    return done


def _tried(job: Job, done: Done, members: list[MemberRecipe], what: str, work: Callable[[], Any]) -> Any:
    """Return what work comes to, or note for its members that it failed. A person's wish to stop goes through."""
    try:
        return work()
    except _LeftError:
        raise
    except BertworksError as error:
        told = str(error)
    except Exception as error:  # a member that fails must not cost the others hours
        told = f"{type(error).__name__}: {error}"
    done.failures += [Failure(member.name, job.seed, what, told) for member in members]
    return None


# Pretraining


def _pretrained(job: Job, tell: Tell) -> Iterator[tuple[Point, Path]]:
    """Yield every point that is measured, with its model folder, as pretraining comes by."""
    comparison = job.comparison
    (member,) = (one for one in comparison.members if one.name == job.member)
    corpus = Corpus.open(job.corpus, job.vocabulary)
    recipe = fitted(comparison.pretraining(member, job.seed), budget_of(comparison.budget), corpus)
    request = PretrainRequest(recipe, job.corpus, job.folder / "pretrain", job.vocabulary, device=job.device)
    run = _Pretraining(job, request, corpus, recipe_hash(replace(recipe, micro_batch=0), corpus), tell)
    for share in comparison.measured_at:
        yield run.point(share)


@dataclass(slots=True)
class _Pretraining:
    job: Job
    request: PretrainRequest
    corpus: Corpus
    digest: str
    tell: Tell
    cost: Cost | None = None

    def point(self, share: float) -> tuple[Point, Path]:
        """Return a point, from the disk if it is there; else pretrain as far as that."""
        folder = self.job.folder / _percent(share)
        model = self.request.out / "model" if share == 1 else folder / "model"
        file = folder / "point.json"
        if not file.exists():
            point = self._last() if share == 1 else self._between(share, model)
            write_json(file, {"digest": self.digest, **asdict(point)})
        told = read_json(file, "a point of a comparison")
        if told.pop("digest") != self.digest:
            raise FolderError(f"{folder} was made with another recipe, budget or corpus; choose another --out")
        return Point(**told), model

    def _last(self) -> Point:
        self._run(None)
        facts = read_json(self.request.out / "model" / "bertworks.json", "a pretrained model")
        last = max(self._steps(), key=lambda record: record.step)
        return self._at(1.0, last.step, facts["scores"]["held_out_loss"])

    def _between(self, share: float, model: Path) -> Point:
        """Go on to a step before the end, and write the model of that step."""
        recipe = self.request.recipe
        step = max(1, round(share * total_steps(recipe)))
        found, _ = last_good(self.request.out / "checkpoints")
        begun = 0 if found is None else found.standing.step
        if begun > step:
            raise FolderError(
                f"{self.request.out} is past step {step:,}, which is to be measured; choose another --out"
            )
        if begun < step:
            self._run(step - begun)
        found, _ = last_good(self.request.out / "checkpoints")
        assert found is not None
        module, _ = build(start_of(recipe, self.corpus.tokenizer, None), recipe, piece_counts(self.corpus))
        module.load_state_dict(dict(found.model))
        batches, _ = Rows(self.corpus, recipe).held_out(_phase_at(recipe, step))
        held_out = evaluate(module, batches).loss
        told = {"objective": recipe.objective, "recipe": asdict(recipe), "scores": {"held_out_loss": held_out}}
        write_model(model, module, self.corpus.tokenizer, told)
        return self._at(share, step, held_out)

    def _run(self, num_steps: int | None) -> None:
        for told in pretrain(replace(self.request, stop_after=num_steps)):
            self.tell(told)
            if told.note == LEFT:
                raise _LeftError

    def _steps(self) -> list[StepRecord]:
        return [record for record in read_records(self.request.out) if isinstance(record, StepRecord)]

    def _at(self, share: float, step: int, held_out: float) -> Point:
        recipe = self.request.recipe
        self.cost = self.cost or cost_of(recipe, self.corpus)
        numbers = {str(phase.length): number for number, phase in enumerate(recipe.phases)}
        records = [record for record in self._steps() if record.step <= step]
        flops = sum(self.cost.flops[numbers[record.phase]] for record in records)
        last = max(records, key=lambda record: record.step)
        asks = next(iter(last.losses))
        return Point(share, step, last.pieces, last.seconds, flops, self.cost.parameters, asks, held_out)


def _phase_at(recipe: Recipe, step: int) -> int:
    """Return the phase of the last of so many steps."""
    ends = [sum(phase.steps for phase in recipe.phases[: number + 1]) for number in range(len(recipe.phases))]
    return next(number for number, end in enumerate(ends) if step <= end)


def _percent(share: float) -> str:
    return f"at-{100 * share:03g}"


# Fine-tuning


@dataclass(frozen=True, slots=True)
class _Entry:
    member: MemberRecipe
    task: TaskRecipe
    point: Point
    model: Path


def _scored(job: Job, done: Done, entry: _Entry, tell: Tell) -> None:
    what = entry.task.title if entry.point.share == 1 else f"{entry.task.title} after {entry.point.steps:,} steps"
    tell(f"{job.title}: {entry.member.name} on {what}")
    score = _tried(job, done, [entry.member], what, lambda: _tuned(job, entry, tell))
    if score is not None:
        done.scores.append(score)


def _tuned(job: Job, entry: _Entry, tell: Tell) -> Score:
    """Fine-tune, or find that it is done, and return the main figure on dev."""
    task, comparison = entry.task, job.comparison
    target = target_of(task.task, {"train": task.train, "dev": task.dev}, comparison.sets, task.columns)
    member, place = folder_name(entry.member.name), _percent(entry.point.share)
    request = FinetuneRequest(
        target.task,
        str(entry.model),
        target.files["train"],
        job.folder / "tuned" / member / place / folder_name(task.title),
        target.file("dev"),
        tuning=comparison.tuned(entry.member, task, job.seed),
        columns=target.columns,
        settings=target.settings,
        device=job.device,
    )
    for told in settled(request):
        tell(told)
    outcome = outcome_of(request)
    if outcome is None:
        raise _LeftError
    shutil.rmtree(request.out / "features", ignore_errors=True)  # only learning needed what a frozen model says
    return Score(entry.member.name, job.seed, entry.point, task.title, outcome.main, outcome.score)
