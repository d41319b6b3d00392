"""The page of fine-tuning results: a data folder and models in, a JSON file for every row and the page's tables out.

    python benchmarks/results.py DATA_FOLDER --model MINILM_FOLDER --chinese CHINESE_FOLDER --out FOLDER
        [--only sst2,mrpc] [--page docs/results.md] [--plan] [--json]

Every row is one `bertworks finetune` command, which the page names. Its score is in FOLDER/rows as soon as it is done,
and a second call goes on where the first was stopped. `--plan` only tells the commands and the minutes they may take.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import gzip
import io
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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bertworks.disk import read_json, sha256, write_json, write_text

STRATEGIES = ("embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all")
# Of the paper's base model, on all of the training data: dev F1 of these strategies.
PAPER_FEATURES = ("91.0", "95.6", "94.9", "95.9", "96.1", "95.5")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the page. `files` are names of FILES, or of the data folder where FILES has none; `minutes` is what
    the whole row may take on two cores; `published` is the figure of others, with what it was measured on."""

    name: str
    table: str
    title: str
    task: str
    files: Mapping[str, str]
    flags: str
    figures: tuple[str, ...]
    minutes: float
    seeds: int = 3
    model: str = "$MINILM"
    published: str = "–"

    def words(self) -> list[str]:
        """Return the command as the page shows it: places begin with $DATA, $OUT or the name of a model."""
        found = ["finetune", self.task, "--model", self.model]
        for split, file in self.files.items():
            found += [f"--{split}", f"$OUT/files/{file}" if file in FILES else f"$DATA/{file}"]
        found += [*shlex.split(self.flags), "--out", f"$OUT/runs/{self.name}"]
        return found + (["--seeds", str(self.seeds)] if self.seeds > 1 else [])

    @property
    def command(self) -> str:
        return " ".join(["bertworks", *self.words()])


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are on this machine: what $DATA, $OUT and the models' names stand for."""

    data: Path
    out: Path
    models: Mapping[str, Path] = field(default_factory=dict)

    def filled(self, words: Sequence[str]) -> list[str]:
        known = {"$DATA": self.data, "$OUT": self.out, **self.models}
        return [re.sub(r"^\$[A-Z]+", lambda name: str(known[name[0]]), word) for word in words]


def opened(data: Path, source: str) -> io.TextIOBase:
    """Open a file of the data folder, packed or not. A line ends where the file says, so that none is changed."""
    path = data / source
    if path.is_file():
        return path.open(encoding="utf-8-sig", newline="\n")
    return gzip.open(f"{path}.gz", "rt", encoding="utf-8-sig", newline="\n")


def table(source: str, data: Path, rows: slice, header: bool = True, unique: bool = False) -> str:
    """Return some rows of a table below its header; `unique` leaves lines out that have come before."""
    with opened(data, source) as file:
        lines = [line.rstrip("\r\n") for line in file]
    head, body = (lines[:1], lines[1:]) if header else ([], lines)
    return "".join(f"{line}\n" for line in [*head, *(list(dict.fromkeys(body)) if unique else body)[rows]])


def records(source: str, data: Path, rows: slice) -> str:
    """Return some records of a CSV file, in which a record may have several lines."""
    with opened(data, source) as file:
        head, *body = csv.reader(file)
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([head, *body[rows]])
    return written.getvalue()


def documents(source: str, data: Path, count: int) -> str:
    """Return the first documents of a file of CoNLL columns."""
    found: list[str] = []
    with opened(data, source) as file:
        for line in file:
            count -= line.startswith("-DOCSTART-")
            if count < 0:
                break
            found.append(line)
    return "".join(found)


def articles(source: str, data: Path, some: slice, paragraphs: int) -> str:
    """Return the first paragraphs of some articles of a file of SQuAD's shape."""
    with opened(data, source) as file:
        told = json.load(file)
    kept = [{**one, "paragraphs": one["paragraphs"][:paragraphs]} for one in told["data"][some]]
    return json.dumps({"version": told.get("version", ""), "data": kept}, ensure_ascii=False)


