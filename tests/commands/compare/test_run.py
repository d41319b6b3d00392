"""Toy comparisons: members share a budget, finished runs are not repeated, failures are reported."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from small_run import RECIPE, WORDS, prepare_corpus

import bertworks.commands.compare.member as member_module
from bertworks.commands.compare.member import run_job
from bertworks.commands.compare.recipe import CompareRecipe, MemberRecipe, TaskRecipe
from bertworks.commands.compare.run import CompareRequest, compare, jobs_of
from bertworks.commands.finetune.request import FinetuneEvent
from bertworks.commands.pretrain.request import TrainEvent
from bertworks.errors import FolderError, SettingsError
from bertworks.folder_lock import lock_folder
from bertworks.inference.finetuned import load_predictor
from bertworks.models.folder import read_folder
from bertworks.settings import to_toml
from bertworks.training.interrupt import STOP_MESSAGE

FINETUNE = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "max_restarts": 0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a recipe of twelve steps, and a labelled dataset: are two words in alphabetical order?"""
    folder = tmp_path_factory.mktemp("compare")
    prepare_corpus(folder)
    (folder / "small.toml").write_text(to_toml(RECIPE), encoding="utf-8")
    rng = random.Random(3)
    for split, count in (("train", 24), ("dev", 12)):
        lines = [f"the {a} {b}.\t{int(a < b)}" for a, b in (rng.sample(WORDS, 2) for _ in range(count))]
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return folder


def member(data: Path, name: str, **settings: object) -> MemberRecipe:
    return MemberRecipe(name=name, recipe=str(data / "small.toml"), **settings)  # type: ignore[arg-type]


def comparison(data: Path, *members: MemberRecipe, **settings: object) -> CompareRecipe:
    task = TaskRecipe(task="classify", name="order", train=data / "train.tsv", dev=data / "dev.tsv")
    defaults = {"tasks": (task,), "corpus": data / "corpus", "budget": "6 steps", "finetune": FINETUNE}
    return CompareRecipe(members=members, **{**defaults, **settings})  # type: ignore[arg-type]


