"""Cross entropy over a vocabulary, only where it is asked: vectors and a table in, the loss and its gradients out.

P places, D width, V pieces. The (P, V) scores are the largest thing in pretraining. They are made a block of rows at a
time, and the gradients with them, so that a block is read while it is still in the cache and nothing of that size is
ever kept.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd.function import once_differentiable

from bertworks.objectives.loss import LossPart

# Scores in one block: 32 MB of floats.
_BLOCK = 8 * 2**20


def block_size(vocab_size: int) -> int:
    """Return for how many places the scores of all pieces are made at once."""
    return max(1, _BLOCK // vocab_size)


class _ScaledCrossEntropy(torch.autograd.Function):
    """scale * sum of the cross entropies. The gradients are worked out together with the value.

    With `smoothing`, so much of what is right is shared equally by all pieces.
    """

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
        total, shared = bias.new_zeros(()), smoothing / len(table)
        vectors_grad = torch.empty_like(vectors, dtype=table.dtype)
        table_grad = torch.empty_like(table) if len(vectors) else torch.zeros_like(table)
        bias_grad = torch.zeros_like(bias)
        rows = block_size(len(table))
        low = _matmul_dtype(vectors)
        low_table = table.to(low)
        for start in range(0, len(vectors), rows):
            block, wanted = vectors[start : start + rows].to(low), targets[start : start + rows]
            scores = F.log_softmax(_logits(block, low_table, bias), -1)  # (rows, V)
            places = wanted[:, None]
            total -= scores.gather(1, places).sum() * (1 - smoothing)
            if smoothing:
                total -= scores.sum() * shared
            slopes = scores.exp_()
            if smoothing:
                slopes -= shared
            slopes.scatter_add_(1, places, slopes.new_full(places.shape, smoothing - 1.0))
            bias_grad += slopes.sum(0)
            slopes = slopes.to(low)
            _matmul_into(vectors_grad[start : start + rows], slopes, low_table, scale, accumulate=False)
            _matmul_into(table_grad, slopes.t(), block, scale, accumulate=start > 0)
            del scores, slopes  # before the next block is made
        # Not saved the usual way: autograd copies a gradient that somebody else still holds, here the largest of all.
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
    """Return the precision in which products are computed now."""
    kind = values.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype


def _logits(vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return vectors @ table.T + bias, in the precision of the bias."""
    if vectors.dtype == bias.dtype:
        return torch.addmm(bias, vectors, table.t())
    return (vectors @ table.t()).to(bias.dtype).add_(bias)


def _matmul_into(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor, scale: float, accumulate: bool) -> None:
    """Put scale * left @ right into `place`, in its precision, or add it to what is there."""
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
    """Return scale * the summed cross entropy of the scores vectors @ table.T + bias, ready for backward."""
    return _ScaledCrossEntropy.apply(vectors, table, bias, targets, scale, smoothing)  # type: ignore[no-untyped-call]


@torch.no_grad()
def evaluate_cross_entropy(
    vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """Return the summed cross entropy and how many targets have the highest score; for evaluation."""
    total = bias.new_zeros(())
    num_right = 0
    rows = block_size(len(table))
    low = _matmul_dtype(vectors)
    low_table = table.to(low)
    for start in range(0, len(vectors), rows):
        wanted = targets[start : start + rows]
        scores = _logits(vectors[start : start + rows].to(low), low_table, bias)
        total += F.cross_entropy(scores, wanted, reduction="sum")
        num_right += int((scores.argmax(-1) == wanted).sum())
    return total, num_right


@torch.no_grad()
def token_losses(vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return (P,): the cross entropy of each target; for evaluation."""
    rows = block_size(len(table))
    low = _matmul_dtype(vectors)
    low_table = table.to(low)
    blocks = (slice(start, start + rows) for start in range(0, len(vectors), rows))
    found = [
        F.cross_entropy(_logits(vectors[own].to(low), low_table, bias), targets[own], reduction="none")
        for own in blocks
    ]
    return torch.cat(found) if found else bias.new_zeros(0)


def cross_entropy_loss(
    vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor, scale: float
) -> tuple[torch.Tensor, LossPart]:
    """Return scale * the summed cross entropy, and the part of the loss that it is; where nothing is learned, the part
    says how many targets had the highest score, too."""
    if torch.is_grad_enabled():
        value = cross_entropy_sum(vectors, table, bias, targets, scale)
        return value, LossPart(value.detach() / scale, len(targets))
    total, num_right = evaluate_cross_entropy(vectors, table, bias, targets)
    return total * scale, LossPart(total, len(targets), num_right)
