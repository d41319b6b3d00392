"""Times and results of a benchmark: functions in, seconds out; results in, one JSON line or a table out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def show_progress(line: str) -> None:
    """Print a line of progress, apart from the results."""
    print(line, file=sys.stderr, flush=True)


def print_results(results: Mapping[str, object], as_json: bool) -> None:
    """Print results as one JSON line, or one per line."""
    if as_json:
        print(json.dumps({name: round(value, 6) if isinstance(value, float) else value
                          for name, value in results.items()}))  # fmt: skip
        return
    for name, value in results.items():
        print(f"{value:12.3f}  {name}" if isinstance(value, float | int) else f"{value!s:>12}  {name}")
