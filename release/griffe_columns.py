"""An extension of griffe for the API reference: docstrings with aligned columns in, Markdown lists out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))  # mkdocstrings loads this file by its path

from docstring_columns import as_markdown


class AlignedColumns(griffe.Extension):
    """Renders the columns of every docstring as a list."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of an object that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
