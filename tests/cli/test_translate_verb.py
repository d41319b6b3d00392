"""`bertworks translate`: a line for a line, from a file and from standard input."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bertworks.cli.translate import translate_verb
from bertworks.encoders.transformer import Transformer, released
from bertworks.engines.windows import WindowRule
from bertworks.errors import InputError, SettingsError
from bertworks.tasks.beams import Searching
from bertworks.tasks.model import load
from bertworks.tasks.module import TaskModule
from bertworks.tasks.predicting import Predictor
from bertworks.tasks.sealed import seal
from bertworks.tasks.translate import Translate
from bertworks.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"一二三四五"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned nothing, and says something."""
    place = tmp_path_factory.mktemp("translator")
    (place / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    sizes = replace(released("tiny", len(PIECES)), width=8, num_layers=1, num_heads=2, inner=16, positions=16)
    encoder = Transformer(sizes, torch.Generator().manual_seed(3))
    task = Translate(cut="zh", searching=Searching(beams=2, max_more=3))
    seal(place / "model", Predictor(TaskModule(encoder, task), Tokenizer.load(place), WindowRule(16, 0)), {})
    return place / "model"


def test_standard_input_gives_a_line_for_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    texts = ["一二", "", "三四五一", "[MASK]"]
    stream = io.BytesIO("".join(f"{text}\n" for text in texts).encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
    translate_verb(str(folder))
    assert capsys.readouterr().out.split("\n")[:-1] == load(folder).translate(texts)


def test_a_file_is_translated_as_json_by_another_search(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "texts.tsv"
    path.write_text("n\told\n1\t一二\n2\t四\n", encoding="utf-8")
    translate_verb(str(folder), str(path), text="old", beams=1, as_json=True)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["translation"] for one in told] == load(folder).translate(
        ["一二", "四"], Searching(beams=1, max_more=3)
    )
    assert [one["id"] for one in told] == ["0", "1"]


def test_translations_that_do_not_end_are_counted(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "texts.txt"
    path.write_text("一二三四\n" * 3, encoding="utf-8")
    model = load(folder)
    num_open = sum(not one.is_whole for one in model.predict(["一二三四"] * 3))
    translate_verb(str(folder), str(path))
    assert (f"{num_open} translations did not come to an end" in capsys.readouterr().err) == bool(num_open)


def test_what_cannot_work_is_refused(folder: Path, tmp_path: Path):
    with pytest.raises(SettingsError, match="0 beams"):
        translate_verb(str(folder), str(tmp_path / "texts.txt"), beams=0)
    with pytest.raises(InputError, match="there is no folder"):
        translate_verb(str(tmp_path / "nothing"))
