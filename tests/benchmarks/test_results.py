"""The results page: parts of datasets, bars, rows that continue, signals, and tables that replace tables."""

from __future__ import annotations

import json
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
FOLDER = ROOT / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # as when it is run, the folder of the script is on the path
    patch.setattr(sys, "path", [str(FOLDER), *sys.path])
    SCRIPT = SimpleNamespace(**runpy.run_path(str(FOLDER / "results.py")))
    TABLES = SimpleNamespace(**runpy.run_path(str(FOLDER / "result_page.py")))
FILES = SimpleNamespace(**runpy.run_path(str(FOLDER / "result_rows.py")))
MODELS = {"en-small": "absent", "zh-small": "absent"}


def result(split: str, metric: str, values: list[float]) -> dict[str, Any]:
    """Return the result of a finished row."""
    return {
        "minutes": 3.04, "continued": False, "examples": {"train": 6_000, split: 872},
        "scores": {split: {metric: values}},
        "baselines": {"majority": {split: {metric: 0.509}}, "tfidf": {split: {metric: 0.776}}},
    }  # fmt: skip


def test_table_keeps_its_header_and_the_first_rows(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("\ufefftext\tlabel\na\t0\nb\t1\nc\t0\n", encoding="utf-8")
    assert FILES.table("t.tsv", tmp_path, slice(2)) == "text\tlabel\na\t0\nb\t1\n"


def test_repeated_rows_are_dropped_before_the_selection(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("text\na\na\nb\nc\n")
    assert FILES.table("t.tsv", tmp_path, slice(1, 3), unique=True) == "text\nb\nc\n"


def test_articles_of_train_and_dev_are_disjoint(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "a"}, {"title": "b"}]}))
    assert json.loads(FILES.articles("t.json", tmp_path, slice(1))) == {"version": "1.1", "data": [{"title": "a"}]}
    assert json.loads(FILES.articles("t.json", tmp_path, slice(1, None)))["data"] == [{"title": "b"}]


def test_score_is_mean_and_standard_deviation_in_percent() -> None:
    assert TABLES.format_scores([0.80, 0.82, 0.84]) == "82.0 ± 2.0"
    assert TABLES.format_scores([0.5]) == "50.0"


def test_line_has_our_score_its_bar_and_the_baselines() -> None:
    results = {"sst2-6000": result("dev", "accuracy", [0.80, 0.82, 0.84])}
    line = next(line for line in TABLES.score_table(results) if "6,000 rows" in line)
    assert line == (
        "| SST-2, 6,000 rows, accuracy (dev) | 6,000 / 872 | 82.0 ± 2.0 | 81: met | not yet run | 50.9 | 77.6 "
        "| not yet run | not yet run | – |"
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.80, 0.81], "81: missed by 0.5"),
        ([0.809], "81: missed by 0.1"),
        ([0.8099], "81: missed by 0.1"),
        ([0.81], "81: met"),
        ([], "81"),
    ],
)
def test_bar_that_is_missed_is_shown(values: list[float], expected: str) -> None:
    results = {"sst2-6000": result("dev", "accuracy", values)} if values else {}
    assert TABLES.bar_cell(results, "sst2-6000", FILES.SETS["sst2-6000"].scores[0]) == expected


def test_bar_relative_to_random_weights() -> None:
    score = FILES.SETS["conll"].scores[0]
    results = {"conll": result("dev", "f1", [0.70])}
    assert TABLES.bar_cell(results, "conll", score) == "15 above random"
    results["conll-random"] = result("dev", "f1", [0.60])
    assert TABLES.bar_cell(results, "conll", score) == "15 above random: missed by 5.0"


def test_filling_the_page_twice_replaces_only_the_tables() -> None:
    results = [{"stsb": result("dev", "spearman", [value, value])} for value in (0.1, 0.9)]
    first = TABLES.fill_page(PAGE, results[0], MODELS)
    second = TABLES.fill_page(first, results[1], MODELS)
    assert "| 10.0 ± 0.0 | 73: missed by 63.0 |" in first
    assert "| 10.0 ± 0.0 |" not in second
    assert second == TABLES.fill_page(PAGE, results[1], MODELS)
    assert all(row.command in second for row in FILES.ROWS.values())


def test_page_without_markers_is_refused() -> None:
    with pytest.raises(SystemExit, match="needs exactly one line '<!-- scores -->'"):
        TABLES.fill_page("# Results", {}, MODELS)


def test_held_out_scores_come_from_the_card_of_a_package(tmp_path: Path) -> None:
    folder = tmp_path / "en-small" / "bertworks_en_small" / "model"
    folder.mkdir(parents=True)
    (folder / "bertworks.json").write_text(json.dumps({"scores": {"held_out_loss": 3.1412}}))
    (tmp_path / "en-small" / "README.md").write_text(
        "| layers | 4 |\n\n| step | MLM loss | NSP accuracy |\n| --- | --- | --- |\n| 0 | 9.011 | 50.0 % |\n"
        "| 9 | 3.141 | 87.5 % |\n\n- unigram entropy, for comparison: 6.535\n"
    )
    assert TABLES.held_out_scores(str(folder)) == ("3.14", "6.54", "87.5")


