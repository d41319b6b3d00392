"""The record of a run: what is written, what survives a kill, what is cut when the run goes on."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bertworks.errors import FolderError, MissingDependencyError
from bertworks.records import (
    EventsWriter,
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
        losses={"masked": loss, "pair": 0.5},
        learning_rate=1e-4,
        seconds=2.0 * number,
        num_tokens=100 * number,
        grad_norm=1.25,
    )


def held_out(number: int) -> HeldOutRecord:
    return HeldOutRecord(
        step=number, phase="128", losses={"masked": 2.0}, perplexity=7.389, accuracy=0.625, pair_accuracy=0.75
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
            "losses": {"masked": 2.5, "pair": 0.5},
            "rate": 1e-4,
            "seconds": 2.0,
            "pieces": 100,
            "grad_norm": 1.25,
        },
        {
            "kind": "held_out",
            "step": 1,
            "phase": "128",
            "losses": {"masked": 2.0},
            "perplexity": 7.389,
            "accuracy": 0.625,
            "pair_accuracy": 0.75,
        },
    ]
    assert json.loads((tmp_path / "samples.jsonl").read_text(encoding="utf-8")) == {
        "kind": "sample",
        "step": 1,
        "text": "a [MASK] b [MASK]",
        "filled": [[["x", 0.5], ["##y", 0.25]], [["京", 1.0]]],
    }


def test_what_was_written_is_read_back_metrics_first(tmp_path):
    without_pairs = HeldOutRecord(
        step=3, phase="512", losses={"masked": 1.0}, perplexity=math.e, accuracy=0.5, pair_accuracy=None
    )
    write(tmp_path, sample(1), step(1), held_out(2), without_pairs)
    assert list(read_records(tmp_path)) == [step(1), held_out(2), without_pairs, sample(1)]


def test_texts_with_line_breaks_of_all_kinds_stay_one_line(tmp_path):
    record = SampleRecord(1, "a\nb\r\u2028c\u0085d", ((("\n", 0.5),),))
    write(tmp_path, record)
    assert list(read_records(tmp_path)) == [record]


def test_losses_that_are_not_finite_are_valid_json_and_come_back(tmp_path):
    write(tmp_path, step(1, math.nan), step(2, math.inf), step(3, -math.inf))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    assert [json.loads(line, parse_constant=refuse)["losses"]["masked"] for line in lines] == ["nan", "inf", "-inf"]
    found = [record.losses["masked"] for record in read_records(tmp_path) if isinstance(record, StepRecord)]
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


def test_a_folder_without_records_yields_none(tmp_path):
    assert list(read_records(tmp_path)) == []


def test_a_torn_last_line_is_not_read(tmp_path):
    write(tmp_path, step(1), step(2))
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])  # whole but for its end: more may have been meant
    assert list(read_records(tmp_path)) == [step(1)]


def test_a_torn_last_line_is_cut_when_the_run_goes_on(tmp_path):
    write(tmp_path, step(1), step(2))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "step", "st')
    assert write(tmp_path, step(3), last_step=2) == 1
    assert list(read_records(tmp_path)) == [step(1), step(2), step(3)]


def test_zeros_that_a_power_cut_left_are_cut(tmp_path):
    write(tmp_path, step(1))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b"\0" * 300)
    assert write(tmp_path, step(2), last_step=1) == 1
    assert list(read_records(tmp_path)) == [step(1), step(2)]


def test_steps_after_the_checkpoint_are_cut_from_both_files(tmp_path):
    write(tmp_path, step(1), step(2), held_out(2), sample(2), step(3), held_out(4), sample(4))
    # Cut are step 3, the held-out scores of step 4 and its sample.
    assert write(tmp_path, step(3, loss=9.0), last_step=2) == 3
    assert list(read_records(tmp_path)) == [step(1), step(2), held_out(2), step(3, loss=9.0), sample(2)]


def test_resuming_where_the_record_ends_cuts_nothing(tmp_path):
    write(tmp_path, step(1), step(2))
    assert write(tmp_path, step(3), last_step=2) == 0
    assert list(read_records(tmp_path)) == [step(1), step(2), step(3)]


def test_starting_from_nothing_cuts_even_what_was_scored_before_the_first_step(tmp_path):
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
    records.add(StepRecord(number, "128", {"masked": 1.0}, 0.0, 1.0, 1, 1.0))
records.add(SampleRecord(50, "[MASK]", ((("x", 0.5),),)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert killed.returncode == -signal.SIGKILL
    assert [record.step for record in read_records(tmp_path)] == [*range(1, 51), 50]


def test_syncing_leaves_the_record_open(tmp_path):
    with Records.open(tmp_path, None) as records:
        records.add(step(1))
        records.sync()
        records.add(step(2))
    assert list(read_records(tmp_path)) == [step(1), step(2)]


@pytest.mark.parametrize(
    "line",
    ["not JSON", "[1]", '{"kind": "wish", "step": 2}', '{"kind": "step", "step": 2}', '{"step": 2}'],
)
def test_a_foreign_line_is_refused_with_its_place(tmp_path, line):
    write(tmp_path, step(1))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(FolderError, match=r"metrics\.jsonl, line 2 is not a record .* delete that line"):
        list(read_records(tmp_path))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=r"file/run: a part of that path is a file"):
        Records.open(tmp_path / "file" / "run", None)


def test_history_holds_columns_and_the_starts_of_phases(tmp_path):
    write(tmp_path, step(1), held_out(1), step(2, 2.25), step(3, 2.0, phase="512"), sample(3))
    history = History.read(tmp_path)
    assert history.column("step").tolist() == [1, 2, 3]
    assert history.column("pieces").tolist() == [100, 200, 300]
    assert [list(column) for column in history.losses["masked"]] == [[1, 2, 3], [2.5, 2.25, 2.0]]
    assert history.phases == [(1, "128"), (3, "512")]
    assert (history.held_out, history.samples, history.read_errors) == ([held_out(1)], [sample(3)], [])


def test_history_keeps_what_stands_before_a_damaged_line_and_the_other_file(tmp_path):
    write(tmp_path, step(1), sample(1))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("damaged\n")
    history = History.read(tmp_path)
    assert history.column("step").tolist() == [1]
    assert history.samples == [sample(1)]
    assert ["line 2" in sentence for sentence in history.read_errors] == [True]


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "events"))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_events_mirror_steps_and_held_out_scores(tmp_path):
    events = EventsWriter(tmp_path, None)
    for record in (step(1), step(2, 2.25), held_out(2), sample(2)):
        events.add(record)
    events.close()
    found = read_events(tmp_path)
    assert found["loss/masked"] == [(1, 2.5), (2, 2.25)]
    assert found["loss/pair"] == [(1, 0.5), (2, 0.5)]
    assert found["pieces_per_second"] == [(1, 50.0), (2, 50.0)]  # 100 pieces in 2 seconds
    assert found["grad_norm"] == [(1, 1.25), (2, 1.25)]
    assert found["held_out/accuracy"] == [(2, 0.625)]
    assert found["held_out/pair_accuracy"] == [(2, 0.75)]
    assert found["held_out/masked"] == [(2, 2.0)]
    assert set(found) == {
        *("loss/masked", "loss/pair", "rate", "grad_norm", "pieces_per_second"),
        *("held_out/masked", "held_out/perplexity", "held_out/accuracy", "held_out/pair_accuracy"),
    }


def test_events_after_the_checkpoint_are_hidden_when_the_run_goes_on(tmp_path):
    first = EventsWriter(tmp_path, None)
    for number in (1, 2, 3):
        first.add(step(number, 1.0))
    first.close()
    second = EventsWriter(tmp_path, 2)
    for number in (3, 4):
        second.add(step(number, 5.0))
    second.close()
    found = read_events(tmp_path)
    assert found["loss/masked"] == [(1, 1.0), (2, 1.0), (3, 5.0), (4, 5.0)]
    assert found["pieces_per_second"] == [(1, 50.0), (2, 50.0), (4, 50.0)]  # unknown for the first step after a resume


def test_events_without_tensorboard_name_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'bertworks\[tensorboard\]'"):
        EventsWriter(tmp_path, None)
