"""TensorBoard events: what they hold, and which of them count after a resume."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from file_size import max_file_size

from bertworks.errors import FolderError, MissingDependencyError
from bertworks.records import HeldOutRecord, SampleRecord, StepRecord
from bertworks.training.events import EventsWriter


def step(number: int, loss: float = 2.5) -> StepRecord:
    return StepRecord(
        step=number,
        phase="128",
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
    scalars = read_events(tmp_path)
    assert scalars["loss/mlm"] == [(1, 2.5), (2, 2.25)]
    assert scalars["loss/nsp"] == [(1, 0.5), (2, 0.5)]
    assert scalars["tokens_per_second"] == [(1, 50.0), (2, 50.0)]  # 100 tokens in 2 seconds
    assert scalars["grad_norm"] == [(1, 1.25), (2, 1.25)]
    assert scalars["held_out/accuracy"] == [(2, 0.625)]
    assert scalars["held_out/pair_accuracy"] == [(2, 0.75)]
    assert scalars["held_out/mlm"] == [(2, 2.0)]
    assert set(scalars) == {
        *("loss/mlm", "loss/nsp", "learning_rate", "grad_norm", "tokens_per_second"),
        *("held_out/mlm", "held_out/perplexity", "held_out/accuracy", "held_out/pair_accuracy"),
    }


def test_events_after_the_checkpoint_are_hidden_on_resume(tmp_path):
    first = EventsWriter(tmp_path, None)
    for number in (1, 2, 3):
        first.add(step(number, 1.0))
    first.close()
    second = EventsWriter(tmp_path, 2)
    for number in (3, 4):
        second.add(step(number, 5.0))
    second.close()
    scalars = read_events(tmp_path)
    assert scalars["loss/mlm"] == [(1, 1.0), (2, 1.0), (3, 5.0), (4, 5.0)]
    assert scalars["tokens_per_second"] == [
        (1, 50.0),
        (2, 50.0),
        (4, 50.0),
    ]  # unknown at the first resumed step


def test_events_without_tensorboard_name_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'bertworks\[tensorboard\]'"):
        EventsWriter(tmp_path, None)


def test_a_disk_that_takes_no_more_is_an_error_of_that_record(tmp_path):
    events = EventsWriter(tmp_path, None)
    events.add(sample(1))
    with max_file_size(100), pytest.raises(FolderError, match=r"cannot write .*events: .*too large"):
        events.add(sample(2))
    events.close()
