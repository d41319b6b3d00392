"""The results page: a data folder and pretrained models in, a JSON file per row and the tables of the page out.

    python benchmarks/results.py DATA_FOLDER --output FOLDER [--english FOLDER] [--chinese FOLDER] [--minilm FOLDER]
        [--english-corpus FOLDER] [--chinese-corpus FOLDER] [--only ours,sst2-glove] [--jobs 2]
        [--page docs/results.md] [--plan] [--json]

Every row is one command, which the page shows. Its scores are written to FOLDER/rows as soon as it is finished, and a
second call continues where the first was stopped. Beside the page, a JSON file has the scores of its rows by seed: they
are not run again, on any machine, unless the command, the model or the data changed. Without MiniLM, or without a
pretraining corpus for word vectors, their rows are left out. `--plan` only prints the commands and their estimated
minutes; `--jobs 2` runs two rows at a time, each on half of the cores. `--extra` adds options to every command, for a
short trial on a small data folder.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertworks.disk import read_json, sha256, write_json, write_text
from result_page import BASELINES, Results, fill_page
from result_rows import FILES, ROWS, SETS, Row


@dataclass(frozen=True, slots=True)
class Paths:
    """What the variables of a command and the names of our models stand for on this machine."""

    output: Path
    values: Mapping[str, str]

    def substitute(self, arguments: Sequence[str]) -> list[str]:
        """Replace a variable at the beginning of an argument, and the name of a model."""
        pattern = r"^(\$[A-Z_]+|(en|zh)-small$)"
        return [re.sub(pattern, lambda match: self.values[match[0]], argument) for argument in arguments]

    def result(self, row: Row) -> Path:
        return self.output / "rows" / f"{row.name}.json"


@dataclass(slots=True)
class Commands:
    """The running commands. After `stop`, they save and end, and no other starts."""

    num_threads: int
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    is_stopped: bool = False

    def stop(self, *_: object) -> None:
        self.is_stopped = True
        for child in self.running:
            child.send_signal(signal.SIGTERM)

    def run(self, arguments: Sequence[str], log: Path) -> None:
        """Run a bertworks command to its end."""
        log.parent.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "OMP_NUM_THREADS": str(self.num_threads), "MKL_NUM_THREADS": str(self.num_threads)}
        command = [sys.executable, "-m", "bertworks", *arguments]
        with log.open("a", encoding="utf-8") as file:
            # In a session of its own, so that Ctrl-C reaches it once, through `stop`. It inherits the lock: if this
            # script is killed, a second one waits for its end.
            child = subprocess.Popen(
                command, stdout=file, stderr=file, env=env, close_fds=False, start_new_session=True
            )
            self.running.append(child)
            if self.is_stopped:  # in the meantime
                child.send_signal(signal.SIGTERM)
            child.wait()
            self.running.remove(child)


def write_files(rows: Sequence[Row], data: Path, output: Path) -> None:
    """Write the parts of datasets that the rows read; always the same bytes, so that a stopped run can continue."""
    for name in {argument.removeprefix("$OUT/files/") for row in rows for argument in row.arguments} & set(FILES):
        write_text(output / "files" / name, FILES[name](data))


def read_dataset(row: Row, paths: Paths) -> Any:
    """Return the task and the files of a row."""
    from bertworks.commands.finetune.dataset import resolve_dataset

    options = {name: row.value(f"--{name}") for name in ("train", "dev", "test", "data")}
    folders = {name: Path(paths.substitute([value])[0]) if value else None for name, value in options.items()}
    return resolve_dataset(row.arguments[1], folders, folders.pop("data"), {})


def fingerprint(row: Row, paths: Paths) -> dict[str, Any]:
    """Return what identifies a row: its command, its model or vocabulary, and its files."""
    from bertworks.models.provenance import hashes_of
    from bertworks.vocabulary.tokenizer import Tokenizer

    values = paths.substitute([row.value("--model") or "", row.value("--vocab") or "", row.arguments[2]])
    inputs: dict[str, Any] = {"command": row.command}
    if not row.labelled_set:
        return inputs | hashes_of(None, Path(values[2]))
    inputs |= hashes_of(values[0]) if values[0] else {"vocabulary": Tokenizer.load(values[1]).hash}
    return inputs | {"files": {split: sha256(path) for split, path in read_dataset(row, paths).files.items()}}


def run_row(row: Row, paths: Paths, commands: Commands) -> bool:
    """Run the command of a row unless it is finished, and write its JSON file; return whether it is finished."""
    file, folder = paths.result(row), paths.output / "runs" / row.name
    inputs, started = fingerprint(row, paths), paths.output / "begun" / f"{row.name}.json"
    if started.exists() and read_json(started, "a row that was started") != inputs:
        shutil.rmtree(folder, ignore_errors=True)  # runs of another command, model or file
        file.unlink(missing_ok=True)
    if file.exists():
        return True
    write_json(started, inputs)
    continued, start = folder.exists(), time.perf_counter()
    commands.run(paths.substitute(row.arguments), paths.output / "logs" / f"{row.name}.log")
    marker = "sweep.json" if row.seeds > 1 else "run.json" if row.labelled_set else "model.safetensors"
    if not (folder / marker).exists():
        return False
    facts = {"minutes": round((time.perf_counter() - start) / 60, 2), "continued": continued}
    write_json(file, {"inputs": inputs, **facts, **read_result(row, paths)})
    for name in ("model", "adapt", "checkpoints", "features"):
        for unneeded in list(folder.rglob(name)):
            shutil.rmtree(unneeded, ignore_errors=True)  # gigabytes that only an unfinished run needs
    return True


def read_result(row: Row, paths: Paths) -> dict[str, Any]:
    """Return the metrics of each split, one value per seed, those of the baselines, and the number of examples."""
    if not row.labelled_set:
        return {"scores": {}}
    folder = paths.output / "runs" / row.name
    sweep = read_json(folder / "sweep.json", "a finished sweep") if row.seeds > 1 else [{"folder": "."}]
    runs = [read_json(folder / entry["folder"] / "run.json", "a finished run") for entry in sweep]
    scores = {
        split: {name: [run["scores"][split][name] for run in runs] for name in metrics}
        for split, metrics in runs[0]["scores"].items()
    }
    examples = {split: info["examples"] for split, info in runs[0]["data"].items()}
    fitted = runs[0].get("baselines", {}).values()  # the simplest first
    baselines = dict(zip(BASELINES, fitted or [guessing_scores(row, paths)], strict=False))
    return {"scores": scores, "examples": examples, "baselines": baselines}


def guessing_scores(row: Row, paths: Paths) -> dict[str, dict[str, float]]:
    """Return what guessing reaches where a run has no baselines: a random choice, or never answering."""
    from bertworks.tasks.registry import task_of

    dataset = read_dataset(row, paths)
    scores = {}
    for split, path in dataset.files.items() if dataset.task in ("choose", "answer") else ():
        examples = list(task_of(dataset.task).read(path, {}))
        if dataset.task == "choose":
            scores[split] = {"accuracy": statistics.fmean(1 / len(example.texts[1:]) for example in examples)}
        else:
            scores[split] = dict.fromkeys(("exact_match", "f1"), statistics.fmean(e.is_impossible for e in examples))
    return scores


def run_rows(rows: Sequence[Row], paths: Paths, num_jobs: int) -> list[str]:
    """Run the unfinished rows, those that need word vectors last; return the names of those that failed."""
    commands = Commands(max(1, (os.cpu_count() or 1) // num_jobs))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, commands.stop)
    failed = []

    def complete(row: Row) -> None:
        if commands.is_stopped:
            return
        print(f"{row.name}: about {row.minutes:.0f} minutes", file=sys.stderr, flush=True)
        if not run_row(row, paths, commands) and not commands.is_stopped:
            failed.append(row.name)
            print(f"{row.name} failed; see {paths.output / 'logs' / row.name}.log", file=sys.stderr, flush=True)

    for needs_vectors in (False, True):
        with ThreadPoolExecutor(num_jobs) as pool:
            list(pool.map(complete, [row for row in rows if bool(row.required) is needs_vectors]))
    if commands.is_stopped:
        sys.exit("asked to stop; the same command continues")
    return failed


def is_current(row: Row, result: Mapping[str, Any], paths: Paths) -> bool:
    """Return whether a row was run with this command, model and data, as far as these are known here."""
    unknown = [part for part in row.arguments if part.startswith("$") and part.split("/")[0] not in paths.values]
    inputs = {"command": row.command} if unknown else fingerprint(row, paths)
    return all(result["inputs"].get(name) == value for name, value in inputs.items())


def read_recorded_rows(file: Path, paths: Paths) -> dict[str, dict[str, Any]]:
    """Return the recorded results that are still current, by the name of the row."""
    recorded = read_json(file, "the scores of the page") if file.exists() else {}
    return {name: entry for name, entry in recorded.items() if name in ROWS and is_current(ROWS[name], entry, paths)}


def remaining_rows(rows: Sequence[Row], recorded: Mapping[str, Any]) -> list[Row]:
    """Return the rows that are not recorded, without word vectors that only recorded rows need."""
    remaining = [row for row in rows if row.name not in recorded]
    unneeded = {ROWS[name].required for name in recorded} - {row.required for row in remaining}
    return [row for row in remaining if row.name not in unneeded]


def finished_rows(paths: Paths) -> dict[str, dict[str, Any]]:
    """Return the results of the finished rows."""
    files = {name: paths.result(row) for name, row in ROWS.items()}
    return {name: read_json(file, "a row of the page") for name, file in files.items() if file.exists()}


def select_rows(only: str, known: Mapping[str, str]) -> list[Row]:
    """Return the rows with these names or groups, and the word vectors that they need, if their folders are known."""
    names = {name for name in only.split(",") if name}
    unknown = names - set(ROWS) - {row.group for row in ROWS.values()}
    if unknown:
        groups = ", ".join(dict.fromkeys(row.group for row in ROWS.values()))
        raise SystemExit(f"there is no row {', '.join(sorted(unknown))}; groups: {groups}; rows: {', '.join(ROWS)}")
    selected = [row for row in ROWS.values() if not names or names & {row.name, row.group}]
    needed = {row.name for row in selected} | {row.required for row in selected}

    def is_possible(row: Row) -> bool:
        required = ROWS[row.required].arguments if row.required else ()
        return all(part.split("/")[0] in known for part in (*row.arguments, *required) if part.startswith("$"))

    return [row for row in ROWS.values() if row.name in needed and is_possible(row)]


def summarize(results: Results) -> dict[str, float]:
    """Return mean and standard deviation of every score of the page, and the minutes."""
    summary: dict[str, float] = {}
    for name, result in results.items():
        for score in SETS[ROWS[name].labelled_set].scores if ROWS[name].labelled_set else ():
            values, key = result["scores"][score.split][score.metric], f"{name}_{score.split}_{score.metric}"
            summary[key] = round(statistics.fmean(values), 4)
            summary[f"{key}_deviation"] = round(statistics.stdev(values), 4) if values[1:] else 0.0
        summary[f"{name}_minutes"] = result["minutes"]
    return summary


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--english", default="en-small", help="folder of our English model")
    parser.add_argument("--chinese", default="zh-small", help="folder of our Chinese model")
    parser.add_argument("--minilm", type=Path, help="folder of MiniLM")
    parser.add_argument(
        "--english-corpus", type=Path, help="corpus folder that the English word vectors are trained on"
    )
    parser.add_argument("--chinese-corpus", type=Path, help="corpus folder of the Chinese ones")
    parser.add_argument("--only", default="", help="names or groups of rows, separated by commas")
    parser.add_argument("--extra", default="", help="further options of every `bertworks finetune`, for a trial")
    parser.add_argument("--page", type=Path, help="the page whose tables are replaced at the end")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    parser.add_argument("--plan", action="store_true", help="print the commands and exit")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.extra and options.page:
        parser.error("the page shows default settings; leave out --extra or --page")
    return options


def paths_of(options: argparse.Namespace) -> Paths:
    """Return what the commands' variables stand for; those that were not given are missing."""
    folders = {"$DATA": options.data, "$OUT": options.output, "$MINILM": options.minilm,
               "$ENGLISH_CORPUS": options.english_corpus, "$CHINESE_CORPUS": options.chinese_corpus}  # fmt: skip
    values = {name: str(folder.absolute()) for name, folder in folders.items() if folder}
    models = {"en-small": options.english, "zh-small": options.chinese}
    values |= {name: str(Path(model).absolute()) if Path(model).is_dir() else model for name, model in models.items()}
    return Paths(options.output.absolute(), values)


