"""A command with all processes that it starts: killed at once, whatever sessions and groups they are in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

_MARKER = "BERTWORKS_CAMPAIGN_TRY"
TIMEOUT = 600.0


class ProcessTree:
    """A running command. Its processes are recognized by a variable in their environment, which children inherit."""

    def __init__(self, command: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]) -> None:
        self._mark = uuid.uuid4().hex
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, _MARKER: self._mark},
            start_new_session=True,
        )

    def __enter__(self) -> ProcessTree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._log.close()

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def wait(self) -> int:
        """Wait for the command and for all it started; return its exit code."""
        exit_code = self.process.wait(TIMEOUT)
        self._wait_for_others(is_killing=False)
        return exit_code

    def kill(self) -> None:
        """Kill the process group of the command, then everything else that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)
        self._wait_for_others(is_killing=True)

    def _wait_for_others(self, is_killing: bool) -> None:
        deadline = time.monotonic() + TIMEOUT
        while pids := self._pids():
            assert time.monotonic() < deadline, f"{pids} do not end"
            for pid in pids if is_killing else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def _pids(self) -> list[int]:
        mark = f"{_MARKER}={self._mark}".encode()
        pids = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes():
                    pids.append(int(path.parent.name))
        return pids
