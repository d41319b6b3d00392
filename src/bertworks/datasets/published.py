"""Data sets by name: the name and a data folder in; files, columns, labels, metrics and submissions out."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bertworks.datasets.built_in import PACKAGES, write_python_docs
from bertworks.datasets.files import Record, read_records
from bertworks.disk import atomic_write
from bertworks.errors import InputError, SettingsError
from bertworks.text.document import Counts

_COMPRESSION_SUFFIXES = ("", ".gz", ".zst")

# An id of the test file and what was predicted for it: a label, a score, or an answer's text.
Predictions = Iterable[tuple[str, str | float]]


@dataclass(frozen=True, slots=True)
class DatasetSplit:
    """One file of a set: the names it may have, its columns if it has no header, whether it tells the labels."""

    files: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    is_labelled: bool = True


@dataclass(frozen=True, slots=True)
class PublishedDataset:
    """A published data set. The first of the metrics decides which model is best.

    `splits` are "train", "dev" and "test"; MNLI has "dev_matched", "dev_mismatched" and so on. `roles` are the columns
    of the text, the pair, the label and the id where the task reads a table. `submissions` gives the file that the
    benchmark wants for a split; `also` names sets that are handed in with the predictions of the same model.
    `has_broken_lines` says that the published file is known to have some. `write` makes the files of a set that is
    built in.
    """

    name: str
    task: str
    folders: tuple[str, ...]
    splits: Mapping[str, DatasetSplit]
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    submissions: Mapping[str, str] = field(default_factory=dict)
    has_broken_lines: bool = False
    companions: tuple[str, ...] = ()
    write: Callable[[Path], None] | None = None

    def splits_of_kind(self, kind: str) -> tuple[str, ...]:
        """The splits that are "train", "dev" or "test": two of MNLI, none where the set has no such file."""
        return tuple(name for name in self.splits if name.split("_")[0] == kind)

    def split(self, name: str) -> DatasetSplit:
        if name not in self.splits:
            raise SettingsError(f"{self.name} has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]

    def find(self, data: Path, split: str) -> Path:
        """The file of a split in a data folder, or in the set's own folder; packed or not."""
        files = self.split(split).files
        # A folder of many sets is tried first: its own train.tsv, if it has one, belongs to another set.
        for folder in (*self.folders, ""):
            for path in (data / folder / f"{file}{suffix}" for file in files for suffix in _COMPRESSION_SUFFIXES):
                if path.is_file():
                    return path
        raise InputError(
            f"{data} has no {split} file of {self.name}; put {files[0]} (or .gz) into {data / self.folders[0]}, or "
            f"give the folder that holds it"
        )

    def has_split(self, data: Path, split: str) -> bool:
        """Whether the file of a split is there."""
        try:
            return self.find(data, split).is_file()
        except InputError:
            return False

    def columns_of(self, split: str) -> dict[str, str]:
        """The columns of a split as a task reads them: roles, "header", "broken", and no label where it has none."""
        one = self.split(split)
        found = dict(self.roles)
        if one.columns:
            found["header"] = ",".join(one.columns)
        if self.has_broken_lines:
            found["broken"] = "yes"
        if not one.is_labelled:
            found["label"] = ""
        return found

    def column_roles(self, split: str) -> dict[str, str | None]:
        """The columns of a split, as `recognise` takes them: the label only where the file has it, an id if it does."""
        is_labelled = self.split(split).is_labelled
        roles: dict[str, str | None] = {
            role: name for role, name in self.roles.items() if role != "label" or is_labelled
        }
        return {**roles, "id": None}


def _glue(
    folder: str, task: str, metrics: tuple[str, ...], labels: tuple[str, ...], roles: dict[str, str]
) -> PublishedDataset:
    """A set of GLUE with the usual three files."""
    return PublishedDataset(
        f"glue/{folder}",
        task,
        _glue_folders(folder),
        {
            "train": DatasetSplit(("train.tsv",)),
            "dev": DatasetSplit(("dev.tsv",)),
            "test": DatasetSplit(("test.tsv",), is_labelled=False),
        },
        metrics,
        labels,
        roles,
        {"test": f"{folder}.tsv"},
        has_broken_lines=folder == "QQP",  # line 97,931 of train.tsv and a few others are halves of a row
    )


def _glue_folders(folder: str) -> tuple[str, ...]:
    return tuple(f"{above}{folder}" for above in ("glue/", "GLUE/", "glue_data/", ""))


