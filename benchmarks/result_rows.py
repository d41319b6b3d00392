"""The rows of `results.py`: commands of `bertworks finetune`, and the reduced files of published datasets they use."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

STRATEGIES = ("embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all")
# Dev F1 of these strategies in the paper, with BERT-Base on all of the training data.
PAPER_FEATURES = ("91.0", "95.6", "94.9", "95.9", "96.1", "95.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the page.

    files       by split: names of FILES, or of files in the data folder
    options     further options of the command
    minutes     estimated minutes of the whole row on two cores
    published   a published score for comparison, with its conditions
    """

    name: str
    table: str
    title: str
    task: str
    files: Mapping[str, str]
    options: str
    metrics: tuple[str, ...]
    minutes: float
    seeds: int = 3
    model: str = "$MINILM"
    published: str = "–"

    def arguments(self) -> list[str]:
        """Return the arguments of the command as the page shows them; paths start with $DATA, $OUT or $MODEL."""
        arguments = ["finetune", self.task, "--model", self.model]
        for split, file in self.files.items():
            arguments += [f"--{split}", f"$OUT/files/{file}" if file in FILES else f"$DATA/{file}"]
        arguments += [*shlex.split(self.options), "--output", f"$OUT/runs/{self.name}"]
        return arguments + (["--seeds", str(self.seeds)] if self.seeds > 1 else [])

    @property
    def command(self) -> str:
        return " ".join(["bertworks", *self.arguments()])


def open_source(data: Path, source: str) -> io.TextIOBase:
    """Open a file of the data folder, compressed or not. Line ends are not translated."""
    path = data / source
    if path.is_file():
        return path.open(encoding="utf-8-sig", newline="\n")
    return gzip.open(f"{path}.gz", "rt", encoding="utf-8-sig", newline="\n")


def table(source: str, data: Path, rows: slice, header: bool = True, unique: bool = False) -> str:
    """Return some rows of a table with its header; `unique` drops repeated lines before."""
    with open_source(data, source) as file:
        lines = [line.rstrip("\r\n") for line in file]
    head, body = (lines[:1], lines[1:]) if header else ([], lines)
    body = list(dict.fromkeys(body)) if unique else body
    return "".join(f"{line}\n" for line in [*head, *body[rows]])


def records(source: str, data: Path, rows: slice) -> str:
    """Return some records of a CSV file, in which a record may span several lines."""
    with open_source(data, source) as file:
        head, *body = csv.reader(file)
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([head, *body[rows]])
    return written.getvalue()


def documents(source: str, data: Path, count: int) -> str:
    """Return the first documents of a CoNLL file."""
    lines: list[str] = []
    with open_source(data, source) as file:
        for line in file:
            count -= line.startswith("-DOCSTART-")
            if count < 0:
                break
            lines.append(line)
    return "".join(lines)


def articles(source: str, data: Path, selection: slice, paragraphs: int) -> str:
    """Return the first paragraphs of some articles of a file in SQuAD's format."""
    with open_source(data, source) as file:
        content = json.load(file)
    selected = [{**article, "paragraphs": article["paragraphs"][:paragraphs]} for article in content["data"][selection]]
    return json.dumps({"version": content.get("version", ""), "data": selected}, ensure_ascii=False)


