"""Two models and rows of pieces in, how far apart their outputs are out.

B rows of T places, R rows in all, D width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertworks.embeddings.pooling import Pooling, read_pooling
from bertworks.encoders.stack import Encoder
from bertworks.engines.batching import batch_by_token_budget
from bertworks.engines.onnx_graph import LAST_HIDDEN_STATE, LOGITS, POOLER_OUTPUT
from bertworks.exporters.sample_texts import TEXTS
from bertworks.inference.model import Model
from bertworks.sampling.batch import Batch, collate_sequences
from bertworks.sampling.windows import Window, WindowRule, make_windows

# Pieces of a batch: the scores of all of them over a vocabulary have to fit into memory.
_MAX_BATCH_TOKENS = 512
# How many cases of a person's file are compared; more say no more about differences, and scores are of all of them.
_MAX_EXAMPLES = 256

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ParitySample:
    """Rows to compare models on, and a word on where they come from."""

    sequences: tuple[Window, ...]
    description: str


@dataclass(frozen=True, slots=True)
class ParityResult:
    """The largest difference of each output, the largest value of it, and the cosine of each row's two vectors (R,)."""

    max_differences: dict[str, float]
    max_values: dict[str, float]
    cosines: npt.NDArray[np.float64]


def builtin_sample(model: Model) -> ParitySample:
    """Return the built-in texts as rows, cut where a model is short."""
    rule = WindowRule(model.encoder.config.max_position_embeddings, 0, truncate=True)
    rows = tuple(make_windows(model.tokenizer, [model.tokenizer.tokenize(text)], rule).sequences[0] for text in TEXTS)
    return ParitySample(rows, f"the {len(rows)} built-in English and Chinese texts")


def sample_of_texts(model: Model, texts: Iterable[str], name: str) -> ParitySample:
    """Return the first texts of a file as rows."""
    rule = WindowRule(model.encoder.config.max_position_embeddings, 0, truncate=True)
    cut = (
        make_windows(model.tokenizer, [model.tokenizer.tokenize(text)], rule) for text in islice(texts, _MAX_EXAMPLES)
    )
    rows = tuple(windows.sequences[0] for windows in cut)
    return ParitySample(rows, f"the first {len(rows)} texts of {name}")


def sample_of_examples(model: Model, examples: Iterable[Any], name: str) -> ParitySample:
    """Return the first cases of a labelled file as the rows that the task asks."""
    assert model.predictor is not None
    task, rule = model.predictor.module.task, model.predictor.window_rule
    questions = [task.featurize(case, model.tokenizer, rule) for case in islice(examples, _MAX_EXAMPLES)]
    rows = tuple(row for question in questions for row in question.sequences)
    return ParitySample(rows[: 4 * _MAX_EXAMPLES], f"the first {len(questions)} cases of {name}")


@torch.inference_mode()
def compare(original: Model, exported: Model, sample: ParitySample) -> ParityResult:
    """Return how far the outputs of two models are apart on the same batches."""
    differences: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for batch in _batches(sample.sequences, original.tokenizer.specials.pad):
        pairs = zip(_outputs(original, batch), _outputs(exported, batch), strict=True)
        for (name, one), (_, other) in pairs:
            far = float((one - other).abs().max())
            differences[name] = max(differences.get(name, 0.0), math.inf if math.isnan(far) else far)
            sizes[name] = max(sizes.get(name, 0.0), float(one.abs().max()))
    pooling, pad = read_pooling(original.folder), original.tokenizer.specials.pad
    vectors = (sequence_vectors(model.encoder, sample.sequences, pooling, pad) for model in (original, exported))
    return ParityResult(differences, sizes, cosines_of(*vectors))


@torch.inference_mode()
def sequence_vectors(encoder: Encoder, sequences: Sequence[Window], pooling: Pooling, pad: int) -> Floats:
    """Return (R, D): the sentence vector of each row, longer rows first."""
    found = []
    for batch in _batches(sequences, pad):
        values = encoder(batch).to_padded()  # (B, T, D)
        for row, length in zip(values, batch.lengths.tolist(), strict=True):
            found.append(pooling.combine([pooling.pool(row[:length], slice(0, length))], length))
    return torch.stack(found).numpy()


def cosines_of(some: Floats, others: Floats) -> npt.NDArray[np.float64]:
    """Return (R,): the cosine of each vector with its counterpart; not a number counts as 0."""
    one, other = some.astype(np.float64), others.astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: npt.NDArray[np.float64] = np.nan_to_num((one * other).sum(1) / np.maximum(lengths, 1e-30))
    return cosines


def _batches(sequences: Sequence[Window], pad: int) -> Iterator[Batch]:
    for gathered in batch_by_token_budget(sequences, len, _MAX_BATCH_TOKENS, max(1, len(sequences))):
        yield collate_sequences([row for _, row in gathered], pad)


def _outputs(model: Model, batch: Batch) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a model says of a batch, by the names of a graph; zero in padding."""
    encoded = model.encoder(batch)
    yield LAST_HIDDEN_STATE, encoded.to_padded()
    if encoded.pooled is not None and model.has_pooler:
        yield POOLER_OUTPUT, encoded.pooled
    real = torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]
    asked = replace(batch, positions=torch.nonzero(real.flatten()).flatten())
    if model.predictor is not None:
        outputs = model.predictor.module.outputs(asked)
        yield LOGITS, outputs.masked_fill(outputs == -torch.inf, 0.0)  # so are spans marked that stand in padding
    elif model.mask_filler is not None:
        assert asked.positions is not None
        encoder = model.mask_filler.encoder
        yield LOGITS, model.mask_filler.head(encoder(asked).gather(asked.positions), encoder.token_embeddings.weight)