def _squad(name: str, version: str) -> PublishedDataset:
    return PublishedDataset(
        name,
        "answer",
        ("squad", "SQuAD", name),
        {"train": DatasetSplit((f"train-v{version}.json",)), "dev": DatasetSplit((f"dev-v{version}.json",))},
        ("f1", "exact_match"),
        submissions={"dev": "predictions.json"},
    )


_SENTENCE = {"text": "sentence", "label": "label"}
_SENTENCE_PAIR = {"text": "sentence1", "pair": "sentence2", "label": "label"}
_BINARY_LABELS = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_THREE_WAY = ("entailment", "neutral", "contradiction")
_COLA_COLUMNS = ("source", "label", "star", "sentence")
_ENTITIES = ("O", *(f"{letter}-{label}" for label in ("PER", "ORG", "LOC", "MISC") for letter in "BI"))

_SETS = (
    PublishedDataset(
        "glue/CoLA",
        "classify",
        _glue_folders("CoLA"),
        {
            "train": DatasetSplit(("train.tsv",), _COLA_COLUMNS),
            "dev": DatasetSplit(("dev.tsv",), _COLA_COLUMNS),
            "test": DatasetSplit(("test.tsv",), is_labelled=False),
        },
        ("matthews", "accuracy"),
        _BINARY_LABELS,
        _SENTENCE,
        {"test": "CoLA.tsv"},
    ),
    _glue("SST-2", "classify", ("accuracy",), _BINARY_LABELS, _SENTENCE),
    _glue(
        "MRPC",
        "classify",
        ("f1", "accuracy"),
        _BINARY_LABELS,
        {"text": "#1 String", "pair": "#2 String", "label": "Quality"},
    ),
    _glue("STS-B", "regress", ("spearman", "pearson"), (), {**_SENTENCE_PAIR, "label": "score"}),
    _glue(
        "QQP",
        "classify",
        ("f1", "accuracy"),
        _BINARY_LABELS,
        {"text": "question1", "pair": "question2", "label": "is_duplicate"},
    ),
    PublishedDataset(
        "glue/MNLI",
        "classify",
        _glue_folders("MNLI"),
        {
            "train": DatasetSplit(("train.tsv",)),
            "dev_matched": DatasetSplit(("dev_matched.tsv",)),
            "dev_mismatched": DatasetSplit(("dev_mismatched.tsv",)),
            "test_matched": DatasetSplit(("test_matched.tsv",), is_labelled=False),
            "test_mismatched": DatasetSplit(("test_mismatched.tsv",), is_labelled=False),
        },
        ("accuracy",),
        _THREE_WAY,
        {**_SENTENCE_PAIR, "label": "gold_label"},
        {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
        companions=("glue/AX",),
    ),
    _glue("QNLI", "classify", ("accuracy",), _ENTAILMENT, {"text": "question", "pair": "sentence", "label": "label"}),
    _glue("RTE", "classify", ("accuracy",), _ENTAILMENT, _SENTENCE_PAIR),
    _glue("WNLI", "classify", ("accuracy",), _BINARY_LABELS, _SENTENCE_PAIR),
    PublishedDataset(
        "glue/AX",
        "classify",
        (*_glue_folders("AX"), *_glue_folders("diagnostic"), *_glue_folders("MNLI")),
        {"test": DatasetSplit(("diagnostic.tsv", "AX.tsv"), is_labelled=False)},
        ("matthews",),
        _THREE_WAY,
        _SENTENCE_PAIR,
        {"test": "AX.tsv"},
    ),
    PublishedDataset(
        "python-docs",
        "classify",
        ("python-docs",),
        {"train": DatasetSplit(("train.tsv",)), "dev": DatasetSplit(("dev.tsv",))},
        ("accuracy",),
        PACKAGES,
        {"text": "text", "label": "label"},
        write=write_python_docs,
    ),
    PublishedDataset(
        "swag",
        "choose",
        ("swag", "SWAG", "swag/data"),
        {
            "train": DatasetSplit(("train.csv",)),
            "dev": DatasetSplit(("val.csv", "dev.csv")),
            "test": DatasetSplit(("test.csv",), is_labelled=False),
        },
        ("accuracy",),
        submissions={"test": "predictions.csv"},
    ),
    PublishedDataset(
        "comve",
        "choose",
        ("comve", "ComVE"),
        {"train": DatasetSplit(("train.csv",)), "dev": DatasetSplit(("dev.csv",)), "test": DatasetSplit(("test.csv",))},
        ("accuracy",),
    ),
    _squad("squad1", "1.1"),
    _squad("squad2", "2.0"),
    PublishedDataset(
        "cmrc2018",
        "answer",
        ("cmrc2018", "CMRC2018", "cmrc"),
        {
            "train": DatasetSplit(("train.json", "cmrc2018_train.json")),
            "dev": DatasetSplit(("dev.json", "cmrc2018_dev.json")),
        },
        ("f1", "exact_match"),
        submissions={"dev": "predictions.json"},
    ),
    PublishedDataset(
        "conll2003",
        "tag",
        ("conll2003", "CoNLL-2003", "conll-2003"),
        {
            "train": DatasetSplit(("train.txt", "eng.train")),
            "dev": DatasetSplit(("dev.txt", "valid.txt", "eng.testa")),
            "test": DatasetSplit(("test.txt", "eng.testb")),
        },
        ("f1",),
        _ENTITIES,
    ),
    PublishedDataset(
        "chnsenticorp",
        "classify",
        ("chnsenticorp", "ChnSentiCorp"),
        {"train": DatasetSplit(("train.tsv",)), "dev": DatasetSplit(("dev.tsv",)), "test": DatasetSplit(("test.tsv",))},
        ("accuracy",),
        _BINARY_LABELS,
        {"text": "text_a", "label": "label"},
    ),
)
DATASETS: dict[str, PublishedDataset] = {one.name: one for one in _SETS}

_ALIASES = {"squad": "squad1", "squad-1.1": "squad1", "squad-2.0": "squad2", "conll-2003": "conll2003"}


def dataset_of(name: str) -> PublishedDataset:
    """The set of that name, in capitals or not."""
    by_small = {known.lower(): one for known, one in DATASETS.items()}
    small = name.lower()
    small = _ALIASES.get(small, small)
    if small in by_small:
        return by_small[small]
    near = difflib.get_close_matches(small, by_small, 1) or difflib.get_close_matches(f"glue/{small}", by_small, 1)
    guess = f"did you mean {by_small[near[0]].name}? " if near else ""
    raise SettingsError(f"no data set is named {name!r}; {guess}The names are {', '.join(DATASETS)}")


def read_dataset(name: str, data: Path, split: str, counts: Counts) -> Iterator[Record]:
    """The records of a set that is a table; lines that are known to be broken are left out and counted."""
    one = dataset_of(name)
    return read_records(one.find(data, split), one.split(split).columns, counts if one.has_broken_lines else None)


def write_submission(name: str, predictions: Predictions, output: Path, split: str | None = None) -> Path:
    """Write what the benchmark wants into the folder `out`, under the official name, and return its path.

    `split` may be left out where only one is handed in; MNLI has two.
    """
    one = dataset_of(name)
    if not one.submissions:
        raise SettingsError(f"{one.name} has no official submission; its test file has labels: use evaluate")
    if split is None and len(one.submissions) == 1:
        split = next(iter(one.submissions))
    if split is None or split not in one.submissions:
        raise SettingsError(
            f"{one.name} is handed in for {' and '.join(one.submissions)}, not {split!r}; name one of them"
        )
    path = output / one.submissions[split]
    with atomic_write(path) as temporary:
        _WRITERS[path.suffix](one, predictions, temporary)
    return path


def _write_tsv(dataset: PublishedDataset, predictions: Predictions, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("index\tprediction\n")
        file.writelines(f"{number}\t{_format_value(dataset, value)}\n" for number, value in predictions)


def _write_csv(dataset: PublishedDataset, predictions: Predictions, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("", "pred"))  # the row number stands under an empty name
        writer.writerows((number, _format_value(dataset, value)) for number, value in predictions)


def _write_json(dataset: PublishedDataset, predictions: Predictions, path: Path) -> None:
    # The benchmark wants one object, so this one file is held in memory.
    path.write_text(json.dumps(dict(predictions), ensure_ascii=False), encoding="utf-8")


_WRITERS: dict[str, Callable[[PublishedDataset, Predictions, Path], None]] = {
    ".tsv": _write_tsv,
    ".csv": _write_csv,
    ".json": _write_json,
}


def _format_value(dataset: PublishedDataset, value: str | float) -> str:
    if dataset.task == "regress":
        # A head may leave the scale that the people who scored were given, 0 to 5.
        return f"{min(max(float(value), 0.0), 5.0):.3f}"
    if dataset.labels and value not in dataset.labels:
        raise InputError(f"{value!r} is no label of {dataset.name}; its labels are {', '.join(dataset.labels)}")
    return str(value)
