"""What an objective hands to the loop: parts that add up, frozen."""

from dataclasses import FrozenInstanceError

import pytest
import torch

from bertworks.objectives.loss import Loss, LossPart


def test_a_part_counts_right_answers_only_if_asked():
    assert LossPart(torch.tensor(6.0), 3).correct is None
    assert LossPart(torch.tensor(6.0), 3, 2).correct == 2


def test_a_loss_and_its_parts_cannot_be_changed():
    loss = Loss(torch.tensor(2.0), {"mlm": LossPart(torch.tensor(6.0), 3)})
    with pytest.raises(FrozenInstanceError):
        loss.value = torch.tensor(0.0)  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        loss.parts["mlm"].count = 4  # type: ignore[misc]
