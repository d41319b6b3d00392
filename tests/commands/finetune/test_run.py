"""Fine-tuning end to end on a toy problem: it learns, resumes bit-identically, saves the model, refuses bad input."""

from __future__ import annotations

import hashlib
import html
import json
import math
import random
import shutil
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers
from encoder_folder import write_random_bert
from killed_child import run_killed
from safetensors.torch import load_file

import bertworks
from bertworks.commands.evaluate import LabelledFile, evaluate_files
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneEvent, FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.finetune.sweep import Outcome, grid_of, runs_of, seeds_of, sweep
from bertworks.commands.predict import PredictRequest, predict
from bertworks.datasets.files import Record
from bertworks.encoders.bert import BertConfig
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.folder_lock import lock_folder
from bertworks.inference.finetuned import load_predictor
from bertworks.inference.predictor import TRUNCATED_TOKENS
from bertworks.settings import recipe_table
from bertworks.text.document import Counts
from bertworks.training.checkpoint import checkpoints_in
from bertworks.training.optimizer import LayerwiseSettings
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.text_coverage import UNKNOWN_TOKENS
from bertworks.vocabulary.tokenizer import Tokenizer

GOOD, BAD, PLAIN = "fine lovely great".split(), "awful dull poor".split(), "the film was so a story and music".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *PLAIN]
RECIPE = FinetuneRecipe(batch_size=8, learning_rate=5e-3, epochs=8, dropout=0.0, distill_weight=0.0, max_restarts=0)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers with random weights, in place of a pretrained one."""
    folder = tmp_path_factory.mktemp("base") / "model"
    tokenizer = Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False))
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.15,
    )
    return write_random_bert(folder, config, tokenizer)


def reviews(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts with one word that determines the label."""
    rng = random.Random(seed)
    labelled = []
    for _ in range(count):
        label, words = rng.choice([("praise", GOOD), ("blame", BAD)])
        text = [*rng.choices(PLAIN, k=rng.randint(2, 9)), rng.choice(words)]
        rng.shuffle(text)
        labelled.append((" ".join(text), label))
    return labelled


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reviews")
    paths = {}
    for seed, (split, count) in enumerate({"train": 96, "dev": 40, "test": 40}.items()):
        path = folder / f"{split}.tsv"
        rows = [f"{text}\t{label}" for text, label in reviews(count, seed)]
        path.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
        paths[split] = path
    return paths


def request_of(base: Path, files: dict[str, Path], output: Path, recipe: FinetuneRecipe = RECIPE) -> FinetuneRequest:
    return FinetuneRequest(
        task="classify",
        model=str(base),
        train=files["train"],
        output=output,
        dev=files["dev"],
        test=files["test"],
        recipe=recipe,
    )


@pytest.fixture(scope="module")
def run(
    one_thread: None, base: Path, files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[FinetuneEvent]]:
    output = tmp_path_factory.mktemp("run") / "run"
    return output, list(run_finetune(request_of(base, files, output)))


def test_a_model_learns_the_task(run: tuple[Path, list[FinetuneEvent]]):
    scores = json.loads((run[0] / "run.json").read_text())["scores"]
    assert scores["dev"]["accuracy"] == scores["test"]["accuracy"] == 1.0
    assert set(scores) == {"train", "dev", "test"}


def test_the_events_are_steps_scores_verdict_and_model_folder(run: tuple[Path, list[FinetuneEvent]]):
    output, events = run
    assert [event.step.number for event in events if event.step] == list(range(1, 97))  # 96 / 8 in each of 8 epochs
    assert [event.score.step for event in events if event.score and event.score.split == "dev"][:4] == [12, 24, 36, 48]
    assert any(event.note.startswith("fits: accuracy is 1.000") for event in events)
    assert events[-1].model_folder == output / "model"


def test_the_report_has_verdict_curves_confusion_and_explanations(
    run: tuple[Path, list[FinetuneEvent]],
):
    page = (run[0] / "report.html").read_text(encoding="utf-8")
    for text in ("Fits: accuracy is 1.000", "No token was truncated", "praise", "blame", "<svg", "Explained"):
        assert text in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_baselines_of_the_same_examples_are_beside_the_scores(run: tuple[Path, list[FinetuneEvent]]):
    output, events = run
    for path in (output / "run.json", output / "model" / "bertworks.json"):
        baselines = json.loads(path.read_text())["baselines"]
        assert list(baselines) == ["majority", "tfidf_logistic_regression"]
        assert set(baselines["majority"]) == {"dev", "test"}
    labels = [label for _, label in reviews(40, 1)]
    accuracy = labels.count("blame") / 40  # the majority of train
    assert baselines["majority"]["dev"]["accuracy"] == accuracy
    assert baselines["tfidf_logistic_regression"]["dev"]["accuracy"] == 1.0
    notes = [event.note for event in events]
    assert any(note.startswith(f"dev, majority baseline: accuracy {accuracy:.4f}, macro_f1") for note in notes)
    sentence = "The bag of words (TF-IDF + logistic regression) is at least as good on dev and test, and far cheaper"
    assert any(sentence in note for note in notes)
    page = html.unescape((output / "report.html").read_text(encoding="utf-8"))
    assert sentence in page
    assert "<h2>Baselines</h2>" in page


