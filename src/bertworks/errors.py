"""The exceptions of bertworks. Each message names the problem, its location and the remedy.

BertworksError               anything the user can fix; the command line prints the message and exits with 2
├── InputError               an invalid text, file or folder
├── SettingsError            an invalid recipe, option or combination of them
├── FolderError              a corpus, model or run folder that is damaged, foreign or of another run
└── MissingDependencyError   an optional dependency is not installed; names the extra to install
"""

from __future__ import annotations


class BertworksError(Exception):
    """Anything the user can fix. The message suffices to act on: no traceback is needed."""


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
        return f"{purpose} needs the package '{package}'; install it with: pip install 'bertworks[{extra}]'"
