"""The work of TEI's endpoints: a served model and inputs in, a Work out; scores, tokens and the model's info as JSON.

An input is one sequence here, as in TEI: it is truncated, or refused with 413, and never split into windows.

T positions, D vector size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertworks.datasets.labelled_texts import TextExample
from bertworks.embeddings.pooling import Pooling
from bertworks.sampling.windows import make_pair_windows, make_windows
from bertworks.serving.answers import Floats, Work, decode_all, token_ids_array
from bertworks.serving.errors import RequestError
from bertworks.serving.models import ServedModel
from bertworks.serving.queues import PoolingInput, pooling_inputs
from bertworks.serving.service import Timing
from bertworks.tasks.classify import Classify, ClassPrediction
from bertworks.tasks.contract import Features, InputSequence
from bertworks.tasks.regress import Regress
from bertworks.vocabulary.token_arrays import TokenizedText
from bertworks.vocabulary.tokenizer import Tokenizer

# The numbers of a response with token vectors: 40 MB of JSON.
MAX_TOKEN_VALUES = 2**22


@dataclass(frozen=True, slots=True)
class Truncation:
    """What happens to an input that is too long: tokens are dropped on a side, or the request is refused."""

    is_allowed: bool = True
    from_left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenVectors(Pooling):
    """No pooling: the hidden states of all positions (T, D)."""

    def pool(self, hidden_states: Floats, positions: slice, offset: int = 0) -> Floats:
        return hidden_states.copy()


def can_predict(served_model: ServedModel) -> bool:
    """Whether a model is what TEI calls a classifier: it predicts classes or values of whole texts or pairs."""
    return isinstance(served_model.task, Classify | Regress)


def can_rerank(served_model: ServedModel) -> bool:
    """Whether a model has a single output, which scores pairs."""
    task = served_model.task
    return task is not None and can_predict(served_model) and len(task.config()["id2label"]) == 1


def tei_embed_work(
    served_model: ServedModel, inputs: Sequence[str | Sequence[int]], pooling: Pooling, truncation: Truncation
) -> Work:
    """Return the work for the vectors (inputs, D), which are not normalized."""
    pooling = replace(pooling, normalize=False)
    items = [_pooling_input(served_model, value, pooling, truncation, index) for index, value in enumerate(inputs)]

    def finish(vectors: Sequence[Floats]) -> Floats:
        return np.stack(tuple(vectors))

    return Work(served_model.embed_queue, items, finish)


def token_vectors_work(
    served_model: ServedModel, inputs: Sequence[str | Sequence[int]], pooling: Pooling, truncation: Truncation
) -> Work:
    """Return the work for the vectors of the tokens of each input, special tokens included: (T, D) each."""
    token_pooling = _TokenVectors()
    items = [
        replace(
            _pooling_input(served_model, value, pooling, truncation, index), pooling=token_pooling, is_whole_text=False
        )
        for index, value in enumerate(inputs)
    ]
    num_tokens, hidden_size = sum(len(item.input_ids) for item in items), served_model.model.encoder.config.hidden_size
    if num_tokens * hidden_size > MAX_TOKEN_VALUES:
        raise RequestError(
            413,
            f"{num_tokens:,} token vectors of {hidden_size} dimensions are more than {MAX_TOKEN_VALUES:,} numbers; "
            f"send fewer inputs at once",
        )

    def finish(hidden_states: Sequence[Floats]) -> list[Floats]:
        return list(hidden_states)

    return Work(served_model.embed_queue, items, finish)


def tei_predict_work(served_model: ServedModel, inputs: Sequence[tuple[str, ...]], truncation: Truncation) -> Work:
    """Return the work for the predictions of texts and pairs."""
    queue = served_model.predict_queue
    assert queue is not None
    predictor = queue.predictor
    tokenizer, task, window_rule = predictor.tokenizer, predictor.module.task, predictor.window_rule
    all_features = []
    for index, texts in enumerate(inputs):
        max_tokens = window_rule.max_length - tokenizer.num_special_tokens(len(texts))
        tokens = _truncate([tokenizer.tokenize(text) for text in texts], max_tokens, truncation, index)
        windows = make_pair_windows(tokenizer, tokens, window_rule)
        all_features.append(Features(sequences=tuple(map(InputSequence.from_window, windows.sequences))))

    def finish(outputs: Sequence[Any]) -> list[Any]:
        examples = [TextExample(str(index), f"input {index}", texts) for index, texts in enumerate(inputs)]
        return list(decode_all(task, examples, all_features, outputs))

    return Work(queue, [sequence for features in all_features for sequence in features.sequences], finish)


def scores_of(prediction: Any, raw: bool, value_name: str = "value") -> dict[str, float]:
    """Return the score of each label: its probability, or with `raw` the output of the head.

    The probability of a value, which has no other class, is its sigmoid; its label is `value_name`.
    """
    if isinstance(prediction, ClassPrediction):
        logits = dict(zip(prediction.probabilities, prediction.logits.tolist(), strict=True))
        return logits if raw else dict(prediction.probabilities)
    fields = prediction.to_dict()
    values: dict[str, float] = fields.get("values") or {value_name: fields["value"]}
    return values if raw else {name: (1 + math.tanh(value / 2)) / 2 for name, value in values.items()}


def tei_tokens(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[dict[str, Any]]:
    """Return the tokens of a text in TEI's shape; a special token has no characters."""
    encoding = tokenizer.encode(text)
    tokens = []
    for token_id, token, offset in zip(encoding.input_ids, encoding.tokens, encoding.offsets, strict=True):
        if offset is not None:
            start, stop = offset
            tokens.append({"id": token_id, "text": text[start:stop], "special": False, "start": start, "stop": stop})
        elif add_special_tokens:
            tokens.append({"id": token_id, "text": token, "special": True, "start": None, "stop": None})
    return tokens