def test_without_dev_and_test_or_if_switched_off_there_are_no_baselines(
    base: Path, files: dict[str, Path], tmp_path: Path
):
    recipe = replace(RECIPE, epochs=1)
    requests = [
        replace(request_of(base, files, tmp_path / "alone", recipe), dev=None, test=None),
        request_of(base, files, tmp_path / "off", replace(recipe, baselines=False)),
    ]
    for request in requests:
        notes = [event.note for event in run_finetune(request)]
        assert not any("baseline" in note or "bag of words" in note for note in notes)
        assert "baselines" not in json.loads((request.output / "run.json").read_text())
        assert "<h2>Baselines</h2>" not in (request.output / "report.html").read_text(encoding="utf-8")


def test_a_run_of_an_earlier_version_resumes_bit_identically(base: Path, files: dict[str, Path], tmp_path: Path):
    """One of before defaults followed from model and data, and before baselines, class weights and Muon."""
    recipe = replace(RECIPE, precision="fp32", evals_per_epoch=1.0)
    requests = [request_of(base, files, tmp_path / name, recipe) for name in ("whole", "stopped")]
    list(run_finetune(requests[0]))
    list(run_finetune(replace(requests[1], stop_after=5)))
    path = requests[1].output / "recipe.toml"
    new_lines = (
        "baselines =",
        "class_weights =",
        "name =",
        "momentum =",
        "embedding_lr_ratio =",
        "r_drop =",
        "distill_weight =",
    )
    lines = [line for line in path.read_text().splitlines() if not line.startswith(new_lines)]
    path.write_text("\n".join(lines).replace("evals_per_epoch = 1.0", "evals_per_epoch = 1") + "\n")
    # What that version wrote into its checkpoints: a hash of the recipe without those keys.
    settings = asdict(recipe) | {"evals_per_epoch": 1, "pair_order": "given"}
    for name in ("baselines", "class_weights", "adapt", "r_drop", "distill_weight"):
        del settings[name]
    for name in ("name", "momentum"):
        del settings["optimizer"][name]
    del settings["layerwise"]["embedding_lr_ratio"]
    hashes = [hashlib.sha256(files[split].read_bytes()).hexdigest() for split in ("train", "dev", "test")]
    inputs = json.dumps(["classify", str(base), "", hashes, settings, {}, {}], sort_keys=True, default=str)
    (checkpoint,) = checkpoints_in(requests[1].output / "checkpoints")
    state = json.loads((checkpoint / "state.json").read_text())
    assert hashlib.sha256(inputs.encode()).hexdigest()[:16] in state.values()
    unset = replace(recipe, baselines=False, evals_per_epoch=0.0, distill_weight=None)
    list(run_finetune(replace(requests[1], recipe=unset)))
    weights = [request.output / "model" / "model.safetensors" for request in requests]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_sweep_does_not_repeat_a_run_from_before_baselines(base: Path, files: dict[str, Path], tmp_path: Path):
    recipe = replace(RECIPE, epochs=1)
    request = request_of(base, files, tmp_path / "runs", recipe)
    (outcome,) = (result for result in sweep(request, [recipe]) if isinstance(result, Outcome))
    run_info = json.loads((outcome.folder / "run.json").read_text())
    del run_info["recipe"]["baselines"]
    (outcome.folder / "run.json").write_text(json.dumps(run_info))
    for baselines in (True, False):
        events = list(sweep(request, [replace(recipe, baselines=baselines)]))
        assert not [event for event in events if isinstance(event, FinetuneEvent) and event.step]


def test_the_model_folder_loads_in_transformers_with_the_same_logits(run: tuple[Path, list[FinetuneEvent]]):
    folder = run[0] / "model"
    hf_model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = bertworks.load(folder)
    texts = ["the film was lovely", "a dull story and poor music"]
    with torch.no_grad():
        logits = hf_model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.numpy()
    predictions = model.predict(texts)
    for prediction, hf_logits in zip(predictions, logits, strict=True):
        assert abs(prediction.logits - hf_logits).max() < 1e-5
    assert [prediction.label for prediction in predictions] == ["praise", "blame"]
    assert hf_model.config.id2label == {0: "blame", 1: "praise"}


