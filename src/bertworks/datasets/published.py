"""Data sets by name: the name and a data folder in; files, columns, labels, metrics and submissions out."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bertworks.datasets.built_in import PACKAGES, write_python_docs
from bertworks.datasets.files import Line, read_lines
from bertworks.disk import replacing
from bertworks.errors import InputError, SettingsError
from bertworks.text.document import Counts

_PACKED = ("", ".gz", ".zst")

# An id of the test file and what was predicted for it: a label, a score, or an answer's text.
Predictions = Iterable[tuple[str, str | float]]


@dataclass(frozen=True, slots=True)
class Split:
    """One file of a set: the names it may have, its columns if it has no header, whether it tells the labels."""

    files: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    is_labelled: bool = True


@dataclass(frozen=True, slots=True)
class NamedSet:
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
    splits: Mapping[str, Split]
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    submissions: Mapping[str, str] = field(default_factory=dict)
    has_broken_lines: bool = False
    also: tuple[str, ...] = ()
    write: Callable[[Path], None] | None = None

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """The splits that are "train", "dev" or "test": two of MNLI, none where the set has no such file."""
        return tuple(name for name in self.splits if name.split("_")[0] == kind)

    def split(self, name: str) -> Split:
        if name not in self.splits:
            raise SettingsError(f"{self.name} has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]

    def find(self, data: Path, split: str) -> Path:
        """The file of a split in a data folder, or in the set's own folder; packed or not."""
        files = self.split(split).files
        # A folder of many sets is tried first: its own train.tsv, if it has one, belongs to another set.
        for folder in (*self.folders, ""):
            for path in (data / folder / f"{file}{suffix}" for file in files for suffix in _PACKED):
                if path.is_file():
                    return path
        raise InputError(
            f"{data} has no {split} file of {self.name}; put {files[0]} (or .gz) into {data / self.folders[0]}, or "
            f"give the folder that holds it"
        )

    def holds(self, data: Path, split: str) -> bool:
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

    def wanted(self, split: str) -> dict[str, str | None]:
        """The columns of a split, as `recognise` takes them: the label only where the file has it, an id if it does."""
        is_labelled = self.split(split).is_labelled
        roles: dict[str, str | None] = {
            role: name for role, name in self.roles.items() if role != "label" or is_labelled
        }
        return {**roles, "id": None}


def _glue(folder: str, task: str, metrics: tuple[str, ...], labels: tuple[str, ...], roles: dict[str, str]) -> NamedSet:
    """A set of GLUE with the usual three files."""
    return NamedSet(
        f"glue/{folder}",
        task,
        _glue_folders(folder),
        {"train": Split(("train.tsv",)), "dev": Split(("dev.tsv",)), "test": Split(("test.tsv",), is_labelled=False)},
        metrics,
        labels,
        roles,
        {"test": f"{folder}.tsv"},
        has_broken_lines=folder == "QQP",  # line 97,931 of train.tsv and a few others are halves of a row
    )


def _glue_folders(folder: str) -> tuple[str, ...]:
    return tuple(f"{above}{folder}" for above in ("glue/", "GLUE/", "glue_data/", ""))


def _squad(name: str, version: str) -> NamedSet:
    return NamedSet(
        name,
        "answer",
        ("squad", "SQuAD", name),
        {"train": Split((f"train-v{version}.json",)), "dev": Split((f"dev-v{version}.json",))},
        ("f1", "exact_match"),
        submissions={"dev": "predictions.json"},
    )


_SENTENCE = {"text": "sentence", "label": "label"}
_TWO = {"text": "sentence1", "pair": "sentence2", "label": "label"}
_YES_NO = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_THREE_WAY = ("entailment", "neutral", "contradiction")
_COLA_COLUMNS = ("source", "label", "star", "sentence")
_ENTITIES = ("O", *(f"{letter}-{label}" for label in ("PER", "ORG", "LOC", "MISC") for letter in "BI"))