def compute_headers(served_model: ServedModel, num_characters: int, timing: Timing) -> dict[str, str]:
    """Return TEI's headers of a response: what was computed, and the milliseconds that it took."""
    total = timing.tokenization + timing.queue + timing.inference
    is_gpu = served_model.model.encoder.device.type == "cuda"
    seconds = {
        "x-compute-time": total,
        "x-total-time": total,
        "x-tokenization-time": timing.tokenization,
        "x-queue-time": timing.queue,
        "x-inference-time": timing.inference,
    }
    return {
        "x-compute-type": "gpu" if is_gpu else "cpu",
        "x-compute-characters": str(num_characters),
        "x-compute-tokens": str(timing.num_tokens),
        **{name: str(int(1_000 * value)) for name, value in seconds.items()},
    }


def model_type_of(served_model: ServedModel) -> dict[str, Any]:
    """Return TEI's type of a model: a reranker, a classifier, or an embedding model with its pooling."""
    task = served_model.task
    if task is None or not can_predict(served_model):
        names = {"lasttoken": "last_token"}
        return {"embedding": {"pooling": "+".join(names.get(kind, kind) for kind in served_model.pooling.kinds)}}
    config = task.config()
    labels = {"id2label": config["id2label"], "label2id": config["label2id"]}
    return {"reranker" if can_rerank(served_model) else "classifier": labels}


def _pooling_input(
    served_model: ServedModel, value: str | Sequence[int], pooling: Pooling, truncation: Truncation, index: int
) -> PoolingInput:
    """Return the one sequence of an input. Token ids are the whole sequence: they include the special tokens."""
    tokenizer = served_model.model.tokenizer
    window_rule = served_model.embed_window_rule(pooling, truncate=True)
    if isinstance(value, str):
        max_tokens = window_rule.max_length - tokenizer.num_special_tokens(1)
        tokens = _truncate([tokenizer.tokenize(pooling.prepare_text(value))], max_tokens, truncation, index)
        (item,) = pooling_inputs(make_windows(tokenizer, tokens, window_rule), pooling)
        return item
    (tokens_of_ids,) = _truncate(
        [TokenizedText.from_ids(token_ids_array(tokenizer, value, index))], window_rule.max_length, truncation, index
    )
    return PoolingInput(
        input_ids=tokens_of_ids.input_ids,
        token_type_ids=np.zeros_like(tokens_of_ids.input_ids),
        unknown={},
        pooled_positions=slice(0, len(tokens_of_ids)),
        pooling=pooling,
        is_whole_text=True,
    )


def _truncate(
    texts: Sequence[TokenizedText], max_tokens: int, truncation: Truncation, index: int
) -> list[TokenizedText]:
    """Return the tokens of a text or a pair within `max_tokens`; of a pair, the longer one is truncated first."""
    lengths = [len(text) for text in texts]
    if sum(lengths) <= max_tokens:
        return list(texts)
    if not truncation.is_allowed:
        raise RequestError(
            413,
            f"input {index} has {sum(lengths):,} tokens, but this model reads at most {max_tokens:,} besides special "
            f"tokens; send truncate = true, or split the text",
        )
    budgets = [max_tokens]
    if len(texts) == 2:
        shorter = min(*lengths, max_tokens // 2)
        budgets = [shorter, max_tokens - shorter] if lengths[0] <= lengths[1] else [max_tokens - shorter, shorter]
    counts = [min(length, budget) for length, budget in zip(lengths, budgets, strict=True)]
    starts = [length - count if truncation.from_left else 0 for length, count in zip(lengths, counts, strict=True)]
    return [text.between(start, start + count) for text, start, count in zip(texts, starts, counts, strict=True)]