SMS, COLA, CHINESE = "sms-spam/SMSSpamCollection", "glue/CoLA/train.tsv", "chnsenticorp"
# The files that the script writes: published sets cut to what two cores can learn. STS-B and CoLA are sorted by where
# their sentences come from, so of these every third, fourth or eighth row is taken instead of the first ones.
FILES: dict[str, Callable[[Path], str]] = {
    "sst2-train.tsv": partial(table, "glue/SST-2/train.tsv", rows=slice(6_000)),
    "stsb-train.tsv": partial(table, "glue/STS-B/train.tsv", rows=slice(None, None, 4)),
    "cola-train.tsv": partial(table, COLA, rows=slice(None, None, 3), header=False),
    "cola-1000.tsv": partial(table, COLA, rows=slice(None, 8_000, 8), header=False),
    "conll-train.txt": partial(documents, "conll2003/train.txt", count=150),
    "conll-dev.txt": partial(documents, "conll2003/dev.txt", count=40),
    "conll-test.txt": partial(documents, "conll2003/test.txt", count=40),
    "bilstm.toml": lambda data: "recurrent_width = 128\n",
    "squad1-train.json": partial(articles, "squad/dev-v1.1.json", some=slice(36), paragraphs=4),
    "squad1-dev.json": partial(articles, "squad/dev-v1.1.json", some=slice(36, 48), paragraphs=3),
    "squad2-train.json": partial(articles, "squad/dev-v2.0.json", some=slice(26), paragraphs=3),
    "squad2-dev.json": partial(articles, "squad/dev-v2.0.json", some=slice(26, 35), paragraphs=2),
    "comve-train.csv": partial(records, "comve/train.csv", rows=slice(600)),
    "comve-dev.csv": partial(records, "comve/dev.csv", rows=slice(300)),
    "comve-test.csv": partial(records, "comve/test.csv", rows=slice(500)),
    "sms-train.tsv": partial(table, SMS, rows=slice(1_500), unique=True),
    "sms-500.tsv": partial(table, SMS, rows=slice(500), unique=True),
    "sms-dev.tsv": partial(table, SMS, rows=slice(1_500, 2_500), unique=True),
    "chn-train.tsv": partial(table, f"{CHINESE}/train.tsv", rows=slice(1_000)),
    "chn-dev.tsv": partial(table, f"{CHINESE}/dev.tsv", rows=slice(400)),
    "chn-test.tsv": partial(table, f"{CHINESE}/test.tsv", rows=slice(400)),
    "cmrc-train.json": partial(articles, "cmrc2018/train.json", some=slice(120), paragraphs=1),
    "cmrc-dev.json": partial(articles, "cmrc2018/dev.json", some=slice(40), paragraphs=1),
}


def _files(train: str, dev: str, test: str = "") -> dict[str, str]:
    return {split: file for split, file in (("train", train), ("dev", dev), ("test", test)) if file}


