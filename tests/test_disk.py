"""Files and folders appear complete or not at all, and errors say what to do."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from killed_child import run_killed

from bertworks.disk import (
    as_os_error,
    atomic_write,
    check_space,
    explain_os_error,
    is_vacant,
    read_json,
    remove_leftovers,
    replace_folder,
    resumable_folder,
    staged_folder,
    write_json,
)
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
    message = rf"^cannot write {path}/a.json: no space left on the disk of {path}; .* it will resume$"
    with pytest.raises(FolderError, match=message), staged_folder(path) as staged:
        write_json(staged / "a.json", {})
    message = f"^cannot write {path}: no space left on the disk of {tmp_path};"
    with pytest.raises(FolderError, match=message), staged_folder(path) as staged:
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


def test_what_a_killed_process_of_another_id_left_is_removed(tmp_path: Path):
    def write() -> None:
        with staged_folder(tmp_path / "model") as staged:
            (staged / "a.txt").write_text("a")

    assert run_killed(write, tmp_path, 2)
    assert [path.name.startswith(".model.") for path in tmp_path.iterdir()] == [True]
    (tmp_path / f".model.{platform.node()}.{os.getppid()}.part").mkdir()  # of a process that lives
    write()
    assert contents(tmp_path) == {"model/a.txt": "a"}
    assert sorted(path.name for path in tmp_path.iterdir())[0].endswith(f".{os.getppid()}.part")


def test_an_empty_folder_is_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "model"
    path.mkdir()
    with staged_folder(path) as staged:
        (staged / "a.txt").write_text("a")
        assert list(path.iterdir()) == []
    assert contents(tmp_path) == {"model/a.txt": "a"}


def write_resumable(path: Path, identity: str, *names: str) -> None:
    with resumable_folder(path, "corpus/parts", identity) as staged:
        for name in names:
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).write_text(name)
        if names[-1] == "fail":
            raise KeyboardInterrupt


def test_of_a_resumable_folder_only_its_part_outlives_an_error(tmp_path: Path):
    path = tmp_path / "bundle"
    with pytest.raises(KeyboardInterrupt):
        write_resumable(path, "1a", "models/old", "corpus/parts/1", "corpus/other", "fail")
    assert contents(tmp_path) == {".bundle.1a.part/corpus/parts/1": "corpus/parts/1"}
    write_resumable(path, "1a", "models/new")
    assert contents(tmp_path) == {"bundle/models/new": "models/new", "bundle/corpus/parts/1": "corpus/parts/1"}


def test_a_killed_resumable_folder_leaves_only_its_part_to_the_next(tmp_path: Path):
    path = tmp_path / "bundle"
    names = ("models/old", "corpus/parts/1", "corpus/other", "last")
    assert run_killed(lambda: write_resumable(path, "1a", *names), tmp_path, 9)
    assert "models/old" in {name.partition(".part/")[2] for name in contents(tmp_path)}
    write_resumable(path, "1a", "models/new")
    assert contents(tmp_path) == {"bundle/models/new": "models/new", "bundle/corpus/parts/1": "corpus/parts/1"}


def test_a_resumable_folder_of_another_identity_is_removed_and_one_of_another_path_stays(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        write_resumable(tmp_path / "bundle.v2", "2b", "corpus/parts/2", "fail")
    for identity in ("1a", ""):  # an earlier version had none
        (tmp_path / f".bundle.{identity}.part".replace("..", ".") / "corpus" / "parts").mkdir(parents=True)
    write_resumable(tmp_path / "bundle", "3c", "a")
    assert contents(tmp_path) == {"bundle/a": "a", ".bundle.v2.2b.part/corpus/parts/2": "corpus/parts/2"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".bundle.v2.2b.part", "bundle"]


def test_a_replaced_folder_is_the_old_or_the_new_one_wherever_the_process_is_killed(tmp_path: Path):
    number = 1
    while True:
        for name in ("old", "new"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            (tmp_path / name).mkdir()
            (tmp_path / name / f"{name}.txt").write_text(name)
        was_killed = run_killed(lambda: replace_folder(tmp_path / "new", tmp_path / "old"), tmp_path, number)
        found = {path.name for path in (tmp_path / "old").iterdir()} if (tmp_path / "old").exists() else set()
        assert found in ({"old.txt"}, {"new.txt"}, set())
        if not was_killed:
            break
        replace_folder(tmp_path / "new", tmp_path / "old") if (tmp_path / "new").exists() else None
        number += 1
    assert number > 2
    assert contents(tmp_path) == {"old/new.txt": "new"}


def test_a_folder_with_nothing_but_our_leftovers_is_vacant(tmp_path: Path):
    assert is_vacant(tmp_path / "new")
    (tmp_path / ".lock").touch()
    (tmp_path / ".model.host.1.part").mkdir()
    assert is_vacant(tmp_path)
    (tmp_path / ".hidden").touch()
    assert not is_vacant(tmp_path)
    assert not is_vacant(tmp_path / ".hidden")


def test_numpy_and_libraries_of_other_languages_say_that_the_disk_is_full_too(tmp_path: Path):
    for error in (OSError("1000 requested and 512 written"), as_os_error(Exception("I/O error (os error 28)"))):
        assert f"no space left on the disk of {tmp_path};" in str(explain_os_error(error, tmp_path / "a.npy"))


def test_a_disk_without_space_for_a_file_is_found_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_space(tmp_path / "a.bin", 100_000)
    too_large = shutil.disk_usage(tmp_path).total + 2**30
    with pytest.raises(FolderError, match=rf"cannot write {tmp_path}/a\.bin: no space left on the disk of {tmp_path};"):
        check_space(tmp_path / "a.bin", too_large)
    monkeypatch.delattr(os, "posix_fallocate")
    check_space(tmp_path / "a.bin", 100_000)
    with pytest.raises(FolderError, match=rf"cannot write {tmp_path}/a\.bin: no space left on the disk of {tmp_path};"):
        check_space(tmp_path / "a.bin", too_large)
    assert list(tmp_path.iterdir()) == []


def test_json_that_is_missing_or_damaged_is_described(tmp_path: Path):
    with pytest.raises(FolderError, match=r"has no a\.json: it is not, or not yet, a model folder"):
        read_json(tmp_path / "a.json", "a model folder")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(FolderError, match=r"a\.json cannot be read as a model folder"):
        read_json(tmp_path / "a.json", "a model folder")


def test_a_pipe_or_device_is_not_read_as_json(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.json")  # nobody writes to it: reading would wait forever
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "zero.json"):
        with pytest.raises(FolderError, match=f"{name} cannot be read: it is a pipe or a device, not a file; check"):
            read_json(tmp_path / name, "a model folder")


def test_an_unreadable_file_is_not_called_damaged(tmp_path: Path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(FolderError) as error:
        read_json(tmp_path / "config.json", "a model folder")
    assert str(error.value).endswith("config.json cannot be read: it is a folder; give a file")


def test_deep_json_is_refused_in_one_sentence(tmp_path: Path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(FolderError, match="cannot be read as a model folder: lists and tables are nested more than 64"):
        read_json(tmp_path / "config.json", "a model folder")


def test_a_folder_that_is_written_again_keeps_its_permissions_and_read_only_files(tmp_path: Path):
    path = tmp_path / "model"
    (path / ".git" / "objects").mkdir(parents=True)
    for name in (".git/objects/4b", "a.txt"):
        (path / name).write_text("old")
    (path / ".git" / "objects" / "4b").chmod(0o400)
    (path / "nowhere").symlink_to(tmp_path / "gone")
    path.chmod(0o2750)
    with staged_folder(path) as staged:
        (staged / "a.txt").write_text("new")
        (staged / "a.txt").chmod(0o400)  # a copy of a read-only file
    assert contents(path) == {".git/objects/4b": "old", "a.txt": "new"}
    assert (path / ".git" / "objects" / "4b").stat().st_mode & 0o777 == 0o400
    assert (path / "nowhere").readlink() == tmp_path / "gone"
    assert path.stat().st_mode & 0o7777 == 0o2750


def test_a_read_only_folder_is_not_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "model"
    path.mkdir()
    (path / "a.txt").write_text("old")
    monkeypatch.setattr(os, "access", lambda checked, mode: checked != path)  # root may write everywhere
    with pytest.raises(FolderError, match=f"cannot write {path}: writing there is not allowed"), staged_folder(path):
        pass
    assert contents(tmp_path) == {"model/a.txt": "old"}


def test_leftovers_in_folders_inside_are_removed_once_their_process_has_ended(tmp_path: Path):
    inside = tmp_path / "runs" / "seed-0"
    inside.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        ended, running = process.pid, os.getpid()
    for pid in (ended, running):
        (inside / f".point.json.{platform.node()}.{pid}.part").write_text("{}")
    (inside / f".model.{platform.node()}.{ended}.part").mkdir()
    (inside / f".point.json.another-host.{ended}.part").write_text("{}")
    remove_leftovers(tmp_path)
    assert {path.name for path in inside.iterdir()} == {
        f".point.json.{platform.node()}.{running}.part",
        f".point.json.another-host.{ended}.part",
    }


def test_hidden_files_of_others_are_no_leftovers(tmp_path: Path):
    for name in (".film.part", ".a.txt.host.12.part", ".model.1f.part"):
        (tmp_path / name).touch()
    assert not is_vacant(tmp_path)
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".film.part"]


def test_a_name_that_is_too_long_is_explained(tmp_path: Path):
    for name in ("n" * 300, "n" * 250):  # a temporary name is longer
        with pytest.raises(FolderError, match="that name is too long, or leaves no room for a temporary name"):
            write_json(tmp_path / name, {})
