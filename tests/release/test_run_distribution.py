"""bertworks-run: its requirements are some of bertworks with the extras onnx and serve; its code is the same."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def project(path: Path) -> dict:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def test_requirements_are_some_of_bertworks_in_the_same_versions():
    full, run = project(ROOT / "pyproject.toml"), project(ROOT / "run" / "pyproject.toml")
    extras = full["project"]["optional-dependencies"]
    allowed = {*full["project"]["dependencies"], *extras["onnx"], *extras["serve"]}
    assert set(run["project"]["dependencies"]) < allowed
    names = {requirement.split(">")[0] for requirement in run["project"]["dependencies"]}
    assert not names & {"torch", "scikit-learn", "scipy", "seqeval", "onnx"}


def test_code_scripts_and_data_are_those_of_bertworks():
    full, run = project(ROOT / "pyproject.toml"), project(ROOT / "run" / "pyproject.toml")
    assert (ROOT / "run" / "src").resolve() == ROOT / "src"
    assert run["project"]["scripts"] == full["project"]["scripts"]
    for key in ("dynamic", "packages", "package-data"):
        assert run["tool"]["setuptools"][key] == full["tool"]["setuptools"][key]