def _plan() -> Iterator[Row]:
    """Yield all rows, the most important first. MiniLM learns about 1,700 pieces a second here, and reads 5,000."""
    short = "--length 128 --batch 32 --epochs 2"
    yield Row("mrpc", "glue", "MRPC, all of train", "glue/MRPC", _files("glue/MRPC/train.tsv", "glue/MRPC/dev.tsv"),
              f"{short} --rate 1e-4", ("f1", "accuracy"), 14.5, published="86.7 accuracy (dev)")  # fmt: skip
    yield Row("sst2", "glue", "SST-2, first rows", "glue/SST-2", _files("sst2-train.tsv", "glue/SST-2/dev.tsv"),
              f"{short} --rate 1e-4", ("accuracy",), 6.5, published="92.7 accuracy (dev)")  # fmt: skip
    yield Row("stsb", "glue", "STS-B, every fourth row", "glue/STS-B", _files("stsb-train.tsv", "glue/STS-B/dev.tsv"),
              f"{short} --rate 2e-4", ("spearman", "pearson"), 5, published="85.8 Spearman (test)")  # fmt: skip
    yield Row("cola", "glue", "CoLA, every third row", "glue/CoLA", _files("cola-train.tsv", "glue/CoLA/dev.tsv"),
              f"{short} --rate 2e-4", ("matthews", "accuracy"), 3, published="52.1 Matthews (test)")  # fmt: skip
    yield Row("sms", "others", "SMS spam", "classify", _files("sms-train.tsv", "sms-dev.tsv"),
              f"--text SMS --label Label {short} --rate 1e-4", ("accuracy", "macro_f1"), 3.6)  # fmt: skip
    yield Row("comve", "others", "ComVE, one of three reasons", "comve",
              _files("comve-train.csv", "comve-dev.csv", "comve-test.csv"), f"{short} --rate 1e-4", ("accuracy",), 4.5,
              published="81.6 on SWAG, one of four (dev)")  # fmt: skip
    entities = _files("conll-train.txt", "conll-dev.txt", "conll-test.txt")
    tagging = "--length 128 --batch 32"
    yield Row("conll", "entities", "fine-tuned", "conll2003", entities, f"{tagging} --epochs 3 --rate 2e-4",
              ("f1",), 5.5, published="96.4 (dev), 92.4 (test)")  # fmt: skip
    for strategy, figure in zip(STRATEGIES, PAPER_FEATURES, strict=True):
        yield Row(f"conll-{strategy}", "entities", f"frozen, `{strategy}`", "conll2003", entities,
                  f"--recipe $OUT/files/bilstm.toml --features {strategy} {tagging} --epochs 4 --rate 2e-3",
                  ("f1",), 1.5, published=f"{figure} (dev)")  # fmt: skip
    answers = "--length 256 --batch 16 --epochs 2 --rate 2e-4"
    yield Row("squad1", "answers", "SQuAD 1.1", "squad1", _files("squad1-train.json", "squad1-dev.json"), answers,
              ("exact_match", "f1"), 5, 1, published="80.8 / 88.5 (dev)")  # fmt: skip
    yield Row("squad2", "answers", "SQuAD 2.0", "squad2", _files("squad2-train.json", "squad2-dev.json"), answers,
              ("exact_match", "f1"), 5, 1, published="78.7 / 81.9 (dev, BERT-Large)")  # fmt: skip
    yield from _auxiliary()
    yield from _chinese()


def _auxiliary() -> Iterator[Row]:
    """Few examples, with and without the loss on masked words beside the task's."""
    usual = "--length 128 --batch 32 --epochs 2"
    for masked, title, minutes in (("", "", 1.7), (" --auxiliary masked", ", masked words too", 2.6)):
        ending = "-masked" if masked else ""
        yield Row(f"sms-500{ending}", "auxiliary", f"SMS spam, 500 rows{title}", "classify",
                  _files("sms-500.tsv", "sms-dev.tsv"), f"--text SMS --label Label {usual} --rate 1e-4{masked}",
                  ("accuracy", "macro_f1"), minutes)  # fmt: skip
        yield Row(f"cola-1000{ending}", "auxiliary", f"CoLA, 1,000 rows{title}", "glue/CoLA",
                  _files("cola-1000.tsv", "glue/CoLA/dev.tsv"), f"{usual} --rate 2e-4{masked}",
                  ("matthews", "accuracy"), minutes)  # fmt: skip


