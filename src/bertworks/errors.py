"""The exceptions of bertworks. Each message names the problem, its location and the remedy.

BertworksError               anything the user can fix; the command line prints the message and exits with 2
├── InputError               an invalid text, file or folder
├── SettingsError            an invalid recipe, option or combination of them
├── FolderError              a corpus, model or run folder that is damaged, foreign or of another run
└── MissingDependencyError   an optional dependency is not installed; names the extra to install
"""

from __future__ import annotations

from collections.abc import Iterable

_MAX_NAMES = 20  # in a message
_MAX_CHARACTERS = 80  # of a value in a message
_MAX_MESSAGE = 1_800  # characters; a list of all settings fits


class BertworksError(Exception):
    """Anything the user can fix. The message suffices to act on: no traceback is needed.

    It is one line of bounded length, whatever parts of it come from a file or from another library.
    """

    def __str__(self) -> str:
        text = " ".join(super().__str__().splitlines())
        half = _MAX_MESSAGE // 2
        return text if len(text) <= _MAX_MESSAGE else f"{text[:half]} … {text[-half:]}"


class InputError(BertworksError):
    """An invalid text, file or folder."""


class SettingsError(BertworksError):
    """An invalid recipe, option or combination of them."""


class FolderError(BertworksError):
    """A corpus, model or run folder that is damaged, foreign, or belongs to another run."""


class MissingDependencyError(BertworksError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(package, extra, purpose)  # unformatted, so that it can be pickled by a worker process

    def __str__(self) -> str:
        package, extra, purpose = self.args
        requirement = f"'bertworks[{extra}]'" if extra else "bertworks"
        return f"{purpose} needs the package '{package}'; install it with: pip install {requirement}"


def show_value(value: object) -> str:
    """Return the repr of a value for a message, shortened. An integer of thousands of digits has no repr."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "a value that is too long to show"
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


def show_names(names: Iterable[object]) -> str:
    """Return quoted names for a message: at most twenty, and how many more there are."""
    names = list(names)
    shown = ", ".join(map(show_value, names[:_MAX_NAMES]))
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES:,} more"
