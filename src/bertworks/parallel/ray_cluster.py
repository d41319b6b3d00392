"""A Ray cluster: its address in, a connection for the duration of a `with` block out."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from bertworks.errors import BertworksError, MissingDependencyError, SettingsError

# A cluster of this node only, for as long as the command runs, and its shared memory.
LOCAL = "local"
_OBJECT_STORE_BYTES = 2**28
# Ray gives its processes 30 seconds to start, with no setting for it: too few on a busy node, where the first start
# also reads Ray's files from the disk.
_LOCAL_ATTEMPTS = 3
# Seconds to connect to the head node; Ray itself tries for minutes.
_CONNECT_TIMEOUT = 10.0
# Seconds to wait until processes that were killed have ended.
_STOP_TIMEOUT = 10.0
_LOGGING: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


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
    if address == LOCAL:
        _start_cluster(ray, num_cpus)
    else:
        _connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start_cluster(ray: Any, num_cpus: int | None) -> None:
    """Start a cluster of this node; what a failed attempt started is stopped before the next one."""
    import psutil  # comes with Ray

    others = psutil.Process().children()
    for attempt in range(1, _LOCAL_ATTEMPTS + 1):
        try:
            ray.init(
                address=LOCAL,
                num_cpus=num_cpus,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                **_LOGGING,
            )
            return
        except Exception as error:  # Ray raises Exception itself if its processes do not start in time
            _stop([child for child in psutil.Process().children() if child not in others])
            if attempt == _LOCAL_ATTEMPTS:
                raise BertworksError(
                    f"Ray did not start on this node in {attempt} attempts ({_reason(error)}); if the node is busy, "
                    f"run the same command again later"
                ) from None


def _stop(processes: Sequence[Any]) -> None:
    """Kill processes and those that they started."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for descendant in [*process.children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    descendant.kill()
    psutil.wait_procs(processes, timeout=_STOP_TIMEOUT)


def _connect(ray: Any, address: str) -> None:
    """Connect to an existing cluster."""
    try:
        _check_reachable(address)
        ray.init(address=address, **_LOGGING)
    except Exception as error:
        raise SettingsError(
            f"there is no Ray cluster at '{address}' ({_reason(error)}); start one with `ray start --head` and "
            f"connect with --ray auto, or use --ray local"
        ) from None


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _check_reachable(address: str) -> None:
    """Fail at once if nothing listens at the address."""
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
