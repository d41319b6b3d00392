"""How every command parses its arguments: plain metavars in help, and suggestions for unknown options and commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import typer
from typer._click.core import Context
from typer._click.exceptions import NoSuchOption, UsageError
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from bertworks.cli.help_text import LocalizedFormatter
from bertworks.settings import nearest_name

# What help shows for a value, by the type that typer would print.
_METAVARS = {
    "<int>": "N", "<int range>": "N", "<list[int]>": "N", "<float>": "X", "<float range>": "X", "<path>": "PATH",
    "<list[path]>": "PATH",
}  # fmt: skip


class _LocalizedContext(Context):
    """The context of a command whose help is in the language of the user."""

    formatter_class = LocalizedFormatter


class Command(TyperCommand):
    """A command whose help names plain metavars and whose errors suggest the option that was probably meant."""

    context_class = _LocalizedContext

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                parameter.metavar = parameter.metavar or (parameter.name or "").upper()
                parameter.display_type_rich = _no_type  # type: ignore[method-assign]
            elif isinstance(parameter, TyperOption) and parameter.metavar is None and not parameter.is_flag:
                parameter.metavar = _METAVARS.get(parameter.display_type(None), "TEXT")  # type: ignore[arg-type]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            remaining = super().parse_args(ctx, args)
        except NoSuchOption as error:
            raise UsageError(unknown_option(error.option_name, self, ctx.command_path), ctx) from None
        for name, value in ctx.params.items():
            if isinstance(value, float) and math.isnan(value):  # it would pass every comparison with a limit
                raise UsageError(f"--{name.replace('_', '-')} is not a number; give one", ctx)
        return remaining


def _no_type(ctx: Any) -> None:
    """An argument is shown by its name alone, without its type."""


def unknown_option(option: str, command: Any, path: str) -> str:
    """Return the message for an option that a command does not have."""
    option_names = [
        name.removeprefix("--") for parameter in command.params for name in parameter.opts if name[:2] == "--"
    ]
    close = nearest_name(option.lstrip("-").replace("-", "_"), [name.replace("-", "_") for name in option_names])
    hint = f"did you mean --{close.replace('_', '-')}? " if close else ""
    return f"there is no option {option}; {hint}`{path} --help` lists all options"


class CommandGroup(TyperGroup):
    """A group of commands that suggests the nearest name for an unknown one."""

    context_class = _LocalizedContext

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with the first paragraph of their help, which click would cut, in the user's language."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            assert command is not None
            rows.append((name, " ".join((command.help or "").split("\n\n")[0].split())))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            close = nearest_name(name, self.list_commands(ctx))
            hint = f"did you mean `{ctx.command_path} {close}`?" if close else f"`{ctx.command_path} --help` lists all"
            raise UsageError(f"there is no command '{name}'; {hint}", ctx)
        return super().resolve_command(ctx, args)


def command_app(cls: type[TyperGroup] | None = None, help: str | None = None) -> typer.Typer:  # noqa: A002
    """Return the Typer app of one command."""
    return typer.Typer(
        cls=cls, help=help, add_completion=False, rich_markup_mode=None, no_args_is_help=help is not None,
        pretty_exceptions_enable=False,
    )  # fmt: skip


def choice(option: str, names: Sequence[str], help: str, aliases: Collection[str] = ()) -> Any:  # noqa: A002
    """Return an option that accepts one of `names`, or several, and suggests the nearest for anything else.

    `aliases` are accepted, too, but not listed.
    """
    return typer.Option(
        metavar="NAME",
        help=f"{help} ({', '.join(names)})",
        callback=_one_of(option, names, aliases),
        autocompletion=lambda: list(names),
    )


def _one_of(option: str, names: Sequence[str], aliases: Collection[str]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        values = value if isinstance(value, list | tuple) else [value]
        for unknown in (name for name in values if name is not None and name not in (*names, *aliases)):
            close = nearest_name(unknown, names)
            hint = f"did you mean '{close}'? " if close else ""
            raise typer.BadParameter(f"there is no {option} '{unknown}'; {hint}choose one of: {', '.join(names)}")
        return value

    return check
