"""Texts for the engines of `inference.py`: texts in, batches of padded ids, sorted by length, out; vectors in order.

B sequences, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from bertworks.engines.optional import import_optional
from minilm import minilm

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
InputIds = list[list[int]]
Encode = Callable[[Sequence[str]], Floats]
# The settings of an engine: a name, and the function that encodes texts.
Settings = Iterator[tuple[str, Encode]]

MAX_LENGTH = 256  # tokens: the truncation of sentence-transformers for MiniLM
HIDDEN_SIZE = 384
# The maximum number of sequences and of positions, including padding, in a batch.
BATCH_LIMITS = {
    "32 sequences": (32, 32 * MAX_LENGTH),
    **{f"{num_tokens:,} tokens": (num_tokens, num_tokens) for num_tokens in (1_024, 2_048, 4_096)},
}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def make_tokenizer() -> Callable[[Sequence[str]], InputIds]:
    """Return the tokenizer that all peers use: texts in, ids with special tokens out."""
    tokenizers = import_optional("tokenizers", "peers", "tokenizing texts")
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]


def batched(limits: tuple[int, int], run: Callable[[InputIds], Floats], num_parallel: int = 1) -> Encode:
    """Return a function that tokenizes texts, sorts them by length, runs batches in parallel and restores the order."""
    tokenize, executor = make_tokenizer(), ThreadPoolExecutor(num_parallel)

    def encode(texts: Sequence[str]) -> Floats:
        input_ids = tokenize(texts)
        order = sorted(range(len(input_ids)), key=lambda index: -len(input_ids[index]))
        vectors = np.empty((len(input_ids), HIDDEN_SIZE), dtype=np.float32)

        def encode_batch(indices: list[int]) -> None:
            vectors[indices] = run([input_ids[index] for index in indices])

        batches = list(split_batches(order, [len(input_ids[index]) for index in order], limits))
        # A single batch is not handed to a thread, which would only cost time.
        is_sequential = min(num_parallel, len(batches)) == 1
        list(map(encode_batch, batches) if is_sequential else executor.map(encode_batch, batches))
        return vectors

    return encode


def split_batches(indices: list[int], lengths: list[int], limits: tuple[int, int]) -> Iterator[list[int]]:
    """Yield batches of sequences, longest first, within the limits of sequences and positions, or of one sequence."""
    max_sequences, max_positions = limits
    start = 0
    while start < len(indices):
        count = max(1, min(max_sequences, max_positions // lengths[start]))
        yield indices[start : start + count]
        start += count


def pad(sequences: InputIds) -> tuple[Ints, Ints, Ints]:
    """Return input_ids, attention_mask and token_type_ids, each (B, T); the first sequence is the longest."""
    input_ids = np.zeros((len(sequences), len(sequences[0])), dtype=np.int64)
    mask = np.zeros_like(input_ids)
    for index, sequence in enumerate(sequences):
        input_ids[index, : len(sequence)] = sequence
        mask[index, : len(sequence)] = 1
    return input_ids, mask, np.zeros_like(input_ids)
