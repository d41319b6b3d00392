"""Fine-tuning end to end on a toy problem: it learns, resumes to the bit, seals, and refuses what it cannot learn."""

from __future__ import annotations

import html
import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import bertworks
from bertworks.commands.evaluate import LabelledFile, evaluate_files
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run import finetune
from bertworks.commands.finetune.sweep import Outcome, grid_of, seeds_of, sweep
from bertworks.commands.predict import PredictRequest, evaluate, predict
from bertworks.datasets.files import Record
from bertworks.encoders.bert import Bert, BertConfig, config_to_dict, tensor_names
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.inference.finetuned import load_predictor
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import to_hf_names
from bertworks.text.document import Counts
from bertworks.training.checkpoint import checkpoints_in
from bertworks.training.optimizer import LayerwiseSettings
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

GOOD, BAD, PLAIN = "fine lovely great".split(), "awful dull poor".split(), "the film was so a story and music".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *PLAIN]
TUNING = FinetuneRecipe(batch_size=8, learning_rate=5e-3, epochs=8, dropout=0.0, max_restarts=0)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained model, as far as anybody can tell: two layers, drawn at random."""
    folder = tmp_path_factory.mktemp("base") / "model"
    tokenizer = Tokenizer.from_backend(wordpiece_backend(PIECES, cased=False))
    sizes = BertConfig(tokenizer.vocab_size, 32, 2, 2, 64, 32, initializer_range=0.15)
    encoder = Bert(sizes, torch.Generator().manual_seed(0))
    write_folder(
        folder,
        config_to_dict(sizes, ["BertModel"]),
        to_hf_names(encoder.state_dict(), tensor_names(sizes)),
        tokenizer,
        {},
    )
    return folder


def reviews(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts with one word that tells whether they praise."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        label, words = draw.choice([("praise", GOOD), ("blame", BAD)])
        text = [*draw.choices(PLAIN, k=draw.randint(2, 9)), draw.choice(words)]
        draw.shuffle(text)
        found.append((" ".join(text), label))
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reviews")
    found = {}
    for seed, (split, count) in enumerate({"train": 96, "dev": 40, "test": 40}.items()):
        path = folder / f"{split}.tsv"
        rows = [f"{text}\t{label}" for text, label in reviews(count, seed)]
        path.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
        found[split] = path
    return found


def request_of(base: Path, files: dict[str, Path], out: Path, tuning: FinetuneRecipe = TUNING) -> FinetuneRequest:
    return FinetuneRequest("classify", str(base), files["train"], out, files["dev"], files["test"], tuning)


@pytest.fixture(scope="module")
def run(
    one_thread: None, base: Path, files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[FinetuneEvent]]:
    out = tmp_path_factory.mktemp("run") / "run"
    return out, list(finetune(request_of(base, files, out)))


def test_a_model_learns_what_the_files_teach(run: tuple[Path, list[FinetuneEvent]]):
    scores = json.loads((run[0] / "run.json").read_text())["scores"]
    assert scores["dev"]["accuracy"] == scores["test"]["accuracy"] == 1.0
    assert set(scores) == {"train", "dev", "test"}


def test_a_run_tells_its_steps_scores_verdict_and_folder(run: tuple[Path, list[FinetuneEvent]]):
    out, told = run
    assert [one.step.number for one in told if one.step] == list(range(1, 97))  # 96 / 8 in each of 8 epochs
    assert [one.score.step for one in told if one.score and one.score.split == "dev"][:4] == [12, 24, 36, 48]
    assert any(one.note.startswith("fits: accuracy is 1.000") for one in told)
    assert told[-1].model_folder == out / "model"


def test_the_report_shows_verdict_curves_confusion_mistakes_and_what_drove_predictions(
    run: tuple[Path, list[FinetuneEvent]],
):
    page = (run[0] / "report.html").read_text(encoding="utf-8")
    for words in ("Fits: accuracy is 1.000", "Every piece was read", "praise", "blame", "<svg"):
        assert words in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_sealed_folder_loads_in_transformers_with_the_same_logits(run: tuple[Path, list[FinetuneEvent]]):
    folder = run[0] / "model"
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = bertworks.load(folder)
    texts = ["the film was lovely", "a dull story and poor music"]
    with torch.no_grad():
        logits = theirs(**tokenizer(texts, padding=True, return_tensors="pt")).logits.numpy()
    predictions = ours.predict(texts)
    for mine, row in zip(predictions, logits, strict=True):
        assert abs(mine.logits - row).max() < 1e-5
    assert [one.label for one in predictions] == ["praise", "blame"]
    assert theirs.config.id2label == {0: "blame", 1: "praise"}


def test_theirs_loads_in_ours_with_the_same_logits(base: Path, tmp_path: Path):
    config = transformers.BertConfig.from_pretrained(base, num_labels=3)
    theirs = transformers.BertForSequenceClassification(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "theirs")
    ours = bertworks.load(tmp_path / "theirs").predict([("the film", "was great")])[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    with torch.no_grad():
        row = theirs(**tokenizer("the film", "was great", return_tensors="pt")).logits.numpy()[0]
    assert abs(ours.logits - row).max() < 1e-5
    assert set(ours.probabilities) == {"LABEL_0", "LABEL_1", "LABEL_2"}


def test_a_run_that_is_stopped_and_continued_is_the_same_to_the_bit(
    base: Path, files: dict[str, Path], run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    request = request_of(base, files, tmp_path / "run")
    for stop_after in (5, 9, 40, None):
        list(finetune(replace(request, stop_after=stop_after)))
    for name in ("model/model.safetensors", "model/bertworks.json"):
        assert (run[0] / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    last = [checkpoints_in(out / "checkpoints")[-1] for out in (run[0], tmp_path / "run")]
    tensors = [load_file(path / "optimizer.safetensors") for path in last]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


def test_predictions_come_in_order_with_calibrated_probabilities(run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    texts = [text for text, _ in reviews(40, 9)]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    found = list(predict(PredictRequest(str(run[0] / "model"), tmp_path / "texts.txt", "text")))
    alone = bertworks.load(run[0] / "model").predict(texts[:3])
    assert len(found) == 40
    for one, other in zip(found, alone, strict=False):
        assert one["label"] == other.label
        assert abs(one["probabilities"]["praise"] - other.probabilities["praise"]) < 1e-6
        assert abs(sum(one["probabilities"].values()) - 1) < 1e-9


def test_by_sentence_an_article_is_cut_and_each_sentence_has_its_offsets(
    run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    article = "The film was lovely. The story was awful. Great music."
    (tmp_path / "article.txt").write_text(article, encoding="utf-8")
    found = list(predict(PredictRequest(str(run[0] / "model"), tmp_path / "article.txt", "text", by="sentence")))
    assert [article[one["start"] : one["end"]].strip() for one in found] == [
        "The film was lovely.",
        "The story was awful.",
        "Great music.",
    ]
    assert [one["label"] for one in found] == ["praise", "blame", "praise"]


def test_by_sentence_a_column_is_recognised_and_paragraphs_may_be_apart(
    run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    model = str(run[0] / "model")
    article = lines_of(tmp_path / "article.txt", "The film was lovely. So dull.", "", "Great music.")
    found = list(predict(PredictRequest(model, article, "text", by="sentence")))
    assert [(one["text"], one["start"], one["end"]) for one in found] == [(0, 0, 20), (0, 21, 29), (2, 0, 12)]
    table = lines_of(tmp_path / "articles.tsv", "id\tbody", "a\tThe film was lovely. So dull.")
    assert [one["label"] for one in predict(PredictRequest(model, table, by="sentence"))] == ["praise", "blame"]
    with pytest.raises(SettingsError, match="--by sentence cuts a text for a model that reads one: classify, regress"):
        list(predict(PredictRequest(model, table, by="sentence", columns={"pair": "id"})))


def test_what_a_folder_cuts_off_is_counted_when_it_predicts(base: Path, files: dict[str, Path], tmp_path: Path):
    tuning = replace(TUNING, epochs=1, max_length=8, truncate=True)
    told = list(finetune(request_of(base, files, tmp_path / "run", tuning)))
    unread = "pieces did not fit and stayed unread, as the model's window rule says"
    texts = {
        split: [line.split("\t")[0] for line in path.read_text().splitlines()[1:]] for split, path in files.items()
    }
    cut = {split: sum(max(0, len(text.split()) - 6) for text in some) for split, some in texts.items()}
    assert {one.note for one in told if one.note.endswith(unread)} == {
        f"dev: {cut['dev']} {unread}",
        f"test: {cut['test']} {unread}",
    }
    counts: Counts = Counts()
    model = str(tmp_path / "run" / "model")
    list(predict(PredictRequest(model, lines_of(tmp_path / "texts.txt", *texts["dev"]), "text"), counts))
    assert counts == {unread: cut["dev"]}


def test_a_label_that_test_lacks_is_found_before_anything_is_learned(
    base: Path, files: dict[str, Path], tmp_path: Path
):
    request = request_of(base, files, tmp_path / "run", replace(TUNING, epochs=1))
    for rows, message in (
        (('{"text": "the film", "label": "praise"}', '{"text": "so"}'), "line 2: there is no label"),
        (('{"text": "the film", "label": "praise"}', '{"text": "so", "label": "boring"}'), "'boring' does not occur"),
        (('{"text": "the film", "label": "praise"}', '{"label": "praise"}'), "line 2: there is no 'text', which other"),
        (('{"text": "the film", "label": "praise"}', '{"text": null}'), "line 2: the column 'text' is empty"),
    ):
        path = lines_of(tmp_path / "test.jsonl", *rows)
        for split in ("dev", "test"):
            with pytest.raises(InputError, match=message):
                list(finetune(replace(request, **{split: path})))
    assert not (tmp_path / "run").exists()


def test_a_test_file_without_labels_is_not_scored_and_that_is_said(base: Path, files: dict[str, Path], tmp_path: Path):
    path = lines_of(tmp_path / "test.tsv", "text", "the film was fine", "so dull")
    columns = {"": {"text": "text"}, "test": {"label": ""}}
    request = replace(request_of(base, files, tmp_path / "run", replace(TUNING, epochs=1)), test=path, columns=columns)
    told = list(finetune(request))
    assert any(one.note.startswith("test has no labels and is not scored") for one in told)
    assert {one.score.split for one in told if one.score} == {"train", "dev"}


def test_evaluate_gives_the_score_that_was_sealed(run: tuple[Path, list[FinetuneEvent]], files: dict[str, Path]):
    scored, _ = evaluate(str(run[0] / "model"), files["dev"], {})
    assert scored.metrics == json.loads((run[0] / "run.json").read_text())["scores"]["dev"]


def test_a_long_text_slides_and_every_window_counts(run: tuple[Path, list[FinetuneEvent]]):
    model = bertworks.load(run[0] / "model")
    long = " ".join(["the film was"] * 60 + ["lovely"])  # 181 pieces, the model reads 32
    assert model.predict([long])[0].label == "praise"
    assert model.predictor is not None
    question = model.predictor.module.task.featurize(
        next(model.predictor.module.task.read_unlabelled([Record({"text": long}, "")], {})),
        model.tokenizer,
        model.predictor.window_rule,
    )
    covered = {
        piece
        for row in question.sequences
        for run in row.window.spans
        for piece in range(run.first, run.first + run.count)
    }
    assert covered == set(range(181))


def test_truncation_is_counted_and_said(base: Path, files: dict[str, Path], tmp_path: Path):
    tuning = replace(TUNING, epochs=1, max_length=8, truncate=True)
    notes = [one.note for one in finetune(request_of(base, files, tmp_path / "run", tuning)) if one.note]
    assert any("did not fit and stayed unread, as truncate asks" in note for note in notes)


def test_texts_that_stand_in_train_and_dev_are_told(base: Path, files: dict[str, Path], tmp_path: Path):
    request = replace(request_of(base, files, tmp_path / "run", replace(TUNING, epochs=1)), dev=files["train"])
    warnings = [one.warning for one in finetune(request) if one.warning]
    assert "96 of 96 dev texts also stand in train" in warnings[0]


def test_a_run_stops_when_its_goal_is_reached(base: Path, files: dict[str, Path], tmp_path: Path):
    told = list(finetune(request_of(base, files, tmp_path / "run", replace(TUNING, target_metric="accuracy=0.3"))))
    assert max(one.step.number for one in told if one.step) == 12
    assert any("accuracy reached" in one.note for one in told)


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ("f1=0.9", "dev has no figure 'f1'; choose one of: accuracy, macro_f1$"),
        ("calibration_error=0.1", "has no figure"),
    ],
)
def test_a_goal_that_dev_never_tells_is_refused_before_anything_is_learned(
    base: Path, files: dict[str, Path], tmp_path: Path, until: str, message: str
):
    with pytest.raises(SettingsError, match=message):
        list(finetune(request_of(base, files, tmp_path / "run", replace(TUNING, target_metric=until))))
    assert not (tmp_path / "run").exists()  # the mended command finds a fresh place


def test_goals_and_patience_need_dev(base: Path, files: dict[str, Path], tmp_path: Path):
    for tuning in (replace(TUNING, target_metric="accuracy=0.9"), replace(TUNING, patience=2)):
        with pytest.raises(SettingsError, match="look at the scores of dev; name a labelled file with --dev"):
            list(finetune(replace(request_of(base, files, tmp_path / "run", tuning), dev=None)))


def test_a_run_that_calls_everything_one_class_is_begun_again(base: Path, files: dict[str, Path], tmp_path: Path):
    tuning = replace(
        TUNING, learning_rate=1e-9, epochs=1, max_restarts=1
    )  # it cannot learn, so it stays where the head was drawn
    told = list(finetune(request_of(base, files, tmp_path / "run", tuning)))
    collapsed = [one.warning for one in told if one.warning.startswith("collapsed: all 40 dev examples")]
    assert [text.rpartition(". ")[2] for text in collapsed] == [
        "The run is started again with another seed.",
        "No other seed is tried, and the model is kept as it is: it tells nothing apart.",
    ]
    assert any("but everything is called one class" in one.note for one in told)
    page = html.unescape((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert all(text in page for text in collapsed)
    assert (tmp_path / "run" / "restart-1" / "metrics.jsonl").exists()
    assert told[-1].model_folder == tmp_path / "run" / "model"
    request = request_of(base, files, tmp_path / "runs", tuning)
    for num_steps in (24, 0):  # in a sweep it is not run a third time, though its seed is another now
        assert (
            sum(isinstance(one, FinetuneEvent) and one.step is not None for one in sweep(request, [tuning]))
            == num_steps
        )


def test_a_collapsed_run_that_was_stopped_at_its_end_is_begun_again_too(
    base: Path, files: dict[str, Path], tmp_path: Path
):
    tuning = replace(TUNING, learning_rate=1e-9, epochs=1, max_restarts=1)
    requests = [request_of(base, files, tmp_path / name, tuning) for name in ("whole", "stopped")]
    list(finetune(requests[0]))
    assert list(finetune(replace(requests[1], stop_after=12)))[-1].model_folder is None  # all 12 steps are done
    told = list(finetune(requests[1]))
    assert len([one for one in told if one.warning.startswith("collapsed")]) == 2
    sealed = [(request.output / "model" / "model.safetensors").read_bytes() for request in requests]
    assert sealed[0] == sealed[1]


def test_an_auxiliary_masked_loss_is_learned_beside_the_task(base: Path, files: dict[str, Path], tmp_path: Path):
    tuning = replace(TUNING, mlm_weight=0.1)
    told = list(finetune(request_of(base, files, tmp_path / "run", tuning)))
    losses = [one.step.losses for one in told if one.step]
    assert set(losses[0]) == {"task", "masked"}
    # The model has no head for masked words: a new one begins silent, so that it does not move the encoder at random.
    assert losses[0]["masked"] == pytest.approx(math.log(len(PIECES)), abs=1e-4)
    assert sum(one["masked"] for one in losses[-5:]) < sum(one["masked"] for one in losses[:5])
    assert json.loads((tmp_path / "run" / "run.json").read_text())["scores"]["dev"]["accuracy"] >= 0.9


def test_one_of_several_processes_is_refused(
    base: Path, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match="fine-tuning runs in a single process; start it without torchrun"):
        next(iter(finetune(request_of(base, files, tmp_path / "run", TUNING))))


def test_frozen_layers_do_not_change(base: Path, files: dict[str, Path], tmp_path: Path):
    tuning = replace(TUNING, epochs=1, layerwise=LayerwiseSettings(num_frozen_layers=1))
    list(finetune(request_of(base, files, tmp_path / "run", tuning)))
    before, after = load_file(base / "model.safetensors"), load_file(tmp_path / "run" / "model" / "model.safetensors")
    same = {name for name in before if name in after and torch.equal(before[name], after[name])}
    assert "bert.embeddings.word_embeddings.weight" in same
    assert "bert.encoder.layer.0.output.dense.weight" in same
    assert "bert.encoder.layer.1.output.dense.weight" not in same


def test_the_grid_is_the_paper_s():
    tunings = grid_of(FinetuneRecipe())
    assert len(tunings) == len({(one.batch_size, one.learning_rate, one.epochs) for one in tunings}) == 18


def test_seeds_are_run_apart_compared_and_not_run_twice(base: Path, files: dict[str, Path], tmp_path: Path):
    request = request_of(base, files, tmp_path / "runs", replace(TUNING, epochs=1))
    tunings = seeds_of(request.recipe, 2)
    outcomes = [one for one in sweep(request, tunings) if isinstance(one, Outcome)]
    assert [one.recipe.seed for one in outcomes] == [0, 1]
    ((batch, rate, epochs, mean, deviation, count),) = Outcome.table(outcomes)
    assert (batch, rate, epochs, count) == ("8", "5e-03", "1", "2")
    assert float(mean) == pytest.approx(sum(one.score for one in outcomes) / 2, abs=1e-4)
    assert float(deviation) >= 0
    again = list(sweep(request, tunings))
    assert not [one for one in again if isinstance(one, FinetuneEvent) and one.step]
    others = [
        replace(request, dev=files["test"]),
        request_of(base, files, request.output, replace(TUNING, epochs=1, target_metric="accuracy=1")),
    ]
    for other in others:  # the folders of the runs have the same names
        with pytest.raises(FolderError, match="seed0 was made with other data or settings; choose another --out"):
            list(sweep(other, seeds_of(other.recipe, 2)))


def lines_of(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


BROKEN: list[tuple[str, tuple[str, ...], str]] = [
    ("train", ("text\tlabel", "the film\tpraise", "a story\tpraise"), "same label 'praise'"),
    ("dev", ("text\tlabel", "the film\tpraise", "a story\tboring"), "line 3: the label 'boring' does not occur"),
    ("train", ("text\tlabel", "the film\tpraise", "\tblame"), "line 3: the column 'text' is empty"),
    ("train", ("text\tlabel", "the film\tpraise", "so\t"), "line 3: the label is empty"),
    ("train", ("text\tmood", "the film\tpraise", "so\tblame"), "no column looks like the label"),
    ("train", ("text\tlabel", "the film\tpraise", "so\tblame", "a\tb", "too\tmany\tfields"), "line 5"),
]


@pytest.mark.parametrize(("split", "rows", "message"), BROKEN)
def test_bad_files_are_named(
    base: Path, files: dict[str, Path], tmp_path: Path, split: str, rows: tuple[str, ...], message: str
):
    broken = {**files, split: lines_of(tmp_path / f"{split}.tsv", *rows)}
    with pytest.raises(InputError, match=message):
        list(finetune(request_of(base, broken, tmp_path / "run")))


def test_a_model_of_another_task_or_none_is_refused(
    base: Path, run: tuple[Path, list[FinetuneEvent]], files: dict[str, Path]
):
    with pytest.raises(FolderError, match="is a model for 'classify', not for 'tag'"):
        evaluate(str(run[0] / "model"), files["dev"], {}, "tag")
    with pytest.raises(FolderError, match="is not fine-tuned for a task"):
        bertworks.load(base).predict(["the film"])


def test_a_file_of_another_task_is_told_with_the_model_s(run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    path = lines_of(tmp_path / "dev.txt", "John B-PER", "sleeps O")
    with pytest.raises(InputError, match=r"no column looks like the label.* [(]the model is for 'classify', and"):
        list(evaluate_files(load_predictor(run[0] / "model"), [LabelledFile("dev", path)]))


def test_a_text_of_100_000_words_is_read_to_its_end(run: tuple[Path, list[FinetuneEvent]]):
    predictor = load_predictor(run[0] / "model")
    case = next(predictor.module.task.read_unlabelled([Record({"text": "film " * 100_000}, "here")], {}))
    runs = [
        row.window.spans[0]
        for row in predictor.module.task.featurize(case, predictor.tokenizer, predictor.window_rule).sequences
    ]
    assert (runs[0].first, runs[-1].first + runs[-1].count) == (0, 100_000)
    assert all(after.first <= before.first + before.count for before, after in pairwise(runs))


def test_a_folder_of_another_run_is_refused(run: tuple[Path, list[FinetuneEvent]], base: Path, files: dict[str, Path]):
    with pytest.raises(FolderError, match="holds a run of another recipe"):
        list(finetune(request_of(base, files, run[0], replace(TUNING, learning_rate=1e-4))))


def test_a_length_beyond_the_positions_is_refused(base: Path, files: dict[str, Path], tmp_path: Path):
    with pytest.raises(SettingsError, match="length is 64, but the model has 32 positions"):
        list(finetune(request_of(base, files, tmp_path / "run", replace(TUNING, max_length=64))))


def test_several_labels_a_text_are_learned(base: Path, tmp_path: Path):
    draw = random.Random(1)
    rows = []
    for _ in range(256):
        chosen = sorted({draw.choice(["good", "bad"]), draw.choice(["good", "bad"])})
        words = [draw.choice(GOOD if label == "good" else BAD) for label in chosen] + draw.choices(PLAIN, k=2)
        rows.append(json.dumps({"text": " ".join(words), "label": chosen}))
    path = lines_of(tmp_path / "train.jsonl", *rows)
    request = FinetuneRequest("classify", str(base), path, tmp_path / "run", path, recipe=replace(TUNING, epochs=16))
    list(finetune(request))
    model = bertworks.load(tmp_path / "run" / "model")
    told = [json.loads(row) for row in rows]
    found = [one.label for one in model.predict(row["text"] for row in told)]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "By class" in page
    right = [one == "|".join(row["label"]) for one, row in zip(found, told, strict=True)]
    assert sum(right) > 0.9 * len(right)
    assert {"good", "bad", "bad|good"} <= set(found)


def test_prices_are_learned_and_transformers_says_the_same(base: Path, tmp_path: Path):
    draw = random.Random(2)
    rows = ["text\tprice"]
    for _ in range(192):
        count = draw.randint(0, 3)
        words = [*draw.choices(GOOD, k=count), *draw.choices(PLAIN, k=5 - count)]
        draw.shuffle(words)
        rows.append(f"{' '.join(words)}\t{12_000 + 3_000 * count}")
    path = lines_of(tmp_path / "train.tsv", *rows)
    tuning = replace(TUNING, epochs=12)
    request = FinetuneRequest("regress", str(base), path, tmp_path / "run", path, recipe=tuning)
    list(finetune(replace(request, columns={"": {"label": "price"}})))
    folder = tmp_path / "run" / "model"
    texts = ["the film was so and", "lovely film great story fine"]
    found = [one.value for one in bertworks.load(folder).predict(texts)]
    assert found == pytest.approx([12_000, 21_000], abs=1_500)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = theirs(**tokenizer(texts, padding=True, return_tensors="pt")).logits[:, 0].tolist()
    assert found == pytest.approx(logits, rel=1e-6)
    scores = json.loads((tmp_path / "run" / "run.json").read_text())["scores"]
    scored, _ = evaluate(str(folder), path, {"label": "price"})
    assert scored.metrics == scores["dev"]
    assert scores["dev"]["pearson"] > 0.95


def test_sentences_of_a_document_are_examples_that_share_rows(base: Path, tmp_path: Path):
    draw = random.Random(3)
    lines = []
    for number in range(96):
        if number % 8 == 0:
            lines += ["-DOCSTART- O", ""]
        words = [*draw.choices(PLAIN, k=4), draw.choice(GOOD)]
        draw.shuffle(words)
        lines += [*(f"{word} {'B-PRAISE' if word in GOOD else 'O'}" for word in words), ""]
    path = lines_of(tmp_path / "train.txt", *lines)
    request = FinetuneRequest("tag", str(base), path, tmp_path / "run", path, recipe=replace(TUNING, epochs=6))
    told = list(finetune(request))
    # A row of 32 has room for 30 pieces: five sentences of five and four of context; the other three have a second.
    assert any(one.note.startswith("96 training examples in 24 rows of at most 32 places.") for one in told)
    assert max(one.step.number for one in told if one.step) == 6 * 12  # 8 examples are two rows
    assert any("96 of 96 dev texts also stand in train" in one.warning for one in told)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["scores"]["dev"]["f1"] > 0.95
    assert [facts["data"][split]["examples"] for split in ("train", "dev")] == [96, 96]  # sentences, not documents
    window = json.loads((tmp_path / "run" / "model" / "bertworks.json").read_text())["window"]
    assert window == {"length": 32, "overlap": 8, "truncate": False, "orders": "given"}
