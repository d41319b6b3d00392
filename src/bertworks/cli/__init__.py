"""The command line: one thin file per command; the only package that prints or exits."""

from bertworks.cli.app import main as main
