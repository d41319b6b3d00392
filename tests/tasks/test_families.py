"""The loss of every head of every family against transformers: value and every gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from family_parity import assert_same_gradients, families_with, load_peer, make_peer, small_config

from bertworks.encoders.families import family_of
from bertworks.sampling.batch import Batch
from bertworks.tasks.answer import Answer
from bertworks.tasks.choose import Choose
from bertworks.tasks.classify import Classify
from bertworks.tasks.contract import Task
from bertworks.tasks.module import TaskModule
from bertworks.tasks.tag import Tag

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-5
NUM_SEQUENCES, LENGTH = 4, 11


@dataclass(frozen=True)
class HeadInputs:
    """A task, the targets of four sequences as our batch and transformers have them, and the number of labels."""

    task: Task
    batch: dict[str, Any]
    peer: dict[str, torch.Tensor]
    num_labels: int = 3
    choices: tuple[int, ...] = field(default=())  # the shape of the inputs before the positions


TOKEN_LABELS = torch.full((NUM_SEQUENCES * LENGTH,), -100)
TOKEN_LABELS[[2, 5, 14, 30, 43]] = torch.tensor([0, 2, 1, 0, 2])
CLASSES, STARTS, ENDS = torch.tensor([0, 2, 1, 2]), torch.tensor([1, 4, 0, 9]), torch.tensor([3, 4, 2, 10])
HEADS = {
    "sequence": HeadInputs(Classify(labels=("a", "b", "c")), {"labels": {"class": CLASSES}}, {"labels": CLASSES}),
    "tokens": HeadInputs(
        Tag(labels=("O", "B-X", "I-X")),
        {"positions": torch.tensor([2, 5, 14, 30, 43]), "targets": torch.tensor([0, 2, 1, 0, 2])},
        {"labels": TOKEN_LABELS.view(NUM_SEQUENCES, LENGTH)},
    ),
    "spans": HeadInputs(
        Answer(), {"labels": {"start": STARTS, "end": ENDS}}, {"start_positions": STARTS, "end_positions": ENDS}, 2
    ),
    "choices": HeadInputs(
        Choose(),
        {"labels": {"num_units": torch.tensor([2, 2]), "choice": torch.tensor([1, 0])}},
        {"labels": torch.tensor([1, 0])},
        choices=(2, 2),
    ),
}


@pytest.mark.parametrize(
    ("kind", "model_type"), [(kind, model_type) for kind in HEADS for model_type in families_with(kind)]
)
def test_loss_and_gradients_of_a_head_equal_those_of_transformers(kind: str, model_type: str):
    config, family, inputs = small_config(model_type), family_of(model_type), HEADS[kind]
    peer = make_peer(config, kind, inputs.num_labels)
    ours = TaskModule(family.build(config, None), inputs.task).eval()
    load_peer(ours, peer, config, {"head": kind})
    input_ids = torch.randint(5, 70, (NUM_SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(2))
    token_type_ids = (torch.arange(LENGTH) >= 6).long().expand_as(input_ids) * int(family.has_token_types)
    lengths = torch.full((NUM_SEQUENCES,), LENGTH)
    batch = Batch(input_ids=input_ids, token_type_ids=token_type_ids, lengths=lengths, **inputs.batch)
    loss = ours(batch, {"task": 1 / inputs.task.num_targets(batch)}).value
    loss.backward()
    tensors = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    if family.has_token_types:
        tensors["token_type_ids"] = token_type_ids
    if inputs.choices:
        tensors = {name: values.view(*inputs.choices, LENGTH) for name, values in tensors.items()}
    expected = peer(**tensors, **inputs.peer).loss
    expected.backward()
    assert abs(float(loss.detach() - expected.detach())) < TOLERANCE
    assert_same_gradients(ours, peer, config, {"head": kind}, TOLERANCE)
