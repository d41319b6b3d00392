"""Lines for people: an English message in, a line in the language of the user on standard output or error out."""

from __future__ import annotations

import sys

from bertworks.messages import localize


def say(text: str) -> None:
    """Print a message to standard output."""
    print(localize(text), flush=True)


def warn(text: str) -> None:
    """Print a message to standard error."""
    print(localize(text), file=sys.stderr, flush=True)
