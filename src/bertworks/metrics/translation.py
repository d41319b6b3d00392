"""Translations beside what is right in, BLEU and chrF out, by sacrebleu; counts are added up and no text is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from bertworks.engines.optional import import_optional
from bertworks.text.languages import language_of, scripts_of

# How sacrebleu is to cut a language whose words have no spaces between them; all others as in the papers.
_BLEU_TOKENIZERS = {"zh": "zh"}
_DEFAULT_BLEU_TOKENIZER = "13a"
# How many characters tell which language it is.
_MAX_CHARACTERS = 5_000


def bleu_tokenizer_of(texts: Iterable[str]) -> str:
    """Return how BLEU is to cut texts into words: "zh" where they are Chinese."""
    some = ""
    for text in texts:
        some += f"{text}\n"
        if len(some) >= _MAX_CHARACTERS:
            break
    characters = Counter(some)
    return _BLEU_TOKENIZERS.get(language_of(some, characters, scripts_of(characters)) or "", _DEFAULT_BLEU_TOKENIZER)


class TranslationTally:
    """BLEU and chrF of many translations, from 0 to 1, one after the other."""

    def __init__(self, bleu_tokenizer: str) -> None:
        package = import_optional("sacrebleu.metrics", "translate", "BLEU and chrF")
        # Whether a text looks as if it was cut into words already is nothing to warn of: Chinese never does.
        self._metrics: dict[str, Any] = {
            "bleu": package.BLEU(tokenize=bleu_tokenizer, force=True),
            "chrf": package.CHRF(),
        }
        self._counts: dict[str, list[int]] = {}

    def add(self, prediction: str, reference: str) -> None:
        """Add a translation and what it should be."""
        for name, metric in self._metrics.items():
            (counts,) = metric._extract_corpus_statistics([prediction], [[reference]])
            before = self._counts.get(name, [0] * len(counts))
            self._counts[name] = [one + other for one, other in zip(before, counts, strict=True)]

    def scores(self) -> dict[str, float]:
        """Return both scores of all that was added."""
        return {
            name: metric._compute_score_from_stats(self._counts[name]).score / 100 if self._counts else 0.0
            for name, metric in self._metrics.items()
        }