def _chinese() -> Iterator[Row]:
    """The same rows with the pretrained model and with a fresh one. Rows of 128 places: it was pretrained on these."""
    for model, ending, title in (("$CHINESE", "", "pretrained"), ("$FRESH", "-fresh", "not pretrained")):
        yield Row(f"chnsenticorp{ending}", "chinese", f"ChnSentiCorp, {title}", "chnsenticorp",
                  _files("chn-train.tsv", "chn-dev.tsv", "chn-test.tsv"),
                  "--length 128 --batch 32 --epochs 2 --rate 3e-4", ("accuracy",), 3.3, model=model)  # fmt: skip
        yield Row(f"cmrc2018{ending}", "chinese", f"CMRC 2018, {title}", "cmrc2018",
                  _files("cmrc-train.json", "cmrc-dev.json"), "--length 128 --batch 32 --epochs 2 --rate 3e-4",
                  ("exact_match", "f1"), 2.8, 1, model, "64.4 / 84.0 (dev)")  # fmt: skip


ROWS = {row.name: row for row in _plan()}


def write_files(rows: Sequence[Row], places: Places) -> None:
    """Write the cut files that the rows need; the same bytes each time, so that a stopped run may go on."""
    for word in {word for row in rows for word in row.words() if word.startswith("$OUT/files/")}:
        name = word.removeprefix("$OUT/files/")
        write_text(places.out / "files" / name, FILES[name](places.data))


def write_fresh(chinese: Path, out: Path) -> None:
    """Write a model of the same sizes and vocabulary with weights as they are drawn: the same, not pretrained."""
    import torch

    from bertworks.models.folder import read_folder, write_folder
    from bertworks.models.tensor_names import to_hf_names

    folder = read_folder(chinese)
    encoder = folder.family.build(folder.encoder_config, torch.Generator().manual_seed(0))
    tensors = to_hf_names(encoder.state_dict(), folder.family.tensor_names(folder.encoder_config))
    config = folder.family.config_to_dict(folder.encoder_config, ["BertModel"])
    write_folder(out, config, tensors, folder.tokenizer, {"note": "weights as drawn, not trained"})


def guessing(row: Row, places: Places) -> dict[str, float]:
    """Return what dev gives to one who does not read: the commonest class of train, any choice, never an answer."""
    from bertworks.commands.finetune.targets import resolve_dataset
    from bertworks.tasks.registry import task_of

    words = places.filled(row.words())
    given = {split: Path(words[words.index(f"--{split}") + 1]) for split in ("train", "dev")}
    named = {role: words[words.index(f"--{role}") + 1] for role in ("text", "label") if f"--{role}" in words}
    target = resolve_dataset(row.task, given, None, named)
    task = task_of(target.task)
    cases = {
        split: list(task.read(path, {**target.columns.get("", {}), **target.columns.get(split, {})}))
        for split, path in given.items()
    }
    return GUESSES[target.task](cases["train"], cases["dev"]) if target.task in GUESSES else {}


