"""Help in the language of the user: the parts of a help page in, their lines out, wrapped by the width of characters.

A Chinese character is two columns wide and a line may end after any of them, which click does not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from typer._click.formatting import HelpFormatter

from bertworks.messages import language, localize

_CHOICES = re.compile(r"(.*?[.。)]) (\(.+?\))", re.DOTALL)  # what `choice` appends to the help of an option
_EXTRAS = re.compile(r"  (\[[^\[\]]*\])$")
_WORD = re.compile(r"[\u2e80-\uffef][，。；：、）！？]*|[^\s\u2e80-\uffef]+\s*|\s+")


class LocalizedFormatter(HelpFormatter):
    """Writes help pages in the language of the user; in English it is click's."""

    def write_heading(self, heading: str) -> None:
        super().write_heading(localize(heading))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, prefix if language() == "en" else localize("Usage:"))

    def write_text(self, text: str) -> None:
        """Write the description of a command, each paragraph in the language of the user."""
        if language() == "en":
            super().write_text(text)
            return
        paragraphs = [self._paragraph(paragraph) for paragraph in text.split("\n\n")]
        self.write("\n\n".join(paragraphs) + "\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], *args: Any, **kwargs: Any) -> None:
        """Write a list of names with their help."""
        if language() == "en":
            super().write_dl(rows, *args, **kwargs)
            return
        column = min(max(cell_len(name) for name, _ in rows) + 2, 32)
        for name, text in rows:
            width = max(self.width - self.current_indent - column, 20)
            lines = wrap_cells(localize_help(text), width) or [""]
            indent = " " * self.current_indent
            first = f"{indent}{name}{' ' * (column - cell_len(name))}"
            if cell_len(name) > column - 2:
                self.write(f"{indent}{name}\n")
                first = " " * (self.current_indent + column)
            self.write(f"{first}{lines[0]}\n")
            for line in lines[1:]:
                self.write(f"{' ' * (self.current_indent + column)}{line}\n")

    def _paragraph(self, text: str) -> str:
        indent, lines = " " * self.current_indent, text.strip("\n").split("\n")
        if lines[0].strip() == "\b":  # its lines are kept
            kept = [(len(line) - len(line.lstrip()), localize(" ".join(line.split()))) for line in lines[1:]]
            return "\n".join(f"{indent}{' ' * spaces}{line}" for spaces, line in kept)
        wrapped = wrap_cells(localize(" ".join(text.split())), self.width - self.current_indent)
        return "\n".join(indent + line for line in wrapped)


def localize_help(text: str) -> str:
    """Return the help of an option in the language of the user; its choices and its default stay as they are."""
    extras = _EXTRAS.search(text)
    body = text[: extras.start()] if extras else text
    choices = None if localize(body) != body else _CHOICES.fullmatch(body)
    body = f"{localize(choices[1])}（{choices[2][1:-1]}）" if choices else localize(body)
    if extras is None:
        return body
    extra = extras[1].replace("default: ", localize("default: ")).replace("required", localize("required"))
    return f"{body}  {extra}"


def wrap_cells(text: str, width: int) -> list[str]:
    """Split a text into lines of at most `width` columns, at spaces or after a Chinese character."""
    lines, line = [], ""
    for word in _WORD.findall(text):
        if line and cell_len((line + word).rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += word.lstrip() if not line else word
    return [*lines, line.rstrip()] if line.strip() else lines
