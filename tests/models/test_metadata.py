"""config.json and bertworks.json: values of other types are refused with their key, before anything uses them."""

import json
from pathlib import Path
from typing import Any

import pytest
from damage import forget_hashes
from small_models import TASKS, write_finetuned

from bertworks.errors import FolderError
from bertworks.inference.model import load
from bertworks.models.metadata import read_config, read_metadata


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("task", ["classify"], "task: expected a string, got ['classify']"),
        ("temperature", "1", "temperature: expected a number, got '1'"),
        ("temperature", 0, "temperature is 0; it must be above 0"),
        ("temperature", float("nan"), "temperature: nan is not a number; give one"),
        ("scale", [1.0], "scale is [1.0]; it must be a mean and a standard deviation above 0"),
        ("metrics", [], "metrics is empty; name at least one"),
        ("window", {"max_length": "32"}, "window, max_length: expected an integer, got '32'"),
        ("window", {"width": 32}, "window: there is no key 'width'"),
        ("columns", {"text": 1}, "columns, text: expected a string, got 1"),
    ],
)
def test_metadata_of_another_type_is_refused(tmp_path: Path, key: str, value: Any, message: str):
    (tmp_path / "bertworks.json").write_text(json.dumps({key: value}))
    with pytest.raises(FolderError) as error:
        read_metadata(tmp_path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("architectures", "BertModel", "architectures: expected a list"),
        ("id2label", {"a": "b"}, "id2label: expected a label for each number"),
        ("id2label", {"0": ["a"]}, "id2label: expected a table"),
        ("num_labels", 10**9, "num_labels is 1000000000; it must be from 0 to 131,072"),
    ],
)
def test_a_config_of_another_type_is_refused(tmp_path: Path, key: str, value: Any, message: str):
    (tmp_path / "config.json").write_text(json.dumps({key: value}))
    with pytest.raises(FolderError) as error:
        read_config(tmp_path / "config.json")
    assert message in str(error.value)


def test_labels_that_are_no_strings_become_text(tmp_path: Path):
    labels = {"0": 3, "1": False, "2": 1.5, "3": None, "4": "good"}
    (tmp_path / "config.json").write_text(json.dumps({"id2label": labels}))
    expected = {"0": "3", "1": "False", "2": "1.5", "3": "LABEL_3", "4": "good"}
    assert read_config(tmp_path / "config.json")["id2label"] == expected


def test_a_folder_of_others_has_no_metadata(tmp_path: Path):
    assert read_metadata(tmp_path) == {}


def test_a_recurrent_head_that_the_tensors_contradict_is_not_allocated(tmp_path: Path):
    folder = write_finetuned(tmp_path / "model", TASKS["tag"])
    forget_hashes(folder)
    path = folder / "bertworks.json"
    settings = {"strategy": "last", "hidden_size": 8_192}  # 2 GB of weights
    path.write_text(json.dumps({**json.loads(path.read_text()), "recurrent_head": settings}))
    with pytest.raises(FolderError, match="has no weights for the task head"):
        load(folder)
