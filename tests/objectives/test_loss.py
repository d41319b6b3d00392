"""The loss that an objective returns: parts that add up, frozen."""

from dataclasses import FrozenInstanceError

import pytest
import torch

from bertworks.objectives.loss import Loss, LossPart


def test_correct_predictions_are_optional():
    assert LossPart(torch.tensor(6.0), 3).correct is None
    assert LossPart(torch.tensor(6.0), 3, 2).correct == 2


def test_a_loss_and_its_parts_are_frozen():
    loss = Loss(torch.tensor(2.0), {"mlm": LossPart(torch.tensor(6.0), 3)})
    with pytest.raises(FrozenInstanceError):
        loss.value = torch.tensor(0.0)  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        loss.parts["mlm"].count = 4  # type: ignore[misc]
