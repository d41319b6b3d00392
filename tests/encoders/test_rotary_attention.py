"""Rotary attention: angles, the reach of local attention, and long sequences in blocks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bertworks.encoders.encoded import BatchLayout, create_layout
from bertworks.encoders.rotary_attention import RotaryAttention, RotaryLayout, rotary_layout, rotation_angles
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
THETAS = (160_000.0, 10_000.0)


def make_layout(lengths: tuple[int, ...], reach: int, attention: str | torch.Tensor = "bidirectional") -> RotaryLayout:
    input_ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    batch = Batch(input_ids=input_ids, token_type_ids=input_ids, lengths=torch.tensor(lengths))
    return rotary_layout(create_layout(batch, attention), 4, THETAS, reach)


def local_of(layout: RotaryLayout) -> RotaryLayout:
    assert layout.local is not None
    return layout.local


def make_attention(dropout_prob: float = 0.0) -> RotaryAttention:
    attention = RotaryAttention(8, 2, dropout_prob).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5, generator=generator)
    return attention


def make_inputs(layout: BatchLayout) -> torch.Tensor:
    num_tokens = layout.shape[0] * layout.shape[1] if layout.index is None else len(layout.index)
    return torch.randn(num_tokens, 8, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def test_the_first_plane_turns_by_one_radian_a_position_and_the_others_more_slowly():
    angles = rotation_angles(4, 4, 10_000.0, torch.device("cpu"))
    assert angles[:, 0].tolist() == [0, 1, 2, 3]
    assert angles[:, 1].tolist() == pytest.approx([0, 0.01, 0.02, 0.03])  # 10,000 to the power of -2/4


def test_positions_restart_in_each_packed_sequence():
    rotation = make_layout((5, 2, 3), 9).rotation
    assert rotation.sines[:, 0, 0].tolist() == pytest.approx([math.sin(p) for p in (0, 1, 2, 3, 4, 0, 1, 0, 1, 2)])


@pytest.mark.parametrize("length", [8, 30], ids=["with a mask", "in blocks"])
def test_local_attention_reaches_exactly_so_many_positions_to_each_side(length: int):
    layout, attention = local_of(make_layout((length,), 2)), make_attention()
    assert (layout.groups[0].reach == 2) == (length == 30)
    for position in (0, 1, 5, length - 2):
        inputs = make_inputs(layout).requires_grad_()
        attention(inputs, layout, None)[position].sum().backward()
        assert inputs.grad is not None
        visible = inputs.grad.abs().amax(1).nonzero().flatten().tolist()
        assert visible == [other for other in range(length) if abs(other - position) <= 2]


def test_sequences_within_the_reach_have_no_mask():
    layout = local_of(make_layout((5, 5), 4))
    assert (layout.groups[0].mask, layout.groups[0].reach) == (None, None)
    assert local_of(make_layout((6, 6), 4)).groups[0].mask is not None


@pytest.mark.parametrize("lengths", [(24, 24), (25, 25, 24), (40, 40, 40, 40, 40, 25), (30, 7)], ids=str)
def test_blocks_equal_a_mask_of_all_pairs(lengths: tuple[int, ...]):
    layout, attention = local_of(make_layout(lengths, 4)), make_attention()
    assert layout.groups[0].reach == 4
    groups = []
    for group in layout.groups:
        positions = torch.arange(group.length)
        is_token = positions < group.length if group.mask is None else group.mask == 0
        is_near = (positions - positions[:, None]).abs() <= 4
        mask = torch.zeros(()).masked_fill(~(is_near & is_token | torch.eye(group.length).bool()), -torch.inf)
        groups.append(replace(group, mask=mask.expand(group.num_sequences, 1, -1, -1), reach=None))
    masked = replace(layout, groups=tuple(groups))
    results = []
    for one in (layout, masked):
        inputs = make_inputs(layout).requires_grad_()
        context = attention(inputs, one, None)
        context.square().sum().backward()
        results.append((context, inputs.grad))
    for blocks, pairs in zip(*results, strict=True):
        torch.testing.assert_close(blocks, pairs, rtol=0, atol=1e-10)


def test_attention_weights_of_long_sequences_are_zero_beyond_the_reach():
    layout, attention = local_of(make_layout((24,), 4)), make_attention()
    weights = attention.attention_weights(make_inputs(layout), layout)  # (1, 2, 24, 24)
    positions = torch.arange(24)
    is_near = (positions - positions[:, None]).abs() <= 4
    assert torch.equal(weights > 0, is_near.expand_as(weights))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 24, dtype=torch.double))


def test_padding_beyond_the_reach_of_any_token_is_finite():
    # The last sequence ends 15 positions before the others, and local attention reaches 2.
    layout, attention = local_of(make_layout((20,) * 15 + (5,), 2)), make_attention()
    assert layout.index is None
    assert attention(make_inputs(layout), layout, None).isfinite().all()
    short = local_of(make_layout((8,) * 15 + (2,), 2))  # with a mask instead of blocks
    assert attention(make_inputs(short), short, None).isfinite().all()


def test_a_given_mask_is_limited_to_the_reach():
    is_past = torch.ones(30, 30, dtype=torch.bool).tril()
    layout = local_of(make_layout((30,), 2, is_past[None]))
    mask = layout.groups[0].mask
    assert mask is not None
    assert [mask[0, 0, 9, other].item() == 0 for other in range(6, 12)] == [False, True, True, True, False, False]


def test_dropout_in_blocks_follows_the_seed():
    layout, attention = local_of(make_layout((24,), 4)), make_attention(0.5)
    inputs = make_inputs(layout)
    first, again, other = (attention(inputs, layout, torch.tensor(seed, dtype=torch.int32)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
