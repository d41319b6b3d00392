"""The built-in labelled dataset: a folder in; train.tsv and dev.tsv out, sentences of Python's documentation.

The label is the standard library package that a sentence describes. It needs no download, and a Python version always
gives the same files.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from bertworks.disk import atomic_write
from bertworks.text import python_docs
from bertworks.text.sentences import split_sentences

PACKAGES = ("asyncio", "email", "logging", "tkinter", "unittest", "xml")
_MIN_CHARACTERS = 30  # shorter sentences are hardly informative
_MAX_SENTENCES = 500  # per package
_DEV_INTERVAL = 5  # every fifth sentence is in dev


def write_python_docs(folder: Path) -> None:
    """Write both files; each sentence is in one of them, once."""
    rows: dict[str, list[str]] = {"train": [], "dev": []}
    used_sentences: set[str] = set()
    for package in PACKAGES:
        sentences: list[str] = []
        for passage in python_docs.read(f"stdlib:{package}"):
            for line in passage.text.split("\n"):
                sentences += [text.strip() for text in split_sentences(line) if len(text.strip()) >= _MIN_CHARACTERS]
        unique = (text for text in dict.fromkeys(sentences) if text not in used_sentences and "\t" not in text)
        sentences = list(islice(unique, _MAX_SENTENCES))
        used_sentences |= set(sentences)
        for index, sentence in enumerate(sentences):
            rows["train" if index % _DEV_INTERVAL else "dev"].append(f"{sentence}\t{package}")
    for split, lines in rows.items():
        with atomic_write(folder / f"{split}.tsv") as path:
            path.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
