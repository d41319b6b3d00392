"""The hand-written ways back: equal to what autograd works out, and keeping less."""

import torch
import torch.nn.functional as F  # noqa: N812

from bertworks.encoders.kernels import DropoutAttention, GeluFeedForward


def doubles(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.double).requires_grad_()


def plain_attention(mixed: torch.Tensor, mask: torch.Tensor, stays: torch.Tensor, rate: float) -> torch.Tensor:
    queries, keys, values = mixed.view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    shares = torch.softmax(queries @ keys.transpose(-2, -1) / 2 + mask, -1)  # the root of 4 is 2
    return (shares * stays / (1 - rate) @ values).transpose(1, 2).reshape(10, 8)


def some_mask() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.zeros(2, 1, 1, 5, dtype=torch.double)
    mask[1, ..., 3:] = float("-inf")
    return mask, torch.rand(2, 2, 5, 5, generator=torch.Generator().manual_seed(3)) > 0.2


def test_the_slopes_of_the_feed_forward_network_are_right():
    arguments = (doubles(6, 8, seed=0), *(doubles(*s, seed=n) for n, s in enumerate([(32, 8), (32,), (8, 32), (8,)])))
    assert torch.autograd.gradcheck(GeluFeedForward.apply, arguments)


def test_the_feed_forward_network_equals_the_plain_one():
    values, inner, first, outer, second = (
        doubles(6, 8, seed=0),
        doubles(32, 8, seed=1),
        doubles(32, seed=2),
        doubles(8, 32, seed=3),
        doubles(8, seed=4),
    )
    plain = F.linear(F.gelu(F.linear(values, inner, first)), outer, second)
    torch.testing.assert_close(GeluFeedForward.apply(values, inner, first, outer, second), plain)


def test_the_slopes_of_attention_are_right_with_a_mask_and_dropped_scores():
    mask, stays = some_mask()
    mixed = doubles(10, 24, seed=5)
    assert torch.autograd.gradcheck(lambda one: DropoutAttention.apply(one, (2, 5, 2), mask, stays, 0.2), (mixed,))


def test_attention_equals_the_plain_one():
    mask, stays = some_mask()
    mixed = doubles(10, 24, seed=5)
    found = DropoutAttention.apply(mixed, (2, 5, 2), mask, stays, 0.2)
    torch.testing.assert_close(found, plain_attention(mixed, mask, stays, 0.2))


def bytes_kept(work) -> int:
    """Return how many bytes of different tensors autograd keeps for the way back."""
    found: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = work()
    assert result.requires_grad
    return sum(found.values())


def test_less_is_kept_than_autograd_would():
    values, inner, outer = doubles(64, 8, seed=0), doubles(32, 8, seed=1), doubles(8, 32, seed=2)
    first, second = doubles(32, seed=3), doubles(8, seed=4)
    ours = bytes_kept(lambda: GeluFeedForward.apply(values, inner, first, outer, second))
    plain = bytes_kept(lambda: F.linear(F.gelu(F.linear(values, inner, first)), outer, second))
    assert plain - ours >= 64 * 32 * 8 * 0.99  # one copy of the inner values
