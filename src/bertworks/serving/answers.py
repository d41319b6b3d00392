"""The work of a request: a served model and inputs in, a Work out: items to compute, and a function for the response.

Nothing here knows HTTP, threads or scheduling: computed directly, a Work returns what `predict` and `encode` return.
D vector size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertworks.embeddings.pooling import Pooling
from bertworks.errors import InputError
from bertworks.inference.generation_config import GenerationConfig
from bertworks.inference.predictor import Predictor
from bertworks.sampling.windows import make_text_windows
from bertworks.serving.batch_scheduler import Queue
from bertworks.serving.models import ServedModel
from bertworks.serving.queues import PoolingInput, pooling_inputs
from bertworks.tasks.contract import Features, Task, TaskExample
from bertworks.tasks.inputs import example_from_input
from bertworks.text.sentences import split_sentences
from bertworks.vocabulary.text_coverage import SpelledSequence, TextCoverage
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

if TYPE_CHECKING:
    from torch import nn

    from bertworks.inference.graph_models import GraphMlmHead

Floats = npt.NDArray[np.float32]
# A text, or the input fields of a task.
Input = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """The size of a request: tokens, windows, tokens dropped by truncation, and tokens unknown to the vocabulary."""

    num_tokens: int
    num_windows: int
    num_truncated: int
    num_unknown: int


@dataclass(frozen=True, slots=True)
class Work:
    """Items for a queue, and the function that turns their results into the response."""

    queue: Queue
    items: Sequence[Any]
    finish: Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors (texts, D) of texts; `warnings` say that the vocabulary hardly reads them."""

    values: Floats
    usage: Usage
    warnings: list[dict[str, Any]]


def predict_work(served_model: ServedModel, inputs: Sequence[Input], truncate: bool, by: str) -> Work:
    """Return the work for {"predictions", "usage", "warnings"}.

    With `by` "sentence", each sentence of the texts is predicted.
    """
    queue = served_model.predict_queue
    assert queue is not None
    predictor = queue.predictor
    task = predictor.module.task
    window_rule = replace(predictor.window_rule, truncate=predictor.window_rule.truncate or truncate)
    sentences: list[dict[str, Any]] = []
    if by == "sentence":
        sentences = [sentence for index, raw_input in enumerate(inputs) for sentence in _sentences(index, raw_input)]
        inputs = [sentence["sentence"] for sentence in sentences]
    examples = [example_from_input(task, value, f"input {index}", str(index)) for index, value in enumerate(inputs)]
    features = [task.featurize(example, predictor.tokenizer, window_rule) for example in examples]
    sequences = [sequence for example_features in features for sequence in example_features.sequences]
    coverage = _coverage_of(served_model, sequences)
    usage = Usage(
        sum(example_features.num_tokens for example_features in features),
        len(sequences),
        sum(example_features.num_truncated for example_features in features),
        coverage.num_unknown,
    )

    def finish(outputs: Sequence[Any]) -> dict[str, Any]:
        predictions = [prediction.to_dict() for prediction in decode_all(task, examples, features, outputs)]
        if sentences:
            predictions = [
                {**sentence, **{key: value for key, value in prediction.items() if key != "id"}}
                for sentence, prediction in zip(sentences, predictions, strict=True)
            ]
        warnings = [*_single_text_warnings(predictor, examples), *_warnings_in(coverage)]
        return {"predictions": predictions, "usage": asdict(usage), "warnings": warnings}

    return Work(queue, sequences, finish)


def decode_all(
    task: Task, examples: Sequence[Any], features: Sequence[Features], outputs: Sequence[Any]
) -> Iterator[Any]:
    """Yield the prediction of each example from the outputs of all their sequences."""
    start = 0
    for example, example_features in zip(examples, features, strict=True):
        stop = start + len(example_features.sequences)
        yield task.decode(example, example_features, outputs[start:stop])
        start = stop


