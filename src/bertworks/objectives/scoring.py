"""Cross entropy over a vocabulary, only where it is asked: vectors and a table in, the loss and its gradients out.

P places, D width, V pieces. The (P, V) scores are the largest thing in pretraining. They are made a block of rows at a
time, and the gradients with them, so that a block is read while it is still in the cache and nothing of that size is
ever kept.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

# Scores in one block: 32 MB of floats.
_BLOCK = 8 * 2**20


def block_rows(vocabulary: int) -> int:
    """Return for how many places the scores of all pieces are made at once."""
    return max(1, _BLOCK // vocabulary)


class _ScaledCrossEntropy(torch.autograd.Function):
    """scale * sum of the cross entropies. The gradients are worked out together with the value."""

    @staticmethod
    def forward(
        ctx: Any,
        vectors: torch.Tensor,
        table: torch.Tensor,
        bias: torch.Tensor,
        targets: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        total = vectors.new_zeros(())
        vectors_grad = torch.empty_like(vectors)
        table_grad = torch.zeros_like(table)
        bias_grad = torch.zeros_like(bias)
        rows = block_rows(len(table))
        for start in range(0, len(vectors), rows):
            block, wanted = vectors[start : start + rows], targets[start : start + rows]
            scores = F.log_softmax(torch.addmm(bias, block, table.t()), -1)  # (rows, V)
            places = wanted[:, None]
            total -= scores.gather(1, places).sum()
            slopes = scores.exp_()
            slopes.scatter_add_(1, places, slopes.new_full(places.shape, -1.0))
            slopes *= scale
            torch.mm(slopes, table, out=vectors_grad[start : start + rows])
            table_grad.addmm_(slopes.t(), block)
            bias_grad += slopes.sum(0)
            del scores, slopes  # before the next block is made
        ctx.save_for_backward(vectors_grad, table_grad, bias_grad)
        return total * scale

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grads = ctx.saved_tensors
        if float(slope) != 1.0:
            grads = tuple(grad * slope for grad in grads)
        return (*grads, None, None)


def cross_entropy_sum(
    vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return scale * the summed cross entropy of the scores vectors @ table.T + bias, ready for backward."""
    return _ScaledCrossEntropy.apply(vectors, table, bias, targets, scale)  # type: ignore[no-untyped-call]


@torch.no_grad()
def count_right(
    vectors: torch.Tensor, table: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """Return the summed cross entropy and how many targets have the highest score; for evaluation."""
    total = vectors.new_zeros(())
    num_right = 0
    rows = block_rows(len(table))
    for start in range(0, len(vectors), rows):
        wanted = targets[start : start + rows]
        scores = torch.addmm(bias, vectors[start : start + rows], table.t())
        total += F.cross_entropy(scores, wanted, reduction="sum")
        num_right += int((scores.argmax(-1) == wanted).sum())
    return total, num_right
