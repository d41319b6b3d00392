"""A fine-tuned model put to use: texts in, predictions out, one at a time; labelled files in, scores out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from bertworks.errors import SettingsError
from bertworks.tasks.contract import Scored
from bertworks.tasks.files import Line, read_lines, read_stream
from bertworks.tasks.predicting import Predictor
from bertworks.tasks.sealed import load_predictor
from bertworks.text.document import Counts
from bertworks.text.sentences import split_sentences

BY = ("text", "sentence")


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """What to predict: a model, a file or a stream of lines, columns, and whether each sentence is its own text.

    `engine` None is the one that a folder was exported for, else torch.
    """

    model: str
    source: Path | BinaryIO
    kind: str | None = None
    by: str = "text"
    columns: Mapping[str, str] = field(default_factory=dict)
    engine: str | None = None


def predict(request: PredictRequest) -> Iterator[dict[str, Any]]:
    """Yield the prediction of each text as JSON has it, in order; memory does not grow with the number of texts."""
    if request.by not in BY:
        raise SettingsError(f"there is no '--by {request.by}'; choose one of: {', '.join(BY)}")
    predictor = load_predictor(request.model, engine=request.engine)
    lines = _lines(request)
    if request.by == "sentence":
        yield from _by_sentence(predictor, lines, request.columns.get("text", "text"))
        return
    cases = predictor.module.task.unlabelled(lines, request.columns)
    for _, prediction in predictor.predict(cases):
        yield prediction.as_json()


def _lines(request: PredictRequest) -> Iterator[Line]:
    columns = ("text",) if request.kind == "text" else None
    if isinstance(request.source, Path):
        return read_lines(request.source, columns, kind=request.kind)
    return read_stream(request.source, request.kind, "standard input", columns)


def _by_sentence(predictor: Predictor, lines: Iterable[Line], column: str) -> Iterator[dict[str, Any]]:
    """Cut each text into sentences, predict each, and say where in the text it stands."""
    spans: list[tuple[int, int, int]] = []  # of sentences that are being predicted: text, start, end

    def sentences() -> Iterator[Line]:
        for number, line in enumerate(lines):
            text = str(line.fields[column])
            at = 0
            for sentence in split_sentences(text):
                start = text.index(sentence, at)
                at = start + len(sentence)
                spans.append((number, start, at))
                yield Line({"text": sentence}, line.place)

    cases = predictor.module.task.unlabelled(sentences(), {})
    for case, prediction in predictor.predict(cases):
        number, start, end = spans.pop(0)
        told = {key: value for key, value in prediction.as_json().items() if key != "id"}
        yield {"text": number, "start": start, "end": end, "sentence": case.texts[0], **told}


def evaluate(model: str, path: Path, columns: Mapping[str, str], task: str | None = None) -> tuple[Scored, Counts]:
    """Return the scores of a model on a labelled file, and what was mended or left out while it was read."""
    predictor = load_predictor(model, task)
    counts = Counts()
    return predictor.module.task.score(predictor.predict(predictor.module.task.read(path, columns, counts))), counts
