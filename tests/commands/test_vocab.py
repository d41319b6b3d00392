"""Training a vocabulary into a folder: complete or absent, and one run at a time."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from killed_child import run_killed

from bertworks.commands.vocab import VocabularyRequest, train_vocabulary
from bertworks.errors import FolderError
from bertworks.folder_lock import lock_output
from bertworks.text.sources import TextSource
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings

FILES = ["report.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]


@pytest.fixture
def source(tmp_path: Path) -> TextSource:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"The river number {n} runs to the sea." for n in range(40)), encoding="utf-8")
    return TextSource(str(path))


def train(source: TextSource, output: Path) -> Tokenizer:
    return train_vocabulary(VocabularyRequest((source,), output), VocabularySettings(vocab_size=60), 1).tokenizer


def test_killed_at_any_change_the_same_command_writes_the_vocabulary(tmp_path: Path, source: TextSource):
    number = 0
    while True:
        number += 1
        output = tmp_path / f"killed-{number}" / "vocabulary"
        if not run_killed(functools.partial(train, source, output), output.parent, number):
            break
        is_complete = output.exists() and sorted(path.name for path in output.iterdir()) == FILES
        assert is_complete or not output.exists()
        if not is_complete:
            assert train(source, output).vocab_size == json.loads((output / "report.json").read_text())["size"]
        assert [path.name for path in output.parent.iterdir() if path.suffix == ".part"] == []
    assert number > 8


def test_two_runs_cannot_write_to_one_folder(tmp_path: Path, source: TextSource):
    output = tmp_path / "vocabulary"
    with lock_output(output), pytest.raises(FolderError, match=f"another run is writing to {output} "):
        train(source, output)
    train(source, output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "vocabulary"]


def test_a_folder_with_files_is_refused(tmp_path: Path, source: TextSource):
    with pytest.raises(FolderError, match="already holds something; choose an empty or new folder with --output"):
        train(source, tmp_path)
