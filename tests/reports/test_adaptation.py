"""The part of the fine-tuning report on the adaptation: losses before and after, a curve, nothing without records."""

from pathlib import Path

from outline import outline

from bertworks.records import HeldOutRecord, Records, RunRecord, StepRecord
from bertworks.reports.adaptation import adaptation_part


def step(number: int, loss: float) -> StepRecord:
    return StepRecord(
        step=number,
        phase="adapt",
        losses={"mlm": loss},
        learning_rate=1e-4,
        seconds=6.0 * number,
        num_tokens=100 * number,
        grad_norm=1.0,
    )


def on_dev(number: int, loss: float) -> HeldOutRecord:
    return HeldOutRecord(step=number, phase="adapt", losses={"mlm": loss}, perplexity=2.0, accuracy=0.5)


def part_of(folder: Path, *records: RunRecord) -> str:
    with Records.open(folder, None) as run_records:
        for record in records:
            run_records.add(record)
    return adaptation_part(folder)


def test_the_losses_before_and_after_are_those_of_the_first_and_last_tenth(tmp_path: Path):
    losses = [5.0, 4.0, *[3.0] * 16, 2.0, 1.0]
    part = part_of(tmp_path, *(step(number, loss) for number, loss in enumerate(losses, 1)))
    words = outline(part).words
    assert "20 steps in 2 min. Loss 4.500 → 1.500 on the training texts." in words
    assert "Language-model loss: mlm" in words
    assert "dev" not in words


def test_texts_of_dev_have_their_own_dots(tmp_path: Path):
    part = part_of(tmp_path, on_dev(0, 6.0), step(1, 5.0), step(2, 3.0), on_dev(2, 4.0))
    assert "Loss 5.000 → 3.000 on the training texts, 6.000 → 4.000 on texts of dev" in outline(part).words
    assert "dev texts" in part


def test_a_run_without_adaptation_has_no_part(tmp_path: Path):
    assert adaptation_part(tmp_path / "adapt") == ""