def test_commands_use_default_settings_and_known_options() -> None:
    from bertworks.cli.finetune import app

    command = typer.main.get_command(app)
    known = {option for parameter in command.params for option in parameter.opts}
    for row in (row for row in FILES.ROWS.values() if row.labelled_set):
        options = {argument for argument in row.arguments if argument.startswith("--")}
        assert options <= known - {"--learning-rate", "--epochs", "--batch-size", "--max-length"}
        assert not any(argument.startswith("/") for argument in row.arguments)


def test_variables_and_names_of_models_are_replaced() -> None:
    paths = SCRIPT.Paths(Path("/o"), {"$DATA": "/d", "$OUT": "/o", "en-small": "/m"})
    arguments = paths.substitute(FILES.ROWS["sst2-6000"].arguments)
    assert arguments[arguments.index("--model") + 1] == "/m"
    assert arguments[arguments.index("--train") + 1] == "/o/files/sst2-train-6000.tsv"
    assert arguments[arguments.index("--dev") + 1] == "/d/glue/SST-2/dev.tsv"


def test_selected_rows_bring_their_word_vectors() -> None:
    known = {"$DATA": "d", "$OUT": "o", "$ENGLISH_CORPUS": "c"}
    assert [row.name for row in SCRIPT.select_rows("sst2-glove,chn-glove,mrpc-minilm", known)] == [
        "glove-en",
        "sst2-glove",
    ]
    assert {row.group for row in SCRIPT.select_rows("ours", known)} == {"ours"}
    with pytest.raises(SystemExit, match="there is no row sst3"):
        SCRIPT.select_rows("sst3", known)


class RecordedCommands:
    """Commands that are not run."""

    def __init__(self) -> None:
        self.arguments: list[list[str]] = []

    def run(self, arguments: list[str], log: Path) -> None:
        self.arguments.append(arguments)


@pytest.fixture
def paths(tmp_path: Path) -> Any:
    """A folder with a model and MRPC."""
    weights, data = tmp_path / "m" / "model.safetensors", tmp_path / "glue" / "MRPC"
    weights.parent.mkdir()
    weights.write_bytes(b"weights")
    data.mkdir(parents=True)
    for split in ("train", "dev"):
        (data / f"{split}.tsv").write_text("Quality\n")
    return SCRIPT.Paths(tmp_path, {"$DATA": str(tmp_path), "$OUT": str(tmp_path), "en-small": str(tmp_path / "m")})


def test_recorded_row_is_current_until_the_model_or_the_data_changes(tmp_path: Path, paths: Any) -> None:
    rows, file = SCRIPT.ROWS, tmp_path / "results.json"
    results = {"mrpc": {"inputs": SCRIPT.fingerprint(rows["mrpc"], paths)},
               "mrpc-minilm": {"inputs": {"command": rows["mrpc-minilm"].command, "base_sha256": "elsewhere"}},
               "mrpc-mlm": {"inputs": {"command": "another"}}}  # fmt: skip
    file.write_text(json.dumps(results))
    assert set(SCRIPT.read_recorded_rows(file, paths)) == {"mrpc", "mrpc-minilm"}
    (tmp_path / "glue" / "MRPC" / "dev.tsv").write_text("Quality\n1\n")
    assert set(SCRIPT.read_recorded_rows(file, paths)) == {"mrpc-minilm"}


def test_recorded_rows_and_their_word_vectors_are_not_run() -> None:
    rows = [SCRIPT.ROWS[name] for name in ("mrpc", "glove-en", "mrpc-glove", "sst2-glove")]
    assert [row.name for row in SCRIPT.remaining_rows(rows, {"mrpc": {}, "mrpc-glove": {}})] == [
        "glove-en",
        "sst2-glove",
    ]
    assert SCRIPT.remaining_rows(rows, {"mrpc": {}, "mrpc-glove": {}, "sst2-glove": {}}) == []


def test_finished_row_is_not_run_again_but_for_another_model(tmp_path: Path, paths: Any) -> None:
    weights, row, commands = tmp_path / "m" / "model.safetensors", SCRIPT.ROWS["mrpc"], RecordedCommands()
    for folder, content in (("rows", {}), ("begun", SCRIPT.fingerprint(row, paths))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mrpc.json").write_text(json.dumps(content))
    assert SCRIPT.run_row(row, paths, commands)
    assert commands.arguments == []
    (tmp_path / "runs" / "mrpc" / "seed0").mkdir(parents=True)
    weights.write_bytes(b"others")  # another model: the old runs must be removed
    assert not SCRIPT.run_row(row, paths, commands)
    assert [arguments[:2] for arguments in commands.arguments] == [["finetune", "glue/MRPC"]]
    assert not (tmp_path / "runs" / "mrpc").exists()


def test_stop_reaches_the_running_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = tmp_path / "python"
    executable.write_text("#!/bin/sh\nexec sleep 600\n")
    executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))
    commands = SCRIPT.Commands(1)
    thread = threading.Thread(target=commands.run, args=(["finetune"], tmp_path / "logs" / "row.log"))
    thread.start()
    while not commands.running:
        time.sleep(0.01)
    child = commands.running[0]
    commands.stop()
    thread.join()
    assert child.returncode == -signal.SIGTERM
    assert commands.running == []
