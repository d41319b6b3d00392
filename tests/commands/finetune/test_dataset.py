"""The data of a run: the user's own files, and published datasets in a data folder."""

from pathlib import Path

import pytest

from bertworks.commands.finetune.dataset import resolve_dataset
from bertworks.errors import BertworksError, InputError, SettingsError

NO_FILES = {"train": None, "dev": None, "test": None}


def test_a_task_with_own_files(tmp_path: Path):
    file = tmp_path / "some.tsv"
    file.write_text("text\tlabel\na\tb\n")
    dataset = resolve_dataset("classify", {**NO_FILES, "train": file}, None, {"text": "text"})
    assert (dataset.task, dataset.files, dataset.columns[""]) == ("classify", {"train": file}, {"text": "text"})


def test_a_published_dataset_has_files_columns_labels_and_metrics(tmp_path: Path):
    folder = tmp_path / "glue" / "CoLA"
    folder.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text("x\n")
    dataset = resolve_dataset("glue/cola", NO_FILES, tmp_path, {})
    assert dataset.task == "classify"
    assert dataset.files == {split: folder / f"{split}.tsv" for split in ("train", "dev", "test")}
    assert dataset.columns["train"] == {"header": "source,label,star,sentence"}
    assert dataset.columns["test"] == {"label": ""}
    assert dataset.settings["labels"] == ("0", "1")
    assert dataset.settings["metrics"][0] == "matthews"


def test_missing_files_tasks_and_datasets_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="does not exist; name a labelled file"):
        resolve_dataset("classify", {**NO_FILES, "train": tmp_path / "no.tsv"}, None, {})
    with pytest.raises(SettingsError, match="there is no task or dataset 'classfy'; tasks: classify, regress"):
        resolve_dataset("classfy", NO_FILES, None, {})
    with pytest.raises(SettingsError, match="needs its files; name the folder that holds them with --data"):
        resolve_dataset("glue/MRPC", NO_FILES, None, {})
    with pytest.raises(BertworksError, match="there is no dataset 'glue/mrcp'"):
        resolve_dataset("glue/mrcp", NO_FILES, tmp_path, {})
