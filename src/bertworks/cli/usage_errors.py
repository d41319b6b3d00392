"""Usage errors in the language of the user: an exception of click in, one whose lines are localized out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import IO, Any

from typer._click.exceptions import NoArgsIsHelpError, UsageError

from bertworks.messages import fill, language, localize


class LocalizedUsageError(UsageError):
    """A usage error of click that shows itself in the language of the user."""

    def __init__(self, error: UsageError) -> None:
        super().__init__(localize(error.format_message()), error.ctx)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the usage, how to get help, and the error, as click does in English."""
        lines = [fill("Error: {}", self.format_message())]
        if self.ctx is not None:
            help_command = f"{self.ctx.command_path} {self.ctx.help_option_names[0]}"
            lines = [self.ctx.get_usage(), localize(f"Try '{help_command}' for help."), "", *lines]
        print(*lines, sep="\n", file=file or sys.stderr)


@contextlib.contextmanager
def localize_usage_errors() -> Iterator[None]:
    """Replace usage errors of click; in English they stay click's, and so does help for a call without arguments."""
    try:
        yield
    except UsageError as error:
        if language() == "en" or isinstance(error, LocalizedUsageError | NoArgsIsHelpError):
            raise
        raise LocalizedUsageError(error) from None
