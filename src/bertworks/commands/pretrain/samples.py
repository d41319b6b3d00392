"""Blanks to watch a model learn: held-out text in, sentences with a hidden word out, and what a model puts there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from bertworks.corpus.corpus import Corpus
from bertworks.corpus.text_shard import read_text
from bertworks.inference.fill_mask import Filler
from bertworks.objectives.mlm import Pretraining
from bertworks.records import SampleRecord
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer


def filled_blanks(
    module: nn.Module, tokenizer: Tokenizer, blanks: tuple[str, ...], step: int
) -> Iterator[SampleRecord]:
    """Yield each blank as the model fills it after `step` steps."""
    if not isinstance(module, Pretraining):
        return  # it has learned to go on, not to fill in
    filler = Filler(module.encoder, module.masked, tokenizer)
    was_training = module.training
    for text in blanks:
        found = filler.fill(text)
        filled = tuple(tuple((one.piece, one.probability) for one in blank) for blank in found.blanks)
        yield SampleRecord(step, text, filled)
    module.train(was_training)


def blanks_of(corpus: Corpus, count: int) -> tuple[str, ...]:
    """Return sentences of held-out documents with one whole word each replaced by [MASK], always the same ones."""
    tokenizer = corpus.tokenizer
    mask = tokenizer.pieces[tokenizer.specials.mask]
    found: list[str] = []
    for shard in corpus.manifest["shards"]:
        for document, split in read_text(corpus.folder / shard["file"]):
            for sentence in map(str.strip, document.sentences if split == "held-out" else ()):
                encoding = tokenizer.encode(sentence)
                whole = _whole_pieces(sentence, encoding)
                if 8 <= len(encoding) <= 40 and whole:
                    start, end = whole[len(whole) // 2]
                    found.append(f"{sentence[:start]}{mask}{sentence[end:]}")
                    break  # one of a document
            if len(found) == count:
                return tuple(found)
    return tuple(found)


def _whole_pieces(sentence: str, encoding: Encoding) -> list[tuple[int, int]]:
    """Return the offsets of words that are a single piece of at least four letters, or one ideograph."""
    words = Counter(word for word in encoding.words if word is not None)
    return [
        offset
        for offset, word in zip(encoding.offsets, encoding.words, strict=True)
        if offset is not None
        and word is not None
        and words[word] == 1
        and (letters := sentence[slice(*offset)].strip()).isalpha()
        and (len(letters) >= 4 or not letters.isascii())
    ]
