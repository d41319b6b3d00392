"""A file with text as it was found, on a disk or in a store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was found. `named`: a person gave its name, so it may not be passed over when it is no text."""

    path: str
    name: str
    size: int
    is_explicit: bool
