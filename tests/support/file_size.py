"""A limit of the size of files: a number of bytes in, a context in which longer files cannot be written out."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def max_file_size(num_bytes: int) -> Iterator[None]:
    """Let the system refuse to write longer files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
