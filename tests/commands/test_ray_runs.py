"""Many runs on a cluster: each is finished where it was left, a failed one is named and tried again."""

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
    """Return a function from a folder to a request: a tiny model, and whether the first word is a river."""
    folder = tmp_path_factory.mktemp("runs")
    pretrain_small(prepare_corpus(folder), folder / "run")
    files = {}
    for split, count in (("train", 48), ("dev", 24)):
        rows = [f"the {WORDS[n % 12]} and {WORDS[n * 5 % 12]}\t{'no' if n % 12 else 'yes'}" for n in range(count)]
        files[split] = folder / f"{split}.tsv"
        files[split].write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    tuning = FinetuneRecipe(batch_size=8, learning_rate=1e-3, epochs=2, dropout=0.0, max_restarts=0)
    model = str(folder / "run" / "model")
    return lambda out: FinetuneRequest("classify", model, files["train"], out, files["dev"], recipe=tuning)


def one_by_one(work, units):
    """A pool that is none."""
    return map(work, units)


def outcomes_of(events):
    return {one.folder.name: one.scores for one in events if isinstance(one, Outcome)}


def test_a_sweep_on_a_cluster_comes_to_what_it_does_here(ray_cluster, request_in, tmp_path):
    there, here = request_in(tmp_path / "there"), request_in(tmp_path / "here")
    tunings = seeds_of(there.tuning, 2)
    left = runs_of(there, tunings)[1]
    list(run_finetune(replace(left, stop_after=8)))  # saved in the middle: the cluster goes on from there
    found = outcomes_of(sweep_on(RayPool(ray, resources=TaskResources(memory=0)), there, tunings))
    assert found == outcomes_of(sweep(here, tunings))
    told = [json.loads((one.out / "sweep.json").read_text()) for one in (there, here)]
    assert told[0] == told[1]
    continued = (left.output / "metrics.jsonl").read_text()
    assert continued.count('"step": 8,') <= 2  # one for the step, one for a score: it was not done twice
    assert len(list(sweep_on(one_by_one, there, tunings))) == 4  # two notes, two outcomes, and no run


def test_a_run_that_fails_is_named_and_tried_again_and_the_others_are_finished(request_in, tmp_path):
    request = request_in(tmp_path / "out")
    tunings = [replace(request.tuning, length=5_000, seed=9), request.tuning]  # the model has 32 positions
    events = []
    with pytest.raises(
        BertworksError, match=rf"^1 of 2 runs failed {MAX_ATTEMPTS} times: batch8[^;]*seed9 \(.*same command"
    ):
        events.extend(sweep_on(one_by_one, request, tunings))
    assert sum(isinstance(one, FinetuneEvent) and "failed: batch8" in one.warning for one in events) == MAX_ATTEMPTS
    assert [name for name in outcomes_of(events) if "seed0" in name]
    assert not (request.out / "sweep.json").exists()


def test_what_fails_once_is_done_the_second_time():
    calls = []

    def work(job):
        calls.append(job)
        if calls.count("b") == 1 and job == "b":
            raise OSError("no room")

    found = list(run_with_retries(one_by_one, work, {"first": "a", "second": "b", "third": "c"}))
    assert calls == ["a", "b", "c", "b"]
    assert found == [Attempt("first"), Attempt("second", "OSError: no room"), Attempt("third"), Attempt("second")]


def test_a_task_that_a_cluster_loses_for_good_names_who_was_unfinished():
    turns = []

    def losing(work, units):
        turns.append([name for name, _ in units])
        yield work(units[0])
        if len(turns) == 1:
            raise BertworksError("a task was lost")
        yield from map(work, units[1:])

    found = list(run_with_retries(losing, abs, {"x": 1, "y": 2, "z": 3}))
    assert turns == [["x", "y", "z"], ["y", "z"]]
    assert found[1:3] == [Attempt("y", "a task was lost"), Attempt("z", "a task was lost")]
    assert {one.name for one in found if not one.error} == {"x", "y", "z"}


@pytest.fixture(scope="module")
def compared(request_in, tmp_path_factory):
    """Return a function from a folder to a comparison: one member that learns, and one that cannot be fine-tuned."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / "small.toml").write_text(to_toml(RECIPE), encoding="utf-8")
    asked = request_in(folder)
    recipe = str(folder / "small.toml")
    members = (
        MemberRecipe("right", recipe=recipe),
        MemberRecipe("wrong", recipe=recipe, finetune={"features": "concat-last-four"}),  # it has two layers only
    )
    tuning = {"epochs": 1, "batch": 8, "rate": 1e-3, "restarts": 0}
    task = TaskRecipe("classify", "rivers", asked.train, asked.dev)
    corpus = Path(asked.model).parents[1] / "corpus"
    told = CompareRecipe(members, tasks=(task,), corpus=corpus, budget="3 steps", finetune=tuning)
    return lambda out: CompareRequest(told, out)


def test_a_comparison_on_a_cluster_comes_to_what_it_does_here(ray_cluster, compared, tmp_path):
    told = []
    there = compare_on(RayPool(ray, resources=TaskResources(memory=0)), compared(tmp_path / "there"), told.append)
    here = compare(compared(tmp_path / "here"))
    assert [one.scores for one in there.member_results] == [one.scores for one in here.member_results]
    assert [one.member for one in there.failures] == [one.member for one in here.failures] == ["wrong"]
    assert sum(str(one).startswith("failed: wrong, seed 0, rivers") for one in told) == MAX_ATTEMPTS


def test_runs_without_dev_are_refused(request_in, tmp_path):
    request = replace(request_in(tmp_path), dev=None)
    with pytest.raises(SettingsError, match="--dev"):
        list(sweep_on(one_by_one, request, [request.tuning]))
