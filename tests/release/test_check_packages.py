"""The check of built packages: the metadata of a wheel in, its name and extras out; a failure is one line."""

import sys
import zipfile
from pathlib import Path

import pytest

import check_packages


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "bertworks-1.0-py3-none-any.whl"
    metadata = (
        "Metadata-Version: 2.4\nName: bertworks\nVersion: 1.0\nProvides-Extra: onnx\nProvides-Extra: serve\n\nText."
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bertworks/__init__.py", "")
        archive.writestr("bertworks-1.0.dist-info/METADATA", metadata)
    return path


def test_the_name_and_the_extras_are_those_of_the_wheel(wheel: Path):
    assert check_packages.read_metadata(wheel) == ("bertworks", ["onnx", "serve"])


def test_a_folder_without_wheels_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert check_packages.main(tmp_path) == 2
    assert capsys.readouterr().err.startswith(f"release: no wheel in {tmp_path};")


def test_a_check_that_fails_is_one_line_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert check_packages._run("wheel", [sys.executable, "-c", "print('done')"], str(tmp_path)) == 0
    failing = [sys.executable, "-c", "raise SystemExit('first\\nno such package')"]
    assert check_packages._run("extra onnx", failing, str(tmp_path)) == 1
    output = capsys.readouterr()
    assert output.out == "wheel: ok\n"
    assert output.err == "extra onnx: failed (no such package)\n"


def test_every_check_runs_though_an_earlier_one_failed(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(check_packages.venv, "create", lambda *args, **kwargs: None)  # so that no command can run
    commands: list[list[str]] = []
    monkeypatch.setattr(check_packages, "_run", lambda title, command, folder: commands.append(command) or 1)
    monkeypatch.chdir(wheel.parents[1])
    assert check_packages.main(Path(wheel.parent.name)) == 1  # `make release` names a relative folder
    assert [command[-1] for command in commands[-2:]] == [f"{wheel}[onnx]", f"{wheel}[serve]"]
    assert str(wheel.parent / "requirements.lock") in commands[0]
