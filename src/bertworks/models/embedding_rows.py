"""Embedding resize: the tensors of a model folder in, the same with rows for new tokens out.

V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.family import Family


def vocab_tensor_names(family: Family, config: EncoderConfig) -> tuple[str, ...]:
    """Return the Hugging Face names of tensors with one row per token: the embeddings and the biases of LM heads."""
    biases = [name for table in family.heads.values() for name in table.get("bias", ())]
    return (*family.tensor_names(config)["token_embeddings.weight"], *biases)


@dataclass(frozen=True, slots=True)
class EmbeddingResize:
    """How a tensor with one row per token grows to `num_rows`: a new row is the mean of the rows `source_ids`.

    `num_old_tokens` is the size of the old vocabulary; padded embeddings have more rows than that.
    """

    num_rows: int
    num_old_tokens: int
    source_ids: Mapping[int, Sequence[int]]

    def resize(self, values: torch.Tensor) -> torch.Tensor:
        """Return a larger copy of `values`, (V, D) or (V,)."""
        new_rows = values.new_zeros((self.num_rows - len(values), *values.shape[1:]))
        resized = torch.cat([values, new_rows])  # (num_rows, D)
        mean = values[: self.num_old_tokens].mean(0, dtype=torch.float32)  # (D,)
        for token_id, source_ids in self.source_ids.items():
            resized[token_id] = values[list(source_ids)].mean(0, dtype=torch.float32) if source_ids else mean
        return resized


class ResizedTensors(Mapping[str, torch.Tensor]):
    """The tensors of a model, those in `names` resized. A tensor is read and resized on access."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], names: tuple[str, ...], resize: EmbeddingResize) -> None:
        self._tensors, self._names, self._resize = tensors, names, resize

    def __getitem__(self, name: str) -> torch.Tensor:
        values = self._tensors[name]
        return self._resize.resize(values) if name in self._names else values

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
