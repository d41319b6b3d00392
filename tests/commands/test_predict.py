"""Prediction from files of every shape: SQuAD's JSON, JSON Lines, names with dots; plain lines are no questions."""

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

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"who where lives in rome paris john mary .".split()]
PASSAGE = "John lives in Rome. Mary lives in Paris."


def sealed(folder: Path, task: Task) -> str:
    """A model as it is drawn, in a folder."""
    tokenizer = Tokenizer.from_backend(wordpiece_backend(PIECES, cased=False))
    sizes = BertConfig(tokenizer.vocab_size, 16, 1, 2, 32, 32)
    generator = torch.Generator().manual_seed(0)
    module = TaskModule(Bert(sizes, generator), task, generator)
    save_finetuned(folder, Predictor(module.eval(), tokenizer, WindowRule(32, 8)), {})
    return str(folder)


def test_questions_come_from_squads_json_whether_or_not_they_have_answers(tmp_path: Path):
    questions = [
        {"id": "a", "question": "Where lives John?", "answers": [{"text": "Rome", "answer_start": 14}]},
        {"id": "b", "question": "Who lives in Rome?", "answers": [], "is_impossible": True},
        {"id": "c", "question": "Who?"},
    ]
    told = {"data": [{"title": "t", "paragraphs": [{"context": PASSAGE, "qas": questions}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    done = CliRunner().invoke(app, ["predict", sealed(tmp_path / "model", Answer()), str(tmp_path / "dev.json")])
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["id"] for one in found] == ["a", "b", "c"]
    assert all(one["text"] and one["text"] == PASSAGE[one["start"] : one["end"]] for one in found)


def test_plain_lines_are_no_questions_and_the_way_out_is_said(tmp_path: Path):
    (tmp_path / "texts.txt").write_text("John lives in Rome.\n", encoding="utf-8")
    request = PredictRequest(sealed(tmp_path / "model", Answer()), tmp_path / "texts.txt", "text")
    with pytest.raises(InputError, match=r"texts.txt, line 1: a question and its passage are needed; .*--kind jsonl"):
        list(predict(request))


@pytest.mark.parametrize("name", ["my.best.tsv", "texts.ndjson", "texts.json"])
def test_the_kind_of_a_file_is_told_by_the_end_of_its_name(tmp_path: Path, name: str):
    table = "sms\tid\nJohn lives\t7\n"
    lines = '{"sms": "John lives", "id": 7}\n'
    (tmp_path / name).write_text(table if name.endswith("tsv") else lines, encoding="utf-8")
    model = sealed(tmp_path / "model", Classify(("ham", "spam")))
    done = CliRunner().invoke(app, ["predict", model, str(tmp_path / name)])
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["7"]
