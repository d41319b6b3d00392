"""The compatibility page: a type that agrees has figures, one that fails says why, and the status tells both apart."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertworks.encoders.families import ENCODERS
from bertworks.errors import FolderError

FOLDER = Path(__file__).parents[2] / "release"
with pytest.MonkeyPatch.context() as patch:  # as when it is run, the folder of the script is on the path
    patch.setattr(sys, "path", [str(FOLDER), *sys.path])
    SCRIPT = runpy.run_path(str(FOLDER / "compatibility.py"))
PAGE, CELLS = SimpleNamespace(**SCRIPT), sys.modules["compatibility_cells"]
pytestmark = pytest.mark.usefixtures("one_thread")


def run(tmp_path: Path, model_types: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Write the page with the rows of these model types only; return the number of failures, and the page."""
    section = PAGE.Section(("model type", "load"), PAGE.model_rows(model_types))
    monkeypatch.setitem(PAGE.run.__globals__, "sections", lambda folder: {"models": section})
    num_failed = PAGE.run(tmp_path / "page.md")
    return num_failed, (tmp_path / "page.md").read_text(encoding="utf-8")


def row_of(page: str, name: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    return line.strip("| ").split(" | ")[1:]


def test_a_type_that_agrees_has_figures_in_every_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    num_failed, page = run(tmp_path, ["distilbert"], monkeypatch)
    assert num_failed == 0
    load, parity, finetune, export, serve = row_of(page, "distilbert")
    assert load == "`DistilBertForMaskedLM`: 41 of 41 tensors"
    names = ["hidden states", "classes", "tags", "spans", "choices", "masked tokens", "gradients"]
    assert [part.rpartition(" ")[0] for part in parity.split(", ")] == names
    assert finetune.startswith("loss 0.")
    assert [part.split()[0] for part in export.split(", ")] == ["ONNX", "OpenVINO"]
    assert [part.split()[0] for part in serve.split(", ")] == ["probabilities", "vectors"]
    assert "<!--" not in page.replace("<!-- sentences -->", "").replace("<!-- tokenizers -->", "")


def test_a_type_that_fails_says_why_and_changes_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    num_failed, page = run(tmp_path, ["gpt2"], monkeypatch)
    assert num_failed == 1
    load, *others = row_of(page, "gpt2")
    assert load.startswith("**failed**: config.json: there is no encoder for model_type 'gpt2'")
    assert others == ["–"] * 4
    monkeypatch.setattr(sys, "argv", ["compatibility.py", "--page", str(tmp_path / "other.md")])
    with pytest.raises(SystemExit) as exit_info:
        PAGE.main()
    assert exit_info.value.code == 1


def test_every_family_with_a_text_encoder_in_transformers_has_a_row():
    model_types = SCRIPT["compatibility_models"].model_types()
    assert [name for name in ENCODERS if name not in model_types] == ["elmo", "marian", "awd-lstm", "static"]


def test_figures_above_their_limit_and_errors_are_failures():
    def fail() -> list[Any]:
        raise FolderError("/some/where/config.json: no | key")

    assert CELLS.measure(lambda: [CELLS.Figure("logits", 2.5e-7), "2 texts"]) == CELLS.Cell("logits 2e-7, 2 texts")
    assert CELLS.measure(lambda: [CELLS.Figure("logits", 2e-3)]) == CELLS.Cell(
        "**logits 2e-3, more than 1e-05**", has_failed=True
    )
    assert CELLS.measure(lambda: [CELLS.Figure("logits", float("nan"))]).has_failed
    assert CELLS.measure(fail) == CELLS.Cell("**failed**: config.json: no / key", has_failed=True)
    assert CELLS.refusal(fail) == CELLS.Cell("refused: config.json: no / key")
    assert CELLS.refusal(lambda: ["(2, 3)"]) == CELLS.Cell("**not refused**: (2, 3)", has_failed=True)


def test_arrays_of_other_shapes_are_not_compared():
    assert CELLS.difference([[1.0, 2.0]], [[1.0, 2.25]]) == 0.25
    with pytest.raises(ValueError, match=r"the shape \(2,\) is not \(1, 2\)"):
        CELLS.difference([1.0, 2.0], [[1.0, 2.0]])
