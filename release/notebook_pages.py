"""Notebooks as pages: an executed .ipynb file in, Markdown with its code and outputs out.

A text cell is English, and has its Chinese translation in its metadata, as "zh".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OUTPUT = "{.text .output}"  # assets/site.css wraps its lines


def notebook_page(path: Path, language: str = "en") -> str:
    """Return the cells of a notebook in order, texts in this language; an output follows its code."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    parts = [part for cell in notebook["cells"] for part in _cell_parts(cell, language)]
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _cell_parts(cell: dict[str, Any], language: str) -> Iterator[str]:
    source = _text(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source if language == "en" else cell["metadata"][language]
        return
    yield _fenced("python", source)
    for output in cell["outputs"]:
        data = output.get("data", {})
        if output["output_type"] == "stream":
            yield _fenced(_OUTPUT, _text(output["text"]))
        elif "text/html" in data:
            yield f"<div>{_text(data['text/html'])}</div>"
        elif "image/png" in data:
            yield f"![output](data:image/png;base64,{_text(data['image/png']).strip()})"
        elif "text/plain" in data:
            yield _fenced(_OUTPUT, _text(data["text/plain"]))


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)
