"""Cut documents into a shard of pieces: documents with their splits in, a file of flat arrays and its counts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertworks.corpus.shard import SPLITS, Region, ShardArrays, write_shard
from bertworks.corpus.text_shard import SplitDocument
from bertworks.vocabulary.token_arrays import FlatTokens
from bertworks.vocabulary.tokenizer import Tokenizer

# split -> "paired" or "lone" -> what is there
Regions = dict[str, dict[str, dict[str, int]]]


def write_tokens(
    path: Path, documents: Sequence[SplitDocument], tokenizer: Tokenizer, words: str
) -> tuple[Regions, dict[str, int]]:
    """Write the shard of pieces of some documents; return its regions and what there is to say about the pieces."""
    sentences = [sentence for one in documents for sentence in one.document.sentences]
    flat = tokenizer.encode_sentences(sentences, words)
    lengths = np.diff(flat.sentence_ends, prepend=0)
    per_document = np.fromiter((len(one.document.sentences) for one in documents), np.int64, count=len(documents))
    owner = np.repeat(np.arange(len(documents)), per_document)[lengths > 0]
    num_sentences = np.bincount(owner, minlength=len(documents))
    splits = np.fromiter((SPLITS.index(one.split) for one in documents), np.int64, count=len(documents))
    region = np.where(num_sentences > 0, 2 * splits + (num_sentences == 1), 2 * len(SPLITS))
    order = np.argsort(region, kind="stable")
    order = order[region[order] < 2 * len(SPLITS)]
    arrays = _reorder(flat, owner, order)
    write_shard(path, arrays)
    pieces_per_document = np.bincount(owner, weights=lengths[lengths > 0], minlength=len(documents)).astype(np.int64)
    regions: Regions = {split: {} for split in SPLITS}
    for number in range(2 * len(SPLITS)):
        chosen = region == number
        told = Region(int(pieces_per_document[chosen].sum()), int(num_sentences[chosen].sum()), int(chosen.sum()))
        regions[SPLITS[number // 2]][("pairable", "single_sentence")[number % 2]] = asdict(told)
    counts = {
        "tokens": len(arrays.input_ids),
        "words": int(flat.word_starts.sum()),
        "unknown tokens": int((flat.input_ids == tokenizer.specials.unknown).sum()),
        "sentences without tokens": int((lengths == 0).sum()),
        "documents without tokens": int((num_sentences == 0).sum()),
    }
    return regions, counts


def _reorder(flat: FlatTokens, owner: npt.NDArray[np.int64], order: npt.NDArray[np.intp]) -> ShardArrays:
    """Put the documents, and with them their sentences and pieces, in the given order."""
    ends = np.unique(flat.sentence_ends[flat.sentence_ends > 0])  # sentences without pieces fall away
    lengths = np.diff(ends, prepend=0)
    first_sentence = np.searchsorted(owner, order, side="left")
    num_sentences = np.searchsorted(owner, order, side="right") - first_sentence
    sentence_order = _ranges(first_sentence, num_sentences)
    new_lengths = lengths[sentence_order]
    piece_order = _ranges((ends - lengths)[sentence_order], new_lengths)
    return ShardArrays(
        input_ids=flat.input_ids[piece_order],
        word_starts=np.packbits(flat.word_starts[piece_order]),
        sentence_ends=np.cumsum(new_lengths).astype(np.uint32),
        document_ends=np.cumsum(num_sentences).astype(np.uint32),
    )


def _ranges(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return start, start + 1, … of each range, one range behind the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
