"""The records of a run: what is written, what survives a kill, what is truncated when the run resumes."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bertworks.errors import FolderError
from bertworks.records import (
    HeldOutRecord,
    History,
    Records,
    RunRecord,
    SampleRecord,
    StepRecord,
    read_records,
)


def step(number: int, loss: float = 2.5, phase: str = "128") -> StepRecord:
    return StepRecord(
        step=number,
        phase=phase,
        losses={"mlm": loss, "nsp": 0.5},
        learning_rate=1e-4,
        seconds=2.0 * number,
        num_tokens=100 * number,
        grad_norm=1.25,
    )


def held_out(number: int) -> HeldOutRecord:
    return HeldOutRecord(
        step=number, phase="128", losses={"mlm": 2.0}, perplexity=7.389, accuracy=0.625, pair_accuracy=0.75
    )


def sample(number: int) -> SampleRecord:
    return SampleRecord(number, "a [MASK] b [MASK]", ((("x", 0.5), ("##y", 0.25)), (("京", 1.0),)))


def write(folder: Path, *records: RunRecord, last_step: int | None = None) -> int:
    with Records.open(folder, last_step) as opened:
        for record in records:
            opened.add(record)
        return opened.num_truncated


def test_lines_have_the_documented_keys(tmp_path):
    write(tmp_path, step(1), held_out(1), sample(1))
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert metrics == [
        {
            "kind": "step",
            "step": 1,
            "phase": "128",
            "losses": {"mlm": 2.5, "nsp": 0.5},
            "learning_rate": 1e-4,
            "seconds": 2.0,
            "num_tokens": 100,
            "grad_norm": 1.25,
        },
        {
            "kind": "held_out",
            "step": 1,
            "phase": "128",
            "losses": {"mlm": 2.0},
            "perplexity": 7.389,
            "accuracy": 0.625,
            "pair_accuracy": 0.75,
        },
    ]
    assert json.loads((tmp_path / "samples.jsonl").read_text(encoding="utf-8")) == {
        "kind": "sample",
        "step": 1,
        "text": "a [MASK] b [MASK]",
        "predictions": [[["x", 0.5], ["##y", 0.25]], [["京", 1.0]]],
    }


def test_records_are_read_back_metrics_first(tmp_path):
    without_nsp = HeldOutRecord(
        step=3, phase="512", losses={"mlm": 1.0}, perplexity=math.e, accuracy=0.5, pair_accuracy=None
    )
    write(tmp_path, sample(1), step(1), held_out(2), without_nsp)
    assert list(read_records(tmp_path)) == [step(1), held_out(2), without_nsp, sample(1)]


def test_texts_with_line_breaks_stay_on_one_line(tmp_path):
    record = SampleRecord(1, "a\nb\r\u2028c\u0085d", ((("\n", 0.5),),))
    write(tmp_path, record)
    assert list(read_records(tmp_path)) == [record]


def test_nonfinite_losses_are_valid_json_and_read_back(tmp_path):
    write(tmp_path, step(1, math.nan), step(2, math.inf), step(3, -math.inf))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    assert [json.loads(line, parse_constant=refuse)["losses"]["mlm"] for line in lines] == ["nan", "inf", "-inf"]
    losses = [record.losses["mlm"] for record in read_records(tmp_path) if isinstance(record, StepRecord)]
    assert math.isnan(losses[0])
    assert losses[1:] == [math.inf, -math.inf]


def test_a_folder_without_records_yields_none(tmp_path):
    assert list(read_records(tmp_path)) == []


def test_an_incomplete_last_line_is_not_read(tmp_path):
    write(tmp_path, step(1), step(2))
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])  # without its newline the line may be incomplete
    assert list(read_records(tmp_path)) == [step(1)]


def test_an_incomplete_last_line_is_truncated_on_resume(tmp_path):
    write(tmp_path, step(1), step(2))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "step", "st')
    assert write(tmp_path, step(3), last_step=2) == 1
    assert list(read_records(tmp_path)) == [step(1), step(2), step(3)]


def test_zeros_after_a_power_failure_are_truncated(tmp_path):
    write(tmp_path, step(1))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b"\0" * 300)
    assert write(tmp_path, step(2), last_step=1) == 1
    assert list(read_records(tmp_path)) == [step(1), step(2)]


@pytest.mark.parametrize("line", [b"\0" * 30 + b"\n", b'{"kind": "step", "st\n', b"{}\n"])
def test_a_damaged_line_among_the_steps_of_the_checkpoint_is_named(tmp_path, line):
    write(tmp_path, step(1), step(2), step(3))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + line + lines[2])
    with pytest.raises(FolderError, match=r"metrics\.jsonl, line 2 is not a record .* delete that line"):
        Records.open(tmp_path, 3)
    assert path.read_bytes() == lines[0] + line + lines[2]
    assert write(tmp_path, step(2), last_step=1) == 2  # after the checkpoint damage does not matter
    assert list(read_records(tmp_path)) == [step(1), step(2)]


@pytest.mark.parametrize("steps", [(1, 2, 1), (1, 2, 2), (1, 9, 2)])
def test_records_of_two_runs_in_one_file_are_refused(tmp_path, steps):
    write(tmp_path, *map(step, steps))
    with pytest.raises(FolderError, match=r"metrics\.jsonl, line 3 is of step \d, after one of step \d: two runs"):
        Records.open(tmp_path, 2)


def test_steps_after_the_checkpoint_are_truncated_in_both_files(tmp_path):
    write(tmp_path, step(1), step(2), held_out(2), sample(2), step(3), held_out(4), sample(4))
    # Removed: step 3, and the held-out scores and the sample of step 4.
    assert write(tmp_path, step(3, loss=9.0), last_step=2) == 3
    assert list(read_records(tmp_path)) == [step(1), step(2), held_out(2), step(3, loss=9.0), sample(2)]


def test_resuming_at_the_last_record_truncates_nothing(tmp_path):
    write(tmp_path, step(1), step(2))
    assert write(tmp_path, step(3), last_step=2) == 0
    assert list(read_records(tmp_path)) == [step(1), step(2), step(3)]


def test_starting_from_scratch_truncates_even_scores_before_the_first_step(tmp_path):
    write(tmp_path, held_out(0), step(1))
    assert write(tmp_path, held_out(0), last_step=None) == 2
    assert list(read_records(tmp_path)) == [held_out(0)]
    assert write(tmp_path, last_step=0) == 0
    assert list(read_records(tmp_path)) == [held_out(0)]


def test_every_added_record_survives_a_kill(tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from bertworks.records import Records, SampleRecord, StepRecord
records = Records.open(Path(sys.argv[1]), None)
for number in range(1, 51):
    records.add(StepRecord(
        step=number, phase="128", losses={"mlm": 1.0}, learning_rate=0.0, seconds=1.0, num_tokens=1, grad_norm=1.0
    ))
records.add(SampleRecord(50, "[MASK]", ((("x", 0.5),),)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert killed.returncode == -signal.SIGKILL
    assert [record.step for record in read_records(tmp_path)] == [*range(1, 51), 50]


def test_sync_keeps_the_records_open(tmp_path):
    with Records.open(tmp_path, None) as records:
        records.add(step(1))
        records.sync()
        records.add(step(2))
    assert list(read_records(tmp_path)) == [step(1), step(2)]


@pytest.mark.parametrize(
    "line",
    ["not JSON", "[1]", '{"kind": "other", "step": 2}', '{"kind": "step", "step": 2}', '{"step": 2}'],
)
def test_a_foreign_line_is_refused_with_its_location(tmp_path, line):
    write(tmp_path, step(1))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(FolderError, match=r"metrics\.jsonl, line 2 is not a record .* delete that line"):
        list(read_records(tmp_path))


def test_a_full_disk_is_named_also_when_the_records_are_closed(tmp_path):
    full, samples = (path.open("ab") for path in (Path("/dev/full"), tmp_path / "samples.jsonl"))
    with pytest.raises(FolderError, match="no space left on the disk of /dev;"), Records(full, samples, 0) as records:
        records.add(step(1))
    assert full.closed
    assert samples.closed


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=r"file/run: a part of that path is a file"):
        Records.open(tmp_path / "file" / "run", None)


def test_history_has_columns_and_starts_of_phases(tmp_path):
    write(tmp_path, step(1), held_out(1), step(2, 2.25), step(3, 2.0, phase="512"), sample(3))
    history = History.read(tmp_path)
    assert history.column("step").tolist() == [1, 2, 3]
    assert history.column("num_tokens").tolist() == [100, 200, 300]
    assert [list(column) for column in history.losses["mlm"]] == [[1, 2, 3], [2.5, 2.25, 2.0]]
    assert history.phases == [(1, "128"), (3, "512")]
    assert (history.held_out, history.samples, history.read_errors) == ([held_out(1)], [sample(3)], [])


def test_history_keeps_records_before_a_damaged_line_and_of_the_other_file(tmp_path):
    write(tmp_path, step(1), sample(1))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("damaged\n")
    history = History.read(tmp_path)
    assert history.column("step").tolist() == [1]
    assert history.samples == [sample(1)]
    assert ["line 2" in sentence for sentence in history.read_errors] == [True]


@pytest.mark.parametrize(
    "line",
    [
        "[" * 5_000,
        '{"kind": "step"}',
        '{"kind": ["step"], "step": 1}',
        '{"kind": "score", "step": 1, "split": "dev", "metrics": [1]}',
        '{"kind": "score", "step": 1e999, "split": "dev", "metrics": {}}',
        '{"kind": "score", "step": -1, "split": "dev", "metrics": {}}',
        '{"kind": "score", "step": 1' + "0" * 400 + ', "split": "dev", "metrics": {}}',
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(FolderError, match=r"metrics\.jsonl, line 1 is not a record of a run") as error:
        list(read_records(tmp_path))
    assert "\n" not in str(error.value)