def guessed_class(train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
    common = Counter(case.label for case in train).most_common(1)[0][0]
    share = sum(case.label == common for case in dev) / len(dev)
    positive = 2 * share / (1 + share) if common == "1" else 0.0
    return {"accuracy": share, "f1": positive, "matthews": 0.0}


def guessed_choice(train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
    return {"accuracy": statistics.fmean(1 / len(case.texts[1:]) for case in dev)}


def guessed_answer(train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
    share = sum(case.is_impossible for case in dev) / len(dev)
    return {"exact_match": share, "f1": share}


GUESSES = {"classify": guessed_class, "choose": guessed_choice, "answer": guessed_answer}


def identity(row: Row, places: Places) -> dict[str, Any]:
    """Return what makes a row this row: its command, the weights it begins with, and its files."""
    from bertworks.models.weights import find_weights

    weights = find_weights(places.models[row.model])
    words = places.filled(row.words())
    files = {split: sha256(Path(words[words.index(f"--{split}") + 1])) for split in row.files}
    return {"command": row.command, "weights": sha256(weights) if weights else "", "files": files}


def run_row(row: Row, places: Places, threads: int) -> bool:
    """Run the command of a row unless it is done, and write its JSON file; return whether it is done."""
    file, folder = places.out / "rows" / f"{row.name}.json", places.out / "runs" / row.name
    own, begun = identity(row, places), places.out / "begun" / f"{row.name}.json"
    if begun.exists() and read_json(begun, "a row that was begun") != own:
        shutil.rmtree(folder, ignore_errors=True)  # seeds of another command, model or file must not be mixed in
        file.unlink(missing_ok=True)
    if file.exists():
        return True
    write_json(begun, own)
    continued, start = folder.exists(), time.perf_counter()
    result = folder / ("sweep.json" if row.seeds > 1 else "run.json")
    if not result.exists():
        _run_command(places.filled(row.words()), places.out / "logs" / f"{row.name}.log", threads)
    if not result.exists():
        return False
    minutes = (time.perf_counter() - start) / 60
    scores, examples = outcome(folder, row.seeds)
    facts = {"minutes": round(minutes, 2), "continued": continued, "examples": examples, "scores": scores}
    write_json(file, {"row": row.name, "command": row.command, **facts, "guessing": guessing(row, places)})
    for heavy in (*folder.rglob("checkpoints"), *folder.rglob("features")):
        shutil.rmtree(heavy)  # gigabytes that only an unfinished run needs
    return True


def _run_command(words: Sequence[str], log: Path, threads: int) -> None:
    """Run our own command line. Whoever stops this script stops it too, and it saves before it leaves."""
    log.parent.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    with log.open("a", encoding="utf-8") as file:
        command = [sys.executable, "-m", "bertworks", *words]
        # The lock passes on: if this script is killed outright, a second one waits for the command that it left.
        child = subprocess.Popen(command, stdout=file, stderr=file, env=env, close_fds=False)
        try:
            child.wait()
        except KeyboardInterrupt:  # a terminal has told the command too
            child.wait()
            sys.exit(STOPPED)
        except SystemExit:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise


def outcome(folder: Path, seeds: int) -> tuple[dict[str, dict[str, list[float]]], dict[str, int]]:
    """Return the figures of each split, one value a seed, and how many examples the splits have."""
    sweep = read_json(folder / "sweep.json", "a finished sweep") if seeds > 1 else [{"folder": "."}]
    runs = [read_json(folder / one["folder"] / "run.json", "a finished run") for one in sweep]
    scores = {
        split: {name: [run["scores"][split][name] for run in runs] for name in figures}
        for split, figures in runs[0]["scores"].items()
    }
    return scores, {split: one["examples"] for split, one in runs[0]["data"].items()}


STOPPED = "asked to stop; the same command goes on"
NAMES = {"exact_match": "exact match", "f1": "F1", "macro_f1": "macro F1", "matthews": "Matthews",
         "spearman": "Spearman", "pearson": "Pearson", "accuracy": "accuracy"}  # fmt: skip


def shown(values: Sequence[float]) -> str:
    """Return the mean and deviation in hundredths; of one value the value alone."""
    mean = f"{100 * statistics.fmean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean


def line_of(row: Row, told: Mapping[str, Any] | None) -> str:
    """Return the line of a row in its table."""
    if told is None:
        return f"| {row.title} | – | not yet run | – | – | {row.published} | – |"
    splits = {
        split: "; ".join(f"{NAMES[name]} {shown(told['scores'][split][name])}" for name in row.figures)
        for split in ("dev", "test")
        if split in told["scores"]
    }
    counts = " / ".join(f"{told['examples'][split]:,}" for split in ("train", *splits))
    guess = [f"{100 * told['guessing'][name]:.1f}" for name in row.figures if name in told["guessing"]]
    cells = (row.title, counts, splits["dev"], splits.get("test", "–"), " / ".join(guess) or "–", row.published)
    minutes = f"{'over ' if told['continued'] else ''}{told['minutes']:.1f}"
    return f"| {' | '.join(cells)} | {minutes} |"


HEAD = (
    "| | examples | dev | test | without reading | published, BERT-Base | minutes |",
    "|---|---|---|---|---|---|---|",
)


def filled_page(page: str, told: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page with its tables, and the commands below them, written anew; all prose stays."""
    for name in dict.fromkeys(row.table for row in ROWS.values()):
        rows = [row for row in ROWS.values() if row.table == name]
        body = [*HEAD, *(line_of(row, told.get(row.name)) for row in rows), "", "```console"]
        page = between(page, name, "\n".join([*body, *(row.command for row in rows), "```"]))
    minutes = sum(one["minutes"] for one in told.values())
    return between(page, "total", f"{len(told)} of {len(ROWS)} rows are there; they took {minutes:.0f} minutes.")


def between(page: str, name: str, text: str) -> str:
    """Return the page with a text between the two markers of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"the page should have one line '{begin}' and one line '{end}'; put them where it belongs")
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"


def done(out: Path) -> dict[str, dict[str, Any]]:
    """Return what is known of the rows that are done."""
    files = {name: out / "rows" / f"{name}.json" for name in ROWS}
    return {name: read_json(file, "a row of the page") for name, file in files.items() if file.exists()}


def chosen_rows(only: str, has_chinese: bool) -> list[Row]:
    unknown = [name for name in only.split(",") if name and name not in ROWS]
    if unknown:
        raise SystemExit(f"there is no row {', '.join(unknown)}; the rows are {', '.join(ROWS)}")
    rows = [row for name, row in ROWS.items() if not only or name in only.split(",")]
    return [row for row in rows if has_chinese or row.model == "$MINILM"]


def run_rows(rows: Sequence[Row], places: Places, threads: int) -> list[str]:
    """Run what is not done, one row after the other; return the names of those that failed."""
    write_files(rows, places)
    if "$FRESH" in places.models and not places.models["$FRESH"].is_dir():
        write_fresh(places.models["$CHINESE"], places.models["$FRESH"])
    failed = []
    for number, row in enumerate(rows, 1):
        print(f"{number} of {len(rows)}: {row.name}, about {row.minutes:g} minutes", file=sys.stderr, flush=True)
        if not run_row(row, places, threads):
            failed.append(row.name)
            print(f"{row.name} did not finish; see {places.out / 'logs' / row.name}.log", file=sys.stderr, flush=True)
    return failed


def figures_of(told: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return mean and deviation of every figure of the page on dev and test, and the minutes."""
    found: dict[str, float] = {}
    for name, one in told.items():
        for split, figure in ((split, figure) for split in ("dev", "test") for figure in ROWS[name].figures):
            values = one["scores"].get(split, {}).get(figure)
            if values:
                found[f"{name}_{split}_{figure}"] = round(statistics.fmean(values), 4)
                found[f"{name}_{split}_{figure}_deviation"] = round(statistics.stdev(values), 4) if values[1:] else 0.0
        found[f"{name}_minutes"] = one["minutes"]
    return found


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="the folder of MiniLM")
    parser.add_argument("--chinese", type=Path, help="the folder of a small Chinese BERT; without it no Chinese rows")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of rows, with commas")
    parser.add_argument("--page", type=Path, help="the page whose tables are filled at the end")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plan", action="store_true", help="tell the commands, run nothing")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = options_of()
    out = options.out.absolute()
    models = {"$MINILM": options.model.absolute()}
    if options.chinese:
        models |= {"$CHINESE": options.chinese.absolute(), "$FRESH": out / "fresh"}
    rows = chosen_rows(options.only, bool(options.chinese))
    if options.plan:
        for row in rows:
            print(f"{row.minutes:5.1f} min  {row.command}")
        print(f"{sum(row.minutes for row in rows):5.1f} min  in all")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = run_rows(rows, Places(options.data.absolute(), out, models), options.threads)
    told = done(out)
    if options.page:
        write_text(options.page, filled_page(options.page.read_text(encoding="utf-8"), told))
    if options.json:
        print(json.dumps(figures_of(told)))
    if failed:
        sys.exit(f"not finished: {', '.join(failed)}")


if __name__ == "__main__":
    main()
