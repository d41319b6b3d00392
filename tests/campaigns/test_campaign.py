"""Records of campaigns, comparisons of outputs, and processes that are killed with all they started."""

import json
import sys
import time
from pathlib import Path

import pytest
from campaign import Campaigns
from comparable import comparable_files, differences
from process_tree import ProcessTree


def read_record(folder: Path) -> dict[str, object]:
    (path,) = folder.glob("*.json")
    return {"file": path.name, **json.loads(path.read_text())}


def test_a_campaign_records_the_outcome_of_every_try(tmp_path: Path):
    campaign = Campaigns(0.1, 7, tmp_path / "records").start("kill/ray prepare", 40)
    assert campaign.size == 4
    campaign.add("same bytes", 3)
    campaign.add("same bytes")
    campaign.finish(good=("same bytes",), bad=("stuck",), details="on a slow disk")
    record = read_record(tmp_path / "records")
    assert (record["file"], record["name"]) == ("kill-ray-prepare-7.json", "kill/ray prepare")
    assert (record["tries"], record["planned"], record["seed"]) == (4, 40, 7)
    assert record["outcomes"] == {"same bytes": 4, "stuck": 0}
    assert record["details"] == "on a slow disk"


def test_a_bad_outcome_is_recorded_and_fails(tmp_path: Path):
    campaign = Campaigns(1, 1, tmp_path).start("load", 10)
    campaign.add("stuck", 2, note="the reason")
    with pytest.raises(AssertionError, match=r"load, seed 1: \{'stuck': 2\}; the reason"):
        campaign.finish(good=("right",), bad=())
    assert read_record(tmp_path)["outcomes"] == {"right": 0, "stuck": 2}


def test_a_block_that_fails_is_recorded_without_tries(tmp_path: Path):
    campaign = Campaigns(1, 1, tmp_path).start("fuzz/readers", 10, part="config")
    with (
        pytest.raises(AssertionError, match="KeyError"),
        campaign.recording("read", lambda: 5),
    ):
        raise KeyError("a")
    record = read_record(tmp_path)
    assert (record["file"], record["outcomes"]) == ("fuzz-readers-config-1.json", {"read": 0, "failures": 1})


def test_the_moments_depend_on_the_seed_and_the_name():
    numbers = {
        (seed, name): Campaigns(1, seed, Path()).start(name, 1).random().random() for seed in (1, 2) for name in "ab"
    }
    assert len(set(numbers.values())) == 4
    assert Campaigns(1, 1, Path()).start("a", 1).random().random() == numbers[1, "a"]


def write_run(folder: Path, seconds: float, loss: float, weights: bytes = b"weights") -> dict[str, str]:
    checkpoint = folder / "checkpoints" / "step-00000003"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(weights)
    (checkpoint / "state.json").write_text(json.dumps({"step": 3, "seconds": seconds}))
    manifest = {"model.safetensors": "5a", "state.json": f"hash of {seconds}"}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    (folder / "metrics.jsonl").write_text(json.dumps({"loss": loss, "seconds": seconds}) + "\n")
    (folder / "report.html").write_text(f"{seconds} s")
    (folder / "events").mkdir()
    (folder / "events" / f"{seconds}").write_text("")
    return comparable_files(folder)


def test_times_do_not_count_and_everything_else_does(tmp_path: Path):
    first = write_run(tmp_path / "first", 1.0, 0.5)
    assert differences(write_run(tmp_path / "slower", 2.0, 0.5), first) == []
    other = write_run(tmp_path / "other", 1.0, 0.25, b"weightz")
    assert differences(other, first) == [
        "checkpoints/step-00000003/model.safetensors differs",
        "metrics.jsonl differs",
    ]
    (tmp_path / "other" / ".out.lock").touch()
    (tmp_path / "other" / "report.html").unlink()
    names = differences(comparable_files(tmp_path / "other"), other)
    assert names == ["report.html is missing", ".out.lock should not be there"]


CHILDREN = """
import subprocess, sys, time
code = "import os, time; open(f'{os.getpid()}.pid', 'w').close(); time.sleep(600)"
for is_new in (False, True):
    subprocess.Popen([sys.executable, "-c", code], start_new_session=is_new)
time.sleep(600)
"""


def test_a_killed_command_takes_the_sessions_of_its_children_with_it(tmp_path: Path):
    with ProcessTree([sys.executable, "-c", CHILDREN], tmp_path, tmp_path / "log", {}) as tree:
        deadline = time.monotonic() + 60
        while len(pids := [int(path.stem) for path in tmp_path.glob("*.pid")]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        tree.kill()
    assert tree.process.returncode == -9
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]
