"""R-Drop's divergence: two outputs for the same targets in, how far the predictions are apart out.

Half of KL(p, q) + KL(q, p), summed over all targets (Liang et al., 2021). C classes.
"""

from __future__ import annotations

import torch


def divergence_of_classes(logits: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Of one class for each target: logits (..., C)."""
    log_probs, other_log_probs = logits.log_softmax(-1), others.log_softmax(-1)
    return ((log_probs.exp() - other_log_probs.exp()) * (log_probs - other_log_probs)).sum() / 2


def divergence_of_labels(logits: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Of labels that are independent of each other: logits (..., C), whose differences are those of the log odds."""
    return ((logits.sigmoid() - others.sigmoid()) * (logits - others)).sum() / 2
