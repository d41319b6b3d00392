"""transformers' MiniLM with pooling: nothing in, a torch module from padded ids to normalized vectors out.

B sequences, T positions, D hidden size.
"""

from __future__ import annotations

from typing import Any

from minilm import minilm


def pooled_model() -> Any:
    """Return transformers' model with mean pooling and normalization."""
    import torch
    import transformers

    class SentenceEncoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.AutoModel.from_pretrained(minilm(), attn_implementation="sdpa")

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            hidden = self.bert(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state  # (B, T, D)
            means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            return torch.nn.functional.normalize(means, dim=1)

    return SentenceEncoder().eval()