def file_times(folder: Path) -> dict[str, int]:
    """Return when each file of the runs was written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in sorted((folder / "runs").rglob("*"))}


def test_two_comparisons_cannot_write_to_one_folder(data: Path, tmp_path: Path):
    request = CompareRequest(comparison(data, member(data, "BERT base")), tmp_path / "out")
    with lock_folder(request.output), pytest.raises(FolderError, match=f"another run is writing to {request.output} "):
        compare(request)


def test_members_and_seeds_are_run_scored_and_reported_once(data: Path, tmp_path: Path):
    causal = member(data, "causal", pretrain={"objective": "causal"})
    recurrent = MemberRecipe(name="with a BiLSTM", base_member="causal", finetune={"head": "recurrent"})
    recipe = comparison(data, member(data, "BERT base"), causal, recurrent, seeds=(0, 1))
    events: list[object] = []
    report = compare(CompareRequest(recipe, tmp_path), on_event=events.append)
    assert report.failures == []
    results = report.member_results
    assert [result.member for result in results] == ["BERT base", "causal", "with a BiLSTM"]
    for result in results:
        assert result.steps.values == (6, 6)
        assert len(result.scores["order"].values) == len(result.mean_score.values) == 2
        assert result.main_metrics == {"order": "accuracy"}
    assert [result.loss_part for result in results] == ["mlm", "causal", "causal"]
    # The second and third share one pretraining run, so that only their scores may differ.
    assert results[1].held_out_loss == results[2].held_out_loss
    assert results[1].flops == results[2].flops
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["BERT-base", "causal"]
    written = json.loads((tmp_path / "compare.json").read_text())
    assert written["results"][0]["scores"]["order"]["values"] == list(results[0].scores["order"].values)
    assert "BERT base" in (tmp_path / "compare.svg").read_text()
    assert (tmp_path / "compare.md").read_text() == report.markdown
    assert "Score by compute" in (tmp_path / "report.html").read_text()
    # The BiLSTM was trained with the whole model, whose attention is still causal; loaded again, the score is the same.
    pretrained = read_folder(tmp_path / "runs/causal/seed-0/pretrain/model")
    path = tmp_path / "runs/causal/seed-0/finetuned/with-a-BiLSTM/at-100/order/model"
    finetuned = read_folder(path)
    assert finetuned.metadata["attention"] == "causal"
    name = "bert.encoder.layer.0.output.dense.weight"
    assert not finetuned.tensors[name].equal(pretrained.tensors[name])
    predictor = load_predictor(path)
    examples = list(predictor.module.task.read(data / "dev.tsv", {}))
    accuracy = predictor.module.task.score(predictor.predict(examples)).metrics["accuracy"]
    assert accuracy == results[2].scores["order"].values[0]
    # Once more: nothing is run or written, and the results are the same.
    times = file_times(tmp_path)
    events.clear()
    second = compare(CompareRequest(recipe, tmp_path), on_event=events.append)
    assert second.member_results == results
    assert not [event for event in events if isinstance(event, TrainEvent | FinetuneEvent)]
    assert file_times(tmp_path) == times


def test_failed_member_is_reported_and_the_others_continue(data: Path, tmp_path: Path):
    invalid = member(
        data,
        "too long",
        pretrain={"model": {"max_position_embeddings": 8}, "phases": [{"max_length": 16, "steps": 3}]},
    )
    with pytest.raises(SettingsError, match="8 positions"):  # what can be checked before is refused before
        compare(CompareRequest(comparison(data, invalid), tmp_path / "refused"))
    failing = member(data, "failing", finetune={"feature_layers": "concat-last-four"})  # it has two layers only
    report = compare(CompareRequest(comparison(data, failing, member(data, "working")), tmp_path))
    (failure,) = report.failures
    assert (failure.member, failure.seed, failure.stage) == ("failing", 0, "order")
    assert "needs 4 layers" in failure.error
    assert len(report.member_results[1].scores["order"].values) == 1
    assert report.member_results[0].scores["order"].values == ()
    assert "failing, seed 0, order: 'concat-last-four' needs 4 layers" in report.markdown


def test_interrupted_comparison_continues_to_the_same_results(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = comparison(data, member(data, "one"), eval_ratios=(0.5, 1.0), budget="8 steps")
    expected = compare(CompareRequest(recipe, tmp_path / "whole"))
    assert [result.steps.mean for result in expected.member_results] == [4, 8]
    assert [round(result.budget_ratio, 2) for result in expected.member_results] == [0.5, 1.0]
    # The model at half of the budget has other weights than the last one, and is scored by itself.
    models = [tmp_path / "whole/runs/one/seed-0" / name for name in ("at-050/model", "pretrain/model")]
    first, last = (read_folder(model).tensors["bert.pooler.dense.weight"] for model in models)
    assert not first.equal(last)

    # Interrupted after the sixth step of pretraining, as by Ctrl-C.
    run_pretrain = member_module.run_pretrain

    def pretrain_until_interrupted(request):
        is_last = request.stop_after is None
        yield from run_pretrain(replace(request, stop_after=2) if is_last else request)
        if is_last:
            yield TrainEvent(note=STOP_MESSAGE, is_interrupted=True)

    monkeypatch.setattr(member_module, "run_pretrain", pretrain_until_interrupted)
    interrupted = compare(CompareRequest(recipe, tmp_path / "interrupted"))
    assert interrupted.is_interrupted
    assert not (tmp_path / "interrupted/runs/one/seed-0/pretrain/model").exists()
    monkeypatch.setattr(member_module, "run_pretrain", run_pretrain)
    continued = compare(CompareRequest(recipe, tmp_path / "interrupted"))
    assert not continued.is_interrupted
    for result, other in zip(continued.member_results, expected.member_results, strict=True):
        assert result.held_out_loss == other.held_out_loss
        assert result.scores == other.scores


def test_finished_run_of_another_recipe_is_refused(data: Path, tmp_path: Path):
    compare(CompareRequest(comparison(data, member(data, "one")), tmp_path))
    report = compare(CompareRequest(comparison(data, member(data, "one", pretrain={"learning_rate": 2e-3})), tmp_path))
    assert [failure.stage for failure in report.failures] == ["pretraining"]
    assert "choose another --output" in report.failures[0].error


def test_fine_tuning_on_some_of_the_examples(data: Path, tmp_path: Path):
    recipe = comparison(data, member(data, "one"), finetune={**FINETUNE, "max_train_examples": 16}, budget="4 steps")
    assert compare(CompareRequest(recipe, tmp_path)).failures == []
    run_info = json.loads((tmp_path / "runs/one/seed-0/finetuned/one/at-100/order/run.json").read_text())
    assert run_info["data"]["train"]["examples"] == 16


def test_jobs_run_in_any_order(data: Path, tmp_path: Path):
    recipe = comparison(data, member(data, "one"), seeds=(0, 1))
    request = CompareRequest(recipe, tmp_path / "reversed")
    reversed_report = compare(request, mapper=lambda work, jobs: [work(job) for job in reversed(jobs)])
    report = compare(CompareRequest(recipe, tmp_path / "in-order"))
    scores, reversed_scores = (one.member_results[0].scores["order"].values for one in (report, reversed_report))
    assert sorted(scores) == sorted(reversed_scores)
    assert [job.title for job in jobs_of(recipe, request)] == ["one, seed 0", "one, seed 1"]
    assert run_job(jobs_of(recipe, request)[0]).scores[0].member == "one"


def test_texts_become_a_corpus_with_a_vocabulary_for_each_kind(data: Path, tmp_path: Path):
    recipe = comparison(data, member(data, "subwords"), member(data, "words", vocabulary="words"), corpus=None)
    settings = replace(recipe.vocabulary, vocab_size=60)
    recipe = replace(recipe, texts=(str(data / "text.txt"),), vocabulary=settings, budget="4 steps")
    report = compare(CompareRequest(recipe, tmp_path))
    assert report.failures == []
    assert sorted(path.name for path in (tmp_path / "vocabularies").iterdir()) == ["wordpiece", "words"]
    assert len(list((tmp_path / "corpus/tokens").iterdir())) == 2
