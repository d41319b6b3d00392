"""Tokenize documents into a shard: documents with their splits in, a file of flat arrays and its counts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertworks.corpus.shard import REGIONS, SPLITS, Region, ShardArrays, write_shard
from bertworks.corpus.text_shard import SplitDocument
from bertworks.vocabulary.token_arrays import FlatTokens
from bertworks.vocabulary.tokenizer import Tokenizer

# split -> one of REGIONS -> the fields of a Region
Regions = dict[str, dict[str, dict[str, int]]]


def write_tokens(
    path: Path, documents: Sequence[SplitDocument], tokenizer: Tokenizer, word_rule: str
) -> tuple[Regions, dict[str, int]]:
    """Tokenize documents and write their shard; return the sizes of its regions and counts of tokens and words.

    `word_rule` is a key of WORD_RULES.
    """
    sentences = [sentence for document, _ in documents for sentence in document.sentences]
    flat = tokenizer.encode_sentences(sentences, word_rule)
    lengths = np.diff(flat.sentence_ends, prepend=0)
    sentence_counts = np.fromiter((len(document.sentences) for document, _ in documents), np.int64, len(documents))
    document_index = np.repeat(np.arange(len(documents)), sentence_counts)[lengths > 0]  # of each sentence
    num_sentences = np.bincount(document_index, minlength=len(documents))
    splits = np.fromiter((SPLITS.index(split) for _, split in documents), np.int64, len(documents))
    region = np.where(num_sentences > 0, 2 * splits + (num_sentences == 1), 2 * len(SPLITS))
    order = np.argsort(region, kind="stable")
    order = order[region[order] < 2 * len(SPLITS)]
    arrays = _reorder(flat, document_index, order)
    write_shard(path, arrays)
    num_tokens = np.bincount(document_index, weights=lengths[lengths > 0], minlength=len(documents)).astype(np.int64)
    regions: Regions = {split: {} for split in SPLITS}
    for number in range(2 * len(SPLITS)):
        members = region == number
        size = Region(int(num_tokens[members].sum()), int(num_sentences[members].sum()), int(members.sum()))
        regions[SPLITS[number // 2]][REGIONS[number % 2]] = asdict(size)
    counts = {
        "tokens": len(arrays.input_ids),
        "words": int(flat.word_starts.sum()),
        "unknown tokens": int((flat.input_ids == tokenizer.specials.unknown).sum()),
        "sentences without tokens": int((lengths == 0).sum()),
        "documents without tokens": int((num_sentences == 0).sum()),
    }
    return regions, counts


def _reorder(flat: FlatTokens, document_index: npt.NDArray[np.int64], order: npt.NDArray[np.intp]) -> ShardArrays:
    """Sort the documents, with their sentences and tokens, into the given order."""
    ends = np.unique(flat.sentence_ends[flat.sentence_ends > 0])  # drops sentences without tokens
    lengths = np.diff(ends, prepend=0)
    first_sentence = np.searchsorted(document_index, order, side="left")
    num_sentences = np.searchsorted(document_index, order, side="right") - first_sentence
    sentence_order = _ranges(first_sentence, num_sentences)
    new_lengths = lengths[sentence_order]
    token_order = _ranges((ends - lengths)[sentence_order], new_lengths)
    return ShardArrays(
        input_ids=flat.input_ids[token_order],
        word_starts=np.packbits(flat.word_starts[token_order]),
        sentence_ends=np.cumsum(new_lengths).astype(np.uint32),
        document_ends=np.cumsum(num_sentences).astype(np.uint32),
    )


def _ranges(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the concatenated ranges [start, start + length)."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
