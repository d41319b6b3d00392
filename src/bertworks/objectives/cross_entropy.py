"""Cross entropy over a vocabulary: vectors and the output layer in, the loss and its gradients out.

P positions, D hidden size, V vocabulary. The (P, V) logits are the largest tensor of pretraining. They are computed a
block of positions at a time, together with the gradients, so that a block is still in the cache and the whole tensor
never exists.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd.function import once_differentiable

from bertworks.objectives.loss import LossPart

# Logits of one block: 32 MB of floats.
_BLOCK = 8 * 2**20


def block_size(vocab_size: int) -> int:
    """Return the number of positions whose logits are computed at once."""
    return max(1, _BLOCK // vocab_size)


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
        total, uniform_target = bias.new_zeros(()), smoothing / len(table)
        vectors_grad = torch.empty_like(vectors, dtype=table.dtype)
        table_grad = torch.empty_like(table) if len(vectors) else torch.zeros_like(table)
        bias_grad = torch.zeros_like(bias)
        size = block_size(len(table))
        dtype = _matmul_dtype(vectors)
        cast_table = table.to(dtype)
        for start in range(0, len(vectors), size):
            block, index = vectors[start : start + size].to(dtype), targets[start : start + size, None]
            log_probs = F.log_softmax(_logits(block, cast_table, bias), -1)  # (size, V)
            total -= log_probs.gather(1, index).sum() * (1 - smoothing)
            if smoothing:
                total -= log_probs.sum() * uniform_target
            logits_grad = log_probs.exp_()
            if smoothing:
                logits_grad -= uniform_target
            logits_grad.scatter_add_(1, index, logits_grad.new_full(index.shape, smoothing - 1.0))
            bias_grad += logits_grad.sum(0)
            logits_grad = logits_grad.to(dtype)
            _matmul_into(vectors_grad[start : start + size], logits_grad, cast_table, scale, accumulate=False)
            _matmul_into(table_grad, logits_grad.t(), block, scale, accumulate=start > 0)
            del log_probs, logits_grad  # before the next block is allocated
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


def _matmul_dtype(values: torch.Tensor) -> torch.dtype:
    """Return the dtype that matmuls compute in: autocast's, or that of the values."""
    device = values.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else values.dtype


def _logits(vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return vectors @ table.T + bias, in the dtype of the bias."""
    if vectors.dtype == bias.dtype:
        return torch.addmm(bias, vectors, table.t())
    return (vectors @ table.t()).to(bias.dtype).add_(bias)


def _matmul_into(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor, scale: float, accumulate: bool) -> None:
    """Write scale * left @ right to `out`, or add it, in the dtype of `out`."""
    if left.dtype == out.dtype:
        out.addmm_(left, right, beta=float(accumulate), alpha=scale)
    elif accumulate:
        out.add_(left @ right, alpha=scale)
    else:
        out.copy_(left @ right).mul_(scale)


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
    size = block_size(len(table))
    dtype = _matmul_dtype(vectors)
    cast_table = table.to(dtype)
    for start in range(0, len(vectors), size):
        block_targets = targets[start : start + size]
        logits = _logits(vectors[start : start + size].to(dtype), cast_table, bias)
        total += F.cross_entropy(logits, block_targets, reduction="sum")
        num_correct += int((logits.argmax(-1) == block_targets).sum())
    return total, num_correct


@torch.no_grad()
def token_losses(vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return (P,): the cross entropy of each target, without gradients."""
    size = block_size(len(table))
    dtype = _matmul_dtype(vectors)
    cast_table = table.to(dtype)
    blocks = (slice(start, start + size) for start in range(0, len(vectors), size))
    losses = [
        F.cross_entropy(_logits(vectors[block].to(dtype), cast_table, bias), targets[block], reduction="none")
        for block in blocks
    ]
    return torch.cat(losses) if losses else bias.new_zeros(0)


def cross_entropy_loss(
    vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor, scale: float
) -> tuple[torch.Tensor, LossPart]:
    """Return scale * the summed cross entropy and the part of the loss; without gradients, correct ones are counted."""
    if torch.is_grad_enabled():
        value = cross_entropy_sum(vectors, table, bias, targets, scale)
        return value, LossPart(value.detach() / scale, len(targets))
    total, num_correct = evaluate_cross_entropy(vectors, table, bias, targets)
    return total * scale, LossPart(total, len(targets), num_correct)