_SETS = (
    NamedSet(
        "glue/CoLA",
        "classify",
        _glue_folders("CoLA"),
        {
            "train": Split(("train.tsv",), _COLA_COLUMNS),
            "dev": Split(("dev.tsv",), _COLA_COLUMNS),
            "test": Split(("test.tsv",), is_labelled=False),
        },
        ("matthews", "accuracy"),
        _YES_NO,
        _SENTENCE,
        {"test": "CoLA.tsv"},
    ),
    _glue("SST-2", "classify", ("accuracy",), _YES_NO, _SENTENCE),
    _glue(
        "MRPC",
        "classify",
        ("f1", "accuracy"),
        _YES_NO,
        {"text": "#1 String", "pair": "#2 String", "label": "Quality"},
    ),
    _glue("STS-B", "regress", ("spearman", "pearson"), (), {**_TWO, "label": "score"}),
    _glue(
        "QQP",
        "classify",
        ("f1", "accuracy"),
        _YES_NO,
        {"text": "question1", "pair": "question2", "label": "is_duplicate"},
    ),
    NamedSet(
        "glue/MNLI",
        "classify",
        _glue_folders("MNLI"),
        {
            "train": Split(("train.tsv",)),
            "dev_matched": Split(("dev_matched.tsv",)),
            "dev_mismatched": Split(("dev_mismatched.tsv",)),
            "test_matched": Split(("test_matched.tsv",), is_labelled=False),
            "test_mismatched": Split(("test_mismatched.tsv",), is_labelled=False),
        },
        ("accuracy",),
        _THREE_WAY,
        {**_TWO, "label": "gold_label"},
        {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
        also=("glue/AX",),
    ),
    _glue("QNLI", "classify", ("accuracy",), _ENTAILMENT, {"text": "question", "pair": "sentence", "label": "label"}),
    _glue("RTE", "classify", ("accuracy",), _ENTAILMENT, _TWO),
    _glue("WNLI", "classify", ("accuracy",), _YES_NO, _TWO),
    NamedSet(
        "glue/AX",
        "classify",
        (*_glue_folders("AX"), *_glue_folders("diagnostic"), *_glue_folders("MNLI")),
        {"test": Split(("diagnostic.tsv", "AX.tsv"), is_labelled=False)},
        ("matthews",),
        _THREE_WAY,
        _TWO,
        {"test": "AX.tsv"},
    ),
    NamedSet(
        "python-docs",
        "classify",
        ("python-docs",),
        {"train": Split(("train.tsv",)), "dev": Split(("dev.tsv",))},
        ("accuracy",),
        PACKAGES,
        {"text": "text", "label": "label"},
        write=write_python_docs,
    ),
    NamedSet(
        "swag",
        "choose",
        ("swag", "SWAG", "swag/data"),
        {
            "train": Split(("train.csv",)),
            "dev": Split(("val.csv", "dev.csv")),
            "test": Split(("test.csv",), is_labelled=False),
        },
        ("accuracy",),
        submissions={"test": "predictions.csv"},
    ),
    NamedSet(
        "comve",
        "choose",
        ("comve", "ComVE"),
        {"train": Split(("train.csv",)), "dev": Split(("dev.csv",)), "test": Split(("test.csv",))},
        ("accuracy",),
    ),
    _squad("squad1", "1.1"),
    _squad("squad2", "2.0"),
    NamedSet(
        "cmrc2018",
        "answer",
        ("cmrc2018", "CMRC2018", "cmrc"),
        {"train": Split(("train.json", "cmrc2018_train.json")), "dev": Split(("dev.json", "cmrc2018_dev.json"))},
        ("f1", "exact_match"),
        submissions={"dev": "predictions.json"},
    ),
    NamedSet(
        "conll2003",
        "tag",
        ("conll2003", "CoNLL-2003", "conll-2003"),
        {
            "train": Split(("train.txt", "eng.train")),
            "dev": Split(("dev.txt", "valid.txt", "eng.testa")),
            "test": Split(("test.txt", "eng.testb")),
        },
        ("f1",),
        _ENTITIES,
    ),
    NamedSet(
        "chnsenticorp",
        "classify",
        ("chnsenticorp", "ChnSentiCorp"),
        {"train": Split(("train.tsv",)), "dev": Split(("dev.tsv",)), "test": Split(("test.tsv",))},
        ("accuracy",),
        _YES_NO,
        {"text": "text_a", "label": "label"},
    ),
)
NAMED: dict[str, NamedSet] = {one.name: one for one in _SETS}

_OTHER_NAMES = {"squad": "squad1", "squad-1.1": "squad1", "squad-2.0": "squad2", "conll-2003": "conll2003"}


def named(name: str) -> NamedSet:
    """The set of that name, in capitals or not."""
    by_small = {known.lower(): one for known, one in NAMED.items()}
    small = name.lower()
    small = _OTHER_NAMES.get(small, small)
    if small in by_small:
        return by_small[small]
    near = difflib.get_close_matches(small, by_small, 1) or difflib.get_close_matches(f"glue/{small}", by_small, 1)
    guess = f"did you mean {by_small[near[0]].name}? " if near else ""
    raise SettingsError(f"no data set is named {name!r}; {guess}The names are {', '.join(NAMED)}")


def read_named(name: str, data: Path, split: str, counts: Counts) -> Iterator[Line]:
    """The records of a set that is a table; lines that are known to be broken are left out and counted."""
    one = named(name)
    return read_lines(one.find(data, split), one.split(split).columns, counts if one.has_broken_lines else None)


def write_submission(name: str, predictions: Predictions, out: Path, split: str | None = None) -> Path:
    """Write what the benchmark wants into the folder `out`, under the official name, and return its path.

    `split` may be left out where only one is handed in; MNLI has two.
    """
    one = named(name)
    if not one.submissions:
        raise SettingsError(f"{one.name} has no official submission; its test file has labels: use evaluate")
    if split is None and len(one.submissions) == 1:
        split = next(iter(one.submissions))
    if split is None or split not in one.submissions:
        raise SettingsError(
            f"{one.name} is handed in for {' and '.join(one.submissions)}, not {split!r}; name one of them"
        )
    path = out / one.submissions[split]
    with replacing(path) as temporary:
        _WRITERS[path.suffix](one, predictions, temporary)
    return path


def _write_tsv(one: NamedSet, predictions: Predictions, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("index\tprediction\n")
        file.writelines(f"{number}\t{_checked(one, value)}\n" for number, value in predictions)


def _write_csv(one: NamedSet, predictions: Predictions, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("", "pred"))  # the row number stands under an empty name
        writer.writerows((number, _checked(one, value)) for number, value in predictions)


def _write_json(one: NamedSet, predictions: Predictions, path: Path) -> None:
    # The benchmark wants one object, so this one file is held in memory.
    path.write_text(json.dumps(dict(predictions), ensure_ascii=False), encoding="utf-8")


_WRITERS: dict[str, Callable[[NamedSet, Predictions, Path], None]] = {
    ".tsv": _write_tsv,
    ".csv": _write_csv,
    ".json": _write_json,
}


def _checked(one: NamedSet, value: str | float) -> str:
    if one.task == "regress":
        # A head may leave the scale that the people who scored were given, 0 to 5.
        return f"{min(max(float(value), 0.0), 5.0):.3f}"
    if one.labels and value not in one.labels:
        raise InputError(f"{value!r} is no label of {one.name}; its labels are {', '.join(one.labels)}")
    return str(value)
