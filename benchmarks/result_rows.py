"""The rows of `results.py`: labelled sets and models in, commands of `bertworks` and the files that they read out."""

from __future__ import annotations

import gzip
import io
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

# Feature strategies, and their dev F1 in the paper with BERT-Base.
STRATEGIES = {"embeddings": "91.0", "second-to-last": "95.6", "last": "94.9", "sum-last-four": "95.9",
              "concat-last-four": "96.1", "sum-all": "95.5"}  # fmt: skip
# How a command names the model, by group. {} is the language.
MODELS = {
    "ours": "--model {}-small",
    "random": "--vocab {}-small --set model.size=mini",
    "minilm": "--model $MINILM",
    "glove": "--model $OUT/runs/glove-{} --set feature_layers=embeddings",
}
# Minutes of these groups relative to our models; a model that is not pretrained may collapse and be restarted.
RELATIVE_MINUTES = {"ours": 1.0, "random": 1.3, "minilm": 3.5, "glove": 0.5}
# A row has three seeds if one takes less than this many minutes; rows for comparison have one sooner.
MAX_MINUTES, MAX_MINUTES_OF_COMPARISON = 10.0, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A score on the page. Our model should reach `bar`, in percent, or `margin` points more than random weights."""

    split: str
    metric: str
    bar: float = 0.0
    margin: float = 0.0
    published: str = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSet:
    """A labelled set.

    arguments   task, files and columns in the command
    minutes     of one seed with a mini model, estimated
    groups      the models that are compared
    """

    title: str
    arguments: str
    scores: tuple[Score, ...]
    minutes: float
    language: str = "en"
    groups: tuple[str, ...] = ("ours", "random", "minilm", "glove")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One command: `arguments` are as the page shows them; paths begin with a variable such as $DATA.

    group          selects rows: one of MODELS, "vectors", "features" or "options"
    minutes        estimated minutes of the whole row on two cores
    labelled_set   the name of the set; empty for word vectors
    """

    name: str
    group: str
    arguments: tuple[str, ...]
    minutes: float
    labelled_set: str = ""
    seeds: int = 1

    @property
    def command(self) -> str:
        return " ".join(["bertworks", *self.arguments])

    @property
    def required(self) -> str | None:
        """The row that trains the word vectors of this one."""
        model = self.value("--model") or ""
        return model.removeprefix("$OUT/runs/") if model.startswith("$OUT/runs/") else None

    def value(self, option: str) -> str | None:
        """Return the value of an option of the command, None if it is not there."""
        return self.arguments[self.arguments.index(option) + 1] if option in self.arguments else None


def open_source(data: Path, source: str) -> io.TextIOBase:
    """Open a file of the data folder, compressed or not. Line ends are not translated."""
    path = data / source
    if path.is_file():
        return path.open(encoding="utf-8-sig", newline="\n")
    return gzip.open(f"{path}.gz", "rt", encoding="utf-8-sig", newline="\n")


def table(source: str, data: Path, rows: slice, unique: bool = False) -> str:
    """Return some rows of a table with its header; `unique` drops repeated lines before."""
    with open_source(data, source) as file:
        head, *body = (line.rstrip("\r\n") for line in file)
    body = list(dict.fromkeys(body)) if unique else body
    return "".join(f"{line}\n" for line in [head, *body[rows]])


def articles(source: str, data: Path, selection: slice) -> str:
    """Return some articles of a file in SQuAD's format."""
    with open_source(data, source) as file:
        content = json.load(file)
    return json.dumps({**content, "data": content["data"][selection]}, ensure_ascii=False)