def embed_work(
    served_model: ServedModel, texts: Sequence[str | Sequence[int]], pooling: Pooling | None, truncate: bool
) -> Work:
    """Return the work for the Vectors of texts, which are strings or lists of token ids; by default with the model's
    own pooling."""
    pooling = pooling or served_model.pooling
    tokenizer = served_model.model.tokenizer
    window_rule = served_model.embed_window_rule(pooling, truncate)
    windows = [
        make_text_windows(tokenizer, _tokenize(tokenizer, pooling, text, index), window_rule)
        for index, text in enumerate(texts)
    ]
    inputs_by_text = [pooling_inputs(text_windows, pooling) for text_windows in windows]
    items = [item for inputs in inputs_by_text for item in inputs]
    coverage = _coverage_of(served_model, items)
    usage = Usage(
        sum(len(item.input_ids) for item in items),
        len(items),
        sum(text_windows.num_truncated for text_windows in windows),
        coverage.num_unknown,
    )
    vector_size = pooling.output_size(served_model.model.encoder.config.hidden_size)

    def finish(partial_vectors: Sequence[Floats]) -> Vectors:
        return Vectors(_pool_windows(inputs_by_text, partial_vectors, vector_size), usage, _warnings_in(coverage))

    return Work(served_model.embed_queue, items, finish)


def fill_mask_work(served_model: ServedModel, text: str, top_k: int) -> Work:
    """Return the work for the output of `bertworks fill-mask --json`, with "warnings"."""
    model, masked_text = served_model.model, with_model_mask_token(served_model, text)
    warnings = _text_warnings(served_model, masked_text)

    def run() -> dict[str, Any]:
        return {**asdict(model.fill_mask(masked_text, top_k)), "text": text, "warnings": warnings}

    return _unbatched_work(served_model, model.mlm_head, run)


def with_model_mask_token(served_model: ServedModel, text: str) -> str:
    """Replace [MASK], which clients may send to any model, by the model's own mask token."""
    return text.replace("[MASK]", served_model.model.tokenizer.tokens[served_model.model.tokenizer.specials.mask])


def generate_work(served_model: ServedModel, text: str, generation_config: GenerationConfig) -> Work:
    """Return the work for the output of `bertworks generate --json`, with "warnings"."""
    model, warnings = served_model.model, _text_warnings(served_model, text)

    def run() -> dict[str, Any]:
        return {**asdict(model.generate(text, generation_config)), "warnings": warnings}

    return _unbatched_work(served_model, model.encoder, run)


def next_work(served_model: ServedModel, text: str, top_k: int, backward: bool) -> Work:
    """Return the work for {"words", "warnings"}: the output of `bertworks next --json`, with "warnings"."""
    if backward and served_model.model.mask_filler is None and served_model.model.bilm_predictor is None:
        raise InputError("this model is causal and cannot predict the word before a text; leave backward out")

    warnings = _text_warnings(served_model, text)

    def run() -> dict[str, Any]:
        words = served_model.model.next_words(text, top_k, backward)
        return {"words": [asdict(word) for word in words], "warnings": warnings}

    hooked_module = served_model.model.encoder if served_model.model.mlm_head is None else served_model.model.mlm_head
    return _unbatched_work(served_model, hooked_module, run)


def explain_work(served_model: ServedModel, raw_input: Input, target: str | None) -> Work:
    """Return the work for the output of `bertworks explain --json`, with "warnings"."""
    from bertworks.inference.attribution import explain  # with PyTorch, which an exported model does without

    assert served_model.predict_queue is not None
    predictor = served_model.predict_queue.predictor
    example = example_from_input(predictor.module.task, raw_input, "input 0", "0")
    # Tokenized here, where the tokenizer lock is held: the worker then finds every word in the tokenizer's cache.
    features = predictor.module.task.featurize(example, predictor.tokenizer, predictor.window_rule)
    if all(sequence.positions is not None and not len(sequence.positions) for sequence in features.sequences):
        raise InputError("the input has no word to explain; every text needs at least one word")
    coverage = _coverage_of(served_model, features.sequences)
    warnings = [*_single_text_warnings(predictor, [example]), *_warnings_in(coverage)]

    def run() -> dict[str, Any]:
        return {**explain(predictor, example, target).to_dict(), "warnings": warnings}

    return _unbatched_work(served_model, predictor.module.head, run)


def unbatched_work(served_model: ServedModel, run: Callable[[], Any]) -> Work:
    """Return work that runs without pauses."""
    return _unbatched_work(served_model, None, run)


def project_to_plane(vectors: Floats) -> Floats:
    """Project vectors onto their first two principal components: (texts, D) -> (texts, 2).

    The sign of a component makes its largest element positive, so that the result is deterministic.
    """
    centered = vectors - vectors.mean(0)
    _, _, components = np.linalg.svd(centered, full_matrices=False)
    points = np.zeros((len(vectors), 2), dtype=np.float32)
    for index, component in enumerate(components[:2]):
        sign = np.sign(component[np.abs(component).argmax()]) or 1.0
        points[:, index] = centered @ component * sign
    return points


