"""`bertworks package`: what is printed about a package, and user errors with exit code 2."""

from pathlib import Path

import pytest
from command_line import RunCommand
from small_models import write_pretrained

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pretrained(tmp_path_factory.mktemp("cli") / "pretrained")


def test_a_package_is_written_and_described(
    run_command: RunCommand, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("notes.md").write_text("## Data\n\nWritten by us.\n")
    options = ("--card", "notes.md", "--version", "1.1.0", "--license", "MIT")
    result = run_command("package", str(model), "--name", "xx-tiny", "--output", "models/xx-tiny", *options)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("models/xx-tiny: 0.")
    assert lines[0].endswith(" MB; install it with: pip install ./models/xx-tiny")
    assert lines[1] == "compared on the 36 built-in English and Chinese texts"
    assert "MLM loss on " in result.stdout
    assert "largest rounding error of a weight: " in result.stdout
    assert "the model card has no sources and languages of the data: give the corpus folder with --corpus" in lines
    assert "Written by us." in Path("models/xx-tiny/README.md").read_text()
    assert 'version = "1.1.0"' in Path("models/xx-tiny/pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--name", "Tiny"), "'Tiny' cannot be the name of a packaged model"),
        (("--name", "tiny", "--max-megabytes", "0"), "MB in fp16, and 0 MB are allowed"),
        (("--name", "tiny", "--tolerance", "0"), "differs by"),
        (("--name", "tiny", "--card", "missing.md"), "missing.md cannot be read as notes"),
    ],
)
def test_user_errors_are_one_sentence_and_exit_code_2(
    run_command: RunCommand, model: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
):
    result = run_command("package", str(model), "--output", str(tmp_path / "out"), *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
