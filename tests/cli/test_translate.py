"""`bertworks translate`: a line for a line, from a file and from standard input."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertworks.cli.translate import translate_command
from bertworks.errors import InputError, SettingsError
from bertworks.inference.model import load
from bertworks.tasks.beam_search_settings import BeamSearchSettings

pytestmark = pytest.mark.usefixtures("one_thread")


def test_standard_input_gives_a_line_for_a_line(
    translator: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    texts = ["一二", "", "三四五一", "[MASK]"]
    stream = io.BytesIO("".join(f"{text}\n" for text in texts).encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
    translate_command(str(translator))
    assert capsys.readouterr().out.split("\n")[:-1] == load(translator).translate(texts)


def test_a_file_is_translated_as_json_by_another_search(
    translator: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "texts.tsv"
    path.write_text("n\told\n1\t一二\n2\t四\n", encoding="utf-8")
    translate_command(str(translator), str(path), text="old", num_beams=1, as_json=True)
    translations = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["translation"] for one in translations] == load(translator).translate(
        ["一二", "四"], BeamSearchSettings(num_beams=1, max_extra_tokens=3)
    )
    assert [one["id"] for one in translations] == ["0", "1"]


def test_unfinished_translations_are_counted(translator: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "texts.txt"
    path.write_text("一二三四\n" * 3, encoding="utf-8")
    model = load(translator)
    num_open = sum(not one.is_finished for one in model.predict(["一二三四"] * 3))
    translate_command(str(translator), str(path))
    assert (f"{num_open} unfinished translations" in capsys.readouterr().err) == bool(num_open)


def test_a_user_error_is_one_sentence(translator: Path, tmp_path: Path):
    with pytest.raises(SettingsError, match="num_beams is 0"):
        translate_command(str(translator), str(tmp_path / "texts.txt"), num_beams=0)
    with pytest.raises(InputError, match="there is no folder"):
        translate_command(str(tmp_path / "nothing"))
