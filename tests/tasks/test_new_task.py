"""One file and one line add a task: it is fine-tuned, resumed, evaluated, used, explained, exported and served."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_folder import write_random_bert
from fastapi.testclient import TestClient
from relevance_task import Relevance
from safetensors.torch import load_file
from typer.testing import CliRunner

import bertworks
from bertworks.cli.app import app
from bertworks.commands.evaluate import LabelledFile, evaluate_files
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.commands.finetune.run import run_finetune
from bertworks.commands.finetune.submissions import BenchmarkDataset
from bertworks.commands.predict import PredictRequest, predict
from bertworks.datasets.published import DATASETS, DatasetSplit, PublishedDataset
from bertworks.encoders.bert import BertConfig
from bertworks.exporters.export import ExportRequest, export
from bertworks.inference.attribution import example_from_texts, explain
from bertworks.inference.finetuned import load_predictor
from bertworks.serving.server import ServeRequest, load_app
from bertworks.tasks.registry import TASKS
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread", "registration")

TOPICS = {"animals": "cat dog fox".split(), "plants": "tree rose moss".split()}
FILLERS = "the a old was near and".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *TOPICS, *TOPICS["animals"], *TOPICS["plants"], *FILLERS]
RECIPE = FinetuneRecipe(batch_size=16, learning_rate=5e-3, epochs=5, dropout=0.0, max_restarts=0)
RELEVANT = {"query": "animals", "passage": "the old cat"}
IRRELEVANT = {"query": "animals", "passage": "the old rose"}


@pytest.fixture(scope="module")
def registration() -> Iterator[None]:
    """The one line: the task is registered."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(TASKS, Relevance.name, Relevance)
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with random weights, in place of a pretrained one."""
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


def write_examples(path: Path, count: int, seed: int, is_labelled: bool = True) -> Path:
    """Write passages with one word of a topic; those on animals are relevant to the query."""
    generator = random.Random(seed)
    lines = []
    for index in range(count):
        topic = generator.choice(list(TOPICS))
        words = [*generator.choices(FILLERS, k=generator.randint(1, 3)), generator.choice(TOPICS[topic])]
        generator.shuffle(words)
        record: dict[str, Any] = {"id": f"e{index}", "query": "animals", "passage": " ".join(words)}
        lines.append(json.dumps({**record, "relevant": topic == "animals"} if is_labelled else record))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def request_to_finetune(base: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneRequest:
    folder = tmp_path_factory.mktemp("relevance")
    return FinetuneRequest(
        task="relevance",
        model=str(base),
        train=write_examples(folder / "train.jsonl", 160, 0),
        dev=write_examples(folder / "dev.jsonl", 40, 1),
        output=folder / "run",
        recipe=RECIPE,
    )


@pytest.fixture(scope="module")
def run(one_thread: None, registration: None, request_to_finetune: FinetuneRequest) -> Path:
    list(run_finetune(request_to_finetune))
    return request_to_finetune.output


def test_the_task_is_learned_and_its_metric_selects_the_model(run: Path):
    scores = json.loads((run / "run.json").read_text())["scores"]
    assert scores["dev"]["hit_rate"] > 0.9
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "relevance: " in page  # an explanation


def test_an_interrupted_run_resumes_to_the_same_weights(
    run: Path, request_to_finetune: FinetuneRequest, tmp_path: Path
):
    interrupted = replace(request_to_finetune, output=tmp_path / "run")
    list(run_finetune(replace(interrupted, stop_after=23)))
    assert not (tmp_path / "run" / "model").exists()
    list(run_finetune(interrupted))
    weights, resumed = (load_file(folder / "model" / "model.safetensors") for folder in (run, tmp_path / "run"))
    assert weights.keys() == resumed.keys()
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)


def test_a_saved_model_restores_the_task(run: Path):
    metadata = json.loads((run / "model" / "bertworks.json").read_text())
    assert metadata["task"] == "relevance"
    task = load_predictor(run / "model").module.task
    assert isinstance(task, Relevance)
    assert 0.3 < task.prior == metadata["prior"] < 0.7


def test_a_labelled_file_is_evaluated(run: Path, request_to_finetune: FinetuneRequest):
    assert request_to_finetune.dev is not None
    (result,) = evaluate_files(load_predictor(run / "model"), [LabelledFile("dev", request_to_finetune.dev)])
    assert dict(result.scores.metrics) == json.loads((run / "run.json").read_text())["scores"]["dev"]


def test_fields_and_plain_texts_are_predicted(run: Path, tmp_path: Path):
    predictions = bertworks.load(run / "model").predict([RELEVANT, IRRELEVANT, ("animals", "the old cat")])
    assert [prediction.to_dict()["is_relevant"] for prediction in predictions] == [True, False, True]
    assert predictions[0].probability == pytest.approx(predictions[2].probability, abs=1e-6)
    path = tmp_path / "inputs.jsonl"
    path.write_text(json.dumps({**RELEVANT, "id": "a"}) + "\n" + json.dumps(IRRELEVANT) + "\n")
    lines = list(predict(PredictRequest(model=str(run / "model"), source=path)))
    assert [(line["id"], line["is_relevant"]) for line in lines] == [("a", True), ("1", False)]


def test_a_prediction_is_explained(run: Path):
    predictor = load_predictor(run / "model")
    explanation = explain(predictor, example_from_texts(predictor.module.task, list(RELEVANT.values())))
    assert explanation.is_complete
    assert [text.title for text in explanation.texts] == ["query", "passage"]
    (prediction,) = bertworks.load(run / "model").predict([RELEVANT])
    logit = math.log(prediction.probability / (1 - prediction.probability))
    assert explanation.output == pytest.approx(logit, abs=1e-3)


def test_the_command_line_knows_the_task(run: Path, request_to_finetune: FinetuneRequest):
    model, dev = str(run / "model"), str(request_to_finetune.dev)
    explained = CliRunner().invoke(app, ["explain", model, *RELEVANT.values(), "--json"])
    assert json.loads(explained.stdout)["target"] == "relevance"
    evaluated = CliRunner().invoke(app, ["evaluate", model, dev])
    assert "hit_rate" in evaluated.stdout.replace(" ", "_")
    unknown = CliRunner().invoke(app, ["explain", model, "one", "two", "three"])
    assert "got 3 texts; the task 'relevance' takes" in str(unknown.exception or unknown.output)


def test_a_submission_has_the_task_s_values(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = PublishedDataset(
        name="pages",
        task="relevance",
        folders=("pages",),
        splits={"test": DatasetSplit(("test.jsonl",), is_labelled=False)},
        metrics=("hit_rate",),
        submissions={"test": "pages.tsv"},
    )
    monkeypatch.setitem(DATASETS, dataset.name, dataset)
    write_examples(tmp_path / "pages" / "test.jsonl", 3, 5, is_labelled=False)
    benchmark = BenchmarkDataset("pages", tmp_path)
    ((path, count),) = benchmark.write_submissions(run / "model", tmp_path / "out", lambda progress: None)
    header, *rows = path.read_text().splitlines()
    assert (header, count, [row.split("\t")[0] for row in rows]) == ("index\tprediction", 3, ["e0", "e1", "e2"])
    assert {row.split("\t")[1] for row in rows} <= {"yes", "no"}


def test_the_model_is_exported_to_onnx(run: Path, request_to_finetune: FinetuneRequest, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    request = ExportRequest(
        model=str(run / "model"), target="onnx", output=tmp_path / "onnx", data=request_to_finetune.dev
    )
    export(request)
    exported, original = (bertworks.load(folder).predict([RELEVANT]) for folder in (tmp_path / "onnx", run / "model"))
    assert exported[0].probability == pytest.approx(original[0].probability, abs=1e-4)


def test_the_model_is_served_over_http(run: Path):
    serving = load_app(ServeRequest(models=(f"relevance={run / 'model'}",)))
    serving.service.state.is_ready = True
    try:
        client = TestClient(serving.app, base_url="http://127.0.0.1")
        (listed,) = client.get("/v1/models").json()["data"]
        assert listed["task"] == "relevance"
        assert listed["input_fields"] == [["query", "passage"]]
        assert {"predict", "explain"} <= set(listed["capabilities"])
        predicted = client.post("/v1/models/relevance/predict", json={"inputs": [RELEVANT, IRRELEVANT]})
        assert [one["is_relevant"] for one in predicted.json()["predictions"]] == [True, False]
        explained = client.post("/v1/models/relevance/explain", json={"input": RELEVANT})
        assert explained.json()["target"] == "relevance"
        refused = client.post("/v1/models/relevance/predict", json={"inputs": ["just a text"]})
        assert refused.status_code == 422
        assert 'takes {"query": TEXT, "passage": TEXT}' in refused.json()["error"]["message"]
    finally:
        serving.service.close()
