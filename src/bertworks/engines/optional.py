"""Optional dependencies: the name of a package in, the module out, or an error that names the extra to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bertworks.errors import MissingDependencyError


def import_optional(package: str, extra: str, purpose: str) -> Any:
    """Import an optional package or one of its modules, on first use because such packages are heavy.

    Without an `extra` the package is a dependency of bertworks itself, which the distribution bertworks-run lacks.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package.split(".")[0]:
            raise  # the package is installed, but a dependency of it is missing
        raise MissingDependencyError(package.split(".")[0], extra, purpose) from None
