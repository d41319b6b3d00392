"""All benchmarks, one after another: a data folder in, a JSON record for each and docs/performance.md out.

    python benchmarks/bench.py [--data FOLDER] [--only inference,serving] [--output build/bench] [--page FILE]

`make bench` runs it with all peers installed. A benchmark that fails does not stop the others; the page says why, and
the exit code is 1. Without a data folder, those that need one are left out and named. On two cores it takes about one
and a half hours. Not here, because they do not measure speed: results.py, strokes.py and tokenizer_parity.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hardware import flags, num_cores, processor
from report import write_page
from timing import show_progress

SCRIPTS = Path(__file__).parent
DATA = "DATA"  # stands for the data folder in commands
PACKAGES = (
    "torch", "transformers", "sentence-transformers", "onnxruntime", "openvino", "nncf", "ctranslate2",
    "llama-cpp-python", "tokenizers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A script with its arguments, those that are added if there is a data folder, and a time limit in minutes."""

    script: str
    arguments: tuple[str, ...] = ()
    data_arguments: tuple[str, ...] = ()
    needs_data: bool = False
    max_minutes: float = 60.0

    def command(self, data: str | None) -> list[str]:
        """Return the arguments of Python, with this data folder."""
        data_arguments = [argument.replace(DATA, data) for argument in self.data_arguments] if data else []
        return [self.script, *data_arguments, *self.arguments, "--json"]


BENCHMARKS = {
    "pretraining": Benchmark("pretraining.py"),
    "family": Benchmark("pretraining.py", ("--family",)),
    "time_to_loss": Benchmark("time_to_loss.py", (), (DATA,), needs_data=True),
    "finetuning": Benchmark("finetuning.py", ("--only", "speed"), (DATA,), needs_data=True),
    "inference": Benchmark("inference.py", ("--sentences", "1000"), (DATA,)),
    "inference_family": Benchmark("inference.py", ("--family", "--sentences", "500"), (DATA,)),
    "serving": Benchmark("serving.py", ("--minutes", "0")),
    "preparation": Benchmark("preparation.py", (), (DATA,), needs_data=True, max_minutes=120),
    "sentences": Benchmark(
        "sentences.py", (), ("--english", f"{DATA}/books-en", "--chinese", f"{DATA}/corpus-zh/modern.txt.gz")
    ),
    "word_vectors": Benchmark("static_vectors.py", ("glove", "python-docs", "--epochs", "5")),
    "scale": Benchmark("scale.py"),
    "sharing": Benchmark("sharing.py"),
}


def run(benchmark: Benchmark, data: Path | None) -> dict[str, Any]:
    """Run a benchmark; return its record: the results or the error, and when, where and how it was run."""
    script, *arguments = benchmark.command(str(data.resolve()) if data else None)
    start = time.perf_counter()
    outcome = run_command([sys.executable, str(SCRIPTS / script), *arguments], benchmark.max_minutes)
    shown = " ".join(benchmark.command(DATA if data else None))
    return {
        **outcome,
        "date": date.today().isoformat(),
        "minutes": round((time.perf_counter() - start) / 60, 2),
        "command": f"python benchmarks/{shown}",
        "machine": {"processor": processor(), "cores": num_cores(), "flags": flags()},
        "versions": {"python": sys.version.split()[0], **installed_versions()},
    }


def run_command(command: Sequence[str], max_minutes: float) -> dict[str, Any]:
    """Run a command and show what it writes to standard error; return its JSON as `results`, or the `error`."""
    last_lines: deque[str] = deque(maxlen=1)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace")
        timer = threading.Timer(60 * max_minutes, process.kill)
        timer.start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                sys.stderr.write(line)
                last_lines += [line.strip()] if line.strip() else []
            process.wait()
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
            process.kill()
            process.communicate()
        output.seek(0)
        lines = output.read().strip().splitlines()
    if is_late:
        return {"error": f"it did not end within {max_minutes:g} minutes"}
    if process.returncode or not lines:
        return {"error": "".join(last_lines) or f"exit code {process.returncode}, and no output"}
    return {"results": json.loads(lines[-1])}


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that are measured."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with glue/, wikitext-2/, books-en/, corpus-zh/ and vocab/")
    parser.add_argument("--only", default=",".join(BENCHMARKS), help="benchmarks, separated by commas")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    parser.add_argument("--page", type=Path, default=Path("docs/performance.md"))
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]}; choose from: {', '.join(BENCHMARKS)}")
    if options.data and not options.data.is_dir():
        parser.error(f"{options.data} is not a folder")
    options.output.mkdir(parents=True, exist_ok=True)
    finished, failed = [], []
    for name in names:
        if BENCHMARKS[name].needs_data and not options.data:
            show_progress(f"{name}: not run; it needs a data folder (make bench DATA=FOLDER)")
            continue
        show_progress(f"{name}: {' '.join(BENCHMARKS[name].command(DATA if options.data else None))}")
        record = run(BENCHMARKS[name], options.data)
        (options.output / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        finished.append(name)
        failed += [name] if "error" in record else []
        write_page(options.output, options.page, finished)  # after each, so that an interrupted run is not lost
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see {options.page}")


if __name__ == "__main__":
    main()