def cosines(vectors: Floats, query: Floats) -> Floats:
    """Return (texts,): the cosine similarity of each vector to the query (D,)."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    return (vectors @ query / np.maximum(norms, 1e-12)).astype(np.float32)


def _sentences(index: int, raw_input: Input) -> Iterator[dict[str, Any]]:
    text = raw_input if isinstance(raw_input, str) else raw_input.get("text")
    if not isinstance(text, str):
        raise InputError(f'input {index}: only single texts can be split by sentence; leave "by" out')
    end = 0
    for sentence in split_sentences(text):
        start = text.index(sentence, end)
        end = start + len(sentence)
        yield {"text": index, "start": start, "end": end, "sentence": sentence}


def _coverage_of(served_model: ServedModel, sequences: Iterable[SpelledSequence]) -> TextCoverage:
    coverage = served_model.model.new_coverage()
    coverage.add(sequences)
    return coverage


def _warnings_in(coverage: TextCoverage) -> list[dict[str, Any]]:
    return [warning.to_dict() for warning in coverage.warnings()]


def _text_warnings(served_model: ServedModel, text: str) -> list[dict[str, Any]]:
    return [warning.to_dict() for warning in served_model.model.coverage_warnings(text)]


def token_ids_array(tokenizer: Tokenizer, token_ids: Sequence[int], index: int) -> npt.NDArray[np.int64]:
    """Return the token ids of an input (T,); raise InputError for an id that the vocabulary does not have."""
    input_ids = np.array(token_ids, dtype=np.int64)
    if len(input_ids) and not 0 <= input_ids.min() <= input_ids.max() < tokenizer.vocab_size:
        raise InputError(f"input {index}: token ids of this model are 0 to {tokenizer.vocab_size - 1}")
    return input_ids


def _tokenize(tokenizer: Tokenizer, pooling: Pooling, text: str | Sequence[int], index: int) -> TokenizedText:
    if isinstance(text, str):
        return tokenizer.tokenize(pooling.prepare_text(text))
    return TokenizedText.from_ids(token_ids_array(tokenizer, text, index))


def _single_text_warnings(predictor: Predictor, examples: Sequence[TaskExample]) -> list[dict[str, Any]]:
    """Return a warning if the model was trained on pairs, as its folder records, and some inputs are single texts."""
    num_single = sum(len(example.texts) == 1 for example in examples) if "pair" in predictor.columns else 0
    if not num_single:
        return []
    message = (
        f"{num_single:,} of {len(examples):,} inputs are single texts, but the model was trained on pairs; send both "
        f'texts: {{"sentence1": TEXT, "sentence2": TEXT}}'
    )
    return [{"type": "single_text", "message": message, "ratio": num_single / len(examples), "examples": []}]


def _pool_windows(
    inputs_by_text: Sequence[Sequence[PoolingInput]], partial_vectors: Sequence[Floats], vector_size: int
) -> Floats:
    if not inputs_by_text:
        return np.empty((0, vector_size), dtype=np.float32)
    vectors, start = [], 0
    for inputs in inputs_by_text:
        stop = start + len(inputs)
        if len(inputs) == 1:  # the vector of a whole text
            vectors.append(partial_vectors[start])
        else:
            num_pooled = sum(window.num_pooled_positions for window in inputs)
            vectors.append(inputs[0].pooling.combine(partial_vectors[start:stop], num_pooled))
        start = stop
    return np.stack(vectors)


def _unbatched_work(
    served_model: ServedModel, hooked_module: nn.Module | GraphMlmHead | None, run: Callable[[], Any]
) -> Work:
    """Return work that pauses before every forward pass of the hooked module."""

    def call(pause: Callable[[], None]) -> Any:
        with _pause_before(hooked_module, pause):
            return run()

    return Work(served_model.unbatched_queue, [call], lambda results: results[0])


@contextmanager
def _pause_before(hooked_module: nn.Module | GraphMlmHead | None, pause: Callable[[], None]) -> Iterator[None]:
    if hooked_module is None:
        yield
        return
    handle = hooked_module.register_forward_pre_hook(lambda module, args: pause())
    try:
        yield
    finally:
        handle.remove()
