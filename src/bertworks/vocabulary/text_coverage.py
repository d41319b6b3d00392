"""How well a vocabulary reads texts: their token ids in; counts of unknown tokens and fragments, and warnings, out.

`coverage.py` measures a vocabulary against held-out text; this module watches the texts that a model is given. Three
things are loud, each because the model learned nothing that it could use:

unknown_tokens   many tokens are [UNK]
fragments        most tokens are bytes, or single letters of longer words: Cyrillic text and an English vocabulary
minor_script     most tokens are of a script for which the vocabulary is not made, and words fall apart: English text
                 and a Chinese vocabulary

The thresholds lie between what was measured for matching and for wrong vocabularies (docs/finetuning.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bertworks.vocabulary.token_scripts import is_alphabetic, token_scripts
from bertworks.vocabulary.tokenizer import Tokenizer

# The ratio of unknown words among the tokens: at most 0.02 for subwords of the right language, 0.13 for a vocabulary of
# 20,000 whole words, and 0.4 or more for another language. Emoji and other symbols carry less, so more are tolerated.
_MAX_UNKNOWN_WORDS, _MAX_UNKNOWN = 0.15, 0.25
# A few unknown tokens in a short text are counted only, unless they are half of it.
_MIN_UNKNOWN, _HALF = 3, 0.5
# The ratio of fragments among the tokens: at most 0.42 for a vocabulary of 1,000 tokens, 0.9 for another alphabet.
_MAX_FRAGMENTS, _MIN_FRAGMENTS = 0.5, 6
# Tokens per word of a minor script: 1.5 or more for English and a Chinese vocabulary.
_MAX_TOKENS_PER_WORD, _MIN_SCRIPT_TOKENS = 1.3, 6

# Distinct unknown words that are counted; further ones are left out of the examples, not of the counts.
_MAX_WORDS = 20_000
_NUM_EXAMPLES, _MAX_EXAMPLE_LENGTH = 8, 20
_ADVICE = "use a model with a vocabulary of this language, or train one on such texts with `bertworks vocab`"

# The key in `counts` of unknown tokens.
UNKNOWN_TOKENS = "tokens are unknown to the vocabulary"


class SpelledSequence(Protocol):
    """Token ids, with or without special tokens, and the spelling of unknown words by position."""

    @property
    def input_ids(self) -> npt.NDArray[np.int64] | tuple[int, ...]: ...
    @property
    def unknown(self) -> Mapping[int, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageWarning:
    """What a vocabulary cannot read: `type` is one of those above, `ratio` the share of tokens, with `examples`."""

    type: str
    message: str
    ratio: float
    examples: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class TextCoverage:
    """Running counts over the tokens of texts. Special tokens do not count.

    `reads_characters` is for an encoder that reads the spelling of unknown words: they are counted, not warned about.
    """

    def __init__(self, tokenizer: Tokenizer, reads_characters: bool = False) -> None:
        self._tokenizer = tokenizer
        self._scripts = token_scripts(tokenizer)
        self._reads_characters = reads_characters
        self._special_ids = np.array([token for token in tokenizer.specials.ids if token != tokenizer.specials.unknown])
        self._unknown_words: Counter[str] = Counter()
        self._by_script = np.zeros((2, len(self._scripts.scripts) + 1), dtype=np.int64)  # tokens, and those that join
        self.num_tokens = self.num_unknown = self.num_unknown_words = self.num_fragments = 0

    @property
    def unknown_ratio(self) -> float:
        return self.num_unknown / max(1, self.num_tokens)

    def add(self, sequences: Iterable[SpelledSequence]) -> None:
        """Count the tokens of sequences."""
        parts: list[npt.ArrayLike] = []
        for sequence in sequences:
            parts += [[self._tokenizer.specials.pad], sequence.input_ids]  # no word reaches over the padding
            self._add_unknown(sequence.unknown)
        if parts:
            self._add_ids(np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]))

    def _add_unknown(self, unknown: Mapping[int, str]) -> None:
        for word in unknown.values():
            self.num_unknown_words += any(map(str.isalpha, word))
            if word in self._unknown_words or len(self._unknown_words) < _MAX_WORDS:
                self._unknown_words[word] += 1

    def _add_ids(self, ids: npt.NDArray[np.int64]) -> None:
        scripts = self._scripts
        joined = np.zeros(len(ids) + 1, dtype=np.bool_)
        joined[1:-1] = scripts.joins_left[ids[1:]] & scripts.joins_right[ids[:-1]]
        is_in_word = joined[:-1] | joined[1:]
        script, size = scripts.script[ids], self._by_script.shape[1]
        self.num_tokens += len(ids) - int(np.isin(ids, self._special_ids).sum())
        self.num_unknown += int((ids == self._tokenizer.specials.unknown).sum())
        self.num_fragments += int((scripts.is_part[ids] | (scripts.is_letter[ids] & is_in_word)).sum())
        self._by_script[0] += np.bincount(script, minlength=size)
        self._by_script[1] += np.bincount(script[joined[:-1]], minlength=size)

    def warnings(self) -> list[CoverageWarning]:
        """Return what is loud: nothing, or one warning."""
        candidates = (self._unknown_warning(), self._fragment_warning(), *self._script_warnings())
        return [warning for warning in candidates if warning is not None][:1]

    def describe_unknown(self) -> str:
        """Return the number of unknown tokens as a sentence; empty if there are none."""
        if not self.num_unknown:
            return ""
        return f"{self.num_unknown:,} of {self.num_tokens:,} {UNKNOWN_TOKENS}; most often: {' '.join(self._examples())}"

    def _unknown_warning(self) -> CoverageWarning | None:
        words_ratio = self.num_unknown_words / max(1, self.num_tokens)
        is_many = words_ratio > _MAX_UNKNOWN_WORDS or self.unknown_ratio > _MAX_UNKNOWN
        is_few = self.num_unknown < _MIN_UNKNOWN and self.unknown_ratio < _HALF
        if not is_many or is_few or self._reads_characters:
            return None
        unknown = self._tokenizer.tokens[self._tokenizer.specials.unknown]
        examples = self._examples()
        often = f"; most often: {' '.join(examples)}" if examples else ""
        return CoverageWarning(
            type="unknown_tokens",
            message=f"{self.unknown_ratio:.0%} of {self.num_tokens:,} {UNKNOWN_TOKENS} ({unknown}), so the model "
            f"cannot read them{often}; {_ADVICE}",
            ratio=self.unknown_ratio,
            examples=examples,
        )

    def _fragment_warning(self) -> CoverageWarning | None:
        ratio = self.num_fragments / max(1, self.num_tokens)
        if ratio <= _MAX_FRAGMENTS or self.num_fragments < _MIN_FRAGMENTS:
            return None
        counts = self._by_script[0, 1:]
        is_one_script = len(counts) > 0 and 2 * counts.max() > self.num_tokens
        examples = (self._scripts.scripts[counts.argmax()],) if is_one_script else ()
        script = f"{examples[0]} script" if examples else "the script or the language of the texts"
        return CoverageWarning(
            type="fragments",
            message=f"{ratio:.0%} of {self.num_tokens:,} tokens are bytes or single letters of longer words, so the "
            f"vocabulary hardly has {script}; {_ADVICE}",
            ratio=ratio,
            examples=examples,
        )

    def _script_warnings(self) -> Iterator[CoverageWarning]:
        for name, (count, num_joined) in zip(self._scripts.scripts, self._by_script[:, 1:].T.tolist(), strict=True):
            ratio, tokens_per_word = count / max(1, self.num_tokens), count / max(1, count - num_joined)
            if count < _MIN_SCRIPT_TOKENS or ratio <= _HALF or tokens_per_word <= _MAX_TOKENS_PER_WORD:
                continue
            if is_alphabetic(name) and self._scripts.is_minor(name):
                num_known, size = self._scripts.num_tokens[name], self._tokenizer.vocab_size
                yield CoverageWarning(
                    type="minor_script",
                    message=f"{ratio:.0%} of {self.num_tokens:,} tokens are of {name} script, of which the vocabulary "
                    f"has only {num_known:,} of its {size:,} tokens: {tokens_per_word:.1f} tokens per word; {_ADVICE}",
                    ratio=ratio,
                    examples=(name,),
                )

    def _examples(self) -> tuple[str, ...]:
        by_count = sorted(self._unknown_words.items(), key=lambda item: (-item[1], item[0]))
        return tuple(word[:_MAX_EXAMPLE_LENGTH] for word, _ in by_count[:_NUM_EXAMPLES])