SMS, COLA, CHINESE = "sms-spam/SMSSpamCollection", "glue/CoLA/train.tsv", "chnsenticorp"
# The files that the script writes: published datasets reduced to what two cores can train on. STS-B and CoLA are sorted
# by the source of their sentences, so every third, fourth or eighth row of them is taken instead of the first ones.
FILES: dict[str, Callable[[Path], str]] = {
    "sst2-train.tsv": partial(table, "glue/SST-2/train.tsv", rows=slice(6_000)),
    "stsb-train.tsv": partial(table, "glue/STS-B/train.tsv", rows=slice(None, None, 4)),
    "cola-train.tsv": partial(table, COLA, rows=slice(None, None, 3), header=False),
    "cola-1000.tsv": partial(table, COLA, rows=slice(None, 8_000, 8), header=False),
    "conll-train.txt": partial(documents, "conll2003/train.txt", count=150),
    "conll-dev.txt": partial(documents, "conll2003/dev.txt", count=40),
    "conll-test.txt": partial(documents, "conll2003/test.txt", count=40),
    "squad1-train.json": partial(articles, "squad/dev-v1.1.json", selection=slice(36), paragraphs=4),
    "squad1-dev.json": partial(articles, "squad/dev-v1.1.json", selection=slice(36, 48), paragraphs=3),
    "squad2-train.json": partial(articles, "squad/dev-v2.0.json", selection=slice(26), paragraphs=3),
    "squad2-dev.json": partial(articles, "squad/dev-v2.0.json", selection=slice(26, 35), paragraphs=2),
    "comve-train.csv": partial(records, "comve/train.csv", rows=slice(600)),
    "comve-dev.csv": partial(records, "comve/dev.csv", rows=slice(300)),
    "comve-test.csv": partial(records, "comve/test.csv", rows=slice(500)),
    "sms-train.tsv": partial(table, SMS, rows=slice(1_500), unique=True),
    "sms-500.tsv": partial(table, SMS, rows=slice(500), unique=True),
    "sms-dev.tsv": partial(table, SMS, rows=slice(1_500, 2_500), unique=True),
    "chn-train.tsv": partial(table, f"{CHINESE}/train.tsv", rows=slice(1_000)),
    "chn-dev.tsv": partial(table, f"{CHINESE}/dev.tsv", rows=slice(400)),
    "chn-test.tsv": partial(table, f"{CHINESE}/test.tsv", rows=slice(400)),
    "cmrc-train.json": partial(articles, "cmrc2018/train.json", selection=slice(120), paragraphs=1),
    "cmrc-dev.json": partial(articles, "cmrc2018/dev.json", selection=slice(40), paragraphs=1),
}


def _files(train: str, dev: str, test: str = "") -> dict[str, str]:
    return {split: file for split, file in (("train", train), ("dev", dev), ("test", test)) if file}


def _rows() -> Iterator[Row]:
    """Yield all rows, the most important first. MiniLM trains at about 1,700 tokens/s here and evaluates at 5,000."""
    short = "--max-length 128 --batch-size 32 --epochs 2"
    yield Row(name="mrpc", table="glue", title="MRPC, all of train", task="glue/MRPC",
              files=_files("glue/MRPC/train.tsv", "glue/MRPC/dev.tsv"), options=f"{short} --learning-rate 1e-4",
              metrics=("f1", "accuracy"), minutes=14.5, published="86.7 accuracy (dev)")  # fmt: skip
    yield Row(name="sst2", table="glue", title="SST-2, first rows", task="glue/SST-2",
              files=_files("sst2-train.tsv", "glue/SST-2/dev.tsv"), options=f"{short} --learning-rate 1e-4",
              metrics=("accuracy",), minutes=6.5, published="92.7 accuracy (dev)")  # fmt: skip
    yield Row(name="stsb", table="glue", title="STS-B, every fourth row", task="glue/STS-B",
              files=_files("stsb-train.tsv", "glue/STS-B/dev.tsv"), options=f"{short} --learning-rate 2e-4",
              metrics=("spearman", "pearson"), minutes=5, published="85.8 Spearman (test)")  # fmt: skip
    yield Row(name="cola", table="glue", title="CoLA, every third row", task="glue/CoLA",
              files=_files("cola-train.tsv", "glue/CoLA/dev.tsv"), options=f"{short} --learning-rate 2e-4",
              metrics=("matthews", "accuracy"), minutes=3, published="52.1 Matthews (test)")  # fmt: skip
    yield Row(name="sms", table="others", title="SMS spam", task="classify",
              files=_files("sms-train.tsv", "sms-dev.tsv"),
              options=f"--text SMS --label Label {short} --learning-rate 1e-4",
              metrics=("accuracy", "macro_f1"), minutes=3.6)  # fmt: skip
    yield Row(name="comve", table="others", title="ComVE, one of three reasons", task="comve",
              files=_files("comve-train.csv", "comve-dev.csv", "comve-test.csv"),
              options=f"{short} --learning-rate 1e-4", metrics=("accuracy",), minutes=4.5,
              published="81.6 on SWAG, one of four (dev)")  # fmt: skip
    yield from _entity_rows()
    answer_options = "--max-length 256 --batch-size 16 --epochs 2 --learning-rate 2e-4"
    yield Row(name="squad1", table="answers", title="SQuAD 1.1", task="squad1",
              files=_files("squad1-train.json", "squad1-dev.json"), options=answer_options,
              metrics=("exact_match", "f1"), minutes=5, seeds=1, published="80.8 / 88.5 (dev)")  # fmt: skip
    yield Row(name="squad2", table="answers", title="SQuAD 2.0", task="squad2",
              files=_files("squad2-train.json", "squad2-dev.json"), options=answer_options,
              metrics=("exact_match", "f1"), minutes=5, seeds=1,
              published="78.7 / 81.9 (dev, BERT-Large)")  # fmt: skip
    yield from _auxiliary_rows()
    yield from _chinese_rows()


