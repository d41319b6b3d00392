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

from bertworks.commands.compare.cost import Cost, cost_of, fit_recipe_to_budget, total_steps
from bertworks.commands.compare.recipe import CompareRecipe, MemberRecipe, TaskRecipe, folder_name, parse_budget
from bertworks.commands.finetune.request import FinetuneEvent as TuningTold
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.sweep import complete_run, outcome_of
from bertworks.commands.finetune.targets import resolve_dataset
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.build import build, resolve_model_init, write_model
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.run import PretrainRequest, pretrain, recipe_hash
from bertworks.commands.pretrain.run import TrainEvent as PretrainTold
from bertworks.commands.run_facts import count_tokens
from bertworks.corpus.corpus import Corpus
from bertworks.disk import read_json, write_json
from bertworks.errors import BertworksError, FolderError
from bertworks.records import StepRecord, read_records
from bertworks.training.checkpoint import load_latest_checkpoint
from bertworks.training.evaluation import evaluate
from bertworks.training.interrupt import STOP_MESSAGE

CompareEvent = PretrainTold | TuningTold | str
EventCallback = Callable[[CompareEvent], None]


@dataclass(frozen=True, slots=True)
class CompareJob:
    """What is to be done: the comparison, the member that is pretrained, the seed, and where.

    `vocabulary` is the member's among those of the corpus, if there are several.
    """

    comparison: CompareRecipe
    corpus: Path
    member: str
    seed: int
    output: Path
    vocabulary: str | None = None
    device: str = "auto"

    @property
    def folder(self) -> Path:
        return self.output / "runs" / folder_name(self.member) / f"seed-{self.seed}"

    @property
    def title(self) -> str:
        return f"{self.member}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Point:
    """What pretraining came to after a share of the budget. `held_out` is the loss of `asks`, on held-out text."""

    budget_ratio: float
    steps: int
    num_tokens: int
    seconds: float
    flops: float
    num_parameters: int
    loss_part: str
    held_out_loss: float


@dataclass(frozen=True, slots=True)
class Score:
    """What a member came to on a task with one seed, from the model of a point: the main figure on dev."""

    member: str
    seed: int
    point: Point
    task: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be done, and why."""

    member: str
    seed: int
    stage: str
    error: str


@dataclass(slots=True)
class JobResult:
    """What a job came to. `left` says that it was asked to stop before its end."""

    title: str
    points: list[tuple[str, int, Point]] = field(default_factory=list)  # member, seed
    scores: list[Score] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    is_interrupted: bool = False


class _StopRequestedError(Exception):
    """Somebody asked to stop: the job is left as it is, and goes on when it is done again."""


def run_job(job: CompareJob, on_event: EventCallback = lambda told: None) -> JobResult:
    """Do a job, or what of it is not finished. An error of one part is kept, and the others go on."""
    done = JobResult(job.title)
    members = job.comparison.members_with_base(job.member)
    try:
        points = (
            _run_or_record_failure(job, done, members, "pretraining", lambda: list(_pretrain_points(job, on_event)))
            or []
        )
        for point, model in points:
            for member in members:
                done.points.append((member.name, job.seed, point))
                for task in job.comparison.tasks:
                    _score_task(job, done, _FinetuneJob(member, task, point, model), on_event)
    except _StopRequestedError:
        done.is_interrupted = True
    return done


def _run_or_record_failure(
    job: CompareJob, result: JobResult, members: list[MemberRecipe], stage: str, work: Callable[[], Any]
) -> Any:
    """Return what work comes to, or note for its members that it failed. A person's wish to stop goes through."""
    try:
        return work()
    except _StopRequestedError:
        raise
    except BertworksError as error:
        told = str(error)
    except Exception as error:  # a member that fails must not cost the others hours
        told = f"{type(error).__name__}: {error}"
    result.failures += [Failure(member.name, job.seed, stage, told) for member in members]
    return None


# Pretraining


def _pretrain_points(job: CompareJob, on_event: EventCallback) -> Iterator[tuple[Point, Path]]:
    """Yield every point that is measured, with its model folder, as pretraining comes by."""
    comparison = job.comparison
    (member,) = (one for one in comparison.members if one.name == job.member)
    corpus = Corpus.open(job.corpus, job.vocabulary)
    recipe = fit_recipe_to_budget(comparison.pretrain_recipe(member, job.seed), parse_budget(comparison.budget), corpus)
    request = PretrainRequest(recipe, job.corpus, job.folder / "pretrain", job.vocabulary, device=job.device)
    run = _PretrainJob(job, request, corpus, recipe_hash(replace(recipe, micro_batch_size=0), corpus), on_event)
    for share in comparison.eval_ratios:
        yield run.pretrain_to(share)


