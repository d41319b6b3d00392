"""Comparisons at the size of a toy: members share a budget, what is finished is not run again, a failure is named."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from small_run import RECIPE, WORDS, prepare_corpus

import bertworks.commands.compare.run as comparing
from bertworks.commands.compare.member import run_job
from bertworks.commands.compare.recipe import CompareRecipe, MemberRecipe, TaskRecipe
from bertworks.commands.compare.run import CompareRequest, compare, jobs_of
from bertworks.commands.finetune.request import FinetuneEvent as TuningTold
from bertworks.commands.pretrain.run import TrainEvent as PretrainTold
from bertworks.inference.finetuned import load_predictor
from bertworks.models.folder import read_folder
from bertworks.settings import to_toml
from bertworks.training.interrupt import STOP_MESSAGE

TUNING = {"epochs": 1, "batch": 8, "rate": 1e-3, "restarts": 0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a recipe of twelve steps, and a labelled set: does the river come before the stone?"""
    folder = tmp_path_factory.mktemp("compare")
    prepare_corpus(folder)
    (folder / "small.toml").write_text(to_toml(RECIPE), encoding="utf-8")
    draw = random.Random(3)
    for split, count in (("train", 24), ("dev", 12)):
        lines = [f"the {a} {b}.\t{int(a < b)}" for a, b in (draw.sample(WORDS, 2) for _ in range(count))]
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return folder


def member(place: Path, name: str, **told: object) -> MemberRecipe:
    return MemberRecipe(name, recipe=str(place / "small.toml"), **told)  # type: ignore[arg-type]


def comparison(place: Path, *members: MemberRecipe, **told: object) -> CompareRecipe:
    task = TaskRecipe("classify", "order", place / "train.tsv", place / "dev.tsv")
    usual = {"tasks": (task,), "corpus": place / "corpus", "budget": "6 steps", "tuning": TUNING}
    return CompareRecipe(members, **{**usual, **told})  # type: ignore[arg-type]


