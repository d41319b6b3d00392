"""Reproducible packages: an archive has the same bytes whenever and in whatever order its files were written."""

import gzip
import io
import tarfile
from pathlib import Path

from build_packages import PROJECTS, copy_project, reproducible_archive, source_date


def archive(names: list[str], mtime: int, owner: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as target:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.mode = 3, mtime, owner, 0o664
            target.addfile(member, io.BytesIO(b"abc"))
    return buffer.getvalue()


def test_order_time_and_owner_leave_no_trace():
    first = reproducible_archive(archive(["p/a.py", "p/b.py"], 1, "anna"), 1_000)
    second = reproducible_archive(archive(["p/b.py", "p/a.py"], 2, "tom"), 1_000)
    assert first == second
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(first))) as members:
        assert [(member.name, member.mtime, member.uname, member.mode) for member in members] == [
            ("p/a.py", 1_000, "", 0o644),
            ("p/b.py", 1_000, "", 0o644),
        ]
        content = members.extractfile("p/b.py")
        assert content is not None
        assert content.read() == b"abc"


def test_the_date_is_that_of_the_environment_or_of_the_last_commit(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12")
    assert source_date() == 12


def test_both_distributions_are_copied_with_the_same_source(tmp_path: Path):
    full, run = tmp_path / "full", tmp_path / "run"
    for project, target in zip(PROJECTS, (full, run), strict=True):
        target.mkdir()
        copy_project(project, target)
    names = {target: {str(path.relative_to(target)) for path in target.rglob("*")} for target in (full, run)}
    assert names[full] == names[run]
    assert "src/bertworks/__init__.py" in names[run]
    assert not [path for path in run.rglob("*") if path.is_symlink() or path.name == "__pycache__"]
    assert 'name = "bertworks-run"' in (run / "pyproject.toml").read_text()
