"""Kill a child process at a chosen change of the file system: an action and a number in, whether it was killed out."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate")


def run_killed(action: Callable[[], Any], folder: Path, number: int) -> bool:
    """Run `action` in a child that is killed (SIGKILL) just before it changes something below `folder` for the
    `number`-th time; return whether it was. One that comes to its end must succeed."""
    pid = os.fork()
    if pid == 0:
        exit_code = 1
        try:
            sys.addaudithook(_KillingHook(str(folder), number))
            action()
            exit_code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(exit_code)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), f"the child ended with status {status}"
    return status == signal.SIGKILL


class _KillingHook:
    def __init__(self, folder: str, number: int) -> None:
        self._folder, self._remaining = folder, number

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            is_change = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            path, is_change = (arguments[0] if arguments else None), event in _CHANGES
        # Functions that remove whole folders name their files relative to the folder.
        if is_change and isinstance(path, str | Path) and (not Path(path).is_absolute() or self._folder in str(path)):
            self._remaining -= 1
            if self._remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)
