"""A Ray cluster: its address in, a connection for the duration of a `with` block out."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

from bertworks.errors import BertworksError, MissingDependencyError, SettingsError

# A cluster of this node only, for as long as the command runs, and its shared memory.
LOCAL = "local"
_OBJECT_STORE_BYTES = 2**28
# Seconds to connect to the head node; Ray itself tries for minutes.
_CONNECT_TIMEOUT = 10.0


@contextlib.contextmanager
def ray_connection(address: str, num_cpus: int | None = None) -> Iterator[Any]:
    """Yield the module `ray`, connected to the cluster at an address.

    `address` is "auto" for the cluster this node belongs to, HOST:PORT, ray://HOST:PORT from outside, or "local", which
    starts a cluster of `num_cpus` here and stops it at the end. An existing connection is reused.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    try:
        import ray
    except ImportError:
        raise MissingDependencyError("ray", "ray", "running on a Ray cluster") from None
    if ray.is_initialized():
        yield ray
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        settings |= {"num_cpus": num_cpus, "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        _check_reachable(address)
        ray.init(address=address, **settings)
    except Exception as error:  # Ray raises Exception itself if its processes do not start in time
        reason = str(error).strip().partition("\n")[0]
        if address == LOCAL:
            raise BertworksError(
                f"Ray did not start on this node ({reason}); if the node is busy, run the same command again later"
            ) from None
        raise SettingsError(
            f"there is no Ray cluster at '{address}' ({reason}); start one with `ray start --head` and connect with "
            f"--ray auto, or use --ray local"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Fail at once if nothing listens at the address."""
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
