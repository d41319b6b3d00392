"""The results page of fine-tuning: a data folder and models in, a JSON file per row and the tables of the page out.

    python benchmarks/results.py DATA_FOLDER --model MINILM_FOLDER --chinese CHINESE_FOLDER --output FOLDER
        [--only sst2,mrpc] [--page docs/results.md] [--plan] [--json]

Every row is one `bertworks finetune` command, which the page shows. Its scores are written to FOLDER/rows as soon as it
is finished, and a second call continues where the first was stopped. `--plan` only prints the commands and their
estimated minutes.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.disk import read_json, sha256, write_json, write_text
from result_rows import FILES, ROWS, Row


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths on this machine: what $DATA, $OUT and the models' names stand for."""

    data: Path
    output: Path
    models: Mapping[str, Path] = field(default_factory=dict)

    def substitute(self, arguments: Sequence[str]) -> list[str]:
        """Replace the variables at the start of arguments."""
        values = {"$DATA": self.data, "$OUT": self.output, **self.models}
        return [re.sub(r"^\$[A-Z]+", lambda name: str(values[name[0]]), argument) for argument in arguments]


def write_files(rows: Sequence[Row], paths: Paths) -> None:
    """Write the reduced files that the rows need; always the same bytes, so that a stopped run can continue."""
    for argument in {argument for row in rows for argument in row.arguments() if argument.startswith("$OUT/files/")}:
        name = argument.removeprefix("$OUT/files/")
        write_text(paths.output / "files" / name, FILES[name](paths.data))


def write_random_model(chinese: Path, output: Path) -> None:
    """Write a model with the same config and vocabulary and random weights."""
    import torch

    from bertworks.models.folder import read_folder, write_folder
    from bertworks.models.tensor_names import to_hf_names

    folder = read_folder(chinese)
    encoder = folder.family.build(folder.encoder_config, torch.Generator().manual_seed(0))
    tensors = to_hf_names(encoder.state_dict(), folder.family.tensor_names(folder.encoder_config))
    config = folder.family.config_to_dict(folder.encoder_config, ["BertModel"])
    write_folder(output, config, tensors, folder.tokenizer, {"note": "random weights, not trained"})


def majority_baseline(row: Row, paths: Paths) -> dict[str, float]:
    """Return the dev score without reading: the majority class of train, a random choice, no answer."""
    from bertworks.commands.finetune.dataset import resolve_dataset
    from bertworks.tasks.registry import task_of

    arguments = paths.substitute(row.arguments())
    files = {split: Path(arguments[arguments.index(f"--{split}") + 1]) for split in ("train", "dev")}
    columns = {
        role: arguments[arguments.index(f"--{role}") + 1] for role in ("text", "label") if f"--{role}" in arguments
    }
    dataset = resolve_dataset(row.task, files, None, columns)
    task = task_of(dataset.task)
    examples = {
        split: list(task.read(path, {**dataset.columns.get("", {}), **dataset.columns.get(split, {})}))
        for split, path in files.items()
    }
    return BASELINES[dataset.task](examples["train"], examples["dev"]) if dataset.task in BASELINES else {}


