"""The built-in labelled set: real sentences of the running Python, each once, in both files all labels."""

from pathlib import Path

import pytest

from bertworks.commands.finetune.targets import resolve_dataset
from bertworks.datasets.built_in import PACKAGES
from bertworks.datasets.files import read_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labelled")
    resolve_dataset("python-docs", {}, folder, {})
    return folder


def test_the_files_are_written_when_they_are_asked_for_and_then_stay(folder: Path) -> None:
    before = (folder / "train.tsv").read_bytes()
    target = resolve_dataset("python-docs", {}, folder, {})
    assert (target.task, set(target.files)) == ("classify", {"train", "dev"})
    assert (folder / "train.tsv").read_bytes() == before


def test_every_package_has_sentences_in_both_files_and_no_sentence_stands_twice(folder: Path) -> None:
    rows = {name: [line.fields for line in read_records(folder / f"{name}.tsv")] for name in ("train", "dev")}
    for found in rows.values():
        assert {row["label"] for row in found} == set(PACKAGES)
    texts = [row["text"] for found in rows.values() for row in found]
    assert len(texts) == len(set(texts))
    assert 3.5 < len(rows["train"]) / len(rows["dev"]) < 4.5  # one in five
