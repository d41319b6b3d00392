"""The command line: one thin file a verb; the only room that prints or exits."""

from bertworks.cli.app import main as main
