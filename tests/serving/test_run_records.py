"""Training runs: records after a step, subsampled; samples; time left; incomplete and truncated files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bertworks.errors import InputError, SettingsError
from bertworks.serving.run_records import MAX_RECORDS, RunRegistry, named_runs

TIME_RECIPE = 'objective = "mlm-nsp"\nbudget = "1h30m"\n[[phases]]\nmax_length = 128\nbudget_ratio = 1.0\n'
STEP_RECIPE = 'budget = ""\n[[phases]]\nmax_length = 128\nsteps = 300\n[[phases]]\nmax_length = 512\nsteps = 100\n'
FINETUNE_RECIPE = 'task = "classify"\nlearning_rate = 1e-3\nwarmup_ratio = 0.1\nschedule = "linear"\n'


def step(number: int, learning_rate: float = 1e-3) -> dict[str, Any]:
    return {
        **{"kind": "step", "step": number, "losses": {"mlm": 5.0}, "learning_rate": learning_rate},
        **{"seconds": 2.0 * number, "num_tokens": number},
    }


def held_out(number: int) -> dict[str, Any]:
    return {"kind": "held_out", "step": number, "losses": {"mlm": 4.0}, "accuracy": 0.5}


def write(path: Path, *records: dict[str, Any], end: str = "\n") -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(json.dumps(record) for record in records) + end)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.toml").write_text(TIME_RECIPE)
    write(folder / "metrics.jsonl", held_out(0), step(1), step(2), step(3))
    return folder


def read_run(folder: Path, after: int = -1) -> dict[str, Any]:
    monitor = RunRegistry({"mini": folder}).get("mini")
    assert monitor is not None
    return monitor.to_dict(after)


def kinds_and_steps(run_fields: dict[str, Any]) -> list[tuple[str, int]]:
    return [(record["kind"], record["step"]) for record in run_fields["records"]]


def test_a_run_is_listed_with_its_kind_state_and_step(run):
    (summary,) = [monitor.summary() for monitor in RunRegistry({"mini": run}).all()]
    assert (summary["name"], summary["kind"], summary["state"], summary["step"]) == ("mini", "pretrain", "running", 3)


def test_the_last_step_of_a_running_run_is_withheld_until_its_evaluations_are_written(run):
    runs = RunRegistry({"mini": run})
    assert kinds_and_steps(runs.get("mini").to_dict(-1)) == [("held_out", 0), ("step", 1), ("step", 2)]
    write(run / "metrics.jsonl", held_out(3), step(4))
    assert kinds_and_steps(runs.get("mini").to_dict(2)) == [("step", 3), ("held_out", 3)]


def test_a_finished_run_returns_all_records(run):
    (run / "run.json").write_text(json.dumps({"started": "2026-01-01", "finished": "2026-01-02"}))
    fields = read_run(run)
    assert fields["state"] == "finished"
    assert kinds_and_steps(fields)[-1] == ("step", 3)
    assert fields["seconds_left"] is None


def test_a_run_that_has_written_nothing_for_long_counts_as_stopped(run):
    os.utime(run / "metrics.jsonl", (0, 0))
    assert read_run(run)["state"] == "stopped"


def test_an_incomplete_line_is_read_when_it_is_complete(run):
    runs = RunRegistry({"mini": run})
    write(run / "metrics.jsonl", step(4), end="")
    assert runs.get("mini").summary()["step"] == 3
    write(run / "metrics.jsonl", end="\n")
    assert runs.get("mini").summary()["step"] == 4


def test_a_run_that_resumed_from_a_checkpoint_is_read_again(run):
    runs = RunRegistry({"mini": run})
    write(run / "metrics.jsonl", *(step(number) for number in range(4, 30)))
    assert runs.get("mini").summary()["step"] == 29
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:6]))  # held_out 0, steps 1 to 5
    write(run / "metrics.jsonl", *(step(number, learning_rate=9.0) for number in range(6, 40)))  # longer than before
    fields = runs.get("mini").to_dict(-1)
    assert fields["step"] == 39
    assert [record["step"] for record in fields["records"]] == list(range(39))
    assert fields["records"][6]["learning_rate"] == 9.0


def test_lines_that_are_not_records_are_skipped(run):
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'\x00\x00\n[1]\n{"step": "x"}\n\n')
    write(run / "metrics.jsonl", step(7))
    assert read_run(run)["step"] == 7


def test_many_records_are_subsampled_but_evaluations_are_kept(run):
    records = [step(number) for number in range(4, 10_000)]
    records[1_000:1_000] = [held_out(1_003)]
    write(run / "metrics.jsonl", *records)
    returned = kinds_and_steps(read_run(run))
    assert len(returned) <= MAX_RECORDS
    assert ("held_out", 1_003) in returned
    assert returned[0] == ("held_out", 0)
    assert returned[-1] == ("step", 9_998)
    assert returned == sorted(returned, key=lambda record: record[1])


def test_samples_are_those_of_the_last_step_that_has_any(run):
    for number in (10, 20):
        for text in ("a [MASK]", "b [MASK]"):
            record = {"kind": "sample", "step": number, "text": text, "predictions": [[["x", 0.5]]]}
            write(run / "samples.jsonl", record)
    samples = read_run(run)["samples"]
    assert [(sample["step"], sample["text"]) for sample in samples] == [(20, "a [MASK]"), (20, "b [MASK]")]


@pytest.mark.parametrize(
    ("recipe", "records", "seconds_left"),
    [
        (TIME_RECIPE, [step(1), step(100)], 5_400 - 200),  # by the time budget
        (STEP_RECIPE, [step(1), step(100)], 600),  # 300 steps of 2 s
        # at the peak, after a tenth of 100 steps: 90 steps are left
        (FINETUNE_RECIPE, [step(9, 0.9e-3), step(10, 1e-3 * 0.99999)], 180),
        # in the middle of the decay: 45 steps are left
        (FINETUNE_RECIPE, [step(54, 1e-3 * 46 / 90), step(55, 1e-3 * 45 / 90)], 90),
    ],
)
def test_the_time_left_is_estimated_from_the_recipe(recipe, records, seconds_left, run):
    (run / "recipe.toml").write_text(recipe)
    (run / "metrics.jsonl").unlink()
    write(run / "metrics.jsonl", *records)
    assert read_run(run)["seconds_left"] == pytest.approx(seconds_left, rel=0.01)


def test_a_run_with_a_task_is_a_finetuning_run(run):
    (run / "recipe.toml").write_text(FINETUNE_RECIPE)
    fields = read_run(run)
    assert fields["kind"] == "finetune"
    assert fields["recipe"]["schedule"] == "linear"


def test_new_runs_in_a_folder_of_runs_are_listed(run, tmp_path):
    runs = RunRegistry({"all": tmp_path})
    assert [monitor.name for monitor in runs.all()] == ["all.run"]
    (tmp_path / "second").mkdir()
    write(tmp_path / "second" / "metrics.jsonl", step(1))
    assert [monitor.name for monitor in runs.all()] == ["all.run", "all.second"]
    assert runs.get("all.second").summary()["step"] == 1
    assert runs.get("../run") is None


def test_runs_are_named_explicitly_or_by_their_folders(run):
    assert named_runs([f"a={run}", str(run)]) == {"a": run, "run": run}
    with pytest.raises(InputError, match="is not a folder"):
        named_runs(["a=/does/not/exist"])
    with pytest.raises(SettingsError, match="two runs have the name 'a'"):
        named_runs([f"a={run}", f"a={run}"])
    with pytest.raises(SettingsError, match="cannot be a name"):
        named_runs([f"a b={run}"])


def test_a_run_whose_folder_is_deleted_is_no_longer_listed(run):
    runs = RunRegistry({"mini": run})
    monitor = runs.get("mini")
    shutil.rmtree(run)
    assert runs.all() == []
    assert monitor.to_dict(-1)["records"] == []
