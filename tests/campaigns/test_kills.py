"""The kill campaign: real commands are killed (SIGKILL, with all they started) at random moments, then run to the end.

The result must have the bytes of an uninterrupted run. `comparable` lists what may differ.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import Campaigns
from campaign_commands import CampaignCommand, commands_on
from killed_command import DIFFERENT, MAX_KILLS_PER_TRY, SAME, STUCK, draw_moment, run_killed, run_uninterrupted

# Kills of each command; 200 in total.
NUM_KILLS = {
    "prepare": 26,
    "vocab": 14,
    "pretrain": 24,
    "adapt": 14,
    "finetune": 24,
    "sweep": 10,
    "compare": 14,
    "embed": 20,
    "export": 16,
    "bundle": 18,
    "sharded": 10,
    "ray prepare": 4,
    "ray finetune": 6,
}


def test_the_campaign_has_two_hundred_kills(tmp_path):
    assert sum(NUM_KILLS.values()) == 200
    assert NUM_KILLS.keys() <= commands_on(tmp_path).keys()


@pytest.mark.soak
@pytest.mark.parametrize("name", NUM_KILLS)
def test_a_killed_command_comes_to_the_same_bytes(
    name: str, campaign_commands: dict[str, CampaignCommand], campaigns: Campaigns, tmp_path: Path
):
    command, campaign = campaign_commands[name], campaigns.start(f"kill/{name}", NUM_KILLS[name])
    reference, rng = run_uninterrupted(command, tmp_path / "work"), campaign.random()
    while (num_left := campaign.size - campaign.outcomes.total()) > 0:
        moments = [draw_moment(rng, reference) for _ in range(min(num_left, rng.randint(1, MAX_KILLS_PER_TRY)))]
        killed = run_killed(command, tmp_path / "work", moments, reference)
        campaign.add(killed.outcome, killed.num_kills, killed.note)
    campaign.finish(good=(SAME,), bad=(DIFFERENT, STUCK))