SMS = "sms-spam/SMSSpamCollection"
# The files that the script writes: parts of published datasets.
FILES: dict[str, Callable[[Path], str]] = {
    "chn-train-1000.tsv": partial(table, "chnsenticorp/train.tsv", rows=slice(1_000)),
    "chn-dev-400.tsv": partial(table, "chnsenticorp/dev.tsv", rows=slice(400)),
    "chn-test-400.tsv": partial(table, "chnsenticorp/test.tsv", rows=slice(400)),
    "sst2-train-6000.tsv": partial(table, "glue/SST-2/train.tsv", rows=slice(6_000)),
    "sms-train-500.tsv": partial(table, SMS, rows=slice(500), unique=True),
    "sms-dev.tsv": partial(table, SMS, rows=slice(1_500, 2_500), unique=True),
    "squad1-train.json": partial(articles, "squad/dev-v1.1.json", selection=slice(40)),
    "squad1-dev.json": partial(articles, "squad/dev-v1.1.json", selection=slice(40, None)),
    "squad2-train.json": partial(articles, "squad/dev-v2.0.json", selection=slice(29)),
    "squad2-dev.json": partial(articles, "squad/dev-v2.0.json", selection=slice(29, None)),
}


def _files(train: str, dev: str, test: str = "") -> str:
    files = {"train": train, "dev": dev, "test": test}
    return " ".join(f"--{split} $OUT/files/{file}" for split, file in files.items() if file)


def _answers(exact_match: str, f1: str, margin: float = 0.0) -> tuple[Score, ...]:
    return (
        Score(split="dev", metric="f1", margin=margin, published=f1),
        Score(split="dev", metric="exact_match", published=exact_match),
    )


# Those with a bar first. Published: Google's small BERTs on GLUE's test server (google-research/bert), otherwise the
# BERT paper, or the mean of ten runs of Chinese-BERT-wwm.
SETS = {
    "chn": LabelledSet(
        title="ChnSentiCorp", arguments="chnsenticorp --data $DATA", language="zh", minutes=20.0,
        scores=(Score(split="test", metric="accuracy", bar=93.5),), groups=("ours", "random", "glove")),
    "chn-1000": LabelledSet(
        title="ChnSentiCorp, 1,000 rows", language="zh", minutes=4.0,
        arguments=f"chnsenticorp {_files('chn-train-1000.tsv', 'chn-dev-400.tsv', 'chn-test-400.tsv')}",
        scores=(Score(split="test", metric="accuracy", bar=88.0),), groups=("ours", "random", "glove")),
    "sst2": LabelledSet(
        title="SST-2", arguments="glue/SST-2 --data $DATA", minutes=5.0,
        scores=(Score(split="dev", metric="accuracy", bar=86.0, published="BERT-Mini 85.9 (test), Base 92.7"),)),
    "sst2-6000": LabelledSet(
        title="SST-2, 6,000 rows", minutes=5.0,
        arguments="glue/SST-2 --train $OUT/files/sst2-train-6000.tsv --dev $DATA/glue/SST-2/dev.tsv",
        scores=(Score(split="dev", metric="accuracy", bar=81.0),)),
    "sms-500": LabelledSet(
        title="SMS spam, 500 rows", minutes=1.5,
        arguments=f"classify {_files('sms-train-500.tsv', 'sms-dev.tsv')} --text SMS --label Label",
        scores=(Score(split="dev", metric="accuracy", bar=97.5), Score(split="dev", metric="macro_f1"))),
    "mrpc": LabelledSet(
        title="MRPC", arguments="glue/MRPC --data $DATA", minutes=5.0,
        scores=(Score(split="dev", metric="f1", bar=81.0, published="BERT-Mini 81.1, Base 88.9 (test)"),
                Score(split="dev", metric="accuracy", bar=71.5, published="BERT-Mini 71.8 (test), Base 86.7"))),
    "stsb": LabelledSet(
        title="STS-B", arguments="glue/STS-B --data $DATA", minutes=6.5,
        scores=(Score(split="dev", metric="spearman", bar=73.0, published="BERT-Mini 73.3, Base 85.8 (test)"),)),
    "conll": LabelledSet(
        title="CoNLL-2003", arguments="conll2003 --data $DATA", minutes=11.0,
        scores=(Score(split="dev", metric="f1", margin=15.0, published="Base 96.4"),
                Score(split="test", metric="f1", published="Base 92.4"))),
    "cmrc": LabelledSet(
        title="CMRC 2018", arguments="cmrc2018 --data $DATA", language="zh", minutes=38.0,
        scores=_answers("Base 64.4", "Base 84.0", margin=15.0), groups=("ours", "random")),
    "cola": LabelledSet(
        title="CoLA", arguments="glue/CoLA --data $DATA", minutes=4.0,
        scores=(Score(split="dev", metric="matthews", published="BERT-Mini 0.0, Base 52.1 (test)"),
                Score(split="dev", metric="accuracy"))),
    "comve": LabelledSet(
        title="ComVE", arguments="comve --data $DATA", minutes=3.8,
        scores=(Score(split="test", metric="accuracy"),)),
    "squad1": LabelledSet(
        title="SQuAD 1.1", arguments=f"squad1 {_files('squad1-train.json', 'squad1-dev.json')}", minutes=9.0,
        scores=_answers("Base 80.8", "Base 88.5"), groups=("ours", "random", "minilm")),
    "squad2": LabelledSet(
        title="SQuAD 2.0", arguments=f"squad2 {_files('squad2-train.json', 'squad2-dev.json')}", minutes=9.5,
        scores=_answers("Large 78.7", "Large 81.9"), groups=("ours", "random", "minilm")),
}  # fmt: skip
# Options beside the default settings: the set, the suffix of the row, the option, and relative minutes.
OPTIONS = (
    ("sms-500", "mlm", "--auxiliary mlm", 2.5),
    ("mrpc", "mlm", "--auxiliary mlm", 2.5),
    ("sst2-6000", "adapt", "--adapt-epochs 10", 4.0),
    ("chn-1000", "adapt", "--adapt-epochs 10", 2.2),
)


