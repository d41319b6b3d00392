"""A server on a port: in a thread of this process, or as the command that a person starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertworks.serving.server import DrainingServer, ServeRequest, ServingApp, create_server, listen, load_app

PATIENCE = 120.0


@dataclass
class Running:
    """A server, the thread it runs in, and where it answers."""

    app: ServingApp
    server: DrainingServer
    thread: threading.Thread
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running(*models: str, **options: Any) -> Iterator[Running]:
    """Run a server in a thread for as long as the block lasts."""
    app = load_app(ServeRequest(models, **options))
    with listen("127.0.0.1", 0) as sock:
        server = create_server(app)
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield Running(app, server, thread, sock.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            app.service.close()


@contextmanager
def started(*arguments: str, folder: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `bertworks serve` as a process of its own; yield it and its address. It is killed at the end."""
    command = [sys.executable, "-m", "bertworks", "serve", *arguments, "--port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://\S+", line):
                yield process, found[0]
                break
        else:
            raise AssertionError(f"the server ended with {process.wait()}")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def wait_for(is_so: Any, seconds: float = PATIENCE) -> None:
    """Wait until something is so; fail if it never is."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
