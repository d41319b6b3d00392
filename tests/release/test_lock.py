"""`make lock`: what pip would install in, pinned requirements with hashes out."""

import json
import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace

LOCK = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "release" / "lock.py")))
PROJECT = LOCK.ROOT / "pyproject.toml"


def installed(name: str, version: str, digest: str) -> dict[str, object]:
    archive = {"archive_info": {"hashes": {"sha256": digest}}}
    return {"metadata": {"name": name, "version": version}, "download_info": archive}


def test_every_package_has_its_version_and_hash(monkeypatch, tmp_path: Path):
    report = {"install": [installed("torch", "2.0", "b" * 64), installed("Numpy", "1.0", "a" * 64)]}
    result = SimpleNamespace(returncode=0, stdout=json.dumps(report), stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: result)
    output = tmp_path / "dist" / "requirements.lock"
    assert LOCK.lock(PROJECT, output) == 0
    assert output.read_text().splitlines()[1:] == [
        f"Numpy==1.0 --hash=sha256:{'a' * 64}",
        f"torch==2.0 --hash=sha256:{'b' * 64}",
    ]
    assert LOCK.read_lock(output) == [("Numpy", "1.0", "a" * 64), ("torch", "2.0", "b" * 64)]


def test_an_index_that_cannot_be_reached_is_one_line(monkeypatch, tmp_path: Path, capsys):
    result = SimpleNamespace(returncode=1, stdout="", stderr="WARNING: retry\nERROR: No matching distribution")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: result)
    assert LOCK.lock(PROJECT, tmp_path / "requirements.lock") == 2
    assert capsys.readouterr().err == (
        "lock: pip could not resolve the dependencies (ERROR: No matching distribution); check the network\n"
    )
    assert not (tmp_path / "requirements.lock").exists()


def test_the_core_requirements_are_those_of_the_package():
    names = [requirement.split(">=")[0] for requirement in LOCK.core_requirements(PROJECT)]
    assert {"numpy", "torch", "safetensors", "tokenizers"} <= set(names)
    assert "fastapi" not in names
    names = [requirement.split(">=")[0] for requirement in LOCK.core_requirements(LOCK.ROOT / "run" / "pyproject.toml")]
    assert {"numpy", "fastapi", "onnxruntime", "tokenizers"} <= set(names)
    assert "torch" not in names
