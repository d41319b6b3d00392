"""Every kind of folder by the files it has: found by one registry, named when damaged, refused when unknown."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import flip_bit
from small_models import TASKS, write_finetuned, write_pretrained, write_sentence_model

from bertworks.errors import FolderError
from bertworks.folder_info.kind import DAMAGED, FINISHED
from bertworks.folder_info.registry import KINDS, describe_folder
from bertworks.folder_lock import lock_folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained, a fine-tuned and a sentence-transformers model, 24 units wide."""
    home = tmp_path_factory.mktemp("models")
    write_pretrained(home / "pretrained")
    write_finetuned(home / "finetuned", TASKS["classify"])
    write_sentence_model(home / "sentences")
    return home


def write(folder: Path, **files: object) -> Path:
    """Write a folder of JSON files; a key is a file name with __ for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(json.dumps(content))
    return folder


def as_package(models: Path, tmp_path: Path) -> Path:
    shutil.copytree(models / "pretrained", tmp_path / "x" / "bertworks_x" / "model")
    (tmp_path / "x" / "pyproject.toml").write_text("[project]\n")
    return tmp_path / "x"


def as_export(models: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(models / "pretrained", tmp_path / "x"))
    return write(folder, certificate__json={"to": "onnx", "versions": {"bertworks": "1.2"}})


def as_transformers(models: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(models / "pretrained", tmp_path / "x"))
    (folder / "bertworks.json").unlink()
    return folder


def as_tf1(models: Path, tmp_path: Path) -> Path:
    folder = write(tmp_path / "x", bert_config__json={"hidden_size": 768})
    (folder / "bert_model.ckpt.index").write_bytes(b"")
    return folder


def as_bundle(models: Path, tmp_path: Path) -> Path:
    empty: dict[str, object] = {"files": {}, "models": {}, "chain": [], "corpus": None, "index": None}
    return write(tmp_path / "x", bundle__json={"format": 1, "created_by": "bertworks 1.2", **empty})


def as_embeddings(models: Path, tmp_path: Path) -> Path:
    write(tmp_path / "x", **{"v.npy__json": {"unit": "texts", "texts": 3, "rows": 3, "vector_size": 24}})
    (tmp_path / "x" / "v.npy").write_bytes(b"")
    return tmp_path / "x" / "v.npy"


def as_run(models: Path, tmp_path: Path) -> Path:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "recipe.toml").write_text('task = "classify"\n')
    return tmp_path / "x"


def as_checkpoint(models: Path, tmp_path: Path) -> Path:
    return write(tmp_path / "x", state__json={"step": 7}, manifest__json={})


def as_comparison(models: Path, tmp_path: Path) -> Path:
    return write(tmp_path / "x", compare__json={"comparison": {"members": [{"name": "bert"}], "seeds": [0]}})


FOLDERS: dict[str, Callable[[Path, Path], Path]] = {
    "bundle": as_bundle,
    "model package": as_package,
    "comparison": as_comparison,
    "sweep": lambda models, tmp_path: write(tmp_path / "x", sweep__json=[]),
    "fine-tuning run": as_run,
    "checkpoint": as_checkpoint,
    "corpus": lambda models, tmp_path: write(tmp_path / "x" / ".work").parent,
    "embeddings": as_embeddings,
    "exported model": as_export,
    "word vectors": lambda models, tmp_path: write(tmp_path / "x", config__json={"model_type": "static"}),
    "fine-tuned model": lambda models, tmp_path: models / "finetuned",
    "pretrained model": lambda models, tmp_path: models / "pretrained",
    "sentence-transformers model": lambda models, tmp_path: models / "sentences",
    "LoRA adapter": lambda models, tmp_path: write(tmp_path / "x", adapter_config__json={"r": 8}),
    "TensorFlow 1 checkpoint": as_tf1,
    "transformers model": as_transformers,
    "vocabulary": lambda models, tmp_path: models / "pretrained-vocabulary",
}


def test_every_kind_is_tested():
    assert [kind.name.replace("training", "fine-tuning") for kind in KINDS] == list(FOLDERS)


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_is_recognized_and_has_a_next_command(models: Path, tmp_path: Path, kind: str):
    info = describe_folder(FOLDERS[kind](models, tmp_path))
    assert (info.kind, info.problem) == (kind, "")
    assert info.next_command or kind == "checkpoint"  # which is of no run here
    json.dumps(info.to_dict())


def test_a_packaged_model_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, models: Path, tmp_path: Path):
    monkeypatch.syspath_prepend(str(as_package(models, tmp_path)))
    assert describe_folder("x").kind == "pretrained model"


def test_damage_is_a_state_with_its_reason(models: Path, tmp_path: Path):
    folder = Path(shutil.copytree(models / "pretrained", tmp_path / "model"))
    assert describe_folder(folder).state == FINISHED
    flip_bit(folder / "model.safetensors", -1)
    info = describe_folder(folder)
    assert (info.kind, info.state) == ("pretrained model", DAMAGED)
    assert info.problem.startswith(f"{folder / 'model.safetensors'} is damaged")


@pytest.mark.parametrize("content", ["{", '{"comparison": 3}'])
def test_a_file_of_another_content_is_damage(tmp_path: Path, content: str):
    (tmp_path / "compare.json").write_text(content)
    info = describe_folder(tmp_path)
    assert (info.kind, info.state) == ("comparison", DAMAGED)
    assert str(tmp_path) in info.problem


def test_the_process_that_writes_is_named(tmp_path: Path):
    with lock_folder(as_run(tmp_path, tmp_path)):
        holder = describe_folder(tmp_path / "x").holder
        assert holder is not None
        assert holder.pid == os.getpid()
    assert describe_folder(tmp_path / "x").holder is None


def test_anything_else_is_refused_in_one_sentence(tmp_path: Path):
    with pytest.raises(FolderError, match=r"is of no kind that bertworks knows: it holds nothing; give the folder"):
        describe_folder(tmp_path)
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(FolderError, match=r"it holds notes\.md; give the folder of"):
        describe_folder(tmp_path)
    with pytest.raises(FolderError, match=r"notes\.md is a file"):
        describe_folder(tmp_path / "notes.md")
    with pytest.raises(FolderError, match="absent does not exist"):
        describe_folder(tmp_path / "absent")
