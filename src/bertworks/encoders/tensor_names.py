"""Foreign names of tensors: what a table of them may say. Ours -> theirs; a name may say that theirs lies on its side.

Where they have several tensors for one of ours, ours is theirs, one under the other.
"""

from __future__ import annotations

from collections.abc import Mapping

# Our name of each tensor -> Hugging Face's.
NameTable = Mapping[str, tuple[str, ...]]

# What a name ends with where their matrix is (inputs, outputs) and ours (outputs, inputs).
_TRANSPOSED_MARK = "ᵀ"


def mark_transposed(name: str) -> str:
    """Return the name of a matrix that lies on its side there."""
    return name + _TRANSPOSED_MARK


def is_transposed(name: str) -> bool:
    return name.endswith(_TRANSPOSED_MARK)


def strip_mark(name: str) -> str:
    """Return the name as it stands in a file."""
    return name.removesuffix(_TRANSPOSED_MARK)


def expand_weight_and_bias(parts: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the table of parts that have a weight and a bias each."""
    return {
        f"{ours}.{end}": tuple(f"{name}.{end}" for name in theirs)
        for ours, theirs in parts.items()
        for end in ("weight", "bias")
    }