def _entity_rows() -> Iterator[Row]:
    """Named entities: fine-tuning, and a BiLSTM on frozen features."""
    files = _files("conll-train.txt", "conll-dev.txt", "conll-test.txt")
    options = "--max-length 128 --batch-size 32"
    yield Row(name="conll", table="entities", title="fine-tuned", task="conll2003", files=files,
              options=f"{options} --epochs 3 --learning-rate 2e-4", metrics=("f1",), minutes=5.5,
              published="96.4 (dev), 92.4 (test)")  # fmt: skip
    for strategy, score in zip(STRATEGIES, PAPER_FEATURES, strict=True):
        features = f"--set feature_layers={strategy} --set recurrent_hidden_size=128"
        yield Row(name=f"conll-{strategy}", table="entities", title=f"frozen, `{strategy}`", task="conll2003",
                  files=files, options=f"{features} {options} --epochs 4 --learning-rate 2e-3", metrics=("f1",),
                  minutes=1.5, published=f"{score} (dev)")  # fmt: skip


def _auxiliary_rows() -> Iterator[Row]:
    """Few examples, with and without an auxiliary MLM loss."""
    options = "--max-length 128 --batch-size 32 --epochs 2"
    for auxiliary, title, minutes in (("", "", 1.7), (" --auxiliary mlm", ", auxiliary MLM loss", 2.6)):
        suffix = "-mlm" if auxiliary else ""
        yield Row(name=f"sms-500{suffix}", table="auxiliary", title=f"SMS spam, 500 rows{title}", task="classify",
                  files=_files("sms-500.tsv", "sms-dev.tsv"),
                  options=f"--text SMS --label Label {options} --learning-rate 1e-4{auxiliary}",
                  metrics=("accuracy", "macro_f1"), minutes=minutes)  # fmt: skip
        yield Row(name=f"cola-1000{suffix}", table="auxiliary", title=f"CoLA, 1,000 rows{title}", task="glue/CoLA",
                  files=_files("cola-1000.tsv", "glue/CoLA/dev.tsv"),
                  options=f"{options} --learning-rate 2e-4{auxiliary}", metrics=("matthews", "accuracy"),
                  minutes=minutes)  # fmt: skip


def _chinese_rows() -> Iterator[Row]:
    """The same rows with the pretrained model and with random weights, at the length of 128 it was pretrained on."""
    options = "--max-length 128 --batch-size 32 --epochs 2 --learning-rate 3e-4"
    for model, suffix, title in (("$CHINESE", "", "pretrained"), ("$FRESH", "-fresh", "not pretrained")):
        yield Row(name=f"chnsenticorp{suffix}", table="chinese", title=f"ChnSentiCorp, {title}", task="chnsenticorp",
                  files=_files("chn-train.tsv", "chn-dev.tsv", "chn-test.tsv"), options=options,
                  metrics=("accuracy",), minutes=3.3, model=model)  # fmt: skip
        yield Row(name=f"cmrc2018{suffix}", table="chinese", title=f"CMRC 2018, {title}", task="cmrc2018",
                  files=_files("cmrc-train.json", "cmrc-dev.json"), options=options, metrics=("exact_match", "f1"),
                  minutes=2.8, seeds=1, model=model, published="64.4 / 84.0 (dev)")  # fmt: skip


ROWS = {row.name: row for row in _rows()}
