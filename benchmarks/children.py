"""Child processes of a benchmark: commands or functions in, their answers out.

A child that dies ends the benchmark: what it wrote to standard error is shown, the other children are killed, and the
exit code is 1.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, cast

# After work, the threads of a process spin for a while before they sleep, and would slow the next one down.
SPIN_SECONDS = 0.3


class Child:
    """A command in its own process that answers a line with a line. It ends when its standard input does.

    Used as a context manager: at the end the child is waited for, or killed if there was an error.
    """

    def __init__(self, name: str, command: Sequence[object], env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [str(argument) for argument in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self.process.kill()
                self.process.communicate()
            elif self.process.returncode is None:
                self.finish()
        finally:
            self._stderr.close()

    def send(self, line: str) -> None:
        """Write a line to the child."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self._fail()

    def read(self) -> str:
        """Wait for a line of the child, and return it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._fail()
        return line

    def request(self, line: str) -> str:
        """Send a line and return the answer; first, the threads of other processes may fall asleep."""
        time.sleep(SPIN_SECONDS)
        self.send(line)
        return self.read()

    def finish(self) -> str:
        """Close the child's standard input, wait for its end, and return the rest of its output."""
        try:
            output, _ = self.process.communicate()
        except BrokenPipeError:
            self._fail()
        if self.process.returncode:
            self._fail()
        return output

    def _fail(self) -> NoReturn:
        try:
            self.process.communicate()
        except BrokenPipeError:
            self.process.wait()
        self._stderr.seek(0)
        _exit(self.name, self.process.returncode, self._stderr.read())


def run_child(name: str, command: Sequence[object], env: Mapping[str, str] | None = None) -> str:
    """Run a command to its end and return its output."""
    with Child(name, command, env) as child:
        return child.finish()


def run_function(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function that is called in a fork of this process."""
    return run_functions(name, [lambda: function(*arguments)])[0]


def run_functions(name: str, functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return the results of functions that are called at the same time, each in its own fork of this process."""
    context = multiprocessing.get_context("fork")
    processes, results = [], {}
    try:
        for function in functions:
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_call, args=(function, writer))
            process.start()
            writer.close()
            processes.append((process, reader))
        readers = {reader: index for index, (_, reader) in enumerate(processes)}
        while readers:
            for ready in multiprocessing.connection.wait(list(readers)):
                index = readers.pop(cast(multiprocessing.connection.Connection, ready))
                results[index] = _result(name, *processes[index])
    finally:
        for process, reader in processes:
            if len(results) < len(functions):
                process.kill()
            process.join()
            reader.close()
    return [results[index] for index in range(len(functions))]


def _call(function: Callable[[], Any], writer: multiprocessing.connection.Connection) -> None:
    try:
        writer.send((function(), ""))
    except BaseException:
        writer.send((None, traceback.format_exc()))
        raise SystemExit(1) from None


def _result(name: str, process: Any, reader: Any) -> Any:
    try:
        result, error = reader.recv()
    except EOFError:  # it was killed
        process.join()
        _exit(name, process.exitcode, "")
    if error:
        _exit(name, 1, error)
    return result


def _exit(name: str, code: int, stderr: str) -> NoReturn:
    """Show what a child wrote to standard error, and end the benchmark with its last line."""
    sys.stderr.write(stderr)
    lines = stderr.strip().splitlines()
    raise SystemExit(f"{name} died with exit code {code}" + (f": {lines[-1].strip()}" if lines else ""))
