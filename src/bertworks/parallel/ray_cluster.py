"""The one way to a Ray cluster: its address in, a connection for as long as a block lasts out."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

from bertworks.errors import MissingDependencyError, SettingsError

# A cluster of this machine alone, for as long as the command runs; what it keeps in shared memory.
LOCAL = "local"
_OBJECT_STORE_BYTES = 2**28
# How many seconds a machine may take to be there at all: Ray itself asks for minutes.
_CONNECT_TIMEOUT = 10.0


@contextlib.contextmanager
def ray_connection(address: str, num_cpus: int | None = None) -> Iterator[Any]:
    """Yield the module `ray`, connected to the cluster at an address.

    `address` is "auto" for the cluster this machine belongs to, HOST:PORT, ray://HOST:PORT from outside, or "local",
    which starts one here with so many CPUs and ends it. A process that is connected already stays so.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told what runs here
    try:
        import ray
    except ImportError:
        raise MissingDependencyError("ray", "ray", "working on a cluster") from None
    if ray.is_initialized():
        yield ray
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        settings |= {"num_cpus": num_cpus, "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        _check_reachable(address)
        ray.init(address=address, **settings)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise SettingsError(
            f"no Ray cluster can be used at '{address}' ({reason}); start one with `ray start --head` and name it with "
            f"--ray auto, or take --ray local"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Fail at once where nobody listens."""
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
