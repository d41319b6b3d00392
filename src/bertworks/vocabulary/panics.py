"""Failures inside the `tokenizers` library: a Rust panic in, an InputError out.

A panic, such as that of a regular expression that takes too many steps on a text, is not an Exception in Python: no
`except Exception` sees it, and it would end a command with a traceback, or the thread of a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bertworks.errors import InputError


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a Rust panic. Its class belongs to each extension module and cannot be imported."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def explain_panics() -> Iterator[None]:
    """Turn a panic into an InputError of one line."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if not is_panic(error):
            raise
        reason = " ".join(str(error).split())
        raise InputError(
            f"the rules of the tokenizer fail ({reason}); check the regular expressions in its tokenizer.json"
        ) from None
