"""Cross entropy over a vocabulary: vectors and the output layer in, the loss and its gradients out.

P positions, D hidden size, V vocabulary. The (P, V) logits are the largest tensor of pretraining. They are computed a
block of positions at a time, together with the gradients, so that a block is still in the cache and the whole tensor
never exists. In bf16 the softmax accumulates in fp32, and a block has twice as many positions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd.function import once_differentiable

from bertworks.encoders.linear import cast_weight, compute_dtype, linear
from bertworks.objectives.loss import LossPart

# Logits of one block: 32 MB of floats.
_BLOCK = 8 * 2**20
# The same in bf16 and fp16: 64 MB. More positions need fewer additions to the gradient of the table.
_HALF_BLOCK = 4 * _BLOCK
_HALF_DTYPES = (torch.bfloat16, torch.float16)


def block_size(vocab_size: int, dtype: torch.dtype = torch.float32) -> int:
    """Return the number of positions whose logits are computed at once."""
    return max(1, (_HALF_BLOCK if dtype in _HALF_DTYPES else _BLOCK) // vocab_size)


def logits_bytes(num_targets: int, vocab_size: int) -> int:
    """Return the memory of a block of logits with their gradients, in the precision that needs more."""
    return max(
        2 * dtype.itemsize * min(num_targets, block_size(vocab_size, dtype)) * vocab_size
        for dtype in (torch.float32, torch.bfloat16)
    )


class _ScaledCrossEntropy(torch.autograd.Function):
    """scale * sum of the cross entropies with label smoothing; the gradients are computed with the value."""

    @staticmethod
    def forward(
        ctx: Any,
        vectors: torch.Tensor,
        table: torch.Tensor,
        bias: torch.Tensor,
        targets: torch.Tensor,
        scale: float,
        smoothing: float,
    ) -> torch.Tensor:
        dtype = compute_dtype(vectors)
        block_loss = _half_block_loss if dtype in _HALF_DTYPES else _block_loss
        total = bias.new_zeros(())
        vectors_grad = torch.empty_like(vectors, dtype=table.dtype)
        table_grad = torch.empty_like(table) if len(vectors) else torch.zeros_like(table)
        bias_grad = torch.zeros_like(bias)
        size = block_size(len(table), dtype)
        cast_table = cast_weight(table, dtype)
        for start in range(0, len(vectors), size):
            block, index = vectors[start : start + size].to(dtype), targets[start : start + size, None]
            loss, logits_grad = block_loss(block, cast_table, bias, index, smoothing)  # (), (size, V)
            total += loss
            bias_grad += logits_grad.sum(0)
            _matmul_into(vectors_grad[start : start + size], logits_grad, cast_table, scale, accumulate=False)
            _matmul_into(table_grad, logits_grad.t(), block, scale, accumulate=start > 0)
            del logits_grad  # before the next block is allocated
        # Not by save_for_backward: autograd copies a gradient that is referenced elsewhere, and this is the largest.
        ctx.grads = (vectors_grad.to(vectors.dtype), table_grad, bias_grad.mul_(scale))
        return total * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grads, ctx.grads = ctx.grads, None
        if float(grad_output) != 1.0:
            for grad in grads:
                grad.mul_(grad_output)
        return (*grads, None, None, None)


def _block_loss(
    vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, index: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed cross entropy of some positions, and the gradient of their logits (P, V)."""
    uniform_target = smoothing / len(table)
    log_probs = F.log_softmax(_logits(vectors, table, bias), -1)  # (P, V)
    loss = log_probs.gather(1, index).sum() * (smoothing - 1)
    if smoothing:
        loss -= log_probs.sum() * uniform_target
    logits_grad = log_probs.exp_()
    if smoothing:
        logits_grad -= uniform_target
    return loss, logits_grad.scatter_add_(1, index, logits_grad.new_full(index.shape, smoothing - 1.0))


