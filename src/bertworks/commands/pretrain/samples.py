"""Sample predictions during a run: held-out text in, sentences with a masked word and the model's predictions out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from bertworks.corpus.corpus import Corpus
from bertworks.corpus.text_shard import read_text
from bertworks.inference.fill_mask import MaskFiller
from bertworks.objectives.mlm import MlmModule
from bertworks.records import SampleRecord
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer


def fill_masked_sentences(
    module: nn.Module, tokenizer: Tokenizer, masked_sentences: tuple[str, ...], step: int
) -> Iterator[SampleRecord]:
    """Yield the predictions for each masked sentence after `step` steps; none for a module without an MLM head."""
    if not isinstance(module, MlmModule):
        return
    filler = MaskFiller(module.encoder, module.mlm_head, tokenizer)
    was_training = module.training
    for text in masked_sentences:
        predictions = tuple(
            tuple((candidate.token, candidate.probability) for candidate in candidates)
            for candidates in filler.fill_mask(text).mask_candidates
        )
        yield SampleRecord(step, text, predictions)
    module.train(was_training)


def sample_masked_sentences(corpus: Corpus, num_sentences: int) -> tuple[str, ...]:
    """Return held-out sentences with one word replaced by [MASK], one sentence per document, always the same ones."""
    tokenizer = corpus.tokenizer
    mask = tokenizer.tokens[tokenizer.specials.mask]
    sentences: list[str] = []
    for shard in corpus.manifest["shards"]:
        for document, split in read_text(corpus.folder / shard["file"], shard["sha256"]):
            for sentence in map(str.strip, document.sentences if split == "held-out" else ()):
                encoding = tokenizer.encode(sentence)
                words = _single_token_words(sentence, encoding)
                if 8 <= len(encoding) <= 40 and words:
                    start, end = words[len(words) // 2]
                    sentences.append(f"{sentence[:start]}{mask}{sentence[end:]}")
                    break
            if len(sentences) == num_sentences:
                return tuple(sentences)
    return tuple(sentences)


def _single_token_words(sentence: str, encoding: Encoding) -> list[tuple[int, int]]:
    """Return the offsets of words that are a single token of at least four letters, or one ideograph."""
    token_counts = Counter(word for word in encoding.word_ids if word is not None)
    return [
        offset
        for offset, word in zip(encoding.offsets, encoding.word_ids, strict=True)
        if offset is not None
        and word is not None
        and token_counts[word] == 1
        and (letters := sentence[slice(*offset)].strip()).isalpha()
        and (len(letters) >= 4 or not letters.isascii())
    ]