def majority_class(train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
    majority = Counter(example.label for example in train).most_common(1)[0][0]
    accuracy = sum(example.label == majority for example in dev) / len(dev)
    f1 = 2 * accuracy / (1 + accuracy) if majority == "1" else 0.0
    return {"accuracy": accuracy, "f1": f1, "matthews": 0.0}


def random_choice(train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
    return {"accuracy": statistics.fmean(1 / len(example.texts[1:]) for example in dev)}


def no_answer(train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
    ratio = sum(example.is_impossible for example in dev) / len(dev)
    return {"exact_match": ratio, "f1": ratio}


BASELINES = {"classify": majority_class, "choose": random_choice, "answer": no_answer}


def fingerprint(row: Row, paths: Paths) -> dict[str, Any]:
    """Return what identifies a row: its command, the weights of its model, and its files."""
    from bertworks.models.weight_files import find_weights

    weights = find_weights(paths.models[row.model])
    arguments = paths.substitute(row.arguments())
    files = {split: sha256(Path(arguments[arguments.index(f"--{split}") + 1])) for split in row.files}
    return {"command": row.command, "weights": sha256(weights) if weights else "", "files": files}


def run_row(row: Row, paths: Paths, threads: int) -> bool:
    """Run the command of a row unless it is finished, and write its JSON file; return whether it is finished."""
    file, folder = paths.output / "rows" / f"{row.name}.json", paths.output / "runs" / row.name
    expected, started = fingerprint(row, paths), paths.output / "begun" / f"{row.name}.json"
    if started.exists() and read_json(started, "a row that was started") != expected:
        shutil.rmtree(folder, ignore_errors=True)  # runs of another command, model or file
        file.unlink(missing_ok=True)
    if file.exists():
        return True
    write_json(started, expected)
    continued, start = folder.exists(), time.perf_counter()
    result = folder / ("sweep.json" if row.seeds > 1 else "run.json")
    if not result.exists():
        _run_command(paths.substitute(row.arguments()), paths.output / "logs" / f"{row.name}.log", threads)
    if not result.exists():
        return False
    minutes = (time.perf_counter() - start) / 60
    scores, examples = read_scores(folder, row.seeds)
    facts = {"minutes": round(minutes, 2), "continued": continued, "examples": examples, "scores": scores}
    write_json(file, {"row": row.name, "command": row.command, **facts, "guessing": majority_baseline(row, paths)})
    for unneeded in (*folder.rglob("checkpoints"), *folder.rglob("features")):
        shutil.rmtree(unneeded)  # gigabytes that only an unfinished run needs
    return True


def _run_command(arguments: Sequence[str], log: Path, threads: int) -> None:
    """Run a bertworks command. A signal to this script stops the command too, which then saves."""
    log.parent.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with log.open("a", encoding="utf-8") as file:
        command = [sys.executable, "-m", "bertworks", *arguments]
        # The command inherits the lock: if this script is killed, a second one waits for the command to end.
        child = subprocess.Popen(command, stdout=file, stderr=file, env=env, close_fds=False)
        try:
            child.wait()
        except KeyboardInterrupt:  # the terminal has sent it to the command too
            child.wait()
            sys.exit(STOP_MESSAGE)
        except SystemExit:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise


def read_scores(folder: Path, seeds: int) -> tuple[dict[str, dict[str, list[float]]], dict[str, int]]:
    """Return the metrics of each split, one value per seed, and the number of examples of the splits."""
    sweep = read_json(folder / "sweep.json", "a finished sweep") if seeds > 1 else [{"folder": "."}]
    runs = [read_json(folder / entry["folder"] / "run.json", "a finished run") for entry in sweep]
    scores = {
        split: {name: [run["scores"][split][name] for run in runs] for name in metrics}
        for split, metrics in runs[0]["scores"].items()
    }
    return scores, {split: info["examples"] for split, info in runs[0]["data"].items()}


STOP_MESSAGE = "asked to stop; the same command continues"
METRIC_NAMES = {"exact_match": "exact match", "f1": "F1", "macro_f1": "macro F1", "matthews": "Matthews",
         "spearman": "Spearman", "pearson": "Pearson", "accuracy": "accuracy"}  # fmt: skip


def format_scores(values: Sequence[float]) -> str:
    """Return mean and standard deviation in percent; of one value the value alone."""
    mean = f"{100 * statistics.fmean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean


def table_row(row: Row, result: Mapping[str, Any] | None) -> str:
    """Return a row of a Markdown table."""
    if result is None:
        return f"| {row.title} | – | not yet run | – | – | {row.published} | – |"
    splits = {
        split: "; ".join(f"{METRIC_NAMES[name]} {format_scores(result['scores'][split][name])}" for name in row.metrics)
        for split in ("dev", "test")
        if split in result["scores"]
    }
    counts = " / ".join(f"{result['examples'][split]:,}" for split in ("train", *splits))
    baseline = [f"{100 * result['guessing'][name]:.1f}" for name in row.metrics if name in result["guessing"]]
    cells = (row.title, counts, splits["dev"], splits.get("test", "–"), " / ".join(baseline) or "–", row.published)
    minutes = f"{'over ' if result['continued'] else ''}{result['minutes']:.1f}"
    return f"| {' | '.join(cells)} | {minutes} |"


HEADER = (
    "| | examples | dev | test | majority baseline | published, BERT-Base | minutes |",
    "|---|---|---|---|---|---|---|",
)


def fill_page(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page with its tables, and the commands below them, replaced; the text does not change."""
    for name in dict.fromkeys(row.table for row in ROWS.values()):
        rows = [row for row in ROWS.values() if row.table == name]
        body = [*HEADER, *(table_row(row, results.get(row.name)) for row in rows), "", "```console"]
        page = replace_between(page, name, "\n".join([*body, *(row.command for row in rows), "```"]))
    minutes = sum(result["minutes"] for result in results.values())
    summary = f"{len(results)} of {len(ROWS)} rows are finished; they took {minutes:.0f} minutes."
    return replace_between(page, "total", summary)


def replace_between(page: str, name: str, text: str) -> str:
    """Return the page with the text between the two markers of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"the page needs exactly one line '{begin}' and one line '{end}'; add them")
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"


def finished_rows(output: Path) -> dict[str, dict[str, Any]]:
    """Return the results of the finished rows."""
    files = {name: output / "rows" / f"{name}.json" for name in ROWS}
    return {name: read_json(file, "a row of the page") for name, file in files.items() if file.exists()}


def select_rows(only: str, has_chinese: bool) -> list[Row]:
    unknown = [name for name in only.split(",") if name and name not in ROWS]
    if unknown:
        raise SystemExit(f"there is no row {', '.join(unknown)}; the rows are {', '.join(ROWS)}")
    rows = [row for name, row in ROWS.items() if not only or name in only.split(",")]
    return [row for row in rows if has_chinese or row.model == "$MINILM"]


def run_rows(rows: Sequence[Row], paths: Paths, threads: int) -> list[str]:
    """Run the unfinished rows one after another; return the names of those that failed."""
    write_files(rows, paths)
    if "$FRESH" in paths.models and not paths.models["$FRESH"].is_dir():
        write_random_model(paths.models["$CHINESE"], paths.models["$FRESH"])
    failed = []
    for number, row in enumerate(rows, 1):
        print(f"{number} of {len(rows)}: {row.name}, about {row.minutes:g} minutes", file=sys.stderr, flush=True)
        if not run_row(row, paths, threads):
            failed.append(row.name)
            print(f"{row.name} did not finish; see {paths.output / 'logs' / row.name}.log", file=sys.stderr, flush=True)
    return failed


def summarize(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return mean and standard deviation of every metric of the page on dev and test, and the minutes."""
    summary: dict[str, float] = {}
    for name, result in results.items():
        for split, metric in ((split, metric) for split in ("dev", "test") for metric in ROWS[name].metrics):
            values = result["scores"].get(split, {}).get(metric)
            if values:
                key = f"{name}_{split}_{metric}"
                summary[key] = round(statistics.fmean(values), 4)
                summary[f"{key}_deviation"] = round(statistics.stdev(values), 4) if values[1:] else 0.0
        summary[f"{name}_minutes"] = result["minutes"]
    return summary


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="the folder of MiniLM")
    parser.add_argument("--chinese", type=Path, help="the folder of a small Chinese BERT; without it no Chinese rows")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of rows, separated by commas")
    parser.add_argument("--page", type=Path, help="the page whose tables are replaced at the end")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plan", action="store_true", help="print the commands and exit")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    output = options.output.absolute()
    models = {"$MINILM": options.model.absolute()}
    if options.chinese:
        models |= {"$CHINESE": options.chinese.absolute(), "$FRESH": output / "fresh"}
    rows = select_rows(options.only, bool(options.chinese))
    if options.plan:
        for row in rows:
            print(f"{row.minutes:5.1f} min  {row.command}")
        print(f"{sum(row.minutes for row in rows):5.1f} min  in total")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOP_MESSAGE))
    output.mkdir(parents=True, exist_ok=True)
    with (output / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = run_rows(rows, Paths(options.data.absolute(), output, models), options.threads)
    results = finished_rows(output)
    if options.page:
        write_text(options.page, fill_page(options.page.read_text(encoding="utf-8"), results))
    if options.json:
        print(json.dumps(summarize(results)))
    if failed:
        sys.exit(f"not finished: {', '.join(failed)}")


if __name__ == "__main__":
    main()
