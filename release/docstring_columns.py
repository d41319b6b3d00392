"""Docstrings with aligned columns: a docstring in; its prose, and the meaning of each name in the columns, out.

max_length, overlap   of windows over long texts
truncate              truncate long texts instead of sliding a window,
                      and count the lost tokens
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*)(?: {2,}(?P<meaning>\S.*)|$)")


@dataclass(frozen=True, slots=True)
class Columns:
    """Consecutive lines of a docstring with names on the left, and their meanings."""

    meanings: dict[str, str]

    def as_markdown(self) -> str:
        """Return the columns as a list."""
        return "\n".join(f"- `{names}`: {meaning}" for names, meaning in self.meanings.items())


def split_docstring(docstring: str) -> list[str | Columns]:
    """Return the paragraphs of a docstring in order; those of aligned columns as Columns."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(docstring))
    return [_columns(paragraph) or paragraph for paragraph in paragraphs]


def as_markdown(docstring: str) -> str:
    """Return a docstring whose columns are Markdown lists."""
    parts = split_docstring(docstring)
    return "\n\n".join(part if isinstance(part, str) else part.as_markdown() for part in parts)


def meanings_of(docstring: str) -> dict[str, str]:
    """Return the meaning of each name that the columns of a docstring have; names may share a line."""
    meanings: dict[str, str] = {}
    for part in split_docstring(docstring):
        if isinstance(part, Columns):
            for names, meaning in part.meanings.items():
                meanings.update(dict.fromkeys(names.split(", "), meaning))
    return meanings


def _columns(paragraph: str) -> Columns | None:
    """Return the columns of a paragraph, or None if it is prose."""
    meanings: dict[str, str] = {}
    names = ""
    for line in paragraph.split("\n"):
        entry = _ENTRY.fullmatch(line)
        if entry:
            names = entry["names"]
            meanings[names] = entry["meaning"] or ""
        elif names and line.startswith("  "):
            meanings[names] = f"{meanings[names]} {line.strip()}".strip()
        else:
            return None
    return Columns(meanings) if all(meanings.values()) else None