def _row(labelled_set: str, suffix: str, group: str, options: str = "", factor: float = 1.0) -> Row:
    """Return the row of a set and a model with default settings, or with options beside them."""
    info, name = SETS[labelled_set], f"{labelled_set}-{suffix}".removesuffix("-")
    model = MODELS.get(group, MODELS["ours"]).format(info.language)
    minutes = info.minutes * factor
    seeds = 3 if minutes < (MAX_MINUTES_OF_COMPARISON if group in list(MODELS)[1:] else MAX_MINUTES) else 1
    arguments = f"finetune {info.arguments} {model} {options} --output $OUT/runs/{name}"
    arguments += f" --seeds {seeds}" if seeds > 1 else ""
    return Row(name=name, group=group, arguments=tuple(shlex.split(arguments)), minutes=minutes * seeds,
               labelled_set=labelled_set, seeds=seeds)  # fmt: skip


def _rows() -> Iterator[Row]:
    """Yield all rows: our models first, then what they are compared with."""
    for group, factor in RELATIVE_MINUTES.items():
        if group == "glove":
            yield from _vector_rows()
        for name in (name for name, info in SETS.items() if group in info.groups):
            yield _row(name, "" if group == "ours" else group, group, factor=factor)
    for strategy in STRATEGIES:
        yield _row("conll", strategy, "features", f"--set feature_layers={strategy}", factor=1.5)
    for name, suffix, option, factor in OPTIONS:
        yield _row(name, suffix, "options", option, factor)


def _vector_rows() -> Iterator[Row]:
    """Yield the training of word vectors on the pretraining corpora."""
    for language, corpus in (("en", "$ENGLISH_CORPUS"), ("zh", "$CHINESE_CORPUS")):
        arguments = f"word-vectors train {corpus} --kind glove --output $OUT/runs/glove-{language}"
        yield Row(name=f"glove-{language}", group="vectors", arguments=tuple(arguments.split()), minutes=30)


ROWS: Mapping[str, Row] = {row.name: row for row in _rows()}
