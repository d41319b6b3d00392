"""Tensors with a row a piece: the tensors of a folder in, the same with rows for more pieces out.

V rows of the piece table, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from bertworks.encoders.families import Family
from bertworks.encoders.stack import BertConfig


def vocab_tensor_names(family: Family, config: BertConfig) -> tuple[str, ...]:
    """Return what others call the tensors that have a row a piece: the table, and biases of heads that tell pieces."""
    biases = [name for table in family.heads.values() for name in table.get("bias", ())]
    return (*family.tensor_names(config)["pieces.weight"], *biases)


@dataclass(frozen=True, slots=True)
class EmbeddingResize:
    """How a tensor with a row a piece grows: to `num_rows`, the new ones means of old rows, by id.

    `num_old` is how many rows stood for a piece.
    """

    num_rows: int
    num_old_tokens: int
    source_ids: Mapping[int, Sequence[int]]

    def resize(self, values: torch.Tensor) -> torch.Tensor:
        """Return a larger copy of `values`, (V, D) or (V,)."""
        more = values.new_zeros((self.num_rows - len(values), *values.shape[1:]))
        rows = torch.cat([values, more])  # (num_rows, D)
        centre = values[: self.num_old_tokens].mean(0, dtype=torch.float32)  # (D,)
        for number, sources in self.source_ids.items():
            rows[number] = values[list(sources)].mean(0, dtype=torch.float32) if sources else centre
        return rows


class ResizedTensors(Mapping[str, torch.Tensor]):
    """The tensors of a model, those in `names` grown. Nothing is read, copied or computed until it is asked for."""

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
