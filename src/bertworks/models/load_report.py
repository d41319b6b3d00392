"""What loading a model found: the names of tensors in a folder in, which were used out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The result of loading weights into a module, under Hugging Face's names.

    Parameters of `missing_keys` keep their initial values; tensors of `unexpected_keys` are not used. `notes` say what
    is read otherwise than its name says.
    """

    loaded_keys: tuple[str, ...]
    missing_keys: tuple[str, ...]
    unexpected_keys: tuple[str, ...]
    notes: tuple[str, ...] = ()
