"""The data of the campaigns: texts, a corpus, labelled files and a model, written once."""

from __future__ import annotations

import pytest
from campaign_commands import CampaignCommand, commands_on, write_data


@pytest.fixture(scope="session")
def campaign_commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CampaignCommand]:
    """The commands that write, by name."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return commands_on(write_data(tmp_path_factory.mktemp("data")))
    finally:
        torch.set_num_threads(num_threads)
