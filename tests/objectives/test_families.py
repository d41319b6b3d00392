"""The MLM loss of every family against transformers: value and every gradient, in evaluation and in training mode."""

from __future__ import annotations

import pytest
import torch
from family_parity import assert_same_gradients, families_with, load_peer, make_peer, small_config

from bertworks.encoders.families import family_of
from bertworks.encoders.layers import DropoutSeeds
from bertworks.objectives.mlm import MlmModule
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-5
LENGTHS = {"full": (9, 9), "nearly full": (20, 19, 20), "ragged": (17, 3, 3, 8)}


def make_batch(lengths: tuple[int, ...], has_token_types: bool) -> Batch:
    """Sequences of these lengths, with every third token to predict; the padding token has the id 1."""
    generator, max_length = torch.Generator().manual_seed(1), max(lengths)
    input_ids = torch.randint(5, 70, (len(lengths), max_length), generator=generator)
    token_type_ids = torch.zeros_like(input_ids)
    for sequence, length in enumerate(lengths):
        token_type_ids[sequence, length // 2 : length] = int(has_token_types)
        input_ids[sequence, length:] = 1
    positions = torch.tensor(
        [
            sequence * max_length + position
            for sequence, length in enumerate(lengths)
            for position in range(1, length, 3)
        ]
    )
    targets = torch.randint(5, 70, positions.shape, generator=generator)
    return Batch(
        input_ids=input_ids,
        token_type_ids=token_type_ids,
        lengths=torch.tensor(lengths),
        positions=positions,
        targets=targets,
    )


@pytest.mark.parametrize("is_training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("model_type", families_with("mlm"))
def test_loss_and_gradients_equal_those_of_transformers(model_type: str, lengths: tuple[int, ...], is_training: bool):
    config, family = small_config(model_type), family_of(model_type)
    peer, heads = make_peer(config, "mlm"), {"mlm_head": "mlm"}
    ours = MlmModule(family.build(config, None), has_pair_head=False)
    load_peer(ours, peer, config, heads)
    batch = make_batch(lengths, family.has_token_types)
    assert batch.positions is not None
    assert batch.targets is not None
    seeds = DropoutSeeds(torch.tensor(3, dtype=torch.int32)) if is_training else None
    loss = ours.train(is_training)(batch, {"mlm": 1 / len(batch.targets)}, seeds).value
    loss.backward()
    labels = torch.full((batch.input_ids.numel(),), -100)
    labels[batch.positions] = batch.targets
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()
    token_types = {"token_type_ids": batch.token_type_ids} if family.has_token_types else {}
    expected = peer(batch.input_ids, mask, labels=labels.view_as(batch.input_ids), **token_types).loss
    expected.backward()
    assert abs(float(loss.detach() - expected.detach())) < TOLERANCE
    assert_same_gradients(ours, peer, config, heads, TOLERANCE)


@pytest.mark.parametrize("model_type", families_with("mlm"))
def test_the_activation_of_the_head_is_that_of_transformers(model_type: str):
    """RoBERTa and its kin, MPNet and ELECTRA have a head with gelu, whatever hidden_act is."""
    config, family = small_config(model_type).resized(hidden_act="relu"), family_of(model_type)
    peer = make_peer(config, "mlm")
    ours = MlmModule(family.build(config, None), has_pair_head=False).eval()
    load_peer(ours, peer, config, {"mlm_head": "mlm"})
    batch = make_batch((9, 9), has_token_types=False)
    assert batch.positions is not None
    with torch.no_grad():
        vectors = ours.encoder.transform_for_head(ours.encoder(batch)).gather(batch.positions)
        logits = ours.mlm_head(vectors, ours.encoder.token_embeddings.weight)
        expected = peer(batch.input_ids).logits.flatten(0, 1)[batch.positions]
    assert float((logits - expected).abs().max()) < TOLERANCE
