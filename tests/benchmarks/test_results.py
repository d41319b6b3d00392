"""The results page: reduced files, finished rows are not run again, and tables replace tables."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
FOLDER = ROOT / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # as when it is run, the folder of the script is on the path
    patch.setattr(sys, "path", [str(FOLDER), *sys.path])
    SCRIPT = SimpleNamespace(**runpy.run_path(str(FOLDER / "results.py")))
FILES = SimpleNamespace(**runpy.run_path(str(FOLDER / "result_rows.py")))


def mrpc_result(scores: list[float]) -> dict[str, object]:
    """Return the result of a finished row of MRPC."""
    return {
        "minutes": 3.04, "continued": False, "examples": {"train": 3667, "dev": 408},
        "scores": {"dev": {"f1": scores, "accuracy": [0.5] * len(scores)}},
        "guessing": {"f1": 0.8122, "accuracy": 0.6838},
    }  # fmt: skip


def test_table_keeps_its_header_and_every_third_row(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("\ufefftext\tlabel\na\t0\nb\t1\nc\t0\nd\t1\n", encoding="utf-8")
    assert FILES.table("t.tsv", tmp_path, slice(None, None, 3)) == "text\tlabel\na\t0\nd\t1\n"


def test_table_without_header_keeps_the_first_row(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\nb\nc\n")
    assert FILES.table("t.tsv", tmp_path, slice(2), header=False) == "a\nb\n"


def test_repeated_rows_are_dropped_before_the_selection(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("text\na\na\nb\nc\n")
    assert FILES.table("t.tsv", tmp_path, slice(1, 3), unique=True) == "text\nb\nc\n"


def test_record_of_two_lines_is_one_record(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('x,y\n"a\nb",1\nc,2\nd,3\n')
    assert FILES.records("t.csv", tmp_path, slice(2)) == 'x,y\n"a\nb",1\nc,2\n'


def test_documents_end_before_the_next_one_starts(tmp_path: Path) -> None:
    start = "-DOCSTART- -X- -X- O\n\n"
    (tmp_path / "t.txt").write_text(f"{start}A NN B O\n\n{start}B NN B O\n\n{start}C NN B O\n\n")
    assert FILES.documents("t.txt", tmp_path, 2) == f"{start}A NN B O\n\n{start}B NN B O\n\n"


def test_articles_of_train_and_dev_are_disjoint(tmp_path: Path) -> None:
    data = [{"title": str(number), "paragraphs": [{"context": "a"}, {"context": "b"}]} for number in range(3)]
    (tmp_path / "t.json").write_text(json.dumps({"version": "1.1", "data": data}))
    dev = json.loads(FILES.articles("t.json", tmp_path, slice(2, 3), 1))
    assert dev == {"version": "1.1", "data": [{"title": "2", "paragraphs": [{"context": "a"}]}]}


def test_majority_baseline_on_dev() -> None:
    train = [SimpleNamespace(label=label) for label in ("1", "1", "0")]
    dev = [SimpleNamespace(label=label) for label in ("1", "1", "1", "0")]
    # Always "1": accuracy 3/4; precision 3/4, recall 1, so F1 is 6/7.
    assert SCRIPT.majority_class(train, dev) == {"accuracy": 0.75, "f1": pytest.approx(6 / 7), "matthews": 0.0}
    assert SCRIPT.random_choice([], [SimpleNamespace(texts=("prompt", "a", "b", "c"))]) == {"accuracy": 1 / 3}


def test_score_is_mean_and_standard_deviation_in_percent() -> None:
    assert SCRIPT.format_scores([0.80, 0.82, 0.84]) == "82.0 ± 2.0"
    assert SCRIPT.format_scores([0.5]) == "50.0"


def test_table_row_has_counts_scores_and_minutes() -> None:
    assert SCRIPT.table_row(SCRIPT.ROWS["mrpc"], mrpc_result([0.80, 0.82, 0.84])) == (
        "| MRPC, all of train | 3,667 / 408 | F1 82.0 ± 2.0; accuracy 50.0 ± 0.0 | – | 81.2 / 68.4 "
        "| 86.7 accuracy (dev) | 3.0 |"
    )


def test_filling_the_page_twice_replaces_only_the_tables() -> None:
    first = SCRIPT.fill_page(PAGE, {"mrpc": mrpc_result([0.1, 0.1])})
    second = SCRIPT.fill_page(first, {"mrpc": mrpc_result([0.9, 0.9])})
    assert "F1 10.0 ± 0.0" in first
    assert "F1 10.0 ± 0.0" not in second
    assert second == SCRIPT.fill_page(PAGE, {"mrpc": mrpc_result([0.9, 0.9])})
    assert all(row.command in second for row in SCRIPT.ROWS.values())


def test_page_without_markers_is_refused() -> None:
    with pytest.raises(SystemExit, match="needs exactly one line '<!-- glue -->'"):
        SCRIPT.fill_page("# Results", {})


def test_commands_on_the_page_contain_no_absolute_path() -> None:
    paths = SCRIPT.Paths(Path("/d"), Path("/o"), {"$MINILM": Path("/m")})
    arguments = SCRIPT.ROWS["sst2"].arguments()
    assert all(not argument.startswith("/") for argument in arguments)
    substituted = paths.substitute(arguments)
    assert substituted[3] == "/m"
    assert substituted[substituted.index("--train") + 1] == "/o/files/sst2-train.tsv"
    assert substituted[substituted.index("--dev") + 1] == "/d/glue/SST-2/dev.tsv"


def test_commands_are_accepted_by_the_command_line() -> None:
    from bertworks.cli.finetune import app

    command = typer.main.get_command(app)
    for row in SCRIPT.ROWS.values():
        arguments = row.arguments()[1:]
        command.make_context("finetune", [a for a in arguments if not a.startswith("$")], resilient_parsing=True)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("--")} <= known


def test_finished_row_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").write_bytes(b"weights")
    row, paths = SCRIPT.ROWS["mrpc"], SCRIPT.Paths(tmp_path, tmp_path, {"$MINILM": tmp_path / "m"})
    for split in ("train", "dev"):
        (tmp_path / "glue" / "MRPC").mkdir(parents=True, exist_ok=True)
        (tmp_path / "glue" / "MRPC" / f"{split}.tsv").write_text("Quality\n")
    for folder, text in (("rows", {}), ("begun", SCRIPT.fingerprint(row, paths))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mrpc.json").write_text(json.dumps(text))
    runs: list[list[str]] = []
    monkeypatch.setitem(
        SCRIPT.run_row.__globals__, "_run_command", lambda arguments, log, threads: runs.append(arguments)
    )
    assert SCRIPT.run_row(row, paths, 1)
    assert runs == []
    (tmp_path / "runs" / "mrpc" / "seed0").mkdir(parents=True)
    (tmp_path / "m" / "model.safetensors").write_bytes(b"others")  # another model: the old runs must be removed
    assert not SCRIPT.run_row(row, paths, 1)
    assert [arguments[:2] for arguments in runs] == [["finetune", "glue/MRPC"]]
    assert not (tmp_path / "runs" / "mrpc").exists()
