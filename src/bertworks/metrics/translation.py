"""Translations and references in, BLEU and chrF out, by sacrebleu; n-gram counts are summed and no text is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from bertworks.engines.optional import import_optional
from bertworks.text.languages import language_of, scripts_of

# sacrebleu's tokenizer by language; the default is the one that papers use.
_BLEU_TOKENIZERS = {"zh": "zh"}
_DEFAULT_BLEU_TOKENIZER = "13a"
# How many characters are used to detect the language.
_MAX_CHARACTERS = 5_000


def bleu_tokenizer_of(texts: Iterable[str]) -> str:
    """Return sacrebleu's tokenizer for texts: "zh" if they are Chinese."""
    sample = ""
    for text in texts:
        sample += f"{text}\n"
        if len(sample) >= _MAX_CHARACTERS:
            break
    characters = Counter(sample)
    language = language_of(sample, characters, scripts_of(characters)) or ""
    return _BLEU_TOKENIZERS.get(language, _DEFAULT_BLEU_TOKENIZER)


class TranslationTally:
    """Accumulates BLEU and chrF, from 0 to 1."""

    def __init__(self, bleu_tokenizer: str) -> None:
        package = import_optional("sacrebleu.metrics", "translate", "BLEU and chrF")
        # `force` silences the warning about tokenized input.
        self._metrics: dict[str, Any] = {
            "bleu": package.BLEU(tokenize=bleu_tokenizer, force=True),
            "chrf": package.CHRF(),
        }
        self._counts: dict[str, list[int]] = {}

    def add(self, prediction: str, reference: str) -> None:
        """Add a translation and its reference."""
        for name, metric in self._metrics.items():
            (counts,) = metric._extract_corpus_statistics([prediction], [[reference]])
            previous = self._counts.get(name, [0] * len(counts))
            self._counts[name] = [
                previous_count + count for previous_count, count in zip(previous, counts, strict=True)
            ]

    def scores(self) -> dict[str, float]:
        """Return BLEU and chrF of all translations so far."""
        return {
            name: metric._compute_score_from_stats(self._counts[name]).score / 100 if self._counts else 0.0
            for name, metric in self._metrics.items()
        }
