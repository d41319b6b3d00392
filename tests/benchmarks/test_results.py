"""The page of results: files are cut as its text says, a finished row is not run again, and tables replace tables."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SCRIPT = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "results.py")))


def told(scores: list[float]) -> dict[str, object]:
    """A finished row of MRPC."""
    return {
        "minutes": 3.04, "continued": False, "examples": {"train": 3667, "dev": 408},
        "scores": {"dev": {"f1": scores, "accuracy": [0.5] * len(scores)}},
        "guessing": {"f1": 0.8122, "accuracy": 0.6838},
    }  # fmt: skip


def test_a_table_keeps_its_header_and_every_third_row(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("\ufefftext\tlabel\na\t0\nb\t1\nc\t0\nd\t1\n", encoding="utf-8")
    assert SCRIPT.table("t.tsv", tmp_path, slice(None, None, 3)) == "text\tlabel\na\t0\nd\t1\n"


def test_a_table_without_header_loses_no_row(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\nb\nc\n")
    assert SCRIPT.table("t.tsv", tmp_path, slice(2), header=False) == "a\nb\n"


def test_rows_that_came_before_are_left_out_before_the_cut(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("text\na\na\nb\nc\n")
    assert SCRIPT.table("t.tsv", tmp_path, slice(1, 3), unique=True) == "text\nb\nc\n"


def test_a_record_of_two_lines_is_one_record(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('x,y\n"a\nb",1\nc,2\nd,3\n')
    assert SCRIPT.records("t.csv", tmp_path, slice(2)) == 'x,y\n"a\nb",1\nc,2\n'


def test_documents_end_before_the_next_one_starts(tmp_path: Path) -> None:
    start = "-DOCSTART- -X- -X- O\n\n"
    (tmp_path / "t.txt").write_text(f"{start}A NN B O\n\n{start}B NN B O\n\n{start}C NN B O\n\n")
    assert SCRIPT.documents("t.txt", tmp_path, 2) == f"{start}A NN B O\n\n{start}B NN B O\n\n"


def test_articles_of_train_and_dev_are_apart(tmp_path: Path) -> None:
    data = [{"title": str(number), "paragraphs": [{"context": "a"}, {"context": "b"}]} for number in range(3)]
    (tmp_path / "t.json").write_text(json.dumps({"version": "1.1", "data": data}))
    dev = json.loads(SCRIPT.articles("t.json", tmp_path, slice(2, 3), 1))
    assert dev == {"version": "1.1", "data": [{"title": "2", "paragraphs": [{"context": "a"}]}]}


def test_what_guessing_gives_is_worked_out_on_dev() -> None:
    train = [SimpleNamespace(label=label) for label in ("1", "1", "0")]
    dev = [SimpleNamespace(label=label) for label in ("1", "1", "1", "0")]
    # Always "1": three of four are right; precision 3/4, recall 1, so F1 is 6/7.
    assert SCRIPT.guessed_class(train, dev) == {"accuracy": 0.75, "f1": pytest.approx(6 / 7), "matthews": 0.0}
    assert SCRIPT.guessed_choice([], [SimpleNamespace(texts=("prompt", "a", "b", "c"))]) == {"accuracy": 1 / 3}


def test_a_score_is_mean_and_deviation_in_hundredths() -> None:
    assert SCRIPT.shown([0.80, 0.82, 0.84]) == "82.0 ± 2.0"
    assert SCRIPT.shown([0.5]) == "50.0"


def test_the_line_of_a_row_tells_counts_scores_and_minutes() -> None:
    assert SCRIPT.line_of(SCRIPT.ROWS["mrpc"], told([0.80, 0.82, 0.84])) == (
        "| MRPC, all of train | 3,667 / 408 | F1 82.0 ± 2.0; accuracy 50.0 ± 0.0 | – | 81.2 / 68.4 "
        "| 86.7 accuracy (dev) | 3.0 |"
    )


def test_filling_the_page_twice_changes_tables_and_no_prose() -> None:
    first = SCRIPT.filled_page(PAGE, {"mrpc": told([0.1, 0.1])})
    second = SCRIPT.filled_page(first, {"mrpc": told([0.9, 0.9])})
    assert "F1 10.0 ± 0.0" in first
    assert "F1 10.0 ± 0.0" not in second
    assert second == SCRIPT.filled_page(PAGE, {"mrpc": told([0.9, 0.9])})
    assert all(row.command in second for row in SCRIPT.ROWS.values())


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(SystemExit, match="should have one line '<!-- glue -->'"):
        SCRIPT.filled_page("# Results", {})


def test_the_page_names_no_place_of_a_machine() -> None:
    places = SCRIPT.Places(Path("/d"), Path("/o"), {"$MINILM": Path("/m")})
    words = SCRIPT.ROWS["sst2"].words()
    assert all(not word.startswith("/") for word in words)
    filled = places.filled(words)
    assert filled[3] == "/m"
    assert filled[filled.index("--train") + 1] == "/o/files/sst2-train.tsv"
    assert filled[filled.index("--dev") + 1] == "/d/glue/SST-2/dev.tsv"


def test_a_finished_row_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").write_bytes(b"weights")
    row, places = SCRIPT.ROWS["mrpc"], SCRIPT.Places(tmp_path, tmp_path, {"$MINILM": tmp_path / "m"})
    for split in ("train", "dev"):
        (tmp_path / "glue" / "MRPC").mkdir(parents=True, exist_ok=True)
        (tmp_path / "glue" / "MRPC" / f"{split}.tsv").write_text("Quality\n")
    for folder, text in (("rows", {}), ("begun", SCRIPT.identity(row, places))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mrpc.json").write_text(json.dumps(text))
    runs: list[list[str]] = []
    monkeypatch.setitem(SCRIPT.run_row.__globals__, "_run_command", lambda words, log, threads: runs.append(words))
    assert SCRIPT.run_row(row, places, 1)
    assert runs == []
    (tmp_path / "runs" / "mrpc" / "seed0").mkdir(parents=True)
    (tmp_path / "m" / "model.safetensors").write_bytes(b"others")  # another model: nothing of the old row may stay
    assert not SCRIPT.run_row(row, places, 1)
    assert [words[:2] for words in runs] == [["finetune", "glue/MRPC"]]
    assert not (tmp_path / "runs" / "mrpc").exists()