@dataclass(slots=True)
class _PretrainJob:
    job: CompareJob
    request: PretrainRequest
    corpus: Corpus
    digest: str
    on_event: EventCallback
    cost: Cost | None = None

    def pretrain_to(self, budget_ratio: float) -> tuple[Point, Path]:
        """Return a point, from the disk if it is there; else pretrain as far as that."""
        folder = self.job.folder / _point_folder(budget_ratio)
        model = self.request.output / "model" if budget_ratio == 1 else folder / "model"
        file = folder / "point.json"
        if not file.exists():
            point = self._final_point() if budget_ratio == 1 else self._intermediate_point(budget_ratio, model)
            write_json(file, {"digest": self.digest, **asdict(point)})
        told = read_json(file, "a point of a comparison")
        if told.pop("digest") != self.digest:
            raise FolderError(f"{folder} was made with another recipe, budget or corpus; choose another --out")
        return Point(**told), model

    def _final_point(self) -> Point:
        self._run(None)
        facts = read_json(self.request.output / "model" / "bertworks.json", "a pretrained model")
        last = max(self._step_records(), key=lambda record: record.step)
        return self._make_point(1.0, last.step, facts["scores"]["held_out_loss"])

    def _intermediate_point(self, budget_ratio: float, model: Path) -> Point:
        """Go on to a step before the end, and write the model of that step."""
        recipe = self.request.recipe
        step = max(1, round(budget_ratio * total_steps(recipe)))
        found, _ = load_latest_checkpoint(self.request.output / "checkpoints")
        begun = 0 if found is None else found.train_state.step
        if begun > step:
            raise FolderError(
                f"{self.request.output} is past step {step:,}, which is to be measured; choose another --out"
            )
        if begun < step:
            self._run(step - begun)
        found, _ = load_latest_checkpoint(self.request.output / "checkpoints")
        assert found is not None
        module, _ = build(resolve_model_init(recipe, self.corpus.tokenizer, None), recipe, count_tokens(self.corpus))
        module.load_state_dict(dict(found.model))
        batches, _ = PretrainBatches(self.corpus, recipe).get_held_out_batches(_phase_at(recipe, step))
        held_out = evaluate(module, batches).loss
        told = {"objective": recipe.objective, "recipe": asdict(recipe), "scores": {"held_out_loss": held_out}}
        write_model(model, module, self.corpus.tokenizer, told)
        return self._make_point(budget_ratio, step, held_out)

    def _run(self, num_steps: int | None) -> None:
        for told in pretrain(replace(self.request, stop_after=num_steps)):
            self.on_event(told)
            if told.note == STOP_MESSAGE:
                raise _StopRequestedError

    def _step_records(self) -> list[StepRecord]:
        return [record for record in read_records(self.request.output) if isinstance(record, StepRecord)]

    def _make_point(self, budget_ratio: float, step: int, held_out_loss: float) -> Point:
        recipe = self.request.recipe
        self.cost = self.cost or cost_of(recipe, self.corpus)
        numbers = {str(phase.max_length): number for number, phase in enumerate(recipe.phases)}
        records = [record for record in self._step_records() if record.step <= step]
        flops = sum(self.cost.flops[numbers[record.phase]] for record in records)
        last = max(records, key=lambda record: record.step)
        asks = next(iter(last.losses))
        return Point(
            budget_ratio, step, last.num_tokens, last.seconds, flops, self.cost.num_parameters, asks, held_out_loss
        )


def _phase_at(recipe: PretrainRecipe, step: int) -> int:
    """Return the phase of the last of so many steps."""
    ends = [sum(phase.steps for phase in recipe.phases[: number + 1]) for number in range(len(recipe.phases))]
    return next(number for number, end in enumerate(ends) if step <= end)


def _point_folder(budget_ratio: float) -> str:
    return f"at-{100 * budget_ratio:03g}"


# Fine-tuning


@dataclass(frozen=True, slots=True)
class _FinetuneJob:
    member: MemberRecipe
    task: TaskRecipe
    point: Point
    model: Path


def _score_task(job: CompareJob, result: JobResult, finetune_job: _FinetuneJob, on_event: EventCallback) -> None:
    what = (
        finetune_job.task.title
        if finetune_job.point.budget_ratio == 1
        else f"{finetune_job.task.title} after {finetune_job.point.steps:,} steps"
    )
    on_event(f"{job.title}: {finetune_job.member.name} on {what}")
    score = _run_or_record_failure(
        job, result, [finetune_job.member], what, lambda: _finetune(job, finetune_job, on_event)
    )
    if score is not None:
        result.scores.append(score)


def _finetune(job: CompareJob, finetune_job: _FinetuneJob, on_event: EventCallback) -> Score:
    """Fine-tune, or find that it is done, and return the main figure on dev."""
    task, comparison = finetune_job.task, job.comparison
    target = resolve_dataset(task.task, {"train": task.train, "dev": task.dev}, comparison.sets, task.columns)
    member, place = folder_name(finetune_job.member.name), _point_folder(finetune_job.point.budget_ratio)
    request = FinetuneRequest(
        target.task,
        str(finetune_job.model),
        target.files["train"],
        job.folder / "tuned" / member / place / folder_name(task.title),
        target.file("dev"),
        recipe=comparison.finetune_recipe(finetune_job.member, task, job.seed),
        columns=target.columns,
        settings=target.settings,
        device=job.device,
    )
    for told in complete_run(request):
        on_event(told)
    outcome = outcome_of(request)
    if outcome is None:
        raise _StopRequestedError
    shutil.rmtree(request.output / "features", ignore_errors=True)  # only learning needed what a frozen model says
    return Score(finetune_job.member.name, job.seed, finetune_job.point, task.title, outcome.main_metric, outcome.score)
