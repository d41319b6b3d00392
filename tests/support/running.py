"""A server on a port: in a thread of this process, or as a `bertworks serve` process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bertworks.serving.server import DrainingServer, ServeRequest, ServingApp, create_server, listen, load_app

TIMEOUT = 120.0


@dataclass
class RunningServer:
    """A server, its thread and its port."""

    app: ServingApp
    server: DrainingServer
    thread: threading.Thread
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def run_server(*models: str, **options: Any) -> Iterator[RunningServer]:
    """Run a server in a thread while the block lasts."""
    app = load_app(ServeRequest(models=models, **options))
    with listen("127.0.0.1", 0) as sock:
        server = create_server(app)
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield RunningServer(app, server, thread, sock.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(TIMEOUT)
            app.close()


@contextmanager
def start_serve_process(
    *arguments: str, folder: Path, port: int = 0, log: IO[bytes] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `bertworks serve` as a process; yield it and its address. It is killed at the end.

    Its standard error goes to `log`, if there is one.
    """
    command = [sys.executable, "-m", "bertworks", "serve", *arguments, "--port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.search(r"https?://\S+", line):
                yield process, match[0]
                break
        else:
            raise AssertionError(f"the server ended with {process.wait()}")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def wait_for(condition: Callable[[], bool], seconds: float = TIMEOUT) -> None:
    """Wait until a condition holds; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.01)
