"""Locks of outputs: one holder at a time, named to the others; a dead holder's lock is taken over."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertworks import folder_lock
from bertworks.errors import FolderError
from bertworks.folder_lock import find_holder, lock_folder, lock_output, remove_dead_lock

HOLD = """
import sys, time
from pathlib import Path
from bertworks.folder_lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def other_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of a folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def touched(path: Path) -> Iterator[None]:
    """Touch a file again and again, as a living holder does."""
    has_ended = threading.Event()

    def touch() -> None:
        while not has_ended.wait(0.05):
            os.utime(path)

    thread = threading.Thread(target=touch)
    thread.start()
    yield
    has_ended.set()
    thread.join()


def write_lock(path: Path, host: str, age: float = 0.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"pid": 4711, "host": host, "started": "2026-01-02T03:04:05+00:00"}))
    os.utime(path, (time.time() - age,) * 2)


def test_a_lock_names_its_holder_and_leaves_nothing(tmp_path: Path):
    with lock_folder(tmp_path / "run"):
        holder = json.loads((tmp_path / "run" / ".lock").read_text())
        assert (holder["pid"], holder["host"]) == (os.getpid(), platform.node())
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", holder["started"])
    assert list(tmp_path.iterdir()) == []  # nothing was written, so that there is no folder either
    with lock_folder(tmp_path / "run"):
        (tmp_path / "run" / "recipe.toml").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["recipe.toml"]


def test_a_second_run_is_refused_and_told_who_holds_the_lock(tmp_path: Path):
    with other_process(tmp_path / "run") as process:
        with pytest.raises(FolderError) as caught, lock_folder(tmp_path / "run"):
            pass
        holder = rf"process {process.pid} on {re.escape(platform.node())}, since 20\S+"
        message = rf"another run is writing to {tmp_path}/run \({holder}\); wait for it, or choose another --output"
        assert re.fullmatch(message, str(caught.value))
        assert (tmp_path / "run" / ".lock").exists()


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path: Path):
    with other_process(tmp_path / "run") as process:
        process.kill()
        process.wait()
        assert (tmp_path / "run" / ".lock").exists()
        with lock_folder(tmp_path / "run"):
            assert json.loads((tmp_path / "run" / ".lock").read_text())["pid"] == os.getpid()