def test_a_classifier_of_transformers_loads_with_the_same_logits(base: Path, tmp_path: Path):
    config = transformers.BertConfig.from_pretrained(base, num_labels=3)
    hf_model = transformers.BertForSequenceClassification(config).eval()
    hf_model.save_pretrained(tmp_path / "hf")
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "hf")
    prediction = bertworks.load(tmp_path / "hf").predict([("the film", "was great")])[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    with torch.no_grad():
        logits = hf_model(**tokenizer("the film", "was great", return_tensors="pt")).logits.numpy()[0]
    assert abs(prediction.logits - logits).max() < 1e-5
    assert set(prediction.probabilities) == {"LABEL_0", "LABEL_1", "LABEL_2"}


def test_a_resumed_run_is_bit_identical(
    base: Path, files: dict[str, Path], run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    request = request_of(base, files, tmp_path / "run")
    for stop_after in (5, 9, 40, None):
        list(run_finetune(replace(request, stop_after=stop_after)))
    for name in ("model/model.safetensors", "model/bertworks.json"):
        assert (run[0] / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    last_checkpoints = [checkpoints_in(output / "checkpoints")[-1] for output in (run[0], tmp_path / "run")]
    tensors = [load_file(path / "optimizer.safetensors") for path in last_checkpoints]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


def test_a_checkpoint_that_a_killed_run_did_not_remove_is_removed_when_it_resumes(
    base: Path, files: dict[str, Path], tmp_path: Path
):
    request = request_of(base, files, tmp_path / "run")
    list(run_finetune(replace(request, stop_after=5)))
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.copytree(checkpoints / "step-00000005", checkpoints / "step-00000001")
    events = run_finetune(replace(request, stop_after=1))
    next(event for event in events if event.step is not None)
    assert [path.name for path in checkpoints_in(checkpoints)] == ["step-00000005"]
    list(events)


def test_two_runs_cannot_write_to_one_folder(base: Path, files: dict[str, Path], tmp_path: Path):
    request = request_of(base, files, tmp_path / "run")
    message = f"another run is writing to {tmp_path}/run .*wait for it, or choose another --output"
    for work in (run_finetune(request), sweep(request, [RECIPE])):
        with lock_folder(tmp_path / "run"), pytest.raises(FolderError, match=message):
            list(work)
    list(run_finetune(replace(request, stop_after=1)))
    assert not (tmp_path / "run" / ".lock").exists()


@pytest.mark.parametrize("number", range(1, 9))
def test_killed_at_any_of_its_first_changes_a_run_is_continued(
    base: Path, files: dict[str, Path], tmp_path: Path, number: int
):
    request = replace(request_of(base, files, tmp_path / "run"), stop_after=1)
    assert run_killed(lambda: list(run_finetune(request)), tmp_path, number)
    assert [event.step.number for event in run_finetune(request) if event.step] == [1]
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")] == []


def test_lines_after_the_checkpoint_may_be_damaged_by_a_power_failure(
    base: Path, files: dict[str, Path], tmp_path: Path
):
    request = request_of(base, files, tmp_path / "run")
    list(run_finetune(replace(request, stop_after=5)))
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b"\0" * 100 + b"}\n")
    assert next(event.step.number for event in run_finetune(request) if event.step) == 6


def test_if_every_checkpoint_is_damaged_a_run_stops(base: Path, files: dict[str, Path], tmp_path: Path):
    request = request_of(base, files, tmp_path / "run")
    list(run_finetune(replace(request, stop_after=5)))
    for path in checkpoints_in(tmp_path / "run" / "checkpoints"):
        (path / "state.json").unlink()
    with pytest.raises(FolderError, match=r"every checkpoint in .*/run/checkpoints is damaged .* or delete"):
        list(run_finetune(request))


def test_predictions_are_in_order_with_calibrated_probabilities(run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    texts = [text for text, _ in reviews(40, 9)]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    predictions = list(predict(PredictRequest(model=str(run[0] / "model"), source=tmp_path / "texts.txt", kind="text")))
    expected = bertworks.load(run[0] / "model").predict(texts[:3])
    assert len(predictions) == 40
    for prediction, other in zip(predictions, expected, strict=False):
        assert prediction["label"] == other.label
        assert abs(prediction["probabilities"]["praise"] - other.probabilities["praise"]) < 1e-6
        assert abs(sum(prediction["probabilities"].values()) - 1) < 1e-9


def test_by_sentence_each_sentence_has_a_prediction_and_offsets(run: tuple[Path, list[FinetuneEvent]], tmp_path: Path):
    article = "The film was lovely. The story was awful. Great music."
    (tmp_path / "article.txt").write_text(article, encoding="utf-8")
    predictions = list(
        predict(
            PredictRequest(model=str(run[0] / "model"), source=tmp_path / "article.txt", kind="text", by="sentence")
        )
    )
    assert [article[prediction["start"] : prediction["end"]].strip() for prediction in predictions] == [
        "The film was lovely.",
        "The story was awful.",
        "Great music.",
    ]
    assert [prediction["label"] for prediction in predictions] == ["praise", "blame", "praise"]


def test_by_sentence_columns_are_recognised_and_empty_lines_skipped(
    run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    model = str(run[0] / "model")
    article = lines_of(tmp_path / "article.txt", "The film was lovely. So dull.", "", "Great music.")
    predictions = list(predict(PredictRequest(model=model, source=article, kind="text", by="sentence")))
    assert [(prediction["text"], prediction["start"], prediction["end"]) for prediction in predictions] == [
        (0, 0, 20),
        (0, 21, 29),
        (2, 0, 12),
    ]
    table = lines_of(tmp_path / "articles.tsv", "id\tbody", "a\tThe film was lovely. So dull.")
    assert [
        prediction["label"] for prediction in predict(PredictRequest(model=model, source=table, by="sentence"))
    ] == [
        "praise",
        "blame",
    ]
    with pytest.raises(SettingsError, match="--by sentence needs a model that takes single texts"):
        list(predict(PredictRequest(model=model, source=table, by="sentence", columns={"pair": "id"})))


def test_tokens_that_predict_truncates_are_counted(base: Path, files: dict[str, Path], tmp_path: Path):
    recipe = replace(RECIPE, epochs=1, max_length=8, truncate=True)
    events = list(run_finetune(request_of(base, files, tmp_path / "run", recipe)))
    texts = {
        split: [line.split("\t")[0] for line in path.read_text().splitlines()[1:]] for split, path in files.items()
    }
    num_truncated = {
        split: sum(max(0, len(text.split()) - 6) for text in split_texts) for split, split_texts in texts.items()
    }
    assert {event.note for event in events if event.note.endswith(TRUNCATED_TOKENS)} == {
        f"dev: {num_truncated['dev']} {TRUNCATED_TOKENS}",
        f"test: {num_truncated['test']} {TRUNCATED_TOKENS}",
    }
    counts: Counts = Counts()
    source = lines_of(tmp_path / "texts.txt", *texts["dev"])
    list(predict(PredictRequest(model=str(tmp_path / "run" / "model"), source=source, kind="text"), counts))
    assert counts == {TRUNCATED_TOKENS: num_truncated["dev"]}


def test_missing_and_unknown_labels_are_found_before_training(base: Path, files: dict[str, Path], tmp_path: Path):
    request = request_of(base, files, tmp_path / "run", replace(RECIPE, epochs=1))
    for rows, message in (
        (('{"text": "the film", "label": "praise"}', '{"text": "so"}'), "line 2: the label is missing"),
        (('{"text": "the film", "label": "praise"}', '{"text": "so", "label": "boring"}'), "'boring' does not occur"),
        (('{"text": "the film", "label": "praise"}', '{"label": "praise"}'), "line 2: there is no 'text', which other"),
        (('{"text": "the film", "label": "praise"}', '{"text": null}'), "line 2: the column 'text' is empty"),
    ):
        path = lines_of(tmp_path / "test.jsonl", *rows)
        for split in ("dev", "test"):
            with pytest.raises(InputError, match=message):
                list(run_finetune(replace(request, **{split: path})))
    assert not (tmp_path / "run").exists()


def test_a_test_file_without_labels_is_not_scored(base: Path, files: dict[str, Path], tmp_path: Path):
    path = lines_of(tmp_path / "test.tsv", "text", "the film was fine", "so dull")
    columns = {"": {"text": "text"}, "test": {"label": ""}}
    request = replace(request_of(base, files, tmp_path / "run", replace(RECIPE, epochs=1)), test=path, columns=columns)
    events = list(run_finetune(request))
    assert any(event.note.startswith("test has no labels and is not scored") for event in events)
    assert {event.score.split for event in events if event.score} == {"train", "dev"}


def test_evaluate_gives_the_saved_scores(run: tuple[Path, list[FinetuneEvent]], files: dict[str, Path]):
    (result,) = evaluate_files(load_predictor(run[0] / "model"), [LabelledFile("dev", files["dev"])])
    assert result.scores.metrics == json.loads((run[0] / "run.json").read_text())["scores"]["dev"]


def test_the_folder_records_columns_languages_and_window_rule(run: tuple[Path, list[FinetuneEvent]]):
    metadata = json.loads((run[0] / "model" / "bertworks.json").read_text())
    assert metadata["columns"] == {"text": "text", "label": "label"}
    assert metadata["languages"] == ["en"]
    assert metadata["window"] == {"max_length": 32, "overlap": 8, "truncate": False, "pair_order": "given"}


def test_evaluate_needs_no_columns_again(base: Path, files: dict[str, Path], tmp_path: Path):
    for split, path in files.items():
        lines = path.read_text(encoding="utf-8").splitlines()[1:]
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")  # without a header
    own = {split: tmp_path / f"{split}.tsv" for split in files}
    columns = {"": {"header": "words,opinion", "text": "words", "label": "opinion"}}
    request = replace(request_of(base, own, tmp_path / "run", replace(RECIPE, epochs=1)), columns=columns)
    list(run_finetune(request))
    predictor = load_predictor(tmp_path / "run" / "model")
    assert predictor.columns == columns[""]
    scores = json.loads((tmp_path / "run" / "run.json").read_text())["scores"]
    (result,) = evaluate_files(predictor, [LabelledFile("dev", own["dev"])])
    assert result.scores.metrics == scores["dev"]
    text = "opinion\tid\twords\n" + "".join(f"{label}\t1\t{text}\n" for text, label in reviews(40, 1))
    (tmp_path / "named.tsv").write_text(text, encoding="utf-8")
    (result,) = evaluate_files(predictor, [LabelledFile("dev", tmp_path / "named.tsv")])
    assert result.scores.metrics == scores["dev"]
    (result,) = evaluate_files(predictor, [LabelledFile("dev", files["dev"])])  # text, label: recognized as before
    assert result.scores.metrics == scores["dev"]
    (tmp_path / "other.tsv").write_text("a\tb\tc\nfine\tpraise\t1\n", encoding="utf-8")
    with pytest.raises(InputError, match="no column looks like the text; the columns are 'a', 'b', 'c'"):
        list(evaluate_files(predictor, [LabelledFile("dev", tmp_path / "other.tsv")]))


def test_texts_that_the_vocabulary_cannot_read_are_a_warning_for_each_split(
    base: Path, files: dict[str, Path], tmp_path: Path
):
    chinese = tmp_path / "zh.tsv"
    chinese.write_text("text\tlabel\n" + "这部电影很好看\tpraise\n" * 3 + "很无聊\tblame\n", encoding="utf-8")
    request = replace(request_of(base, files, tmp_path / "run", replace(RECIPE, epochs=1)), dev=chinese, test=None)
    warnings = [event.warning for event in run_finetune(request) if event.warning]
    assert [warning.partition(":")[0] for warning in warnings if "unknown" in warning] == ["dev"]
    assert "100% of 24 tokens are unknown to the vocabulary ([UNK])" in warnings[0]
    assert "most often: 很 好 影 电" in warnings[0]
    assert html.escape(warnings[0]) in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    (result,) = evaluate_files(load_predictor(tmp_path / "run" / "model"), [LabelledFile("zh", chinese)])
    assert [warning.type for warning in result.warnings] == ["unknown_tokens"]
    assert result.counts[UNKNOWN_TOKENS] == 24


def test_a_few_unknown_tokens_of_a_split_are_a_note(base: Path, files: dict[str, Path], tmp_path: Path):
    lines = files["dev"].read_text(encoding="utf-8")
    (tmp_path / "dev.tsv").write_text(lines + "the film was so fine quux\tpraise\n", encoding="utf-8")
    request = replace(request_of(base, files, tmp_path / "run", replace(RECIPE, epochs=1)), dev=tmp_path / "dev.tsv")
    events = list(run_finetune(request))
    assert [event.warning for event in events if "unknown" in event.warning] == []
    (note,) = [event.note for event in events if event.note.startswith("dev: 1 of ")]
    assert note.endswith("tokens are unknown to the vocabulary; most often: quux")


def test_a_long_text_is_split_into_windows_that_cover_it(run: tuple[Path, list[FinetuneEvent]]):
    model = bertworks.load(run[0] / "model")
    long = " ".join(["the film was"] * 60 + ["lovely"])  # 181 tokens, the model reads 32
    assert model.predict([long])[0].label == "praise"
    assert model.predictor is not None
    features = model.predictor.module.task.featurize(
        next(model.predictor.module.task.read_unlabelled([Record({"text": long}, "")], {})),
        model.tokenizer,
        model.predictor.window_rule,
    )
    covered = {
        index
        for sequence in features.sequences
        for span in sequence.spans
        for index in range(span.first, span.first + span.count)
    }
    assert covered == set(range(181))


def test_truncated_training_tokens_are_counted(base: Path, files: dict[str, Path], tmp_path: Path):
    recipe = replace(RECIPE, epochs=1, max_length=8, truncate=True)
    notes = [event.note for event in run_finetune(request_of(base, files, tmp_path / "run", recipe)) if event.note]
    assert any(note.endswith("tokens truncated.") for note in notes)


def test_texts_in_both_train_and_dev_are_a_warning(base: Path, files: dict[str, Path], tmp_path: Path):
    request = replace(request_of(base, files, tmp_path / "run", replace(RECIPE, epochs=1)), dev=files["train"])
    warnings = [event.warning for event in run_finetune(request) if event.warning]
    assert "96 of 96 dev texts are also in train" in warnings[0]


def test_a_run_stops_when_the_target_metric_is_reached(base: Path, files: dict[str, Path], tmp_path: Path):
    events = list(
        run_finetune(request_of(base, files, tmp_path / "run", replace(RECIPE, target_metric="accuracy=0.3")))
    )
    assert max(event.step.number for event in events if event.step) == 12
    assert any("accuracy reached" in event.note for event in events)


@pytest.mark.parametrize(
    ("target_metric", "message"),
    [
        ("f1=0.9", "dev has no metric 'f1'; choose one of: accuracy, macro_f1$"),
        ("calibration_error=0.1", "has no metric"),
    ],
)
def test_an_unknown_target_metric_is_refused_before_training(
    base: Path, files: dict[str, Path], tmp_path: Path, target_metric: str, message: str
):
    with pytest.raises(SettingsError, match=message):
        list(run_finetune(request_of(base, files, tmp_path / "run", replace(RECIPE, target_metric=target_metric))))
    assert not (tmp_path / "run").exists()  # the corrected command can use the same folder


def test_target_metric_and_patience_need_dev(base: Path, files: dict[str, Path], tmp_path: Path):
    for recipe in (replace(RECIPE, target_metric="accuracy=0.9"), replace(RECIPE, patience=2)):
        with pytest.raises(SettingsError, match="need scores on dev; name a labelled file with --dev"):
            list(run_finetune(replace(request_of(base, files, tmp_path / "run", recipe), dev=None)))


def test_a_run_that_collapsed_to_one_class_is_restarted(base: Path, files: dict[str, Path], tmp_path: Path):
    # Nothing is learned at this learning rate: the default one is tried next.
    recipe = replace(RECIPE, learning_rate=1e-9, epochs=1, max_restarts=1)
    request = request_of(base, files, tmp_path / "run", recipe)
    events = list(run_finetune(request))
    warnings = [event.warning for event in events if event.warning.startswith("collapsed: all 40 dev examples")]
    assert "learning rate 1e-09 is too low for this model" in warnings[0]
    assert warnings[0].endswith("The run is restarted with learning_rate = 0.001.")
    page = html.unescape((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert all(text in page for text in warnings)
    restart = recipe_table(tmp_path / "run" / "restart-1" / "recipe.toml")
    assert (restart["learning_rate"], restart["seed"]) == (0.001, 1_000)
    assert events[-1].model_folder == tmp_path / "run" / "model"
    request = request_of(base, files, tmp_path / "runs", recipe)
    for num_steps in (24, 0):  # a sweep does not repeat it, though its recipe is another now
        events = [event for event in sweep(request, [recipe]) if isinstance(event, FinetuneEvent)]
        assert sum(event.step is not None for event in events) == num_steps


def test_without_restarts_a_collapsed_model_is_saved_with_a_warning(base: Path, files: dict[str, Path], tmp_path: Path):
    recipe = replace(RECIPE, learning_rate=1e-9, epochs=1, max_restarts=0)
    events = list(run_finetune(request_of(base, files, tmp_path / "run", recipe)))
    (warning,) = [event.warning for event in events if event.warning]
    assert warning.endswith("There are no restarts left: the model is saved as it is.")
    assert any("one class is predicted for everything" in event.note for event in events)


def test_a_collapsed_run_that_was_interrupted_at_its_end_is_restarted_too(
    base: Path, files: dict[str, Path], tmp_path: Path
):
    recipe = replace(RECIPE, learning_rate=1e-9, epochs=1, max_restarts=1)
    requests = [request_of(base, files, tmp_path / name, recipe) for name in ("whole", "stopped")]
    list(run_finetune(requests[0]))
    assert list(run_finetune(replace(requests[1], stop_after=12)))[-1].model_folder is None  # all 12 steps are done
    events = list(run_finetune(requests[1]))
    assert any(event.warning.startswith("collapsed") for event in events)
    weights = [(request.output / "model" / "model.safetensors").read_bytes() for request in requests]
    assert weights[0] == weights[1]


def test_an_auxiliary_masked_lm_loss_is_trained(base: Path, files: dict[str, Path], tmp_path: Path):
    recipe = replace(RECIPE, mlm_weight=0.1)
    events = list(run_finetune(request_of(base, files, tmp_path / "run", recipe)))
    losses = [event.step.losses for event in events if event.step]
    assert set(losses[0]) == {"task", "mlm"}
    # The model has no masked-LM head: a new one outputs zeros at first, so that it does not disturb the encoder.
    assert losses[0]["mlm"] == pytest.approx(math.log(len(TOKENS)), abs=1e-4)
    assert sum(loss["mlm"] for loss in losses[-5:]) < sum(loss["mlm"] for loss in losses[:5])
    assert json.loads((tmp_path / "run" / "run.json").read_text())["scores"]["dev"]["accuracy"] >= 0.9


def test_few_examples_are_learned_with_r_drop_by_default(base: Path, files: dict[str, Path], tmp_path: Path):
    request = request_of(base, files, tmp_path / "run", replace(RECIPE, dropout=0.1, epochs=1))
    events = list(run_finetune(request))
    assert any("r_drop 2 (96 training examples)" in event.note for event in events)
    losses = [event.step.losses["task"] for event in events if event.step]
    others = run_finetune(replace(request, output=tmp_path / "without", recipe=replace(request.recipe, r_drop=0.0)))
    assert losses != [event.step.losses["task"] for event in others if event.step]


def test_r_drop_is_only_for_classes(base: Path, files: dict[str, Path], tmp_path: Path):
    values = tmp_path / "values.tsv"
    values.write_text("text\tlabel\na good film\t1\na bad film\t0\n")
    request = request_of(base, {**files, "train": values}, tmp_path / "run", replace(RECIPE, dropout=0.1, r_drop=1.0))
    with pytest.raises(SettingsError, match="r_drop is for classify; the task is regress"):
        next(iter(run_finetune(replace(request, task="regress", dev=None, test=None))))


def test_narrow_models_learn_from_a_bag_of_words_by_default_and_resume_bit_identically(
    base: Path, files: dict[str, Path], tmp_path: Path
):
    recipe = replace(RECIPE, distill_weight=None, epochs=1)
    easy = list(run_finetune(request_of(base, files, tmp_path / "easy", recipe)))
    assert not any("distill_weight" in event.note for event in easy)  # the bag of words makes no errors
    rows = [f"{text}\t{'blame' if index % 5 == 0 else label}" for index, (text, label) in enumerate(reviews(96, 0))]
    (tmp_path / "noisy.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    noisy = {**files, "train": tmp_path / "noisy.tsv"}
    requests = [request_of(base, noisy, tmp_path / name, recipe) for name in ("whole", "stopped")]
    events = list(run_finetune(requests[0]))
    assert any("distill_weight 2 (hidden size below 384)" in event.note for event in events)
    losses = [event.step.losses for event in events if event.step]
    assert set(losses[0]) == {"task", "distillation"}
    list(run_finetune(replace(requests[1], stop_after=len(losses) // 2)))
    list(run_finetune(requests[1]))
    weights = [(request.output / "model" / "model.safetensors").read_bytes() for request in requests]
    assert weights[0] == weights[1]


def test_a_bag_of_words_teaches_only_classes_of_single_texts(base: Path, files: dict[str, Path], tmp_path: Path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("text\tpair\tlabel\na good film\tyes\tgood\na bad film\tno\tbad\n")
    columns = {"": {"text": "text", "pair": "pair", "label": "label"}}
    request = request_of(base, {**files, "train": pairs}, tmp_path / "run", replace(RECIPE, distill_weight=1.0))
    with pytest.raises(SettingsError, match="distill_weight is for classify and single texts"):
        next(iter(run_finetune(replace(request, dev=None, test=None, columns=columns))))


def test_several_processes_are_refused(
    base: Path, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match="fine-tuning runs in a single process; start it without torchrun"):
        next(iter(run_finetune(request_of(base, files, tmp_path / "run", RECIPE))))


def test_frozen_layers_do_not_change(base: Path, files: dict[str, Path], tmp_path: Path):
    recipe = replace(RECIPE, epochs=1, layerwise=LayerwiseSettings(num_frozen_layers=1))
    list(run_finetune(request_of(base, files, tmp_path / "run", recipe)))
    before, after = load_file(base / "model.safetensors"), load_file(tmp_path / "run" / "model" / "model.safetensors")
    unchanged = {name for name in before if name in after and torch.equal(before[name], after[name])}
    assert "bert.embeddings.word_embeddings.weight" in unchanged
    assert "bert.encoder.layer.0.output.dense.weight" in unchanged
    assert "bert.encoder.layer.1.output.dense.weight" not in unchanged


def test_the_grid_is_that_of_the_paper():
    recipes = grid_of(FinetuneRecipe())
    assert len(recipes) == len({(one.batch_size, one.learning_rate, one.epochs) for one in recipes}) == 18


def test_seeds_are_separate_runs_that_are_not_repeated(base: Path, files: dict[str, Path], tmp_path: Path):
    request = request_of(base, files, tmp_path / "runs", replace(RECIPE, epochs=1))
    recipes = seeds_of(request.recipe, 2)
    outcomes = [result for result in sweep(request, recipes) if isinstance(result, Outcome)]
    assert [outcome.recipe.seed for outcome in outcomes] == [0, 1]
    ((batch_size, learning_rate, epochs, mean, deviation, count),) = Outcome.table(outcomes)
    assert (batch_size, learning_rate, epochs, count) == ("8", "5e-03", "1", "2")
    assert float(mean) == pytest.approx(sum(outcome.score for outcome in outcomes) / 2, abs=1e-4)
    assert float(deviation) >= 0
    repeated = list(sweep(request, recipes))
    assert not [event for event in repeated if isinstance(event, FinetuneEvent) and event.step]
    others = [
        replace(request, dev=files["test"]),
        request_of(base, files, request.output, replace(RECIPE, epochs=1, target_metric="accuracy=1")),
    ]
    for other in others:  # their runs have the same folder names
        with pytest.raises(FolderError, match="seed0 was made with other data or settings; choose another --output"):
            list(sweep(other, seeds_of(other.recipe, 2)))


def test_a_run_of_an_earlier_version_resumes_and_is_not_repeated(
    base: Path, files: dict[str, Path], run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    """Its recipe.toml and run.json have no section [adapt]."""
    request = request_of(base, files, tmp_path / "run")
    (interrupted,) = runs_of(request, [RECIPE])
    list(run_finetune(replace(interrupted, stop_after=5)))
    text, _, rest = (interrupted.output / "recipe.toml").read_text().partition("\n[adapt]")
    assert rest.splitlines() == ["", "epochs = 0", "learning_rate = 0.0001", "batch_size = 32"]
    (interrupted.output / "recipe.toml").write_text(text)
    list(sweep(request, [RECIPE]))
    assert (interrupted.output / "model/model.safetensors").read_bytes() == (
        run[0] / "model/model.safetensors"
    ).read_bytes()
    run_info = json.loads((interrupted.output / "run.json").read_text())
    del run_info["recipe"]["adapt"]
    (interrupted.output / "run.json").write_text(json.dumps(run_info))
    assert not [event for event in sweep(request, [RECIPE]) if isinstance(event, FinetuneEvent) and event.step]


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
def test_invalid_files_are_refused_with_their_location(
    base: Path, files: dict[str, Path], tmp_path: Path, split: str, rows: tuple[str, ...], message: str
):
    broken = {**files, split: lines_of(tmp_path / f"{split}.tsv", *rows)}
    with pytest.raises(InputError, match=message):
        list(run_finetune(request_of(base, broken, tmp_path / "run")))


def test_a_model_of_another_task_or_without_a_task_is_refused(
    base: Path, run: tuple[Path, list[FinetuneEvent]], files: dict[str, Path]
):
    with pytest.raises(FolderError, match="is fine-tuned for 'classify', not for 'tag'"):
        load_predictor(run[0] / "model", "tag")
    with pytest.raises(FolderError, match="is not fine-tuned for a task"):
        bertworks.load(base).predict(["the film"])


def test_the_error_of_a_file_of_another_task_names_the_task_of_the_model(
    run: tuple[Path, list[FinetuneEvent]], tmp_path: Path
):
    path = lines_of(tmp_path / "dev.txt", "John B-PER", "sleeps O")
    with pytest.raises(
        InputError,
        match=r"no column looks like the label.* [(]the file is read as data for the model's task, 'classify'",
    ):
        list(evaluate_files(load_predictor(run[0] / "model"), [LabelledFile("dev", path)]))


def test_windows_cover_a_text_of_100_000_words(run: tuple[Path, list[FinetuneEvent]]):
    predictor = load_predictor(run[0] / "model")
    example = next(predictor.module.task.read_unlabelled([Record({"text": "film " * 100_000}, "here")], {}))
    features = predictor.module.task.featurize(example, predictor.tokenizer, predictor.window_rule)
    spans = [sequence.spans[0] for sequence in features.sequences]
    assert (spans[0].first, spans[-1].first + spans[-1].count) == (0, 100_000)
    assert all(after.first <= before.first + before.count for before, after in pairwise(spans))


def test_a_folder_of_another_run_is_refused(run: tuple[Path, list[FinetuneEvent]], base: Path, files: dict[str, Path]):
    with pytest.raises(FolderError, match="holds a run of another recipe"):
        list(run_finetune(request_of(base, files, run[0], replace(RECIPE, learning_rate=1e-4))))


def test_a_max_length_beyond_the_positions_is_refused(base: Path, files: dict[str, Path], tmp_path: Path):
    with pytest.raises(SettingsError, match="max_length is 64, but the model has 32 positions"):
        list(run_finetune(request_of(base, files, tmp_path / "run", replace(RECIPE, max_length=64))))


def test_multi_label_classification_is_learned(base: Path, tmp_path: Path):
    rng = random.Random(1)
    rows = []
    for _ in range(256):
        chosen = sorted({rng.choice(["good", "bad"]), rng.choice(["good", "bad"])})
        words = [rng.choice(GOOD if label == "good" else BAD) for label in chosen] + rng.choices(PLAIN, k=2)
        rows.append(json.dumps({"text": " ".join(words), "label": chosen}))
    path = lines_of(tmp_path / "train.jsonl", *rows)
    request = FinetuneRequest(
        task="classify",
        model=str(base),
        train=path,
        output=tmp_path / "run",
        dev=path,
        recipe=replace(RECIPE, epochs=16),
    )
    list(run_finetune(request))
    model = bertworks.load(tmp_path / "run" / "model")
    examples = [json.loads(row) for row in rows]
    labels = [prediction.label for prediction in model.predict(example["text"] for example in examples)]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "By class" in page
    correct = [label == "|".join(example["label"]) for label, example in zip(labels, examples, strict=True)]
    assert sum(correct) > 0.9 * len(correct)
    assert {"good", "bad", "bad|good"} <= set(labels)


def test_regression_is_learned_and_equals_transformers(base: Path, tmp_path: Path):
    rng = random.Random(2)
    rows = ["text\tprice"]
    for _ in range(192):
        count = rng.randint(0, 3)
        words = [*rng.choices(GOOD, k=count), *rng.choices(PLAIN, k=5 - count)]
        rng.shuffle(words)
        rows.append(f"{' '.join(words)}\t{12_000 + 3_000 * count}")
    path = lines_of(tmp_path / "train.tsv", *rows)
    recipe = replace(RECIPE, epochs=12)
    request = FinetuneRequest(
        task="regress", model=str(base), train=path, output=tmp_path / "run", dev=path, recipe=recipe
    )
    list(run_finetune(replace(request, columns={"": {"label": "price"}})))
    folder = tmp_path / "run" / "model"
    texts = ["the film was so and", "lovely film great story fine"]
    values = [prediction.value for prediction in bertworks.load(folder).predict(texts)]
    assert values == pytest.approx([12_000, 21_000], abs=1_500)
    hf_model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = hf_model(**tokenizer(texts, padding=True, return_tensors="pt")).logits[:, 0].tolist()
    assert values == pytest.approx(logits, rel=1e-6)
    scores = json.loads((tmp_path / "run" / "run.json").read_text())["scores"]
    (result,) = evaluate_files(load_predictor(folder), [LabelledFile("dev", path, {"label": "price"})])
    assert result.scores.metrics == scores["dev"]
    assert scores["dev"]["pearson"] > 0.95


def test_sentences_of_a_document_share_sequences(base: Path, tmp_path: Path):
    rng = random.Random(3)
    lines = []
    for number in range(96):
        if number % 8 == 0:
            lines += ["-DOCSTART- O", ""]
        words = [*rng.choices(PLAIN, k=4), rng.choice(GOOD)]
        rng.shuffle(words)
        lines += [*(f"{word} {'B-PRAISE' if word in GOOD else 'O'}" for word in words), ""]
    path = lines_of(tmp_path / "train.txt", *lines)
    request = FinetuneRequest(
        task="tag", model=str(base), train=path, output=tmp_path / "run", dev=path, recipe=replace(RECIPE, epochs=6)
    )
    events = list(run_finetune(request))
    # 30 tokens fit beside the special ones: five sentences of five words; the other three are in a second sequence.
    assert any(event.note.startswith("96 training examples in 24 sequences of up to 32 tokens.") for event in events)
    assert max(event.step.number for event in events if event.step) == 6 * 12  # 8 examples are two sequences
    assert any("96 of 96 dev texts are also in train" in event.warning for event in events)
    run_info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run_info["scores"]["dev"]["f1"] > 0.95
    assert [run_info["data"][split]["examples"] for split in ("train", "dev")] == [96, 96]  # sentences, not documents
    window = json.loads((tmp_path / "run" / "model" / "bertworks.json").read_text())["window"]
    assert window == {"max_length": 32, "overlap": 8, "truncate": False, "pair_order": "given"}
