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

from bertworks.datasets.files import Record
from bertworks.embeddings.pooling import Pooling
from bertworks.errors import InputError
from bertworks.inference.attribution import explain
from bertworks.inference.generate import GenerationConfig
from bertworks.sampling.windows import make_windows
from bertworks.serving.batch_scheduler import Queue
from bertworks.serving.models import ServedModel
from bertworks.serving.queues import PoolingInput, PredictQueue, UnbatchedCall, pooling_inputs
from bertworks.tasks.contract import Features
from bertworks.text.sentences import split_sentences
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

Floats = npt.NDArray[np.float32]
# A text, or the fields of what a task reads.
Input = str | Mapping[str, Any]
_TEXT, _PAIR = ("text",), ("sentence1", "sentence2")
_INPUT_FIELDS: dict[str, tuple[tuple[str, ...], ...]] = {
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

    num_tokens: int
    num_windows: int
    num_truncated: int


@dataclass(frozen=True, slots=True)
class Work:
    """Rows for a lane, and the function that turns what was computed of each into the answer."""

    queue: Queue
    items: Sequence[Any]
    finish: Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors (texts, D) of texts."""

    values: Floats
    usage: Usage


def predict_work(served_model: ServedModel, inputs: Sequence[Input], truncate: bool, by: str) -> Work:
    """Return the work whose answer is {"predictions", "usage"}; `by` "sentence" predicts each sentence of the texts."""
    lane = served_model.predict_queue
    assert lane is not None
    predictor = lane.predictor
    rule = replace(predictor.window_rule, truncate=predictor.window_rule.truncate or truncate)
    spans: list[dict[str, Any]] = []
    if by == "sentence":
        spans = [span for number, one in enumerate(inputs) for span in _sentences(number, one)]
        inputs = [span["sentence"] for span in spans]
    cases = [example_from_input(lane, one, number) for number, one in enumerate(inputs)]
    questions = [predictor.module.task.featurize(case, predictor.tokenizer, rule) for case in cases]

    def finish(outputs: Sequence[Any]) -> dict[str, Any]:
        predictions, at = [], 0
        for case, question in zip(cases, questions, strict=True):
            own = outputs[at : at + len(question.sequences)]
            at += len(question.sequences)
            predictions.append(predictor.module.task.decode(case, question, own).to_dict())
        if spans:
            predictions = [
                {**span, **{key: value for key, value in one.items() if key != "id"}}
                for span, one in zip(spans, predictions, strict=True)
            ]
        return {"predictions": predictions, "usage": asdict(_usage_of(questions))}

    return Work(lane, [row for question in questions for row in question.sequences], finish)


def example_from_input(queue: PredictQueue, raw_input: Input, number: int) -> Any:
    """Return what the task reads; an input that does not suit it is refused, naming its place."""
    fields = {"text": raw_input} if isinstance(raw_input, str) else dict(raw_input)
    task = queue.predictor.module.task
    reads = _INPUT_FIELDS[task.name]
    if not any(fields.keys() == set(names) for names in reads):
        shapes = " or ".join("{" + ", ".join(f'"{name}"' for name in names) + "}" for names in reads)
        raise InputError(f"input {number}: a model for '{task.name}' reads {shapes}; send that")
    # One at a time: the inputs of a request need not have the same fields.
    case = next(iter(task.read_unlabelled([Record(fields, f"input {number}")], {})), None)
    if case is None:
        raise InputError(f"input {number}: one of its texts is empty; fill it, or leave the input out")
    return replace(case, id=str(number))


def embed_work(
    served_model: ServedModel, texts: Sequence[str | Sequence[int]], pooling: str | None, truncate: bool
) -> Work:
    """Return the work whose answer is the Vectors of texts, or of pieces that are given by their ids."""
    how = served_model.pooling.with_kind(pooling) if pooling else served_model.pooling
    tokenizer = served_model.model.tokenizer
    rule = served_model.embed_window_rule(how, truncate)
    windows = [make_windows(tokenizer, [_tokenize(tokenizer, how, text, at)], rule) for at, text in enumerate(texts)]
    rows = [pooling_inputs(one, how) for one in windows]
    usage = Usage(
        sum(len(row.input_ids) for own in rows for row in own),
        sum(map(len, rows)),
        sum(one.num_truncated for one in windows),
    )
    width = served_model.model.encoder.config.hidden_size * len(how.kinds)

    def finish(shares: Sequence[torch.Tensor]) -> Vectors:
        return Vectors(_pool_windows(rows, shares, width), usage)

    return Work(served_model.embed_queue, [row for own in rows for row in own], finish)


def fill_mask_work(served_model: ServedModel, text: str, top: int) -> Work:
    """Return the work whose answer is that of `bertworks fill --json`."""
    masked, blanked = served_model.model.mlm_head, with_model_mask_token(served_model, text)
    return _unbatched_work(
        served_model, masked, lambda: {**asdict(served_model.model.fill_mask(blanked, top)), "text": text}
    )


def with_model_mask_token(served_model: ServedModel, text: str) -> str:
    """Return a text with [MASK], which says "a blank" to any model, as the model's own piece for it."""
    return text.replace("[MASK]", served_model.model.tokenizer.tokens[served_model.model.tokenizer.specials.mask])


def generate_work(served_model: ServedModel, text: str, generation_config: GenerationConfig) -> Work:
    """Return the work whose answer is that of `bertworks generate --json`."""
    encoder = served_model.model.encoder
    return _unbatched_work(served_model, encoder, lambda: asdict(served_model.model.generate(text, generation_config)))


def next_work(served_model: ServedModel, text: str, top: int, backward: bool) -> Work:
    """Return the work whose answer is {"words"}, those of `bertworks next --json`."""
    if backward and served_model.model.mask_filler is None and served_model.model.bilm_predictor is None:
        raise InputError("this model reads to the left and cannot tell what stood before; leave backward out")

    def run() -> dict[str, Any]:
        return {"words": [asdict(word) for word in served_model.model.next_words(text, top, backward)]}

    return _unbatched_work(served_model, served_model.model.encoder, run)


def explain_work(served_model: ServedModel, raw_input: Input, target: str | None) -> Work:
    """Return the work whose answer is that of `bertworks explain --json`."""
    assert served_model.predict_queue is not None
    predictor = served_model.predict_queue.predictor
    case = example_from_input(served_model.predict_queue, raw_input, 0)
    # Asked once here, where tokenizers are used one at a time: the worker then finds all words known, and learns none.
    question = predictor.module.task.featurize(case, predictor.tokenizer, predictor.window_rule)
    if all(row.positions is not None and not len(row.positions) for row in question.sequences):
        raise InputError("the input has no word to explain; write one")
    return _unbatched_work(served_model, predictor.module.head, lambda: explain(predictor, case, target).to_dict())


def unbatched_work(served_model: ServedModel, run: Callable[[], Any]) -> Work:
    """Return work that is done in one go."""
    return _unbatched_work(served_model, None, run)


def project_to_plane(vectors: Floats) -> Floats:
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


def _sentences(number: int, raw_input: Input) -> Iterator[dict[str, Any]]:
    text = raw_input if isinstance(raw_input, str) else raw_input.get("text")
    if not isinstance(text, str):
        raise InputError(f'input {number}: only plain texts can be read by sentence; leave "by" out for pairs')
    at = 0
    for sentence in split_sentences(text):
        start = text.index(sentence, at)
        at = start + len(sentence)
        yield {"text": number, "start": start, "end": at, "sentence": sentence}


def _usage_of(features: Sequence[Features]) -> Usage:
    return Usage(
        sum(question.num_tokens for question in features),
        sum(len(question.sequences) for question in features),
        sum(question.num_truncated for question in features),
    )


def _tokenize(tokenizer: Tokenizer, pooling: Pooling, text: str | Sequence[int], number: int) -> TokenizedText:
    if isinstance(text, str):
        return tokenizer.tokenize(pooling.prepare_text(text))
    ids = np.array(text, dtype=np.int64)
    if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        raise InputError(
            f"input {number}: pieces have ids from 0 to {tokenizer.vocab_size - 1}; send ids of this model"
        )
    return TokenizedText.from_ids(ids)


def _pool_windows(
    sequences: Sequence[Sequence[PoolingInput]], partial_vectors: Sequence[torch.Tensor], width: int
) -> Floats:
    if not sequences:
        return np.empty((0, width), dtype=np.float32)
    vectors, at = [], 0
    for own in sequences:
        kept = sum(row.num_pooled_positions for row in own)
        vectors.append(own[0].pooling.combine(partial_vectors[at : at + len(own)], kept))
        at += len(own)
    return torch.stack(vectors).float().cpu().numpy()


def _unbatched_work(served_model: ServedModel, hooked_module: nn.Module | None, run: Callable[[], Any]) -> Work:
    """Return work that pauses whenever the module `between` is about to be used."""

    def whole(pause: Callable[[], None]) -> Any:
        with _pause_before(hooked_module, pause):
            return run()

    row: UnbatchedCall = whole
    return Work(served_model.unbatched_queue, [row], lambda found: found[0])


@contextmanager
def _pause_before(hooked_module: nn.Module | None, pause: Callable[[], None]) -> Iterator[None]:
    if hooked_module is None:
        yield
        return
    handle = hooked_module.register_forward_pre_hook(lambda module, given: pause())
    try:
        yield
    finally:
        handle.remove()
