"""The name of an optional package in, the package out; where it is not installed, the sentence that says how to."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bertworks.errors import MissingDependencyError


def import_optional(package: str, extra: str, purpose: str) -> Any:
    """Import an optional package, or one of its modules. It is imported here and nowhere else: such parts are heavy."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package.split(".")[0]:
            raise  # it is there, and lacks something itself
        raise MissingDependencyError(package.split(".")[0], extra, purpose) from None