def all_files(folder: Path) -> dict[str, int]:
    """Return when each file of the runs was written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in sorted((folder / "runs").rglob("*"))}


def test_members_and_seeds_are_run_scored_and_written_once(place: Path, tmp_path: Path):
    left = member(place, "to the left", changes={"objective": "next"})
    recurrent = MemberRecipe("with a BiLSTM", base_member="to the left", finetune={"head": "recurrent"})
    chosen = comparison(place, member(place, "as it is"), left, recurrent, seeds=(0, 1))
    told: list[object] = []
    report = compare(CompareRequest(chosen, tmp_path), on_event=told.append)
    assert report.failures == []
    assert [one.member for one in report.member_results] == ["as it is", "to the left", "with a BiLSTM"]
    for one in report.member_results:
        assert one.steps.values == (6, 6)
        assert len(one.scores["order"].values) == len(one.mean_score.values) == 2
        assert one.main_metrics == {"order": "accuracy"}
    asks = [one.loss_part for one in report.member_results]
    assert asks == ["masked", "next", "next"]
    # The second and third share one pretraining, so that only their scores may differ.
    assert report.member_results[1].held_out_loss == report.member_results[2].held_out_loss
    assert report.member_results[1].flops == report.member_results[2].flops
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["as-it-is", "to-the-left"]
    figures = json.loads((tmp_path / "compare.json").read_text())
    assert figures["standings"][0]["scores"]["order"]["values"] == list(report.member_results[0].scores["order"].values)
    assert "as it is" in (tmp_path / "compare.svg").read_text()
    assert (tmp_path / "compare.md").read_text() == report.markdown
    assert "Quality against compute" in (tmp_path / "report.html").read_text()
    # The BiLSTM learned with the whole model, which still reads to the left: loaded again it says the same.
    begun = read_folder(tmp_path / "runs/to-the-left/seed-0/pretrain/model")
    tuned = tmp_path / "runs/to-the-left/seed-0/tuned/with-a-BiLSTM/at-100/order/model"
    sealed = read_folder(tuned)
    assert sealed.metadata["reads"] == "left"
    assert sealed.metadata["features"] == {"strategy": "last", "width": 16, "freezes": False}
    name = "bert.encoder.layer.0.output.dense.weight"
    assert not sealed.tensors[name].equal(begun.tensors[name])
    predictor = load_predictor(tuned)
    cases = list(predictor.module.task.read(place / "dev.tsv", {}))
    again = predictor.module.task.score(predictor.predict(cases)).metrics["accuracy"]
    assert again == report.member_results[2].scores["order"].values[0]
    # Once more: nothing is run, nothing is written, and the same comes out.
    before = all_files(tmp_path)
    told.clear()
    second = compare(CompareRequest(chosen, tmp_path), on_event=told.append)
    assert second.member_results == report.member_results
    assert not [one for one in told if isinstance(one, PretrainTold | TuningTold)]
    assert all_files(tmp_path) == before


def test_a_member_that_fails_is_named_and_the_others_go_on(place: Path, tmp_path: Path):
    broken = member(place, "too wide", changes={"model": {"positions": 8}, "phases": [{"length": 16, "steps": 3}]})
    with pytest.raises(Exception, match="8 positions"):  # what can be known before is refused before
        compare(CompareRequest(comparison(place, broken), tmp_path / "refused"))
    wrong = member(place, "wrong head", tuning={"features": "concat-last-four"})  # it has two layers only
    report = compare(CompareRequest(comparison(place, wrong, member(place, "right")), tmp_path))
    (failure,) = report.failures
    assert (failure.member, failure.seed, failure.stage) == ("wrong head", 0, "order")
    assert "needs 4 layers" in failure.error
    assert len(report.member_results[1].scores["order"].values) == 1
    assert report.member_results[0].scores["order"].values == ()
    assert "wrong head, seed 0, order: 'concat-last-four' needs 4 layers" in report.markdown


def test_a_comparison_that_was_left_goes_on_to_the_same_end(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    chosen = comparison(place, member(place, "one"), measured_at=(0.5, 1.0), budget="8 steps")
    whole = compare(CompareRequest(chosen, tmp_path / "whole"))
    assert [one.steps.mean for one in whole.member_results] == [4, 8]
    assert [round(one.budget_ratio, 2) for one in whole.member_results] == [0.5, 1.0]
    # The model of half of the way has other weights than the last one, and other scores are measured from it.
    models = [tmp_path / "whole/runs/one/seed-0" / name for name in ("at-050/model", "pretrain/model")]
    first, last = (read_folder(model).tensors["bert.pooler.dense.weight"] for model in models)
    assert not first.equal(last)

    # Asked to stop after the sixth step of pretraining, as Ctrl-C does.
    real = comparing.do

    def interrupted(job, tell):
        import bertworks.commands.compare.member as at_work

        pretrain = at_work.pretrain

        def stopping(request):
            is_last = request.stop_after is None
            yield from pretrain(replace(request, stop_after=2) if is_last else request)
            if is_last:
                yield PretrainTold(note=STOP_MESSAGE)

        monkeypatch.setattr(at_work, "pretrain", stopping)
        try:
            return real(job, tell)
        finally:
            monkeypatch.setattr(at_work, "pretrain", pretrain)

    monkeypatch.setattr(comparing, "run_job", interrupted)
    half = compare(CompareRequest(chosen, tmp_path / "left"))
    assert half.is_interrupted
    assert not (tmp_path / "left/runs/one/seed-0/pretrain/model").exists()
    monkeypatch.setattr(comparing, "run_job", real)
    after = compare(CompareRequest(chosen, tmp_path / "left"))
    assert not after.is_interrupted
    assert [one.held_out_loss for one in after.member_results] == [one.held_out_loss for one in whole.member_results]
    assert [one.scores for one in after.member_results] == [one.scores for one in whole.member_results]


def test_another_recipe_is_not_taken_for_what_is_finished(place: Path, tmp_path: Path):
    compare(CompareRequest(comparison(place, member(place, "one")), tmp_path))
    report = compare(CompareRequest(comparison(place, member(place, "one", changes={"rate": 2e-3})), tmp_path))
    assert [failure.stage for failure in report.failures] == ["pretraining"]
    assert "choose another --out" in report.failures[0].error


def test_a_member_may_learn_from_some_of_the_examples(place: Path, tmp_path: Path):
    some = comparison(place, member(place, "one"), tuning={**TUNING, "examples": 16}, budget="4 steps")
    assert compare(CompareRequest(some, tmp_path)).failures == []
    facts = json.loads((tmp_path / "runs/one/seed-0/tuned/one/at-100/order/run.json").read_text())
    assert facts["data"]["train"]["examples"] == 16


def test_jobs_are_pure_so_that_any_mapper_can_do_them(place: Path, tmp_path: Path):
    chosen = comparison(place, member(place, "one"), seeds=(0, 1))
    request = CompareRequest(chosen, tmp_path / "backwards")
    there = compare(request, mapper=lambda work, jobs: [work(job) for job in reversed(jobs)])
    here = compare(CompareRequest(chosen, tmp_path / "here"))
    assert sorted(there.member_results[0].scores["order"].values) == sorted(
        here.member_results[0].scores["order"].values
    )
    assert [job.title for job in jobs_of(chosen, request)] == ["one, seed 0", "one, seed 1"]
    assert run_job(jobs_of(chosen, request)[0]).scores[0].member == "one"


def test_texts_become_a_corpus_with_a_vocabulary_for_each_kind(place: Path, tmp_path: Path):
    chosen = comparison(place, member(place, "pieces"), member(place, "words", vocabulary="words"), corpus=None)
    settings = replace(chosen.vocabulary, vocab_size=60)
    chosen = replace(chosen, texts=(str(place / "text.txt"),), vocabulary=settings, budget="4 steps")
    report = compare(CompareRequest(chosen, tmp_path))
    assert report.failures == []
    assert sorted(path.name for path in (tmp_path / "vocabularies").iterdir()) == ["wordpiece", "words"]
    assert len(list((tmp_path / "corpus/pieces").iterdir())) == 2
