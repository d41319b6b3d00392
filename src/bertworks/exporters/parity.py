"""Parity: two models and token sequences in, the differences of their outputs out.

N tokens, P masked positions, R sequences of the sample, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.embeddings.pooling import Pooling
from bertworks.encoders.encoder import Encoder
from bertworks.engines.batching import batch_by_token_budget
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.graph_names import LAST_HIDDEN_STATE, LOGITS, POOLER_OUTPUT
from bertworks.engines.torch_engine import to_numpy
from bertworks.exporters.sample_texts import TEXTS
from bertworks.inference.fill_mask import log_softmax
from bertworks.inference.model import LoadedModel
from bertworks.progress import ProgressCallback, begin_stage, ignore_progress
from bertworks.sampling.windows import Window, WindowRule, make_windows
from bertworks.tasks.contract import InputSequence
from bertworks.vocabulary.tokenizer import SpecialTokenIds

# Tokens of a batch: their logits over the whole vocabulary must fit into memory.
_MAX_BATCH_TOKENS = 512
# Every seventh token of the sample is masked to compare MLM losses: about the 15 % of pretraining.
_MASK_STEP = 7
# Examples of a file that are compared; more would not change the differences. Metrics use all examples.
_MAX_EXAMPLES = 256

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ParitySample:
    """Sequences to compare models on, and a description of their source."""

    sequences: tuple[Window, ...]
    description: str


@dataclass(frozen=True, slots=True)
class MlmParity:
    """The MLM losses of both models on the same masked tokens, and the ratio of tokens that both predict alike."""

    num_masked: int
    loss_before: float
    loss_after: float
    same_ratio: float


@dataclass(frozen=True, slots=True)
class ParityResult:
    """The largest difference and value of each output, and the cosine similarity of sentence vectors (R,).

    `mlm` is None for a model without a masked-LM head.
    """

    max_differences: dict[str, float]
    max_values: dict[str, float]
    cosines: npt.NDArray[np.float64]
    mlm: MlmParity | None = None


def builtin_sample(model: LoadedModel) -> ParitySample:
    """Return the built-in texts as sequences, truncated to the maximal length of the model."""
    return ParitySample(_truncated_sequences(model, TEXTS), f"the {len(TEXTS)} built-in English and Chinese texts")


def sample_of_texts(model: LoadedModel, texts: Iterable[str], name: str) -> ParitySample:
    """Return the first texts of a file as sequences."""
    sequences = _truncated_sequences(model, islice(texts, _MAX_EXAMPLES))
    return ParitySample(sequences, f"the first {len(sequences)} texts of {name}")


def _truncated_sequences(model: LoadedModel, texts: Iterable[str]) -> tuple[Window, ...]:
    rule = WindowRule(model.encoder.config.max_length, 0, truncate=True)
    tokenizer = model.tokenizer
    return tuple(make_windows(tokenizer, [tokenizer.tokenize(text)], rule).sequences[0] for text in texts)


def sample_of_examples(model: LoadedModel, examples: Iterable[Any], name: str) -> ParitySample:
    """Return the first examples of a labelled file as the sequences of the task."""
    assert model.predictor is not None
    task, window_rule = model.predictor.module.task, model.predictor.window_rule
    features = [task.featurize(example, model.tokenizer, window_rule) for example in islice(examples, _MAX_EXAMPLES)]
    sequences = tuple(sequence for example in features for sequence in example.sequences)
    return ParitySample(sequences[: 4 * _MAX_EXAMPLES], f"the first {len(features)} examples of {name}")


def compare(
    original: LoadedModel, exported: LoadedModel, sample: ParitySample, watch: ProgressCallback = ignore_progress
) -> ParityResult:
    """Compare the outputs of two models on the same batches."""
    differences: dict[str, float] = {}
    max_values: dict[str, float] = {}
    watch(begin_stage("comparing outputs"))
    for batch in _batches(sample.sequences):
        pairs = zip(_outputs(original, batch), _outputs(exported, batch), strict=True)
        for (name, expected), (_, actual) in pairs:
            difference = float(np.abs(expected - actual).max())
            differences[name] = max(differences.get(name, 0.0), math.inf if math.isnan(difference) else difference)
            max_values[name] = max(max_values.get(name, 0.0), float(np.abs(expected).max()))
    watch(begin_stage("comparing vectors"))
    pooling, pad = original.pooling, original.tokenizer.specials.pad
    vectors = (sequence_vectors(model.encoder, sample.sequences, pooling, pad) for model in (original, exported))
    return ParityResult(differences, max_values, cosines_of(*vectors), compare_mlm(original, exported, sample))


def compare_mlm(original: LoadedModel, exported: LoadedModel, sample: ParitySample) -> MlmParity | None:
    """Compare the predictions of two models for masked tokens of the sample; None without a masked-LM head."""
    fillers = [model.mask_filler for model in (original, exported) if model.mask_filler is not None]
    if len(fillers) < 2:
        return None
    num_masked = num_same = 0
    losses = [0.0, 0.0]
    for batch, positions, targets in _masked_batches(sample.sequences, original.tokenizer.specials):
        log_probs = [log_softmax(filler.logits(batch, positions)) for filler in fillers]  # (P, V) each
        for index, scores in enumerate(log_probs):
            losses[index] -= float(scores[np.arange(len(targets)), targets].astype(np.float64).sum())
        num_same += int((log_probs[0].argmax(-1) == log_probs[1].argmax(-1)).sum())
        num_masked += len(targets)
    if not num_masked:
        return None
    return MlmParity(num_masked, losses[0] / num_masked, losses[1] / num_masked, num_same / num_masked)


def _masked_batches(
    sequences: Sequence[Window], specials: SpecialTokenIds
) -> Iterator[tuple[list[Window], list[Ints], Ints]]:
    """Yield batches with masked tokens, their positions in each sequence, and the tokens that were there (P,)."""
    for batch in _batches(sequences):
        input_ids = np.concatenate([sequence.input_ids for sequence in batch])
        masked = np.flatnonzero(~np.isin(input_ids, specials.ids))[_MASK_STEP // 2 :: _MASK_STEP]
        if not len(masked):
            continue
        ends = np.cumsum([len(sequence) for sequence in batch])
        masked_ids = input_ids.copy()
        masked_ids[masked] = specials.mask
        own_ids = np.split(masked_ids, ends[:-1])
        positions = [
            masked[(masked >= end - len(sequence)) & (masked < end)] - (end - len(sequence))
            for sequence, end in zip(batch, ends, strict=True)
        ]
        sequences_with_masks = [replace(sequence, input_ids=ids) for sequence, ids in zip(batch, own_ids, strict=True)]
        yield sequences_with_masks, positions, input_ids[masked]


def sequence_vectors(
    encoder: Encoder | GraphEncoder, sequences: Sequence[Window], pooling: Pooling, pad: int
) -> Floats:
    """Return the sentence vector of each sequence (R, D), longer sequences first."""
    vectors = []
    for batch in _batches(sequences):
        encoded = encoder.encode_sequences(batch, pad)
        last_hidden_state = to_numpy(encoded.last_hidden_state)  # (N, D)
        for sequence, start in zip(batch, encoded.starts, strict=True):
            length = len(sequence)
            hidden_states = last_hidden_state[start : start + length]
            vectors.append(pooling.combine([pooling.pool(hidden_states, slice(0, length))], length))
    return np.stack(vectors)


def cosines_of(left: Floats, right: Floats) -> npt.NDArray[np.float64]:
    """Return the cosine similarity of corresponding rows (R,); NaN counts as 0."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: npt.NDArray[np.float64] = np.nan_to_num((a * b).sum(1) / np.maximum(norms, 1e-30))
    return cosines


