"""Predictions for files of every format: SQuAD's JSON, JSON Lines, tables; plain lines are no questions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def save_model(folder: Path, task: Task, metadata: Mapping[str, Any] | None = None) -> str:
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
    save_finetuned(folder, Predictor(module.eval(), tokenizer, WindowRule(32, 8)), metadata or {})
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


RECORDED = {"columns": {"text": "msg", "label": "kind", "header": "kind,msg"}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "kind\tmsg\tsms\n-\tJohn lives\tMary\n"),  # without the record, msg and sms could be the text
        ("b.tsv", "-\tJohn lives\n"),  # no header: the recorded one
        ("c.jsonl", '{"sms": "Mary", "msg": "John lives"}\n'),
        ("d.txt", "John lives\n"),  # plain lines have no columns
        ("e.tsv", "sms\tid\nJohn lives\t0\n"),  # other columns: recognized as before
    ],
)
def test_the_columns_of_training_are_used_if_the_file_has_them(tmp_path: Path, name: str, content: str):
    (tmp_path / name).write_text(content, encoding="utf-8")
    model = save_model(tmp_path / "model", Classify(labels=("ham", "spam")), RECORDED)
    (tmp_path / "expected.txt").write_text("John lives\n", encoding="utf-8")
    results = [CliRunner().invoke(app, ["predict", model, str(tmp_path / file)]) for file in (name, "expected.txt")]
    assert results[0].stdout == results[1].stdout != ""


def test_the_columns_of_training_are_used_for_standard_input(tmp_path: Path):
    model = save_model(tmp_path / "model", Classify(labels=("ham", "spam")), RECORDED)
    table = "msg\tsms\nJohn lives\tMary\n"
    result = CliRunner().invoke(app, ["predict", model, "-", "--kind", "tsv"], input=table)
    explicit = CliRunner().invoke(app, ["predict", model, "-", "--kind", "tsv", "--text", "msg"], input=table)
    assert result.stdout == explicit.stdout != ""


def test_a_missing_column_is_an_error_that_names_the_columns(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("x\ty\tz\n1\t2\t3\n", encoding="utf-8")
    model = save_model(tmp_path / "model", Classify(labels=("ham", "spam")), RECORDED)
    with pytest.raises(InputError, match=r"no column looks like the text; the columns are 'x', 'y', 'z'"):
        list(predict(PredictRequest(model=model, source=tmp_path / "a.tsv", kind="tsv")))


@pytest.mark.parametrize("by", ["text", "sentence"])
def test_texts_that_the_vocabulary_cannot_read_are_counted_and_a_warning(tmp_path: Path, by: str):
    (tmp_path / "zh.txt").write_text("约翰住在罗马。\nJohn lives in Rome.\n", encoding="utf-8")
    model = save_model(tmp_path / "model", Classify(labels=("ham", "spam")))
    result = CliRunner().invoke(app, ["predict", model, str(tmp_path / "zh.txt"), "--by", by])
    assert len(result.stdout.splitlines()) == 2
    assert "warning: 58% of 12 tokens are unknown to the vocabulary ([UNK])" in result.stderr  # 7 of 12
    assert "7 tokens are unknown to the vocabulary" in result.stderr.splitlines()


def test_a_few_unknown_tokens_are_counted_and_no_warning(tmp_path: Path):
    (tmp_path / "en.txt").write_text("John lives in 罗 Rome. Mary lives in Paris.\n", encoding="utf-8")
    model = save_model(tmp_path / "model", Classify(labels=("ham", "spam")))
    result = CliRunner().invoke(app, ["predict", model, str(tmp_path / "en.txt")])
    assert "1 tokens are unknown to the vocabulary" in result.stderr.splitlines()
    assert "warning" not in result.stderr
