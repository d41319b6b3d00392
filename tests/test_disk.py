"""Files and folders appear complete or not at all, and errors say what to do."""

import os
from pathlib import Path

import pytest

from bertworks.disk import atomic_write, read_json, staged_folder, write_json
from bertworks.errors import FolderError


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write_half(path: Path) -> None:
    path.write_text("half")
    raise KeyboardInterrupt


def disk_full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_file_replaces_the_old_one_only_when_it_is_complete(tmp_path: Path):
    path = tmp_path / "deep" / "file.txt"
    with atomic_write(path) as temporary:
        temporary.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as temporary:
        write_half(temporary)
    assert contents(tmp_path) == {"deep/file.txt": "old"}


def test_a_staged_folder_starts_empty_and_appears_when_it_is_complete(tmp_path: Path):
    path = tmp_path / "model"
    with staged_folder(path) as staged:
        assert list(staged.iterdir()) == []
        (staged / "sub").mkdir()
        (staged / "sub" / "a.txt").write_text("a")
        (staged / "b.txt").write_text("b")
        assert not path.exists()
    assert contents(tmp_path) == {"model/sub/a.txt": "a", "model/b.txt": "b"}


def test_a_staged_folder_replaces_files_of_the_same_name_and_leaves_others(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    for name in ("mine.txt", "old.txt", "sub/old.txt"):
        (tmp_path / name).write_text("old")
    with staged_folder(tmp_path) as staged:
        (staged / "sub").mkdir()
        (staged / "sub" / "new.txt").write_text("new")
        (staged / "old.txt").write_text("new")
        assert (tmp_path / "old.txt").read_text() == "old"
    assert contents(tmp_path) == {"mine.txt": "old", "old.txt": "new", "sub/new.txt": "new"}


@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_staged_folder_changes_nothing(tmp_path: Path, exists: bool):
    path = tmp_path / "model"
    if exists:
        path.mkdir()
        (path / "a.txt").write_text("old")
    before = contents(tmp_path)
    with pytest.raises(KeyboardInterrupt), staged_folder(path) as staged:
        write_half(staged / "a.txt")
    assert contents(tmp_path) == before
    assert [entry.name for entry in tmp_path.rglob(".*")] == []


def test_a_full_disk_is_reported_with_the_path_that_the_caller_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "model"
    monkeypatch.setattr(os, "fsync", disk_full)
    message = rf"^cannot write {path}/a.json: the disk is full; .* it will resume$"
    with pytest.raises(FolderError, match=message), staged_folder(path) as staged:
        write_json(staged / "a.json", {})
    with pytest.raises(FolderError, match=rf"^cannot write {path}: the disk is full"), staged_folder(path) as staged:
        (staged / "b.txt").write_text("written without flushing")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_of_the_same_id_left_is_removed(tmp_path: Path):
    with staged_folder(tmp_path / "model") as staged:
        name = staged.name
    (tmp_path / name).mkdir()
    (tmp_path / name / "left.txt").write_text("half")
    with staged_folder(tmp_path / "other") as staged:
        assert staged.name != name
    (tmp_path / "model").rmdir()
    with staged_folder(tmp_path / "model") as staged:
        assert staged.name == name
        assert list(staged.iterdir()) == []


def test_json_that_is_missing_or_damaged_is_described(tmp_path: Path):
    with pytest.raises(FolderError, match=r"has no a\.json: it is not, or not yet, a model folder"):
        read_json(tmp_path / "a.json", "a model folder")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(FolderError, match=r"a\.json cannot be read as a model folder"):
        read_json(tmp_path / "a.json", "a model folder")


def test_an_unreadable_file_is_not_called_damaged(tmp_path: Path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(FolderError) as error:
        read_json(tmp_path / "config.json", "a model folder")
    assert str(error.value).endswith("config.json cannot be read: it is a folder; give a file")


def test_deep_json_is_refused_in_one_sentence(tmp_path: Path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(FolderError, match="cannot be read as a model folder: lists and tables are nested more than 64"):
        read_json(tmp_path / "config.json", "a model folder")
