"""The built-in labelled dataset: sentences of the running Python, without duplicates, all labels in both files."""

from pathlib import Path

import pytest

from bertworks.commands.finetune.dataset import resolve_dataset
from bertworks.datasets.built_in import PACKAGES
from bertworks.datasets.files import read_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labelled")
    resolve_dataset("python-docs", {}, folder, {})
    return folder


def test_the_files_are_written_once(folder: Path) -> None:
    before = (folder / "train.tsv").read_bytes()
    target = resolve_dataset("python-docs", {}, folder, {})
    assert (target.task, set(target.files)) == ("classify", {"train", "dev"})
    assert (folder / "train.tsv").read_bytes() == before


def test_every_package_is_in_both_files_and_no_sentence_is_repeated(folder: Path) -> None:
    rows = {name: [record.fields for record in read_records(folder / f"{name}.tsv")] for name in ("train", "dev")}
    for split_rows in rows.values():
        assert {row["label"] for row in split_rows} == set(PACKAGES)
    texts = [row["text"] for split_rows in rows.values() for row in split_rows]
    assert len(texts) == len(set(texts))
    assert 3.5 < len(rows["train"]) / len(rows["dev"]) < 4.5  # one in five
