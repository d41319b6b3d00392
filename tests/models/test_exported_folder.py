"""Exported folders: they state their graph and task; those of older versions, which do not, load as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exported_models import TASK_INPUTS, finetuned, pretrained

from bertworks.api import export
from bertworks.errors import FolderError
from bertworks.inference.model import load
from bertworks.integrity.model_files import write_metadata
from bertworks.models.exported_folder import read_exported_folder
from bertworks.models.metadata import read_metadata


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classify")
    export(finetuned(folder / "model", TASK_INPUTS["classify"].task), "onnx", folder / "onnx")
    return folder / "onnx"


def test_sizes_and_head_are_read_from_the_metadata(classifier: Path):
    config = read_exported_folder(classifier, read_metadata(classifier)).encoder_config
    assert (config.hidden_sizes, config.max_length, config.head_kind) == ((32, 32, 32), 32, "sequence")


def test_a_folder_of_an_older_version_predicts_the_same(classifier: Path):
    texts = TASK_INPUTS["classify"].texts[:2]
    expected = [prediction.to_dict() for prediction in load(classifier).predict(texts)]
    metadata = {key: value for key, value in read_metadata(classifier).items() if key not in ("graph", "task")}
    write_metadata(classifier, metadata)
    assert [prediction.to_dict() for prediction in load(classifier).predict(texts)] == expected


def test_the_export_of_a_folder_without_metadata_states_its_task(tmp_path: Path):
    """As a folder of transformers, whose task is in its architecture and whose labels are in its config.json."""
    model = finetuned(tmp_path / "model", TASK_INPUTS["classify"].task)
    (model / "bertworks.json").unlink()
    export(model, "onnx", tmp_path / "onnx")
    metadata = read_metadata(tmp_path / "onnx")
    assert (metadata["task"], metadata["graph"]["head_kind"]) == ("classify", "sequence")
    predictions = load(tmp_path / "onnx").predict(["the film was good"])
    assert predictions[0].to_dict()["label"] == load(model).predict(["the film was good"])[0].to_dict()["label"]


def test_a_pretrained_export_has_no_task_and_a_wrong_size_is_named(tmp_path: Path):
    export(pretrained(tmp_path / "model"), "onnx", tmp_path / "onnx")
    metadata = read_metadata(tmp_path / "onnx")
    assert ("task" in metadata, metadata["graph"]["head_kind"]) == (False, "mlm")
    file = tmp_path / "onnx" / "bertworks.json"
    content = json.loads(file.read_text())
    content["graph"]["hidden_size"] = "wide"
    write_metadata(tmp_path / "onnx", {key: content[key] for key in content if key not in ("files", "content_sha256")})
    with pytest.raises(FolderError, match=r"graph.*hidden_size"):
        load(tmp_path / "onnx")
