"""A fine-tuned model put to use: texts in, predictions out, one at a time; labelled files in, scores out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from bertworks.datasets.files import Record, kind_of_name, read_records, read_stream, recognise
from bertworks.datasets.labelled_texts import text_example
from bertworks.errors import SettingsError
from bertworks.inference.finetuned import load_predictor
from bertworks.inference.predictor import Predictor
from bertworks.tasks.answer import Answer
from bertworks.tasks.contract import Task, TaskScores
from bertworks.text.document import Counts
from bertworks.text.sentences import split_sentences

BY = ("text", "sentence")
# Tasks that answer for a text by itself. (Entities of a text are found with their places in it anyway.)
_SENTENCE_TASKS = ("classify", "regress")


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


def predict(request: PredictRequest, counts: Counts | None = None) -> Iterator[dict[str, Any]]:
    """Yield the prediction of each text as JSON has it, in order; memory does not grow with the number of texts.

    What the model's window rule cuts off is added to `counts`.
    """
    if request.by not in BY:
        raise SettingsError(f"there is no '--by {request.by}'; choose one of: {', '.join(BY)}")
    predictor = load_predictor(request.model, engine=request.engine)
    if request.by == "sentence":
        yield from _predict_sentences(predictor, _records(request), request.columns, counts)
        return
    for _, prediction in predictor.predict(_examples(predictor.module.task, request), counts):
        yield prediction.to_dict()


def _examples(task: Task, request: PredictRequest) -> Iterator[Any]:
    source = request.source
    if isinstance(task, Answer) and isinstance(source, Path) and (request.kind or kind_of_name(source.name)) is None:
        # SQuAD's JSON is one object, not one a line; its answers are not looked at.
        return (replace(case, answers=(), is_impossible=False) for case in task.read(source, {}))
    return task.read_unlabelled(_records(request), request.columns)


def _records(request: PredictRequest) -> Iterator[Record]:
    columns = ("text",) if request.kind == "text" else None
    if isinstance(request.source, Path):
        return read_records(request.source, columns, kind=request.kind)
    return read_stream(request.source, request.kind, "standard input", columns)


def _predict_sentences(
    predictor: Predictor, records: Iterable[Record], columns: Mapping[str, str], counts: Counts | None
) -> Iterator[dict[str, Any]]:
    """Cut each text into sentences, predict each, and say where in the text it stands."""
    task = predictor.module.task
    if task.name not in _SENTENCE_TASKS or "pair" in columns:
        raise SettingsError(
            f"--by sentence cuts a text for a model that reads one: {', '.join(_SENTENCE_TASKS)} without --pair"
        )
    spans: deque[tuple[int, int, int]] = deque()  # of sentences that are being predicted: text, start, end

    def sentences() -> Iterator[Record]:
        found: dict[str, str] = {}
        for number, line in enumerate(records):
            if not any(str(value).strip() for value in line.fields.values()):
                continue  # between the paragraphs of an article
            found = found or recognise(list(line.fields), {"text": columns.get("text")}, "the input")
            (text,), at = text_example(line.fields, found, line.location, "").texts, 0
            for sentence in split_sentences(text):
                own = sentence.strip()
                start = text.index(own, at)
                at = start + len(own)
                spans.append((number, start, at))
                yield Record({"text": own}, line.location)

    cases = task.read_unlabelled(sentences(), {})
    for case, prediction in predictor.predict(cases, counts):
        number, start, end = spans.popleft()
        told = {key: value for key, value in prediction.to_dict().items() if key != "id"}
        yield {"text": number, "start": start, "end": end, "sentence": case.texts[0], **told}


def evaluate(model: str, path: Path, columns: Mapping[str, str], task: str | None = None) -> tuple[TaskScores, Counts]:
    """Return the scores of a model on a labelled file, and what was mended or left out while it was read."""
    predictor = load_predictor(model, task)
    counts = Counts()
    return predictor.module.task.score(predictor.predict(predictor.module.task.read(path, columns, counts))), counts
