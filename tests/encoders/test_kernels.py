"""The autograd functions: gradients equal to autograd's, with fewer saved tensors."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from bertworks.encoders.kernels import DropoutAttention, GatedGeluFeedForward, GeluFeedForward, Rotate


def random_doubles(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.double).requires_grad_()


def plain_attention(
    query_key_value: torch.Tensor, terms: torch.Tensor, dropout_mask: torch.Tensor, dropout_prob: float
) -> torch.Tensor:
    queries, keys, values = query_key_value.view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(queries @ keys.transpose(-2, -1) / 2 + terms, -1)  # the root of 4 is 2
    return (weights * dropout_mask / (1 - dropout_prob) @ values).transpose(1, 2).reshape(10, 8)


def make_masks() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.zeros(2, 1, 1, 5, dtype=torch.double)
    mask[1, ..., 3:] = float("-inf")
    return mask, torch.rand(2, 2, 5, 5, generator=torch.Generator().manual_seed(3)) > 0.2


def test_gradients_of_the_feed_forward_network_are_correct():
    arguments = (
        random_doubles(6, 8, seed=0),
        *(random_doubles(*s, seed=n) for n, s in enumerate([(32, 8), (32,), (8, 32), (8,)])),
    )
    assert torch.autograd.gradcheck(GeluFeedForward.apply, arguments)


def test_the_feed_forward_network_equals_plain_torch():
    values, intermediate_weight, intermediate_bias, output_weight, output_bias = (
        random_doubles(6, 8, seed=0),
        random_doubles(32, 8, seed=1),
        random_doubles(32, seed=2),
        random_doubles(8, 32, seed=3),
        random_doubles(8, seed=4),
    )
    plain = F.linear(F.gelu(F.linear(values, intermediate_weight, intermediate_bias)), output_weight, output_bias)
    torch.testing.assert_close(
        GeluFeedForward.apply(values, intermediate_weight, intermediate_bias, output_weight, output_bias), plain
    )


def test_the_gated_feed_forward_network_equals_plain_torch_and_its_gradients_are_correct():
    arguments = tuple(random_doubles(*shape, seed=seed) for seed, shape in enumerate([(6, 8), (24, 8), (8, 12)]))
    values, intermediate_weight, output_weight = arguments
    inputs, gates = F.linear(values, intermediate_weight).chunk(2, -1)
    torch.testing.assert_close(GatedGeluFeedForward.apply(*arguments), F.linear(F.gelu(inputs) * gates, output_weight))
    assert torch.autograd.gradcheck(GatedGeluFeedForward.apply, arguments)


def test_the_gated_feed_forward_network_saves_its_intermediate_values_once():
    arguments = [random_doubles(*shape, seed=seed) for seed, shape in enumerate([(60, 8), (24, 8), (8, 12)])]
    saved = saved_bytes(lambda: GatedGeluFeedForward.apply(*arguments))
    assert saved == 8 * (60 * 8 + 24 * 8 + 8 * 12 + 60 * 24)  # its inputs, and a and b together


def test_two_of_three_heads_are_rotated():
    angles = torch.tensor([[0.3], [-2.0]], dtype=torch.double)
    cosines, sines = angles.cos()[:, None], angles.sin()[:, None]
    vectors = torch.tensor([[1.0, 0.0, 0.0, 2.0, 5.0, 6.0]] * 2, dtype=torch.double)
    rotated = Rotate.apply(vectors.clone(), cosines, sines, 2)
    for row, angle in zip(rotated, angles[:, 0], strict=True):
        expected = [angle.cos(), angle.sin(), -2 * angle.sin(), 2 * angle.cos(), 5.0, 6.0]
        torch.testing.assert_close(row, torch.tensor(expected, dtype=torch.double))
    vectors = random_doubles(2, 6, seed=0)
    assert torch.autograd.gradcheck(lambda values: Rotate.apply(values * 1.0, cosines, sines, 2), (vectors,))


def test_gradients_of_attention_are_correct_with_a_mask_a_bias_and_dropout():
    mask, dropout_mask = make_masks()
    query_key_value, bias = random_doubles(10, 24, seed=5), random_doubles(1, 2, 5, 5, seed=6)
    assert torch.autograd.gradcheck(
        lambda values, bias: DropoutAttention.apply(values, bias, (2, 5, 2), mask, (dropout_mask, 0.2)),
        (query_key_value, bias),
    )


def test_attention_equals_plain_torch():
    mask, dropout_mask = make_masks()
    query_key_value, bias = random_doubles(10, 24, seed=5), random_doubles(1, 2, 5, 5, seed=6)
    result = DropoutAttention.apply(query_key_value, None, (2, 5, 2), mask, (dropout_mask, 0.2))
    torch.testing.assert_close(result, plain_attention(query_key_value, mask, dropout_mask, 0.2))
    result = DropoutAttention.apply(query_key_value, bias, (2, 5, 2), mask, None)
    no_dropout = torch.ones_like(dropout_mask)
    torch.testing.assert_close(result, plain_attention(query_key_value, mask + bias, no_dropout, 0.0))


def saved_bytes(compute: Callable[[], torch.Tensor]) -> int:
    """Return the bytes of distinct tensors that autograd saves for the backward pass."""
    sizes: dict[int, int] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        result = compute()
    assert result.requires_grad
    return sum(sizes.values())


def test_fewer_bytes_are_saved_than_by_autograd():
    values, intermediate_weight, output_weight = (
        random_doubles(64, 8, seed=0),
        random_doubles(32, 8, seed=1),
        random_doubles(8, 32, seed=2),
    )
    intermediate_bias, output_bias = random_doubles(32, seed=3), random_doubles(8, seed=4)
    ours = saved_bytes(
        lambda: GeluFeedForward.apply(values, intermediate_weight, intermediate_bias, output_weight, output_bias)
    )
    plain = saved_bytes(
        lambda: F.linear(F.gelu(F.linear(values, intermediate_weight, intermediate_bias)), output_weight, output_bias)
    )
    assert plain - ours >= 64 * 32 * 8 * 0.99  # one copy of the intermediate values
