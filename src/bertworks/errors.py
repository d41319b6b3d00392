"""The few ways bertworks says no. Each message names the thing, the place and the way out.

BertworksError          anything a person can mend; the command line prints it in one sentence and exits with 2
├── InputError          a text, a file or a folder that was given is not what it should be
├── SettingsError       a recipe, an option or a combination of them
├── FolderError         a corpus, model or run folder is damaged, foreign or of another run
└── MissingPartError    an optional dependency is not installed; names the extra that brings it
"""

from __future__ import annotations


class BertworksError(Exception):
    """Anything a person can mend. The message is the whole story: no traceback is needed to act on it."""


class InputError(BertworksError):
    """A text, a file or a folder that was given is not what it should be."""


class SettingsError(BertworksError):
    """A recipe, an option, or a combination of them that cannot work."""


class FolderError(BertworksError):
    """A corpus, model or run folder that is damaged, foreign, or belongs to another run."""


class MissingDependencyError(BertworksError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(package, extra, purpose)  # as they came, so that it survives the way back from a worker

    def __str__(self) -> str:
        package, extra, purpose = self.args
        return f"{purpose} needs the package '{package}'; install it with: pip install 'bertworks[{extra}]'"
