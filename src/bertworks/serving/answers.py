"""A model and what is asked of it in, the work that answers it out: rows to compute, and what becomes of the outputs.

Nothing here knows of HTTP, threads or lines: the same work, computed at once, is what `predict` and `embed` say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bertworks.datasets.files import Line
from bertworks.embeddings.pooling import Pooling
from bertworks.errors import InputError
from bertworks.inference.attribution import explain
from bertworks.inference.generate import Drawing
from bertworks.sampling.windows import windows_of
from bertworks.serving.batch_scheduler import Lane
from bertworks.serving.models import Served
from bertworks.serving.queues import PooledRow, PredictLane, Whole, pooled_rows
from bertworks.tasks.contract import Question
from bertworks.text.sentences import split_sentences
from bertworks.vocabulary.tokenizer import Cut, Tokenizer

Floats = npt.NDArray[np.float32]
# A text, or the fields of what a task reads.
Input = str | Mapping[str, Any]
_TEXT, _PAIR = ("text",), ("sentence1", "sentence2")
_READS: dict[str, tuple[tuple[str, ...], ...]] = {
    "classify": (_TEXT, _PAIR),
    "regress": (_TEXT, _PAIR),
    "choose": (("prompt", "choices"),),
    "tag": (_TEXT,),
    "translate": (_TEXT,),
    "answer": (("question", "context"),),
}


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took: pieces, rows that they stood in, and pieces that were cut off because it asked for that."""

    pieces: int
    windows: int
    cut: int


@dataclass(frozen=True, slots=True)
class Work:
    """Rows for a lane, and the function that turns what was computed of each into the answer."""

    lane: Lane
    rows: Sequence[Any]
    finish: Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors (texts, D) of texts."""

    values: Floats
    usage: Usage


def predict_work(served: Served, inputs: Sequence[Input], truncate: bool, by: str) -> Work:
    """Return the work whose answer is {"predictions", "usage"}; `by` "sentence" predicts each sentence of the texts."""
    lane = served.predict
    assert lane is not None
    predictor = lane.predictor
    rule = replace(predictor.rule, truncate=predictor.rule.truncate or truncate)
    spans: list[dict[str, Any]] = []
    if by == "sentence":
        spans = [span for number, one in enumerate(inputs) for span in _sentences(number, one)]
        inputs = [span["sentence"] for span in spans]
    cases = [case_of(lane, one, number) for number, one in enumerate(inputs)]
    questions = [predictor.module.task.ask(case, predictor.tokenizer, rule) for case in cases]

    def finish(outputs: Sequence[Any]) -> dict[str, Any]:
        predictions, at = [], 0
        for case, question in zip(cases, questions, strict=True):
            own = outputs[at : at + len(question.rows)]
            at += len(question.rows)
            predictions.append(predictor.module.task.answer(case, question, own).as_json())
        if spans:
            predictions = [
                {**span, **{key: value for key, value in one.items() if key != "id"}}
                for span, one in zip(spans, predictions, strict=True)
            ]
        return {"predictions": predictions, "usage": asdict(_usage_of(questions))}

    return Work(lane, [row for question in questions for row in question.rows], finish)


def case_of(lane: PredictLane, given: Input, number: int) -> Any:
    """Return what the task reads; an input that does not suit it is refused, naming its place."""
    fields = {"text": given} if isinstance(given, str) else dict(given)
    task = lane.predictor.module.task
    reads = _READS[task.name]
    if not any(fields.keys() == set(names) for names in reads):
        shapes = " or ".join("{" + ", ".join(f'"{name}"' for name in names) + "}" for names in reads)
        raise InputError(f"input {number}: a model for '{task.name}' reads {shapes}; send that")
    # One at a time: the inputs of a request need not have the same fields.
    case = next(iter(task.unlabelled([Line(fields, f"input {number}")], {})), None)
    if case is None:
        raise InputError(f"input {number}: one of its texts is empty; fill it, or leave the input out")
    return replace(case, id=str(number))


def embed_work(served: Served, texts: Sequence[str | Sequence[int]], pooling: str | None, truncate: bool) -> Work:
    """Return the work whose answer is the Vectors of texts, or of pieces that are given by their ids."""
    how = served.pooling.of_kind(pooling) if pooling else served.pooling
    tokenizer = served.model.tokenizer
    rule = served.embed_rule(how, truncate)
    windows = [windows_of(tokenizer, [_cut(tokenizer, how, text, at)], rule) for at, text in enumerate(texts)]
    rows = [pooled_rows(one, how) for one in windows]
    usage = Usage(
        sum(len(row.ids) for own in rows for row in own), sum(map(len, rows)), sum(one.num_cut for one in windows)
    )
    width = served.model.encoder.sizes.width * len(how.kinds)

    def finish(shares: Sequence[torch.Tensor]) -> Vectors:
        return Vectors(_joined(rows, shares, width), usage)

    return Work(served.embed, [row for own in rows for row in own], finish)


def fill_work(served: Served, text: str, top: int) -> Work:
    """Return the work whose answer is that of `bertworks fill --json`."""
    masked, blanked = served.model.masked, with_own_blanks(served, text)
    return _whole(served, masked, lambda: {**asdict(served.model.fill(blanked, top)), "text": text})


def with_own_blanks(served: Served, text: str) -> str:
    """Return a text with [MASK], which says "a blank" to any model, as the model's own piece for it."""
    return text.replace("[MASK]", served.model.tokenizer.pieces[served.model.tokenizer.specials.mask])


