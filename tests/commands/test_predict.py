"""Predictions for files of every format: SQuAD's JSON, JSON Lines, tables; plain lines are no questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bertworks.cli.app import app
from bertworks.commands.predict import PredictRequest, predict
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.errors import InputError
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.predictor import Predictor
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.answer import Answer
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Task
from bertworks.tasks.module import TaskModule
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"who where lives in rome paris john mary .".split()]
PASSAGE = "John lives in Rome. Mary lives in Paris."


def save_model(folder: Path, task: Task) -> str:
    """Save a model with random weights; return its folder."""
    tokenizer = Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False))
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    generator = torch.Generator().manual_seed(0)
    module = TaskModule(Bert(config, generator), task, generator)
    save_finetuned(folder, Predictor(module.eval(), tokenizer, WindowRule(32, 8)), {})
    return str(folder)


def test_squad_json_is_predicted_with_or_without_answers(tmp_path: Path):
    questions = [
        {"id": "a", "question": "Where lives John?", "answers": [{"text": "Rome", "answer_start": 14}]},
        {"id": "b", "question": "Who lives in Rome?", "answers": [], "is_impossible": True},
        {"id": "c", "question": "Who?"},
    ]
    content = {"data": [{"title": "t", "paragraphs": [{"context": PASSAGE, "qas": questions}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    model = save_model(tmp_path / "model", Answer())
    result = CliRunner().invoke(app, ["predict", model, str(tmp_path / "dev.json")])
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == ["a", "b", "c"]
    assert all(answer["text"] for answer in answers)
    assert all(answer["text"] == PASSAGE[answer["start"] : answer["end"]] for answer in answers)


def test_plain_lines_are_refused_by_a_question_answering_model(tmp_path: Path):
    (tmp_path / "texts.txt").write_text("John lives in Rome.\n", encoding="utf-8")
    request = PredictRequest(model=save_model(tmp_path / "model", Answer()), source=tmp_path / "texts.txt", kind="text")
    with pytest.raises(InputError, match=r"texts.txt, line 1: a question and its passage are needed; .*--kind jsonl"):
        list(predict(request))


@pytest.mark.parametrize("name", ["my.best.tsv", "texts.ndjson", "texts.json"])
def test_the_format_of_a_file_follows_from_its_extension(tmp_path: Path, name: str):
    table = "sms\tid\nJohn lives\t7\n"
    lines = '{"sms": "John lives", "id": 7}\n'
    (tmp_path / name).write_text(table if name.endswith("tsv") else lines, encoding="utf-8")
    model = save_model(tmp_path / "model", Classify(labels=("ham", "spam")))
    result = CliRunner().invoke(app, ["predict", model, str(tmp_path / name)])
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["7"]
