"""Blanks to watch a model learn: held-out text in, sentences with a hidden word out, and what a model puts there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from bertworks.corpus.corpus import Corpus
from bertworks.corpus.text_shard import read_text
from bertworks.inference.fill_mask import MaskFiller
from bertworks.objectives.mlm import MlmObjective
from bertworks.records import SampleRecord
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer


def fill_masked_sentences(
    module: nn.Module, tokenizer: Tokenizer, masked_sentences: tuple[str, ...], step: int
) -> Iterator[SampleRecord]:
    """Yield each blank as the model fills it after `step` steps."""
    if not isinstance(module, MlmObjective):
        return  # it has learned to go on, not to fill in
    filler = MaskFiller(module.encoder, module.mlm_head, tokenizer)
    was_training = module.training
    for text in masked_sentences:
        found = filler.fill_mask(text)
        filled = tuple(tuple((one.token, one.probability) for one in blank) for blank in found.mask_candidates)
        yield SampleRecord(step, text, filled)
    module.train(was_training)


def sample_masked_sentences(corpus: Corpus, num_sentences: int) -> tuple[str, ...]:
    """Return sentences of held-out documents with one whole word each replaced by [MASK], always the same ones."""
    tokenizer = corpus.tokenizer
    mask = tokenizer.tokens[tokenizer.specials.mask]
    found: list[str] = []
    for shard in corpus.manifest["shards"]:
        for document, split in read_text(corpus.folder / shard["file"]):
            for sentence in map(str.strip, document.sentences if split == "held-out" else ()):
                encoding = tokenizer.encode(sentence)
                whole = _single_token_words(sentence, encoding)
                if 8 <= len(encoding) <= 40 and whole:
                    start, end = whole[len(whole) // 2]
                    found.append(f"{sentence[:start]}{mask}{sentence[end:]}")
                    break  # one of a document
            if len(found) == num_sentences:
                return tuple(found)
    return tuple(found)


def _single_token_words(sentence: str, encoding: Encoding) -> list[tuple[int, int]]:
    """Return the offsets of words that are a single piece of at least four letters, or one ideograph."""
    words = Counter(word for word in encoding.word_ids if word is not None)
    return [
        offset
        for offset, word in zip(encoding.offsets, encoding.word_ids, strict=True)
        if offset is not None
        and word is not None
        and words[word] == 1
        and (letters := sentence[slice(*offset)].strip()).isalpha()
        and (len(letters) >= 4 or not letters.isascii())
    ]