def generate_work(served: Served, text: str, drawing: Drawing) -> Work:
    """Return the work whose answer is that of `bertworks generate --json`."""
    encoder = served.model.encoder
    return _whole(served, encoder, lambda: asdict(served.model.generate(text, drawing)))


def next_work(served: Served, text: str, top: int, backward: bool) -> Work:
    """Return the work whose answer is {"words"}, those of `bertworks next --json`."""
    if backward and served.model.filler is None and served.model.neighbours is None:
        raise InputError("this model reads to the left and cannot tell what stood before; leave backward out")

    def run() -> dict[str, Any]:
        return {"words": [asdict(word) for word in served.model.next_words(text, top, backward)]}

    return _whole(served, served.model.encoder, run)


def explain_work(served: Served, given: Input, target: str | None) -> Work:
    """Return the work whose answer is that of `bertworks explain --json`."""
    assert served.predict is not None
    predictor = served.predict.predictor
    case = case_of(served.predict, given, 0)
    # Asked once here, where tokenizers are used one at a time: the worker then finds all words known, and learns none.
    question = predictor.module.task.ask(case, predictor.tokenizer, predictor.rule)
    if all(row.places is not None and not len(row.places) for row in question.rows):
        raise InputError("the input has no word to explain; write one")
    return _whole(served, predictor.module.head, lambda: explain(predictor, case, target).as_json())


def whole_work(served: Served, run: Callable[[], Any]) -> Work:
    """Return work that is done in one go."""
    return _whole(served, None, run)


def on_a_plane(vectors: Floats) -> Floats:
    """Return (texts, 2): the vectors seen from the side where they lie farthest apart (principal components).

    An axis points to where its largest part is positive, so that the same texts always make the same map.
    """
    centred = vectors - vectors.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((len(vectors), 2), dtype=np.float32)
    for number, axis in enumerate(axes[:2]):
        sign = np.sign(axis[np.abs(axis).argmax()]) or 1.0
        plane[:, number] = centred @ axis * sign
    return plane


def cosines(vectors: Floats, query: Floats) -> Floats:
    """Return (texts,): the cosine of the angle between each vector and the query (D,)."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    return (vectors @ query / np.maximum(lengths, 1e-12)).astype(np.float32)


def _sentences(number: int, given: Input) -> Iterator[dict[str, Any]]:
    text = given if isinstance(given, str) else given.get("text")
    if not isinstance(text, str):
        raise InputError(f'input {number}: only plain texts can be read by sentence; leave "by" out for pairs')
    at = 0
    for sentence in split_sentences(text):
        start = text.index(sentence, at)
        at = start + len(sentence)
        yield {"text": number, "start": start, "end": at, "sentence": sentence}


def _usage_of(questions: Sequence[Question]) -> Usage:
    return Usage(
        sum(question.num_pieces for question in questions),
        sum(len(question.rows) for question in questions),
        sum(question.num_cut for question in questions),
    )


def _cut(tokenizer: Tokenizer, how: Pooling, text: str | Sequence[int], number: int) -> Cut:
    if isinstance(text, str):
        return tokenizer.cut(how.prepared(text))
    ids = np.array(text, dtype=np.int64)
    if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.size:
        raise InputError(f"input {number}: pieces have ids from 0 to {tokenizer.size - 1}; send ids of this model")
    return Cut.of_ids(ids)


def _joined(rows: Sequence[Sequence[PooledRow]], shares: Sequence[torch.Tensor], width: int) -> Floats:
    if not rows:
        return np.empty((0, width), dtype=np.float32)
    vectors, at = [], 0
    for own in rows:
        kept = sum(row.num_kept for row in own)
        vectors.append(own[0].pooling.join(shares[at : at + len(own)], kept))
        at += len(own)
    return torch.stack(vectors).float().cpu().numpy()


def _whole(served: Served, between: nn.Module | None, run: Callable[[], Any]) -> Work:
    """Return work that pauses whenever the module `between` is about to be used."""

    def whole(pause: Callable[[], None]) -> Any:
        with _pausing(between, pause):
            return run()

    row: Whole = whole
    return Work(served.whole, [row], lambda found: found[0])


@contextmanager
def _pausing(between: nn.Module | None, pause: Callable[[], None]) -> Iterator[None]:
    if between is None:
        yield
        return
    handle = between.register_forward_pre_hook(lambda module, given: pause())
    try:
        yield
    finally:
        handle.remove()
