"""What a sentence embedding model offers beside its pooling: a model folder in, its prompts and vector sizes out.

A Matryoshka model is trained so that the first components of its vectors are vectors, too. Its folder says so in
`matryoshka_dimensions` of config.json, in `truncate_dim` of config_sentence_transformers.json, or in the
`matryoshka_dims` that the model card of sentence-transformers lists.

N vectors, D vector size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.errors import InputError
from bertworks.models.sentence_files import read_settings

Floats = npt.NDArray[np.float32]

_SETTINGS_FILE = "config_sentence_transformers.json"
# The loss in a model card, as JSON or, in older ones, as a Python dict.
_CARD_DIMENSIONS = re.compile(r"""["']matryoshka_dims["']\s*:\s*\[([\d\s,]+)\]""")


def read_prompts(folder: Path) -> dict[str, str]:
    """Return the prompts of a sentence-transformers folder by name."""
    prompts = read_settings(folder / _SETTINGS_FILE).get("prompts")
    if not isinstance(prompts, dict):
        return {}
    return {name: prompt for name, prompt in prompts.items() if isinstance(prompt, str)}


def read_dimensions(folder: Path) -> tuple[int, ...]:
    """Return the vector sizes that a Matryoshka model was trained for, the largest first; () for any other model."""
    stated = read_settings(folder / "config.json").get("matryoshka_dimensions")
    dimensions: list[Any] = [*(stated if isinstance(stated, list) else ())]
    dimensions.append(read_settings(folder / _SETTINGS_FILE).get("truncate_dim"))
    dimensions += _card_dimensions(folder / "README.md")
    return tuple(sorted({size for size in dimensions if type(size) is int and size > 0}, reverse=True))


def truncate_vectors(vectors: Floats, size: int | None, offered: Sequence[int], normalize: bool) -> Floats:
    """Return the first components (N, size) of vectors (N, D), with `normalize` scaled to length 1 again.

    None is the whole vector. Raises InputError for a size that the model does not offer.
    """
    vector_size = vectors.shape[1]
    if size is None or size == vector_size:
        return vectors
    smaller = [dimension for dimension in offered if dimension < vector_size]
    if size not in smaller:
        sizes = ", ".join(map(str, [vector_size, *smaller]))
        advice = f"choose one of its sizes: {sizes}" if smaller else "its folder states no Matryoshka dimensions"
        raise InputError(f"the vectors of this model have {vector_size} dimensions, not {size}; {advice}")
    truncated = vectors[:, :size]
    return normalize_vectors(truncated) if normalize else np.ascontiguousarray(truncated)


def normalize_vectors(vectors: Floats) -> Floats:
    """Return vectors (N, D) scaled to length 1; a zero vector stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    normalized: Floats = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
    return normalized


def _card_dimensions(path: Path) -> Iterable[int]:
    if not path.is_file():
        return ()
    match = _CARD_DIMENSIONS.search(path.read_text(encoding="utf-8", errors="replace"))
    return () if match is None else map(int, re.findall(r"\d{1,9}", match[1]))