def _half_block_loss(
    vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, index: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same in bf16 or fp16: one matmul and one softmax, which accumulate in fp32.

    A softmax does not change where all logits change alike. Without the mean of the bias, which is far from zero (most
    words are rare), logits are smaller and lose less to rounding.
    """
    logits = linear(vectors, table, (bias - bias.mean()).to(vectors.dtype))  # (P, V)
    probs = torch.softmax(logits, -1).to(logits.dtype)
    log_probs = probs.gather(1, index).to(bias.dtype).clamp_(min=torch.finfo(bias.dtype).tiny).log_()  # (P, 1)
    loss = -log_probs.sum()
    if smoothing:
        uniform_target = smoothing / len(table)
        log_sums = logits.gather(1, index).to(bias.dtype) - log_probs  # log(sum(exp(logits)))
        mean_log_probs = logits.mean(1, keepdim=True, dtype=bias.dtype) - log_sums
        loss = (1 - smoothing) * loss - smoothing * mean_log_probs.sum()
        probs -= uniform_target
    return loss, probs.scatter_add_(1, index, probs.new_full(index.shape, smoothing - 1.0))


def _logits(vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return vectors @ table.T + bias, in the dtype of the bias."""
    if vectors.dtype == bias.dtype:
        return torch.addmm(bias, vectors, table.t())
    return (vectors @ table.t()).to(bias.dtype).add_(bias)


def _matmul_into(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor, scale: float, accumulate: bool) -> None:
    """Write scale * left @ right to `out`, or add it, in the dtype of `out`."""
    if left.dtype == out.dtype:
        out.addmm_(left, right, beta=float(accumulate), alpha=scale)
        return
    if right.numel() < out.numel():  # scale the smaller tensor
        right, scale = right * scale, 1.0
    if accumulate:
        out.add_(left @ right, alpha=scale)
    else:
        out.copy_(left @ right)
        if scale != 1.0:
            out.mul_(scale)


def cross_entropy_sum(
    vectors: torch.Tensor,
    table: torch.Tensor,
    bias: torch.Tensor,
    targets: torch.Tensor,
    scale: float,
    smoothing: float = 0.0,
) -> torch.Tensor:
    """Return scale * the summed cross entropy of the logits vectors @ table.T + bias, ready for backward."""
    return _ScaledCrossEntropy.apply(vectors, table, bias, targets, scale, smoothing)  # type: ignore[no-untyped-call]


@torch.no_grad()
def evaluate_cross_entropy(
    vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """Return the summed cross entropy and the number of targets with the highest logit, without gradients."""
    total = bias.new_zeros(())
    num_correct = 0
    dtype = compute_dtype(vectors)
    size = block_size(len(table))
    cast_table = cast_weight(table, dtype)
    for start in range(0, len(vectors), size):
        block_targets = targets[start : start + size]
        logits = _logits(vectors[start : start + size].to(dtype), cast_table, bias)
        total += F.cross_entropy(logits, block_targets, reduction="sum")
        num_correct += int((logits.argmax(-1) == block_targets).sum())
    return total, num_correct


@torch.no_grad()
def token_losses(vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return (P,): the cross entropy of each target, without gradients."""
    dtype = compute_dtype(vectors)
    size = block_size(len(table))
    cast_table = cast_weight(table, dtype)
    blocks = (slice(start, start + size) for start in range(0, len(vectors), size))
    losses = [
        F.cross_entropy(_logits(vectors[block].to(dtype), cast_table, bias), targets[block], reduction="none")
        for block in blocks
    ]
    return torch.cat(losses) if losses else bias.new_zeros(0)


@torch.no_grad()
def sample_tokens(
    vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, uniform_numbers: torch.Tensor
) -> torch.Tensor:
    """Return (P,): a token for each position, sampled from the softmax of its logits, without gradients.

    `uniform_numbers` (P,) are random, from 0 to below 1; the sample is where the cumulated probabilities exceed the
    number. The distribution is that of the largest logit plus Gumbel noise, which takes V random numbers a position.
    """
    dtype = compute_dtype(vectors)
    size = block_size(len(table))
    cast_table = cast_weight(table, dtype)
    samples = [uniform_numbers.new_zeros(0, dtype=torch.long)]
    for start in range(0, len(vectors), size):
        block = slice(start, start + size)
        cumulated = torch.softmax(_logits(vectors[block].to(dtype), cast_table, bias), -1).cumsum(-1)  # (size, V)
        thresholds = uniform_numbers[block, None].to(cumulated.dtype) * cumulated[:, -1:]
        sampled = torch.searchsorted(cumulated, thresholds, right=True)[:, 0]
        samples.append(sampled.clamp(max=len(table) - 1))
    return torch.cat(samples)


def cross_entropy_loss(
    vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor, scale: float
) -> tuple[torch.Tensor, LossPart]:
    """Return scale * the summed cross entropy and the part of the loss; without gradients, correct ones are counted."""
    if torch.is_grad_enabled():
        value = cross_entropy_sum(vectors, table, bias, targets, scale)
        return value, LossPart(value.detach() / scale, len(targets))
    total, num_correct = evaluate_cross_entropy(vectors, table, bias, targets)
    return total * scale, LossPart(total, len(targets), num_correct)
