"""The campaign of full disks: each command runs on a disk that is too small for it, then again with space.

It must say so in a sentence, and come to the bytes of an uninterrupted run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import Campaigns
from campaign_commands import CampaignCommand
from comparable import comparable_files, differences
from killed_command import PAGE_BYTES, run_uninterrupted
from small_disk import DiskResults, can_mount, run_on_small_disk

# Tries of each command.
NUM_TRIES = {
    "prepare": 10,
    "vocab": 10,
    "pretrain": 10,
    "adapt": 6,
    "finetune": 10,
    "sweep": 4,
    "compare": 6,
    "embed": 10,
    "export": 10,
    "export openvino": 6,
    "export int8": 6,
    "package": 6,
    "word-vectors": 6,
    "bundle": 10,
}
GOOD, UNEXPLAINED, STUCK, OTHER = "a sentence, then the same bytes", "no sentence", "stuck", "other bytes"
ENOUGH = "had enough space"


def judge(results: DiskResults, expected: dict[str, str]) -> tuple[str, str]:
    """Return the outcome of a try, and the reason of a bad one."""
    # 1: `compare` names what failed, and goes on with other members.
    is_explained = results.full_code in (1, 2) and "no space left" in " ".join(results.full_output.split())
    if "Traceback" in results.full_output or (results.full_code and not is_explained):
        return UNEXPLAINED, f"exit code {results.full_code}: {results.full_output[-500:]}"
    if results.full_code and results.free_code:  # a bundle that is complete is not written again
        return STUCK, results.free_output[-500:]
    different = differences(comparable_files(results.files), expected)
    if different:
        return OTHER, "; ".join(different[:5])
    return (GOOD, "") if results.full_code else (ENOUGH, "")


@pytest.mark.soak
@pytest.mark.parametrize("name", NUM_TRIES)
def test_a_full_disk_is_a_sentence_and_then_the_same_bytes(
    name: str, campaign_commands: dict[str, CampaignCommand], campaigns: Campaigns, tmp_path: Path
):
    campaign = campaigns.start(f"full disk/{name}", NUM_TRIES[name])
    if not can_mount():
        campaign.finish(good=(GOOD, ENOUGH), bad=(), details="not run: no tmpfs may be mounted here")
        return
    reference, rng = run_uninterrupted(campaign_commands[name], tmp_path / "disk"), campaign.random()
    for _ in range(campaign.size):
        # Files for people are small, so that sizes are drawn evenly over the orders of magnitude.
        size = int(PAGE_BYTES * (reference.num_bytes / PAGE_BYTES) ** rng.random())
        results = run_on_small_disk(campaign_commands[name], tmp_path, size)
        outcome, reason = judge(results, reference.files)
        campaign.add(outcome, note=reason and f"{size:,} bytes: {reason}")
    campaign.finish(good=(GOOD, ENOUGH), bad=(UNEXPLAINED, STUCK, OTHER))


@pytest.mark.parametrize(
    ("full", "free_code", "content", "outcome"),
    [
        ((2, "bertworks: cannot write out: no space left on the disk of /d; free some"), 0, "a", GOOD),
        ((1, "Failed: • bidirectional: cannot write out: no space\nleft on the disk"), 0, "a", GOOD),
        ((0, ""), 0, "a", ENOUGH),
        ((0, ""), 2, "a", ENOUGH),
        ((0, ""), 2, "b", OTHER),
        ((2, "bertworks: cannot write out: something else"), 0, "a", UNEXPLAINED),
        ((1, "Traceback\nOSError: no space left"), 0, "a", UNEXPLAINED),
        ((2, "no space left"), 2, "a", STUCK),
        ((2, "no space left"), 0, "b", OTHER),
    ],
)
def test_outcomes(full, free_code, content, outcome, tmp_path: Path):
    for name, text in (("expected", "a"), ("files", content)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "out").write_text(text)
    results = DiskResults(*full, free_code, "", tmp_path / "files")
    assert judge(results, comparable_files(tmp_path / "expected"))[0] == outcome