def test_a_lock_file_that_was_written_in_part_is_taken_over(tmp_path: Path):
    (tmp_path / ".lock").write_text('{"pid": 4')
    with lock_folder(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_temporary_files_of_a_killed_run_are_removed(tmp_path: Path):
    (tmp_path / ".recipe.toml.host.12.part").touch()
    (tmp_path / ".model.host.12.part").mkdir()
    (tmp_path / "notes.part").touch()
    with lock_folder(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "notes.part"]


def test_a_living_holder_on_another_host_is_named_with_the_file_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(folder_lock, "_SILENT_SECONDS", 30.0)
    lock = tmp_path / "run" / ".lock"
    write_lock(lock, "node-7")
    message = (
        rf"another run is writing to {tmp_path}/run \(process 4711 on node-7, since 2026-01-02T03:04:05\+00:00\); wait "
        rf"for it, or choose another --output; if it does not run on node-7 any more, remove {lock}"
    )
    with touched(lock), pytest.raises(FolderError, match=f"^{message}$"), lock_folder(tmp_path / "run"):
        pass
    assert lock.exists()


@pytest.mark.parametrize(("age", "silent_seconds"), [(0.0, 0.5), (3600.0, 600.0)])
def test_a_holder_on_another_host_that_fell_silent_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, silent_seconds: float
):
    monkeypatch.setattr(folder_lock, "_SILENT_SECONDS", silent_seconds)
    write_lock(tmp_path / ".lock", "node-7", age)
    with lock_folder(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["host"] == platform.node()


@pytest.mark.parametrize("cause", ["no fcntl", "a file system without locks"])
def test_without_flock_a_holder_lives_as_long_as_it_touches_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
):
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    if cause == "no fcntl":
        monkeypatch.setattr(folder_lock, "_HAS_FLOCK", False)
    else:
        monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr(folder_lock, "_TOUCH_SECONDS", 0.05)
    monkeypatch.setattr(folder_lock, "_SILENT_SECONDS", 5.0)
    with lock_folder(tmp_path), pytest.raises(FolderError, match="another run is writing"), lock_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(folder_lock, "_SILENT_SECONDS", 0.5)
    write_lock(tmp_path / ".lock", platform.node())
    with lock_folder(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_the_lock_of_an_output_that_appears_at_its_end_is_beside_it(tmp_path: Path):
    with lock_output(tmp_path / "made" / "v.npy"):
        assert [path.name for path in (tmp_path / "made").iterdir()] == [".v.npy.lock"]
        with pytest.raises(FolderError, match=r"another run is writing to .*v\.npy"):
            lock_output(tmp_path / "made" / "v.npy").__enter__()
    assert list((tmp_path / "made").iterdir()) == []


def test_the_lock_file_of_a_finished_folder_is_removed_unless_a_process_holds_it(tmp_path: Path):
    remove_dead_lock(tmp_path / "nowhere")
    with lock_folder(tmp_path), pytest.raises(FolderError, match="another run is writing"):
        remove_dead_lock(tmp_path)
    write_lock(tmp_path / ".lock", platform.node())
    remove_dead_lock(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_mounted_folder_has_its_lock_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path == tmp_path)
    (tmp_path / "mounts" / "out").mkdir(parents=True)
    with lock_output(tmp_path / "mounts" / "out"):
        assert [path.name for path in (tmp_path / "mounts" / "out").iterdir()] == [".lock"]
    assert list((tmp_path / "mounts" / "out").iterdir()) == []


def test_a_path_that_cannot_be_written_is_explained(tmp_path: Path):
    (tmp_path / "file").touch()
    for lock in (lock_folder(tmp_path / "file"), lock_output(tmp_path / "file" / "v.npy")):
        with pytest.raises(FolderError, match=r"a part of that path is a file, not a folder; choose another folder"):
            lock.__enter__()


def test_a_folder_has_one_holder_whichever_of_the_two_locks_a_command_takes(tmp_path: Path):
    message = f"another run is writing to {tmp_path}/out "
    with lock_folder(tmp_path / "out"), pytest.raises(FolderError, match=message), lock_output(tmp_path / "out"):
        pass
    with lock_output(tmp_path / "out"), pytest.raises(FolderError, match=message), lock_folder(tmp_path / "out"):
        pass
    write_lock(tmp_path / "out" / ".lock", platform.node())
    write_lock(tmp_path / ".out.lock", platform.node())
    with lock_folder(tmp_path / "out"):
        assert [path.name for path in tmp_path.iterdir()] == ["out"]  # the lock beside it was of a dead process
    with lock_output(tmp_path / "out"):
        assert list((tmp_path / "out").iterdir()) == []


def test_the_lock_of_a_dead_container_of_this_machine_is_taken_over_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(folder_lock, "_SILENT_SECONDS", 600.0)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    holder = {"pid": 1, "host": "8f2c41d09ab3", "started": "2026-01-02T03:04:05+00:00", "boot_id": boot_id}
    (tmp_path / ".lock").write_text(json.dumps(holder))
    with lock_folder(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["boot_id"] == boot_id


def test_the_lock_of_another_version_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folder_lock, "_SILENT_SECONDS", 30.0)
    lock = tmp_path / ".lock"
    holder = {"pid": 1, "host": "node-7", "started": "2026-01-02T03:04:05+00:00", "purpose": "pretrain"}
    lock.write_text(json.dumps(holder))
    with touched(lock), pytest.raises(FolderError, match="process 1 on node-7"), lock_folder(tmp_path):
        pass


def test_a_clock_that_is_an_hour_fast_does_not_make_a_holder_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folder_lock, "_SILENT_SECONDS", 30.0)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3_600)
    write_lock(tmp_path / ".lock", "node-7", age=3_600.0)  # by the clock of the disk, of now
    with touched(tmp_path / ".lock"), pytest.raises(FolderError, match="node-7"), lock_folder(tmp_path):
        pass


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path):
    (tmp_path / "run").symlink_to(tmp_path / "gone")
    with pytest.raises(FolderError, match="a file of that name is in the way"), lock_folder(tmp_path / "run"):
        pass


def test_the_holder_is_found_without_touching_the_lock(tmp_path: Path):
    run, file = tmp_path / "run", tmp_path / "vectors.npy"
    assert find_holder(run) is None
    with lock_folder(run), lock_output(file):
        for path in (run, file):
            holder = find_holder(path)
            assert holder is not None
            assert (holder.pid, holder.host) == (os.getpid(), platform.node())
    with other_process(run) as process:
        holder = find_holder(run)
        assert holder is not None
        assert holder.pid == process.pid
        process.kill()
        process.wait()
        assert find_holder(run) is None


def test_a_holder_elsewhere_counts_while_it_touches_its_lock(tmp_path: Path):
    lock = tmp_path / ".lock"
    lock.write_text(json.dumps({"pid": 1, "host": "elsewhere", "started": "now", "boot_id": "other"}))
    holder = find_holder(tmp_path)
    assert holder is not None
    assert holder.host == "elsewhere"
    os.utime(lock, (0, 0))
    assert find_holder(tmp_path) is None