def _batches(sequences: Sequence[Window]) -> Iterator[list[Window]]:
    for indexed_sequences in batch_by_token_budget(sequences, len, _MAX_BATCH_TOKENS, max(1, len(sequences))):
        yield [sequence for _, sequence in indexed_sequences]


def _outputs(model: LoadedModel, batch: Sequence[Window]) -> Iterator[tuple[str, Floats]]:
    """Yield the outputs of a model on a batch by their names in a graph."""
    encoded = model.encoder.encode_sequences(batch, model.tokenizer.specials.pad)
    last_hidden_state = to_numpy(encoded.last_hidden_state)  # of an encoder in PyTorch it may include padding
    spans = zip(batch, encoded.starts, strict=True)
    yield LAST_HIDDEN_STATE, np.concatenate([last_hidden_state[start : start + len(own)] for own, start in spans])
    if encoded.pooled is not None and model.has_pooler:
        yield POOLER_OUTPUT, to_numpy(encoded.pooled)
    positions = [np.arange(len(sequence)) for sequence in batch]
    if model.predictor is not None:
        module = model.predictor.module
        sequences = [
            InputSequence.from_window(sequence, positions=own_positions if module.reads_positions else None)
            for sequence, own_positions in zip(batch, positions, strict=True)
        ]
        outputs = module.compute_outputs(sequences, model.tokenizer)
        yield LOGITS, np.concatenate([output.ravel() for output in outputs])
    elif model.mask_filler is not None:
        yield LOGITS, model.mask_filler.logits(batch, positions)