def main() -> None:
    options = parse_options()
    paths = paths_of(options)
    rows = select_rows(options.only, paths.values)
    if options.plan:
        for row in rows:
            print(f"{row.minutes:5.1f} min  {row.name}: {row.command}")
        print(f"{sum(row.minutes for row in rows):5.1f} min  in total")
        return
    extra = tuple(shlex.split(options.extra))
    rows = [replace(row, arguments=row.arguments + extra) if row.labelled_set else row for row in rows]
    paths.output.mkdir(parents=True, exist_ok=True)
    with (paths.output / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_files(list(ROWS.values()), options.data, paths.output)
        recorded = read_recorded_rows(options.page.with_suffix(".json"), paths) if options.page else {}
        failed = run_rows(remaining_rows(rows, recorded), paths, options.jobs)
    results = recorded | finished_rows(paths)
    if options.page:
        models = {name: paths.values[name] for name in ("en-small", "zh-small")}
        write_text(options.page, fill_page(options.page.read_text(encoding="utf-8"), results, models))
        write_json(
            options.page.with_suffix(".json"),
            {name: results[name] for name in ROWS if name in results and ROWS[name].labelled_set},
        )
    if options.json:
        print(json.dumps(summarize(results)))
    if failed:
        sys.exit(f"not finished: {', '.join(failed)}")


if __name__ == "__main__":
    main()
