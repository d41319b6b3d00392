"""Labelled data in memory: the records of every task and kind of data, and one sentence for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.errors import FolderError, InputError
from bertworks.tasks.memory import EXAMPLES, locate_rows, store_data, write_rows
from bertworks.tasks.registry import task_of

TEXTS, LABELS = ["good film", "bad film"], ["pos", "neg"]
RECORDS = [{"text": "good film", "label": "pos"}, {"text": "bad film", "label": "neg"}]


class Frame:
    """What a frame of pandas has, as far as it is read."""

    def __init__(self, **columns: list[str]) -> None:
        self.columns, self._values = list(columns), list(columns.values())

    def __len__(self) -> int:
        return len(self._values[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def itertuples(self, index: bool, name: None) -> Iterator[tuple[str, ...]]:
        return zip(*self._values, strict=True)


def written(data: Any, task: str, folder: Path) -> list[dict[str, Any]]:
    path = write_rows(data, task_of(task), "train", folder)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    "data",
    [
        (TEXTS, LABELS),
        (np.array(TEXTS), np.array(LABELS)),
        (iter(TEXTS), iter(LABELS)),
        list(zip(TEXTS, LABELS, strict=True)),
        iter(zip(TEXTS, LABELS, strict=True)),
        {"text": TEXTS, "label": LABELS},
        RECORDS,
        tuple(RECORDS),
        Frame(text=TEXTS, label=LABELS),
        (Frame(review=TEXTS), Frame(class_name=LABELS)),
    ],
)
def test_every_kind_of_data_has_the_same_records(data: Any, tmp_path: Path):
    assert written(data, "classify", tmp_path) == RECORDS


@pytest.mark.parametrize(
    ("task", "row", "record"),
    [
        ("classify", ("a", "b", 1), {"sentence1": "a", "sentence2": "b", "label": 1}),
        ("classify", (("a", "b"), 1), {"sentence1": "a", "sentence2": "b", "label": 1}),
        ("classify", ("a", ["x", "y"]), {"text": "a", "label": ["x", "y"]}),
        ("regress", ("a", np.float64(0.5)), {"text": "a", "label": 0.5}),
        ("choose", ("he sat", ["on", "off"], 1), {"prompt": "he sat", "choices": ["on", "off"], "label": 1}),
        ("choose", (("he sat", "on", "off"), 1), {"prompt": "he sat", "choices": ["on", "off"], "label": 1}),
        ("tag", (["John", "sat"], ["B-PER", "O"]), {"tokens": ["John", "sat"], "tags": ["B-PER", "O"]}),
        ("tag", ("John", [(0, 4, "PER")]), {"text": "John", "spans": [{"start": 0, "end": 4, "label": "PER"}]}),
        ("answer", (("who?", "John"), "John"), {"question": "who?", "context": "John", "answers": "John"}),
        ("answer", ("who?", "John", ["John"]), {"question": "who?", "context": "John", "answers": ["John"]}),
        ("translate", ("学而", "学习"), {"text": "学而", "label": "学习"}),
    ],
)
def test_every_task_has_its_own_fields(task: str, row: Any, record: dict[str, Any], tmp_path: Path):
    assert written([row], task, tmp_path) == [record]
    examples = list(task_of(task).read(tmp_path / "train.jsonl", {}))
    assert examples[0].label is not None or examples[0].answers


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        ("classify", (TEXTS, ["pos"]), "train: 2 inputs and 1 labels; the labels end after 1; give one label for each"),
        ("classify", (iter(["a"]), LABELS), "train: a stream of inputs and 2 labels; the inputs end after 1"),
        ("classify", (TEXTS, [1, "neg"]), "train, row 1: 'label' is 'neg', a text, but a number in the rows before"),
        ("classify", (["a", None], LABELS), "train, row 1: the input is None, not a text"),
        ("classify", ([], []), "train has no rows; give at least one example"),
        ("classify", TEXTS, "train, row 0: 'good film' has no label"),
        ("classify", ("a text", "pos"), "train: the inputs are a single str; give a list"),
        ("classify", 3, "train is of type int; give"),
        ("tag", (["John sat"], ["B-PER O"]), "train, row 0: the label is 'B-PER O'; give the text's entities"),
        ("tag", ([None], [[]]), "train, row 0: the input is None; give a list of words, or a text"),
        ("answer", (["who?"], ["John"]), r"train, row 0: the input is 'who\?'; give \(question, context\)"),
    ],
)
def test_wrong_data_is_refused_in_one_sentence(task: str, data: Any, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        write_rows(data, task_of(task), "train", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_columns_of_inputs_are_pairs(tmp_path: Path):
    rows = written((Frame(first=["a", "b"], second=["c", "d"]), LABELS), "classify", tmp_path)
    assert rows[1] == {"sentence1": "b", "sentence2": "d", "label": "neg"}


def test_a_missing_label_is_named_by_its_row(tmp_path: Path):
    path = write_rows((TEXTS, ["pos", float("nan")]), task_of("classify"), "train", tmp_path)
    task = task_of("classify")
    message = r'train, row 1: there is no label; name its column with columns={"label": …}'
    with pytest.raises(InputError, match=message), locate_rows():
        task.from_examples(list(task.read(path, {})), {})


def test_only_data_in_memory_is_stored_in_the_run_folder(tmp_path: Path):
    files = store_data(
        {"train": (TEXTS, LABELS), "dev": "dev.tsv", "test": None}, task_of("classify"), tmp_path / "run"
    )
    assert files == {"train": tmp_path / "run" / EXAMPLES / "train.jsonl", "dev": Path("dev.tsv")}
    assert files["train"].is_file()


def test_a_run_folder_is_not_left_behind_by_wrong_data(tmp_path: Path):
    with pytest.raises(InputError):
        store_data({"train": []}, task_of("classify"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_rows_of_a_run_that_began_are_not_replaced(tmp_path: Path):
    task = task_of("classify")
    file = store_data({"train": (TEXTS, LABELS)}, task, tmp_path)["train"]
    store_data({"train": (TEXTS, LABELS[::-1])}, task, tmp_path)  # it has not begun
    (tmp_path / "recipe.toml").write_text("")
    store_data({"train": (TEXTS, LABELS[::-1])}, task, tmp_path)  # resumes
    before = file.read_bytes()
    with pytest.raises(FolderError, match="holds a run with other rows in train; choose another output"):
        store_data({"train": (TEXTS, LABELS)}, task, tmp_path)
    assert file.read_bytes() == before
