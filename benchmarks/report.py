"""The performance page: a folder of benchmark records (JSON) and the old page in, docs/performance.md out.

    python benchmarks/report.py FOLDER [--page docs/performance.md]

A record has the results of a benchmark or its error, and when and where it was run; `bench.py` writes them. A benchmark
without a record keeps its rows of the old page, so a partial run renews only its own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from report_rows import ROWS, Row

Record = dict[str, Any]

TITLE = """# Performance

Written by `make bench`; do not edit. Both sides run on the same machine in one run; models alternate, each side in its
own process, and medians are compared. The first lines of each script in `benchmarks/` say what is timed. The ratio is
the speed of ours over that of the peer: above 1, ours is faster; for memory, below 1, ours needs less. The limit is the
rate of one large matmul in the same precision, timed in the same run; its share counts matmuls only.
"""
RESULTS_HEADER = "| benchmark | work | ours | peer | ratio | of the limit |\n|---|---|---|---|---|---|"
RUNS_HEADER = "| benchmark | date | minutes | command | machine | versions |\n|---|---|---|---|---|---|"


def render(records: Mapping[str, Record], old_page: str = "") -> str:
    """Return the page with the records of this folder, and the old rows of all other benchmarks."""
    old_results, _, old_runs = old_page.partition("\n## Runs\n")
    results, runs = [], []
    for name in ROWS:
        if name in records:
            results += result_lines(name, records[name])
            runs.append(run_line(name, records[name]))
        else:
            results += old_lines(old_results, name) or [line_of(name, "not run")]
            runs += old_lines(old_runs, name)
    return "\n".join([TITLE, RESULTS_HEADER, *results, "\n## Runs\n", RUNS_HEADER, *runs, ""])


def result_lines(name: str, record: Record) -> list[str]:
    """Return the rows of a benchmark, or why there are none."""
    if "error" in record:
        return [line_of(name, f"failed: {record['error']}")]
    try:
        return [row_line(name, row) for row in ROWS[name](record["results"])]
    except KeyError as key:
        return [line_of(name, f"failed: the results lack {key}")]


def row_line(name: str, row: Row) -> str:
    ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
    of_limit = "–" if row.of_limit is None else f"{row.of_limit:.0%}"
    return line_of(name, row.work, row.ours, row.peer, ratio, of_limit)


def run_line(name: str, record: Record) -> str:
    machine = record["machine"]
    described = f"{machine['processor']}, {machine['cores']} cores: {' '.join(machine['flags']) or 'no such flags'}"
    versions = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
    return line_of(name, record["date"], f"{record['minutes']:.1f}", f"`{record['command']}`", described, versions)


def line_of(name: str, *cells: str) -> str:
    """Return a line of a table of six columns."""
    texts = [cell.replace("|", "\\|") for cell in cells]
    return "| " + " | ".join([name, *texts, *[""] * (5 - len(texts))]) + " |"


def old_lines(table: str, name: str) -> list[str]:
    """Return the lines of a benchmark on the old page, unless it was not run."""
    lines = [line for line in table.splitlines() if line.startswith(f"| {name} | ")]
    return [line for line in lines if not line.startswith(f"| {name} | not run |")]


def write_page(folder: Path, page: Path, names: Container[str] = ROWS) -> None:
    """Renew the rows of these benchmarks on the page, from their records in a folder."""
    records = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    old_page = page.read_text(encoding="utf-8") if page.exists() else ""
    new_page = render({name: record for name, record in records.items() if name in names}, old_page)
    page.write_text(new_page, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, default=Path("docs/performance.md"))
    options = parser.parse_args()
    write_page(options.folder, options.page)


if __name__ == "__main__":
    main()
