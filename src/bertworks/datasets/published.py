"""Published datasets by name: a name and a data folder in; files, columns, labels, metrics and submissions out."""

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

# The id of a test example and its `Task.submission_value`.
Predictions = Iterable[tuple[str, str | float]]


@dataclass(frozen=True, slots=True)
class DatasetSplit:
    """One file of a dataset: the names it may have, its columns if it has no header, and whether it has labels."""

    files: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    is_labelled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDataset:
    """A published dataset.

    splits             "train", "dev" and "test"; MNLI has "dev_matched", "dev_mismatched" and so on
    metrics            the first selects the best model
    roles              the columns of text, pair, label and id, if the file is a table
    submissions        split -> the file name that the benchmark requires
    value_range        of regression labels: submitted values are clipped to it
    is_symmetric       whether the order of the two texts of a pair has no meaning
    has_broken_lines   whether the published file is known to have some
    companions         datasets that are submitted with the predictions of the same model
    write              writes the files of a built-in dataset
    """

    name: str
    task: str
    folders: tuple[str, ...]
    splits: Mapping[str, DatasetSplit]
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    submissions: Mapping[str, str] = field(default_factory=dict)
    value_range: tuple[float, float] | None = None
    is_symmetric: bool = False
    has_broken_lines: bool = False
    companions: tuple[str, ...] = ()
    write: Callable[[Path], None] | None = None

    def splits_of_kind(self, kind: str) -> tuple[str, ...]:
        """Return the splits of a kind, "train", "dev" or "test": MNLI has two dev splits, others may have none."""
        return tuple(name for name in self.splits if name.split("_")[0] == kind)

    def split(self, name: str) -> DatasetSplit:
        if name not in self.splits:
            raise SettingsError(f"{self.name} has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]

    def find(self, data: Path, split: str) -> Path:
        """Return the file of a split, compressed or not, in a data folder or in the dataset's own folder."""
        files = self.split(split).files
        # The dataset's own subfolders come first: a train.tsv directly in the data folder may be another dataset's.
        for folder in (*self.folders, ""):
            for path in (data / folder / f"{file}{suffix}" for file in files for suffix in _COMPRESSION_SUFFIXES):
                if path.is_file():
                    return path
        raise InputError(
            f"{data} has no {split} file of {self.name}; put {files[0]} (or .gz) into {data / self.folders[0]}, or "
            f"give the folder that holds it"
        )

    def has_split(self, data: Path, split: str) -> bool:
        """Whether the file of a split exists."""
        try:
            return self.find(data, split).is_file()
        except InputError:
            return False

    def columns_of(self, split: str) -> dict[str, str]:
        """Return the `columns` of `Task.read`: roles, "header", "broken", and "label" = "" if there are no labels."""
        dataset_split = self.split(split)
        columns = dict(self.roles)
        if dataset_split.columns:
            columns["header"] = ",".join(dataset_split.columns)
        if self.has_broken_lines:
            columns["broken"] = "yes"
        if not dataset_split.is_labelled:
            columns["label"] = ""
        return columns

    def column_roles(self, split: str) -> dict[str, str | None]:
        """Return the `roles` of `recognize_columns`: the label only if the file has it."""
        is_labelled = self.split(split).is_labelled
        roles: dict[str, str | None] = {
            role: name for role, name in self.roles.items() if role != "label" or is_labelled
        }
        return {**roles, "id": None}


def _glue(
    folder: str,
    task: str,
    metrics: tuple[str, ...],
    labels: tuple[str, ...],
    roles: dict[str, str],
    value_range: tuple[float, float] | None = None,
) -> PublishedDataset:
    """Return a GLUE dataset with the usual three files."""
    return PublishedDataset(
        name=f"glue/{folder}",
        task=task,
        folders=_glue_folders(folder),
        splits={
            "train": DatasetSplit(("train.tsv",)),
            "dev": DatasetSplit(("dev.tsv",)),
            "test": DatasetSplit(("test.tsv",), is_labelled=False),
        },
        metrics=metrics,
        labels=labels,
        roles=roles,
        submissions={"test": f"{folder}.tsv"},
        value_range=value_range,
        is_symmetric=folder in ("MRPC", "STS-B", "QQP"),
        has_broken_lines=folder == "QQP",  # line 97,931 of train.tsv and a few others are incomplete
    )


def _glue_folders(folder: str) -> tuple[str, ...]:
    return tuple(f"{parent}{folder}" for parent in ("glue/", "GLUE/", "glue_data/", ""))


def _squad(name: str, version: str) -> PublishedDataset:
    return PublishedDataset(
        name=name,
        task="answer",
        folders=("squad", "SQuAD", name),
        splits={"train": DatasetSplit((f"train-v{version}.json",)), "dev": DatasetSplit((f"dev-v{version}.json",))},
        metrics=("f1", "exact_match"),
        submissions={"dev": "predictions.json"},
    )


_SENTENCE = {"text": "sentence", "label": "label"}
_SENTENCE_PAIR = {"text": "sentence1", "pair": "sentence2", "label": "label"}
_BINARY_LABELS = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_THREE_WAY = ("entailment", "neutral", "contradiction")
_COLA_COLUMNS = ("source", "label", "star", "sentence")
_ENTITIES = ("O", *(f"{letter}-{label}" for label in ("PER", "ORG", "LOC", "MISC") for letter in "BI"))

_ALL_DATASETS = (
    PublishedDataset(
        name="glue/CoLA",
        task="classify",
        folders=_glue_folders("CoLA"),
        splits={
            "train": DatasetSplit(("train.tsv",), _COLA_COLUMNS),
            "dev": DatasetSplit(("dev.tsv",), _COLA_COLUMNS),
            "test": DatasetSplit(("test.tsv",), is_labelled=False),
        },
        metrics=("matthews", "accuracy"),
        labels=_BINARY_LABELS,
        roles=_SENTENCE,
        submissions={"test": "CoLA.tsv"},
    ),
    _glue("SST-2", "classify", ("accuracy",), _BINARY_LABELS, _SENTENCE),
    _glue(
        "MRPC",
        "classify",
        ("f1", "accuracy"),
        _BINARY_LABELS,
        {"text": "#1 String", "pair": "#2 String", "label": "Quality"},
    ),
    _glue("STS-B", "regress", ("spearman", "pearson"), (), {**_SENTENCE_PAIR, "label": "score"}, (0.0, 5.0)),
    _glue(
        "QQP",
        "classify",
        ("f1", "accuracy"),
        _BINARY_LABELS,
        {"text": "question1", "pair": "question2", "label": "is_duplicate"},
    ),
    PublishedDataset(
        name="glue/MNLI",
        task="classify",
        folders=_glue_folders("MNLI"),
        splits={
            "train": DatasetSplit(("train.tsv",)),
            "dev_matched": DatasetSplit(("dev_matched.tsv",)),
            "dev_mismatched": DatasetSplit(("dev_mismatched.tsv",)),
            "test_matched": DatasetSplit(("test_matched.tsv",), is_labelled=False),
            "test_mismatched": DatasetSplit(("test_mismatched.tsv",), is_labelled=False),
        },
        metrics=("accuracy",),
        labels=_THREE_WAY,
        roles={**_SENTENCE_PAIR, "label": "gold_label"},
        submissions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
        companions=("glue/AX",),
    ),
    _glue("QNLI", "classify", ("accuracy",), _ENTAILMENT, {"text": "question", "pair": "sentence", "label": "label"}),
    _glue("RTE", "classify", ("accuracy",), _ENTAILMENT, _SENTENCE_PAIR),
    _glue("WNLI", "classify", ("accuracy",), _BINARY_LABELS, _SENTENCE_PAIR),
    PublishedDataset(
        name="glue/AX",
        task="classify",
        folders=(*_glue_folders("AX"), *_glue_folders("diagnostic"), *_glue_folders("MNLI")),
        splits={"test": DatasetSplit(("diagnostic.tsv", "AX.tsv"), is_labelled=False)},
        metrics=("matthews",),
        labels=_THREE_WAY,
        roles=_SENTENCE_PAIR,
        submissions={"test": "AX.tsv"},
    ),
    PublishedDataset(
        name="python-docs",
        task="classify",
        folders=("python-docs",),
        splits={"train": DatasetSplit(("train.tsv",)), "dev": DatasetSplit(("dev.tsv",))},
        metrics=("accuracy",),
        labels=PACKAGES,
        roles={"text": "text", "label": "label"},
        write=write_python_docs,
    ),
    PublishedDataset(
        name="swag",
        task="choose",
        folders=("swag", "SWAG", "swag/data"),
        splits={
            "train": DatasetSplit(("train.csv",)),
            "dev": DatasetSplit(("val.csv", "dev.csv")),
            "test": DatasetSplit(("test.csv",), is_labelled=False),
        },
        metrics=("accuracy",),
        submissions={"test": "predictions.csv"},
    ),
    PublishedDataset(
        name="comve",
        task="choose",
        folders=("comve", "ComVE"),
        splits={
            "train": DatasetSplit(("train.csv",)),
            "dev": DatasetSplit(("dev.csv",)),
            "test": DatasetSplit(("test.csv",)),
        },
        metrics=("accuracy",),
    ),
    _squad("squad1", "1.1"),
    _squad("squad2", "2.0"),
    PublishedDataset(
        name="cmrc2018",
        task="answer",
        folders=("cmrc2018", "CMRC2018", "cmrc"),
        splits={
            "train": DatasetSplit(("train.json", "cmrc2018_train.json")),
            "dev": DatasetSplit(("dev.json", "cmrc2018_dev.json")),
        },
        metrics=("f1", "exact_match"),
        submissions={"dev": "predictions.json"},
    ),
    PublishedDataset(
        name="conll2003",
        task="tag",
        folders=("conll2003", "CoNLL-2003", "conll-2003"),
        splits={
            "train": DatasetSplit(("train.txt", "eng.train")),
            "dev": DatasetSplit(("dev.txt", "valid.txt", "eng.testa")),
            "test": DatasetSplit(("test.txt", "eng.testb")),
        },
        metrics=("f1",),
        labels=_ENTITIES,
    ),
    PublishedDataset(
        name="chnsenticorp",
        task="classify",
        folders=("chnsenticorp", "ChnSentiCorp"),
        splits={
            "train": DatasetSplit(("train.tsv",)),
            "dev": DatasetSplit(("dev.tsv",)),
            "test": DatasetSplit(("test.tsv",)),
        },
        metrics=("accuracy",),
        labels=_BINARY_LABELS,
        roles={"text": "text_a", "label": "label"},
    ),
)
DATASETS: dict[str, PublishedDataset] = {dataset.name: dataset for dataset in _ALL_DATASETS}

_ALIASES = {"squad": "squad1", "squad-1.1": "squad1", "squad-2.0": "squad2", "conll-2003": "conll2003"}


def dataset_of(name: str) -> PublishedDataset:
    """Return the dataset of that name, ignoring case."""
    by_key = {dataset_name.lower(): dataset for dataset_name, dataset in DATASETS.items()}
    key = name.lower()
    key = _ALIASES.get(key, key)
    if key in by_key:
        return by_key[key]
    near = difflib.get_close_matches(key, by_key, 1) or difflib.get_close_matches(f"glue/{key}", by_key, 1)
    hint = f"did you mean {by_key[near[0]].name}? " if near else ""
    raise SettingsError(f"there is no dataset {name!r}; {hint}The datasets are {', '.join(DATASETS)}")


def read_dataset(name: str, data: Path, split: str, counts: Counts) -> Iterator[Record]:
    """Return the records of a dataset that is a table; broken lines are skipped and counted."""
    dataset = dataset_of(name)
    return read_records(
        dataset.find(data, split), dataset.split(split).columns, counts if dataset.has_broken_lines else None
    )


def write_submission(name: str, predictions: Predictions, output: Path, split: str | None = None) -> Path:
    """Write a submission file into the folder `output`, under its official name, and return its path.

    `split` may be omitted if the dataset has one submission; MNLI has two.
    """
    dataset = dataset_of(name)
    if not dataset.submissions:
        raise SettingsError(f"{dataset.name} has no official submission format; its test file has labels: use evaluate")
    if split is None and len(dataset.submissions) == 1:
        split = next(iter(dataset.submissions))
    if split is None or split not in dataset.submissions:
        raise SettingsError(
            f"{dataset.name} has submissions for {' and '.join(dataset.submissions)}, not for {split!r}; "
            f"name one of them"
        )
    path = output / dataset.submissions[split]
    with atomic_write(path) as temporary:
        _WRITERS[path.suffix](dataset, predictions, temporary)
    return path


def _write_tsv(dataset: PublishedDataset, predictions: Predictions, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("index\tprediction\n")
        file.writelines(f"{example_id}\t{_format_value(dataset, value)}\n" for example_id, value in predictions)


def _write_csv(dataset: PublishedDataset, predictions: Predictions, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("", "pred"))  # the column of the row number has no name
        writer.writerows((example_id, _format_value(dataset, value)) for example_id, value in predictions)


def _write_json(dataset: PublishedDataset, predictions: Predictions, path: Path) -> None:
    # One JSON object, so this file is built in memory.
    path.write_text(json.dumps(dict(predictions), ensure_ascii=False), encoding="utf-8")


_WRITERS: dict[str, Callable[[PublishedDataset, Predictions, Path], None]] = {
    ".tsv": _write_tsv,
    ".csv": _write_csv,
    ".json": _write_json,
}


def _format_value(dataset: PublishedDataset, value: str | float) -> str:
    if dataset.value_range is not None:
        low, high = dataset.value_range
        return f"{min(max(float(value), low), high):.3f}"
    if dataset.labels and value not in dataset.labels:
        raise InputError(f"{value!r} is not a label of {dataset.name}; its labels are {', '.join(dataset.labels)}")
    return str(value)
