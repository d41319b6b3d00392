"""The built-in labelled set: a folder in; train.tsv and dev.tsv there out, sentences of Python's own documentation.

The question is which package of the standard library a sentence describes. It needs no download, and the same Python
always gives the same files.
"""

from __future__ import annotations

from pathlib import Path

from bertworks.disk import atomic_write
from bertworks.text import python_docs
from bertworks.text.sentences import split_sentences

PACKAGES = ("asyncio", "email", "logging", "tkinter", "unittest", "xml")
_MIN_CHARACTERS = 30  # characters; what is shorter hardly says anything
_MAX_SENTENCES = 500  # sentences of a package
_DEV_INTERVAL = 5  # every fifth sentence is for dev


def write_python_docs(folder: Path) -> None:
    """Write both files; a sentence stands in one of them, once."""
    rows: dict[str, list[str]] = {"train": [], "dev": []}
    seen: set[str] = set()
    for package in PACKAGES:
        kept: list[str] = []
        for passage in python_docs.read(f"stdlib:{package}"):
            for line in passage.text.split("\n"):
                kept += [one.strip() for one in split_sentences(line) if len(one.strip()) >= _MIN_CHARACTERS]
        kept = [one for one in dict.fromkeys(kept) if one not in seen and "\t" not in one][:_MAX_SENTENCES]
        seen |= set(kept)
        for number, sentence in enumerate(kept):
            rows["train" if number % _DEV_INTERVAL else "dev"].append(f"{sentence}\t{package}")
    for split, lines in rows.items():
        with atomic_write(folder / f"{split}.tsv") as path:
            path.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
