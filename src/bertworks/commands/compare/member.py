"""One member of a comparison with one seed: a CompareJob in; pretrained, fine-tuned and scored, a JobResult out.

A job depends only on its fields and has its own folder, so it can run anywhere and any number of times; what is
finished there is not done again:

  pretrain/                          the run; its model is that of the whole budget
  at-NNN/point.json                  the pretraining result after NNN percent of the budget; before the end its model/
  finetuned/MEMBER/at-NNN/TASK/      a fine-tuning run
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bertworks.commands.compare.cost import Cost, cost_of, fit_recipe_to_budget, total_steps
from bertworks.commands.compare.recipe import CompareRecipe, MemberRecipe, TaskRecipe, folder_name, parse_budget
from bertworks.commands.finetune.dataset import resolve_dataset
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.sweep import complete_run, outcome_of
from bertworks.commands.pretrain.batches import PretrainBatches
from bertworks.commands.pretrain.build import build, resolve_model_init, write_model
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.request import PretrainRequest, TrainEvent
from bertworks.commands.pretrain.run import run_pretrain
from bertworks.commands.pretrain.run_recipe import recipe_hash
from bertworks.commands.run_info import count_tokens, resolve_run_precision
from bertworks.corpus.corpus import Corpus
from bertworks.disk import read_json, write_json
from bertworks.errors import BertworksError, FolderError
from bertworks.records import StepRecord, read_records
from bertworks.training.checkpoint import load_latest_checkpoint
from bertworks.training.devices import device_of
from bertworks.training.ema import averaged_weights
from bertworks.training.evaluation import evaluate

CompareEvent = TrainEvent | FinetuneEvent | str
EventCallback = Callable[[CompareEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareJob:
    """A member to pretrain with one seed, and its output folder.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The pretraining result after a part of the budget. `held_out_loss` is that of the loss part `loss_part`."""

    budget_ratio: float
    steps: int
    num_tokens: int
    seconds: float
    flops: float
    num_parameters: int
    loss_part: str
    held_out_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The main metric on dev of one task, fine-tuned with one seed from the model of a point."""

    member: str
    seed: int
    point: Point
    task: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A stage that failed, and why."""

    member: str
    seed: int
    stage: str
    error: str


@dataclass(slots=True, kw_only=True)
class JobResult:
    """The outcome of a job. `is_interrupted`: it was asked to stop before its end."""

    title: str
    points: list[tuple[str, int, Point]] = field(default_factory=list)  # member, seed
    scores: list[Score] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    is_interrupted: bool = False


class _StopRequestedError(Exception):
    """The user asked to stop; the job continues when it is run again."""


def run_job(job: CompareJob, on_event: EventCallback = lambda event: None) -> JobResult:
    """Run a job, or what is unfinished of it. An error of one stage is recorded, and the others continue."""
    result = JobResult(title=job.title)
    members = job.comparison.members_with_base(job.member)
    try:
        points = (
            _run_or_record_failure(job, result, members, "pretraining", lambda: list(_pretrain_points(job, on_event)))
            or []
        )
        for point, model in points:
            for member in members:
                result.points.append((member.name, job.seed, point))
                for task in job.comparison.tasks:
                    _score_task(job, result, _FinetuneJob(member, task, point, model), on_event)
    except _StopRequestedError:
        result.is_interrupted = True
    return result


def _run_or_record_failure(
    job: CompareJob, result: JobResult, members: list[MemberRecipe], stage: str, work: Callable[[], Any]
) -> Any:
    """Return the result of `work`, or record for the members that the stage failed. Stop requests pass through."""
    try:
        return work()
    except _StopRequestedError:
        raise
    except BertworksError as error:
        message = str(error)
    except Exception as error:  # a member that fails must not cost the others hours
        message = f"{type(error).__name__}: {error}"
    result.failures += [Failure(member.name, job.seed, stage, message) for member in members]
    return None


# Pretraining


def _pretrain_points(job: CompareJob, on_event: EventCallback) -> Iterator[tuple[Point, Path]]:
    """Pretrain, and yield every point to evaluate with its model folder."""
    comparison = job.comparison
    (member,) = (candidate for candidate in comparison.members if candidate.name == job.member)
    corpus = Corpus.open(job.corpus, job.vocabulary)
    recipe = fit_recipe_to_budget(comparison.pretrain_recipe(member, job.seed), parse_budget(comparison.budget), corpus)
    precision, _ = resolve_run_precision(recipe.precision, job.folder / "pretrain", device_of(job.device))
    recipe = replace(recipe, precision=precision)
    request = PretrainRequest(
        recipe=recipe, corpus=job.corpus, output=job.folder / "pretrain", vocabulary=job.vocabulary, device=job.device
    )
    run = _PretrainJob(
        job=job,
        request=request,
        corpus=corpus,
        digest=recipe_hash(replace(recipe, micro_batch_size=0), corpus),
        on_event=on_event,
    )
    for ratio in comparison.eval_ratios:
        yield run.pretrain_to(ratio)


@dataclass(slots=True, kw_only=True)
class _PretrainJob:
    job: CompareJob
    request: PretrainRequest
    corpus: Corpus
    digest: str
    on_event: EventCallback
    cost: Cost | None = None

    def pretrain_to(self, budget_ratio: float) -> tuple[Point, Path]:
        """Return a point, from the disk if it exists; otherwise pretrain up to it."""
        folder = self.job.folder / _point_folder(budget_ratio)
        model = self.request.output / "model" if budget_ratio == 1 else folder / "model"
        file = folder / "point.json"
        if not file.exists():
            point = self._final_point() if budget_ratio == 1 else self._intermediate_point(budget_ratio, model)
            write_json(file, {"digest": self.digest, **asdict(point)})
        fields = read_json(file, "a point of a comparison")
        if fields.pop("digest") != self.digest:
            raise FolderError(f"{folder} was made with another recipe, budget or corpus; choose another --output")
        return Point(**fields), model

    def _final_point(self) -> Point:
        self._run(None)
        metadata = read_json(self.request.output / "model" / "bertworks.json", "a pretrained model")
        last = max(self._step_records(), key=lambda record: record.step)
        return self._make_point(1.0, last.step, metadata["scores"]["held_out_loss"])

    def _intermediate_point(self, budget_ratio: float, model: Path) -> Point:
        """Pretrain up to a step before the end, and write the model of that step."""
        recipe = self.request.recipe
        step = max(1, round(budget_ratio * total_steps(recipe)))
        checkpoint, _ = load_latest_checkpoint(self.request.output / "checkpoints")
        current_step = 0 if checkpoint is None else checkpoint.train_state.step
        if current_step > step:
            raise FolderError(
                f"{self.request.output} is past step {step:,}, which is to be evaluated; choose another --output"
            )
        if current_step < step:
            self._run(step - current_step)
        checkpoint, _ = load_latest_checkpoint(self.request.output / "checkpoints")
        assert checkpoint is not None
        module, _ = build(resolve_model_init(recipe, self.corpus.tokenizer, None), recipe, count_tokens(self.corpus))
        module.load_state_dict(averaged_weights(checkpoint.model, checkpoint.optimizer))
        batches, _ = PretrainBatches(self.corpus, recipe).get_held_out_batches(_phase_at(recipe, step))
        loss = evaluate(module, batches).loss
        metadata = {"objective": recipe.objective, "recipe": asdict(recipe), "scores": {"held_out_loss": loss}}
        write_model(model, module, self.corpus.tokenizer, metadata)
        return self._make_point(budget_ratio, step, loss)

    def _run(self, num_steps: int | None) -> None:
        for event in run_pretrain(replace(self.request, stop_after=num_steps)):
            self.on_event(event)
            if event.is_interrupted:
                raise _StopRequestedError

    def _step_records(self) -> list[StepRecord]:
        return [record for record in read_records(self.request.output) if isinstance(record, StepRecord)]

    def _make_point(self, budget_ratio: float, step: int, held_out_loss: float) -> Point:
        recipe = self.request.recipe
        self.cost = self.cost or cost_of(recipe, self.corpus)
        phase_indices = recipe.phase_indices()
        records = [record for record in self._step_records() if record.step <= step]
        last = max(records, key=lambda record: record.step)
        return Point(
            budget_ratio=budget_ratio,
            steps=step,
            num_tokens=last.num_tokens,
            seconds=last.seconds,
            flops=sum(self.cost.flops[phase_indices[record.phase]] for record in records),
            num_parameters=self.cost.num_parameters,
            loss_part=next(iter(last.losses)),
            held_out_loss=held_out_loss,
        )


def _phase_at(recipe: PretrainRecipe, step: int) -> int:
    """Return the phase of the last of `step` steps."""
    ends = [sum(phase.steps for phase in recipe.phases[: index + 1]) for index in range(len(recipe.phases))]
    return next(index for index, end in enumerate(ends) if step <= end)


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
    task, point = finetune_job.task, finetune_job.point
    stage = task.title if point.budget_ratio == 1 else f"{task.title} after {point.steps:,} steps"
    on_event(f"{job.title}: {finetune_job.member.name} on {stage}")
    score = _run_or_record_failure(
        job, result, [finetune_job.member], stage, lambda: _finetune(job, finetune_job, on_event)
    )
    if score is not None:
        result.scores.append(score)


def _finetune(job: CompareJob, finetune_job: _FinetuneJob, on_event: EventCallback) -> Score:
    """Fine-tune on a task unless that is done already, and return the main metric on dev."""
    task, comparison = finetune_job.task, job.comparison
    dataset = resolve_dataset(task.task, {"train": task.train, "dev": task.dev}, comparison.sets, task.columns)
    folder = job.folder / "finetuned" / folder_name(finetune_job.member.name)
    request = FinetuneRequest(
        task=dataset.task,
        model=str(finetune_job.model),
        train=dataset.files["train"],
        output=folder / _point_folder(finetune_job.point.budget_ratio) / folder_name(task.title),
        dev=dataset.file("dev"),
        recipe=comparison.finetune_recipe(finetune_job.member, task, job.seed),
        columns=dataset.columns,
        settings=dataset.settings,
        device=job.device,
    )
    for event in complete_run(request):
        on_event(event)
    outcome = outcome_of(request)
    if outcome is None:
        raise _StopRequestedError
    shutil.rmtree(request.output / "features", ignore_errors=True)  # cached for training only
    return Score(
        member=finetune_job.member.name,
        seed=job.seed,
        point=finetune_job.point,
        task=task.title,
        metric=outcome.main_metric,
        value=outcome.score,
    )
