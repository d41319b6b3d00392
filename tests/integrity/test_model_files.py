"""The hashes of a model folder: written by hand, damage and changes by hand told apart, changes accepted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import flip_bit, forget_hashes

from bertworks.errors import FolderError
from bertworks.integrity.model_files import (
    accept_changes,
    check_model_files,
    is_as_written,
    staged_model_folder,
    verify_model_files,
    write_metadata,
)

METADATA = {"task": "classify", "temperature": 1.5, "labels": ["好", "bad"]}
FILES = {
    "1_Pooling/config.json": b"{}\n",
    "README.md": b"# A model\n",
    "config.json": b'{"num_hidden_layers": 2}\n',
    "model.safetensors": bytes(range(256)),
    "vocab.txt": "[PAD]\n好\n坏\n".encode(),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    write_metadata(tmp_path, METADATA)
    return tmp_path


def content_of(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "bertworks.json").read_text())
    return content


def test_bertworks_json_has_the_hash_of_every_other_file_and_of_itself(folder: Path):
    content = content_of(folder)
    assert content["files"] == {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in FILES.items()
    }
    recorded = content.pop("content_sha256")
    assert recorded == hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    assert check_model_files(folder) == METADATA
    assert verify_model_files(folder) == 5


def test_the_order_of_keys_and_white_space_do_not_matter(folder: Path):
    content = dict(reversed(content_of(folder).items()))
    (folder / "bertworks.json").write_text(json.dumps(content))
    assert check_model_files(folder) == METADATA


def test_a_folder_without_hashes_or_metadata_is_not_checked(folder: Path, tmp_path: Path):
    forget_hashes(folder)
    (folder / "config.json").write_text("{}")
    assert check_model_files(folder) == METADATA
    assert verify_model_files(folder) == 0
    assert check_model_files(tmp_path / "1_Pooling") == {}


def test_damaged_weights_are_named(folder: Path):
    flip_bit(folder / "model.safetensors", 17)
    for check in (check_model_files, verify_model_files, accept_changes):
        with pytest.raises(FolderError) as caught:
            check(folder)
        assert str(caught.value) == (
            f"{folder}/model.safetensors is damaged: its sha256 is not the one in bertworks.json; copy or download the "
            "model again, or, if another program wrote the file on purpose, remove 'files' and 'content_sha256' from "
            "bertworks.json"
        )


def set_temperature(folder: Path) -> None:
    path = folder / "bertworks.json"
    path.write_text(path.read_text().replace('"temperature": 1.5', '"temperature": 2.5'))


def swap_lines(folder: Path) -> None:
    (folder / "vocab.txt").write_text("[PAD]\n坏\n好\n", encoding="utf-8")


def drop_layer(folder: Path) -> None:
    (folder / "config.json").write_text('{"num_hidden_layers": 1}\n')


def remove_pooling(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").unlink()


def add_modules(folder: Path) -> None:
    (folder / "modules.json").write_text('[{"type": "models.Pooling", "path": ""}]')


def add_tokens(folder: Path) -> None:
    (folder / "added_tokens.json").write_text('{"film": 9}')


def change_two(folder: Path) -> None:
    drop_layer(folder)
    swap_lines(folder)


BY_HAND = {
    "bertworks.json was": set_temperature,
    "vocab.txt was": swap_lines,
    "config.json was": drop_layer,
    "1_Pooling/config.json was": remove_pooling,
    "modules.json was": add_modules,
    "added_tokens.json was": add_tokens,
    "config.json, vocab.txt were": change_two,
}


@pytest.mark.parametrize(("names", "change"), BY_HAND.items())
def test_changes_by_hand_are_told_from_damage_and_can_be_accepted(
    folder: Path, names: str, change: Callable[[Path], None]
):
    change(folder)
    with pytest.raises(FolderError) as caught:
        check_model_files(folder)
    assert str(caught.value) == (
        f"{folder}: {names} changed, added or removed after the model was written, probably by hand; if that was "
        f"you, accept it with `bertworks verify --accept {folder}`, else copy or download the model again"
    )
    accepted = accept_changes(folder)
    assert accepted == names.rpartition(" ")[0].split(", ")
    expected = {**METADATA, "temperature": 2.5} if change is set_temperature else METADATA
    assert check_model_files(folder) == expected
    assert accept_changes(folder) == []


def test_files_of_the_model_that_was_there_do_not_stay(folder: Path):
    (folder / "notes.txt").write_text("mine")
    (folder / "README.md").write_text("# My model\n")
    with staged_model_folder(folder) as staged:
        (staged / "config.json").write_text("{}")
        write_metadata(staged, METADATA)
    names = {path.name for path in folder.iterdir()}
    assert names == {".gitattributes", "README.md", "bertworks.json", "config.json", "notes.txt"}
    assert check_model_files(folder) == METADATA


def test_a_damaged_model_can_be_written_again(folder: Path):
    (folder / "bertworks.json").write_text("{")
    with staged_model_folder(folder) as staged:
        (staged / "config.json").write_text("{}")
    assert (folder / "config.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("config.json", b'{"num_hidden_layers": 2'),
        ("config.json", b""),
        ("vocab.txt", b"[PAD]\n\xff\n"),
        ("vocab.txt", b"[PAD]\n\0\0\0\n"),
    ],
)
def test_a_text_file_that_is_not_well_formed_is_damaged(folder: Path, name: str, data: bytes):
    (folder / name).write_bytes(data)
    with pytest.raises(FolderError, match=f"{name} is damaged"):
        check_model_files(folder)


def test_readme_may_change_and_extra_files_are_ignored(folder: Path):
    (folder / "README.md").write_text("# My model\n")
    (folder / "notes.txt").write_text("mine")
    assert check_model_files(folder) == METADATA
    (folder / "README.md").unlink()
    assert check_model_files(folder) == METADATA


def test_a_file_is_as_written_until_somebody_changes_it(folder: Path):
    assert is_as_written(folder, "README.md")
    assert is_as_written(folder, "absent.md")
    (folder / "README.md").write_text("# My model\n")
    (folder / "notes.md").write_text("mine")
    assert not is_as_written(folder, "README.md")
    assert not is_as_written(folder, "notes.md")


def test_a_missing_file_is_named(folder: Path):
    (folder / "model.safetensors").unlink()
    with pytest.raises(FolderError, match=r"lacks model\.safetensors, which its bertworks\.json lists; copy"):
        check_model_files(folder)


def test_a_certificate_may_be_missing_but_not_changed(folder: Path):
    (folder / "certificate.json").write_text('{"weight_bits": 8}')
    write_metadata(folder, METADATA)
    (folder / "certificate.json").write_text('{"weight_bits": 7}')
    with pytest.raises(FolderError, match=r"certificate\.json was changed"):
        check_model_files(folder)
    (folder / "certificate.json").unlink()
    assert check_model_files(folder) == METADATA


def test_only_the_named_files_are_checked_if_names_are_given(folder: Path):
    flip_bit(folder / "model.safetensors", 0)
    assert check_model_files(folder, ("vocab.txt", "config.json")) == METADATA
    swap_lines(folder)
    with pytest.raises(FolderError, match=r"vocab\.txt was changed"):
        check_model_files(folder, ("vocab.txt", "config.json"))


def test_a_folder_without_hashes_gets_them_when_it_is_accepted(folder: Path):
    forget_hashes(folder)
    drop_layer(folder)
    assert accept_changes(folder) == list(FILES)
    assert check_model_files(folder) == METADATA
    assert verify_model_files(folder) == 5


@pytest.mark.parametrize("key", ["files", "content_sha256"])
def test_removing_only_one_of_the_two_keys_is_a_change(folder: Path, key: str):
    content = content_of(folder)
    del content[key]
    (folder / "bertworks.json").write_text(json.dumps(content))
    with pytest.raises(FolderError, match=r"bertworks\.json was changed"):
        check_model_files(folder)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "invalid entry"),
        ({"../secret": {"size": 1, "sha256": "0" * 64}}, r"invalid entry '\.\./secret': it is no name of a file"),
        ({"config.json": {"size": 1}}, "invalid entry 'config.json': it needs a size and a sha256"),
    ],
)
def test_invalid_hashes_are_refused(folder: Path, entries: object, message: str):
    (folder / "bertworks.json").write_text(json.dumps({**content_of(folder), "files": entries}))
    with pytest.raises(FolderError, match=message):
        check_model_files(folder)


@pytest.mark.parametrize("position", [0, 4, 10, 22, 60, 100, 150, 300, 500, -4])
def test_a_flipped_bit_in_bertworks_json_is_noticed(folder: Path, position: int):
    flip_bit(folder / "bertworks.json", position)
    with pytest.raises(FolderError, match=r"bertworks\.json"):
        check_model_files(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(folder: Path, name: str):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(FolderError, match=f"{name} cannot be read: it is a pipe or a device, not a file"):
        check_model_files(folder)
