"""Run folders that grow: records after a step, thinned; samples; how long it still takes; what is half written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bertworks.errors import InputError, SettingsError
from bertworks.serving.run_records import MAX_RECORDS, RunRegistry, named_runs

BUDGETED = 'objective = "masked-next"\nbudget = "1h30m"\n[[phases]]\nlength = 128\nshare = 1.0\n'
COUNTED = 'budget = ""\n[[phases]]\nlength = 128\nsteps = 300\n[[phases]]\nlength = 512\nsteps = 100\n'
TUNING = 'task = "classify"\nrate = 1e-3\nwarmup_rate = 0.1\nschedule = "linear"\n'


def step(number: int, rate: float = 1e-3) -> dict[str, Any]:
    losses = {"masked": 5.0}
    return {"kind": "step", "step": number, "losses": losses, "rate": rate, "seconds": 2.0 * number, "pieces": number}


def held_out(number: int) -> dict[str, Any]:
    return {"kind": "held_out", "step": number, "losses": {"masked": 4.0}, "accuracy": 0.5}


def write(path: Path, *records: dict[str, Any], end: str = "\n") -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(json.dumps(record) for record in records) + end)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.toml").write_text(BUDGETED)
    write(folder / "metrics.jsonl", held_out(0), step(1), step(2), step(3))
    return folder


def told(folder: Path, after: int = -1) -> dict[str, Any]:
    found = RunRegistry({"one": folder}).get("one")
    assert found is not None
    return found.to_dict(after)


def steps(found: dict[str, Any]) -> list[tuple[str, int]]:
    return [(record["kind"], record["step"]) for record in found["records"]]


def test_a_run_is_listed_with_its_kind_state_and_step(run):
    (one,) = [found.summary() for found in RunRegistry({"one": run}).all()]
    assert (one["name"], one["kind"], one["state"], one["step"]) == ("one", "pretrain", "running", 3)


def test_records_come_after_a_step_and_the_last_step_waits_for_its_measurements(run):
    runs = RunRegistry({"one": run})
    assert steps(runs.get("one").to_dict(-1)) == [("held_out", 0), ("step", 1), ("step", 2)]
    write(run / "metrics.jsonl", held_out(3), step(4))
    assert steps(runs.get("one").to_dict(2)) == [("step", 3), ("held_out", 3)]


def test_a_finished_run_tells_all(run):
    (run / "run.json").write_text(json.dumps({"started": "2026-01-01", "finished": "2026-01-02"}))
    found = told(run)
    assert found["state"] == "finished"
    assert steps(found)[-1] == ("step", 3)
    assert found["left_seconds"] is None


def test_a_run_that_has_long_written_nothing_has_stopped(run):
    os.utime(run / "metrics.jsonl", (0, 0))
    assert told(run)["state"] == "stopped"


def test_a_line_that_is_being_written_is_read_when_it_is_whole(run):
    runs = RunRegistry({"one": run})
    write(run / "metrics.jsonl", step(4), end="")
    assert runs.get("one").summary()["step"] == 3
    write(run / "metrics.jsonl", end="\n")
    assert runs.get("one").summary()["step"] == 4


def test_a_run_that_was_set_back_after_a_crash_is_read_anew(run):
    runs = RunRegistry({"one": run})
    write(run / "metrics.jsonl", *(step(number) for number in range(4, 30)))
    assert runs.get("one").summary()["step"] == 29
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:6]))  # held_out 0, steps 1 to 5
    write(run / "metrics.jsonl", *(step(number, rate=9.0) for number in range(6, 40)))  # longer than before
    found = runs.get("one").to_dict(-1)
    assert found["step"] == 39
    assert [record["step"] for record in found["records"]] == list(range(39))
    assert found["records"][6]["rate"] == 9.0


def test_lines_that_are_no_records_are_passed_over(run):
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'\x00\x00\n[1]\n{"step": "x"}\n\n')
    write(run / "metrics.jsonl", step(7))
    assert told(run)["step"] == 7


def test_many_records_are_thinned_and_measurements_stay(run):
    records = [step(number) for number in range(4, 10_000)]
    records[1_000:1_000] = [held_out(1_003)]
    write(run / "metrics.jsonl", *records)
    found = steps(told(run))
    assert len(found) <= MAX_RECORDS
    assert ("held_out", 1_003) in found
    assert found[0] == ("held_out", 0)
    assert found[-1] == ("step", 9_998)
    assert found == sorted(found, key=lambda one: one[1])


def test_the_samples_are_those_of_the_last_step_that_has_some(run):
    for number in (10, 20):
        for text in ("a [MASK]", "b [MASK]"):
            write(run / "samples.jsonl", {"kind": "sample", "step": number, "text": text, "filled": [[["x", 0.5]]]})
    assert [(one["step"], one["text"]) for one in told(run)["samples"]] == [(20, "a [MASK]"), (20, "b [MASK]")]


@pytest.mark.parametrize(
    ("recipe", "records", "left"),
    [
        (BUDGETED, [step(1), step(100)], 5_400 - 200),  # by the clock
        (COUNTED, [step(1), step(100)], 600),  # 300 steps of 2 s
        (TUNING, [step(9, 0.9e-3), step(10, 1e-3 * 0.99999)], 180),  # at the peak, a tenth of 100 steps: 90 are left
        (TUNING, [step(54, 1e-3 * 46 / 90), step(55, 1e-3 * 45 / 90)], 90),  # half way down: 45 steps are left
    ],
)
def test_the_time_left_follows_from_the_recipe(recipe, records, left, run):
    (run / "recipe.toml").write_text(recipe)
    (run / "metrics.jsonl").unlink()
    write(run / "metrics.jsonl", *records)
    assert told(run)["left_seconds"] == pytest.approx(left, rel=0.01)


def test_a_fine_tuning_run_is_told_by_its_task(run):
    (run / "recipe.toml").write_text(TUNING)
    found = told(run)
    assert found["kind"] == "finetune"
    assert found["recipe"]["schedule"] == "linear"


def test_a_folder_of_runs_gets_more_of_them(run, tmp_path):
    runs = RunRegistry({"all": tmp_path})
    assert [one.name for one in runs.all()] == ["all.run"]
    (tmp_path / "second").mkdir()
    write(tmp_path / "second" / "metrics.jsonl", step(1))
    assert [one.name for one in runs.all()] == ["all.run", "all.second"]
    assert runs.get("all.second").summary()["step"] == 1
    assert runs.get("../run") is None


def test_runs_are_named_as_told_or_by_their_folders(run):
    assert named_runs([f"a={run}", str(run)]) == {"a": run, "run": run}
    with pytest.raises(InputError, match="there is no folder"):
        named_runs(["a=/does/not/exist"])
    with pytest.raises(SettingsError, match="a second one"):
        named_runs([f"a={run}", f"a={run}"])


def test_a_run_whose_folder_is_gone_is_no_longer_listed(run):
    import shutil

    runs = RunRegistry({"one": run})
    one = runs.get("one")
    shutil.rmtree(run)
    assert runs.all() == []
    assert one.to_dict(-1)["records"] == []
