"""What to fine-tune on: files of one's own, and published sets found in a data folder."""

from pathlib import Path

import pytest

from bertworks.commands.finetune.targets import resolve_dataset
from bertworks.errors import BertworksError, InputError, SettingsError

NONE = {"train": None, "dev": None, "test": None}


def test_a_task_with_files_of_one_s_own(tmp_path: Path):
    file = tmp_path / "some.tsv"
    file.write_text("text\tlabel\na\tb\n")
    target = resolve_dataset("classify", {**NONE, "train": file}, None, {"text": "text"})
    assert (target.task, target.files, target.columns[""]) == ("classify", {"train": file}, {"text": "text"})


def test_a_published_set_brings_files_columns_labels_and_metrics(tmp_path: Path):
    folder = tmp_path / "glue" / "CoLA"
    folder.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text("x\n")
    target = resolve_dataset("glue/cola", NONE, tmp_path, {})
    assert target.task == "classify"
    assert target.files == {split: folder / f"{split}.tsv" for split in ("train", "dev", "test")}
    assert target.columns["train"] == {"header": "source,label,star,sentence"}
    assert target.columns["test"] == {"label": ""}
    assert target.settings["labels"] == ("0", "1")
    assert target.settings["metrics"][0] == "matthews"


def test_what_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="is not there; name a labelled file"):
        resolve_dataset("classify", {**NONE, "train": tmp_path / "no.tsv"}, None, {})
    with pytest.raises(SettingsError, match="there is no task or set 'classfy'; tasks are classify, regress"):
        resolve_dataset("classfy", NONE, None, {})
    with pytest.raises(SettingsError, match="needs its files: give the folder that holds them with --data"):
        resolve_dataset("glue/MRPC", NONE, None, {})
    with pytest.raises(BertworksError, match="no data set is named 'glue/mrcp'"):
        resolve_dataset("glue/mrcp", NONE, tmp_path, {})
