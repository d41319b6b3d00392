"""Runs on a Ray cluster: each resumes where it was interrupted, a failed one is reported and retried."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from small_run import RECIPE, WORDS, prepare_corpus
from small_run import run as pretrain_small

from bertworks.commands.compare.recipe import CompareRecipe, MemberRecipe, TaskRecipe
from bertworks.commands.compare.run import CompareRequest, compare
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.finetune.sweep import Outcome, runs_of, seeds_of, sweep
from bertworks.commands.ray_runs import MAX_ATTEMPTS, Attempt, compare_on, run_with_retries, sweep_on
from bertworks.errors import BertworksError, SettingsError
from bertworks.parallel.ray_pool import RayPool, TaskResources
from bertworks.settings import to_toml

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def request_in(tmp_path_factory):
    """Return a function from a folder to a request: a tiny model that classifies whether the first word is a river."""
    folder = tmp_path_factory.mktemp("runs")
    pretrain_small(prepare_corpus(folder), folder / "run")
    files = {}
    for split, count in (("train", 48), ("dev", 24)):
        rows = [f"the {WORDS[n % 12]} and {WORDS[n * 5 % 12]}\t{'no' if n % 12 else 'yes'}" for n in range(count)]
        files[split] = folder / f"{split}.tsv"
        files[split].write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    recipe = FinetuneRecipe(precision="fp32", batch_size=8, learning_rate=1e-3, epochs=2, dropout=0.0, max_restarts=0)
    model = str(folder / "run" / "model")
    return lambda output: FinetuneRequest(
        task="classify", model=model, train=files["train"], output=output, dev=files["dev"], recipe=recipe
    )


def sequential_pool(work, units):
    """A pool that runs everything in this process."""
    return map(work, units)


def outcomes_of(events):
    return {event.folder.name: event.scores for event in events if isinstance(event, Outcome)}


def test_sweep_on_a_cluster_equals_a_local_sweep(ray_cluster, request_in, tmp_path):
    on_ray, local = request_in(tmp_path / "ray"), request_in(tmp_path / "local")
    recipes = seeds_of(on_ray.recipe, 2)
    interrupted = runs_of(on_ray, recipes)[1]
    list(run_finetune(replace(interrupted, stop_after=8)))  # saved in the middle: the cluster resumes from there
    outcomes = outcomes_of(sweep_on(RayPool(ray, resources=TaskResources(memory=0)), on_ray, recipes))
    assert outcomes == outcomes_of(sweep(local, recipes))
    tables = [json.loads((request.output / "sweep.json").read_text()) for request in (on_ray, local)]
    assert tables[0] == tables[1]
    records = (interrupted.output / "metrics.jsonl").read_text()
    assert records.count('"step": 8,') <= 2  # one for the step, one for a score: it was not repeated
    assert len(list(sweep_on(sequential_pool, on_ray, recipes))) == 4  # two notes, two outcomes, and no run


def test_failed_run_is_reported_and_retried_and_the_others_finish(request_in, tmp_path):
    request = request_in(tmp_path / "sweep")
    recipes = [replace(request.recipe, max_length=5_000, seed=9), request.recipe]  # the model has 32 positions
    events = []
    with pytest.raises(
        BertworksError, match=rf"^1 of 2 runs failed {MAX_ATTEMPTS} times: bs8[^;]*seed9 \(.*same command"
    ):
        events.extend(sweep_on(sequential_pool, request, recipes))
    warnings = [event.warning for event in events if isinstance(event, FinetuneEvent)]
    assert sum("failed: bs8" in warning for warning in warnings) == MAX_ATTEMPTS
    assert [name for name in outcomes_of(events) if "seed0" in name]
    assert not (request.output / "sweep.json").exists()


def test_job_that_fails_once_is_retried():
    calls = []

    def work(job):
        calls.append(job)
        if calls.count("b") == 1 and job == "b":
            raise OSError("disk full")

    attempts = list(run_with_retries(sequential_pool, work, {"first": "a", "second": "b", "third": "c"}))
    assert calls == ["a", "b", "c", "b"]
    assert attempts == [Attempt("first"), Attempt("second", "OSError: disk full"), Attempt("third"), Attempt("second")]


def test_lost_worker_leaves_unfinished_jobs_to_the_next_attempt():
    calls = []

    def losing_pool(work, units):
        calls.append([name for name, _ in units])
        yield work(units[0])
        if len(calls) == 1:
            raise BertworksError("a task was lost")
        yield from map(work, units[1:])

    attempts = list(run_with_retries(losing_pool, abs, {"x": 1, "y": 2, "z": 3}))
    assert calls == [["x", "y", "z"], ["y", "z"]]
    assert attempts[1:3] == [Attempt("y", "a task was lost"), Attempt("z", "a task was lost")]
    assert {attempt.name for attempt in attempts if not attempt.error} == {"x", "y", "z"}


@pytest.fixture(scope="module")
def comparison_in(request_in, tmp_path_factory):
    """Return a function from a folder to a comparison: one member that works, and one that cannot be fine-tuned."""
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "small.toml").write_text(to_toml(RECIPE), encoding="utf-8")
    request = request_in(folder)
    recipe = str(folder / "small.toml")
    members = (
        MemberRecipe(name="working", recipe=recipe),
        MemberRecipe(
            name="failing", recipe=recipe, finetune={"feature_layers": "concat-last-four"}
        ),  # it has two layers only
    )
    finetune = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "max_restarts": 0}
    task = TaskRecipe(task="classify", name="rivers", train=request.train, dev=request.dev)
    corpus = Path(request.model).parents[1] / "corpus"
    comparison = CompareRecipe(members=members, tasks=(task,), corpus=corpus, budget="3 steps", finetune=finetune)
    return lambda output: CompareRequest(comparison, output)


def test_comparison_on_a_cluster_equals_a_local_comparison(ray_cluster, comparison_in, tmp_path):
    events = []
    pool = RayPool(ray, resources=TaskResources(memory=0))
    on_ray = compare_on(pool, comparison_in(tmp_path / "ray"), events.append)
    local = compare(comparison_in(tmp_path / "local"))
    assert [result.scores for result in on_ray.member_results] == [result.scores for result in local.member_results]
    for report in (on_ray, local):
        assert [failure.member for failure in report.failures] == ["failing"]
    assert sum(str(event).startswith("failed: failing, seed 0, rivers") for event in events) == MAX_ATTEMPTS


def test_runs_without_dev_are_refused(request_in, tmp_path):
    request = replace(request_in(tmp_path), dev=None)
    with pytest.raises(SettingsError, match="--dev"):
        list(sweep_on(sequential_pool, request, [request.recipe]))
