"""Predict with a fine-tuned model: a file or a stream of texts in, predictions out, one at a time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from bertworks.datasets import squad
from bertworks.datasets.files import Record, read_records, read_stream, recognize_columns
from bertworks.datasets.labelled_texts import text_example
from bertworks.datasets.recorded_columns import columns_for_file, recorded_columns_in
from bertworks.errors import SettingsError
from bertworks.inference.finetuned import load_predictor
from bertworks.inference.predictor import Predictor
from bertworks.tasks.inputs import TEXT
from bertworks.text.document import Counts
from bertworks.text.sentences import split_sentences
from bertworks.vocabulary.text_coverage import UNKNOWN_TOKENS, CoverageWarning, TextCoverage

BY = ("text", "sentence")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest:
    """What to predict.

    source     a file, or a stream such as standard input; `kind` is its format, by default detected
    by         "text": one prediction per text; "sentence": one per sentence
    columns    column names by role; by default those that the model was trained with, if the source has them
    engine     by default the one that the folder was exported for, else torch
    precision  auto (the default), fp32, bf16 or fp16
    """

    model: str
    source: Path | BinaryIO
    kind: str | None = None
    by: str = "text"
    columns: Mapping[str, str] = field(default_factory=dict)
    engine: str | None = None
    precision: str | None = None


def predict(
    request: PredictRequest,
    counts: Counts | None = None,
    on_warning: Callable[[CoverageWarning], None] = lambda warning: None,
) -> Iterator[dict[str, Any]]:
    """Yield the prediction of each text as a JSON object, in order and in constant memory.

    The numbers of truncated and of unknown tokens are added to `counts`. At the end, `on_warning` is called if the
    vocabulary of the model hardly reads the texts.
    """
    if request.by not in BY:
        raise SettingsError(f"--by is '{request.by}'; choose one of: {', '.join(BY)}")
    predictor = load_predictor(request.model, engine=request.engine, precision=request.precision)
    counts, coverage = Counts() if counts is None else counts, predictor.new_coverage()
    records, columns = _records_and_columns(request, predictor.columns)
    if request.by == "sentence":
        yield from _predict_sentences(predictor, records, columns, counts, coverage)
    else:
        examples = predictor.module.task.read_unlabelled(records, columns)
        for _, prediction in predictor.predict(examples, counts, coverage):
            yield prediction.to_dict()
    if coverage.num_unknown:
        counts[UNKNOWN_TOKENS] += coverage.num_unknown
    for warning in coverage.warnings():
        on_warning(warning)


def _records_and_columns(
    request: PredictRequest, recorded: Mapping[str, str]
) -> tuple[Iterator[Record], Mapping[str, str]]:
    """Return the records of the source and the columns to read them with."""
    if isinstance(request.source, Path) and request.source.is_file() and request.kind in ("tsv", "csv"):
        columns = columns_for_file(request.source, recorded, request.columns)
        header = columns.get("header")
        return _records(request, header.split(",") if header else None), _text_columns(columns)
    records = _records(request)
    first = list(itertools.islice(records, 1))
    fields = first[0].fields if first else {}
    columns = {**(recorded_columns_in(fields, recorded, request.columns) or {}), **request.columns}
    return itertools.chain(first, records), _text_columns(columns)


def _text_columns(columns: Mapping[str, str]) -> dict[str, str]:
    return {role: columns[role] for role in ("text", "pair") if role in columns}


def _records(request: PredictRequest, header: Sequence[str] | None = None) -> Iterator[Record]:
    columns = ("text",) if request.kind == "text" else header
    if isinstance(request.source, Path) and request.kind is None and squad.is_squad_file(request.source):
        return squad.unlabelled_records(request.source)
    if isinstance(request.source, Path):
        return read_records(request.source, columns, kind=request.kind)
    return read_stream(request.source, request.kind, "standard input", columns)


def _predict_sentences(
    predictor: Predictor,
    records: Iterable[Record],
    columns: Mapping[str, str],
    counts: Counts,
    coverage: TextCoverage,
) -> Iterator[dict[str, Any]]:
    """Split each text into sentences, predict each, and add its offsets in the text."""
    task = predictor.module.task
    if TEXT not in task.input_fields:
        raise SettingsError(f"--by sentence needs a model that takes single texts; the task '{task.name}' does not")
    if "pair" in columns:
        raise SettingsError("--by sentence needs a model that takes single texts; leave out --pair")
    spans: deque[tuple[int, int, int]] = deque()  # of the sentences being predicted: text index, start, end

    def sentences() -> Iterator[Record]:
        roles: dict[str, str] = {}
        for index, record in enumerate(records):
            if not any(str(value).strip() for value in record.fields.values()):
                continue  # an empty line between paragraphs
            roles = roles or recognize_columns(list(record.fields), {"text": columns.get("text")}, "the input")
            (text,), end = text_example(record.fields, roles, record.location, "").texts, 0
            for sentence in map(str.strip, split_sentences(text)):
                start = text.index(sentence, end)
                end = start + len(sentence)
                spans.append((index, start, end))
                yield Record({"text": sentence}, record.location)

    examples = task.read_unlabelled(sentences(), {})
    for example, prediction in predictor.predict(examples, counts, coverage):
        index, start, end = spans.popleft()
        fields = {key: value for key, value in prediction.to_dict().items() if key != "id"}
        yield {"text": index, "start": start, "end": end, "sentence": example.texts[0], **fields}
