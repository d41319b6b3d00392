"""What the doctor measured in, a Diagnosis out: shares, medians and examples that rules and people can read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bertworks.corpus.fingerprint_sample import Sample, Values, no_values
from bertworks.text.coherence import SCORE_UNIT
from bertworks.text.document import Counts
from bertworks.text.tally import Example, Tally, median
from bertworks.vocabulary.corpus_fit import LENGTHS, UnknownWords, VocabularyNature

# Of each spread, the last length of every bucket; one more holds what is longer.
_BUCKETS = {
    "sentences a document": (1, 4, 19, 99, 999),
    "characters a document": (99, 999, 9_999, 99_999),
    "characters a sentence": (9, 29, 99, 299),
}
_NUM_WORDS_SHOWN = 12
# Where others have nothing in common at all, this score stands in for nothing.
_LEAST_SCORE = 0.0001


@dataclass(slots=True)
class Measurements:
    """Everything that is known of some blocks. The order of merging does not matter, and the size is bounded.

    The bound: two samples of fingerprints (4 MiB each), the fingerprints shared with the held-out text (2 MiB each at
    most), 20,000 unknown words and a tally of some thousand numbers: under 20 MB, whatever the amount of text.
    """

    counts: Counts = field(default_factory=Counts)
    tally: Tally = field(default_factory=Tally)
    documents: Sample = field(default_factory=Sample)
    lines: Sample = field(default_factory=Sample)
    shared_documents: Values = field(default_factory=no_values)
    shared_lines: Values = field(default_factory=no_values)
    unknown: UnknownWords = field(default_factory=UnknownWords)

    def merge(self, other: Measurements) -> None:
        """Add what was measured in other blocks."""
        self.counts.update(other.counts)
        self.tally.merge(other.tally)
        self.documents = self.documents.merge(other.documents)
        self.lines = self.lines.merge(other.lines)
        self.shared_documents = np.union1d(self.shared_documents, other.shared_documents)
        self.shared_lines = np.union1d(self.shared_lines, other.shared_lines)
        self.unknown.merge(other.unknown)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a person should know: `severity` is "error", "warning" or "note"; the evidence holds numbers."""

    severity: str
    title: str
    evidence: str
    advice: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Lengths: the median, the longest (both rounded to 7 bits) and the shares by bucket, "2-4" -> 0.31."""

    median: int
    longest: int
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Likeness:
    """How much more neighbours have in common than others: `ratio` times, `errors` standard errors of the difference.

    See `text.neighbours`. A ratio of 1 means nothing more; one error or two may be chance.
    """

    num_pairs: int
    ratio: float
    errors: float


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Neighbouring sentences against sentences anywhere, those inside against others of the same long document.

    `documents` compares the last sentence of a document and the first of the next one with sentences anywhere.
    """

    sentences: Likeness
    inside: Likeness
    documents: Likeness


@dataclass(frozen=True, slots=True)
class VocabularyFit:
    """How the text looks through a vocabulary; rates are shares of pieces or of documents."""

    nature: VocabularyNature
    pieces: int
    unknown_rate: float
    pieces_per_word: float
    unknown_words: tuple[str, ...]
    median_document: int
    longer_rates: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The held-out text and how much of it the other text holds as well; estimates unless `exact`."""

    documents: int
    shared_documents_rate: float
    long_lines: int
    shared_lines_rate: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor saw. Shares lie in 0..1; `to_json` has these names as its keys."""

    documents: int
    sentences: int
    words: int
    characters: int
    lines: int
    sentences_per_document: Spread
    characters_per_document: Spread
    characters_per_sentence: Spread
    scripts: Mapping[str, float]
    languages: Mapping[str, float]
    pairable_rate: float
    duplicate_documents_rate: float
    duplicate_lines_rate: float
    long_lines: int
    duplicates_exact: bool
    copied_lines_rate: float
    neighbours: Neighbours
    cased_letters: int
    capital_rate: float
    small_starts_rate: float
    end_marks_rate: float
    spaced_marks: int
    spaced_marks_rate: float
    spaced_ideographs_rate: float
    tokenized_lines: Mapping[str, int]
    markup_lines: Mapping[str, int]
    damaged_lines: Mapping[str, int]
    cleaning: Mapping[str, int]
    vocabulary: VocabularyFit | None
    held_out: HeldOut | None
    examples: Mapping[str, Example]
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers; an example is its text and its source."""
        told = {name: value for name, value in asdict(self).items() if name != "examples"}
        told["examples"] = {
            name: {"text": example.text, "source": example.source} for name, example in sorted(self.examples.items())
        }
        told["findings"] = [asdict(finding) for finding in self.findings]
        return told


def diagnose(found: Measurements, held_out: Measurements | None, nature: VocabularyNature | None) -> Diagnosis:
    """Turn what was measured into a Diagnosis without findings."""
    tally, numbers = found.tally, found.tally.numbers
    sentences = numbers["sentences"]
    spreads = {name: _spread(tally.spreads.get(name, Counter()), buckets) for name, buckets in _BUCKETS.items()}
    letters = numbers["capital letters"] + numbers["small letters"]
    return Diagnosis(
        documents=numbers["documents"],
        sentences=sentences,
        words=numbers["words"],
        characters=numbers["characters"],
        lines=numbers["lines"],
        sentences_per_document=spreads["sentences a document"],
        characters_per_document=spreads["characters a document"],
        characters_per_sentence=spreads["characters a sentence"],
        scripts=_shares(tally.group("script")),
        languages=_shares(tally.group("language")),
        pairable_rate=1 - spreads["sentences a document"].shares["1"] if sentences else 0.0,
        duplicate_documents_rate=found.documents.copy_rate,
        duplicate_lines_rate=found.lines.copy_rate,
        long_lines=found.lines.total,
        duplicates_exact=found.documents.whole and found.lines.whole,
        copied_lines_rate=_rate(numbers["copied lines"], numbers["lines"]),
        neighbours=_neighbours(numbers),
        cased_letters=letters,
        capital_rate=_rate(numbers["capital letters"], letters),
        small_starts_rate=_rate(numbers["sentences that begin with a small letter"], sentences),
        end_marks_rate=_rate(numbers["sentences with an end mark"], sentences),
        spaced_marks=numbers["spaced marks"],
        spaced_marks_rate=_rate(numbers["spaced marks"], numbers["narrow marks"]),
        spaced_ideographs_rate=_rate(numbers["spaced ideographs"], numbers["script: Han"]),
        tokenized_lines=tally.group("tokenized"),
        markup_lines=tally.group("markup"),
        damaged_lines=tally.group("damage"),
        cleaning=dict(sorted((name, number) for name, number in found.counts.items() if number)),
        vocabulary=_fit(found, nature) if nature else None,
        held_out=_held_out(found, held_out) if held_out else None,
        examples=dict(tally.examples),
    )


def _rate(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _shares(totals: Mapping[str, int]) -> dict[str, float]:
    whole = sum(totals.values())
    return {name: total / whole for name, total in totals.items() if total}


def _spread(lengths: Counter[int], buckets: tuple[int, ...]) -> Spread:
    total = lengths.total()
    shares: dict[str, float] = {}
    first = 1
    for last in buckets:
        inside = sum(number for length, number in lengths.items() if first <= length <= last)
        shares[f"{first}-{last}" if first < last else str(first)] = _rate(inside, total)
        first = last + 1
    shares[f"{first}+"] = _rate(sum(number for length, number in lengths.items() if length >= first), total)
    return Spread(median(lengths), max(lengths, default=0), shares)


def _neighbours(numbers: Counter[str]) -> Neighbours:
    return Neighbours(
        sentences=_likeness("sentences: near", "sentences: far", numbers),
        inside=_likeness("sentences: near, long documents", "sentences: inside", numbers),
        documents=_likeness("documents: near", "documents: far", numbers),
    )


def _likeness(near: str, others: str, numbers: Counter[str]) -> Likeness:
    near_mean, near_error = _mean_score(near, numbers)
    others_mean, others_error = _mean_score(others, numbers)
    error = math.hypot(near_error, others_error)
    return Likeness(
        num_pairs=numbers[f"neighbouring {near}, pairs"],
        ratio=max(near_mean, _LEAST_SCORE) / max(others_mean, _LEAST_SCORE),
        errors=(near_mean - others_mean) / error if error else 0.0,
    )


def _mean_score(name: str, numbers: Counter[str]) -> tuple[float, float]:
    """Return the mean of some scores and the standard error of that mean."""
    head = f"neighbouring {name}"
    num_pairs = numbers[f"{head}, pairs"]
    if not num_pairs:
        return 0.0, 0.0
    mean = numbers[f"{head}, score"] / num_pairs / SCORE_UNIT
    variance = numbers[f"{head}, squares"] / num_pairs / SCORE_UNIT**2 - mean**2
    return mean, math.sqrt(max(0.0, variance) / num_pairs)


def _fit(found: Measurements, nature: VocabularyNature) -> VocabularyFit:
    numbers = found.tally.numbers
    return VocabularyFit(
        nature=nature,
        pieces=numbers["pieces"],
        unknown_rate=_rate(numbers["unknown pieces"], numbers["pieces"]),
        pieces_per_word=_rate(numbers["pieces"], numbers["words of the vocabulary"]),
        unknown_words=found.unknown.most_frequent(_NUM_WORDS_SHOWN),
        median_document=median(found.tally.spreads.get("pieces a document", Counter())),
        longer_rates={
            str(length): _rate(numbers[f"documents longer than {length} pieces"], numbers["documents"])
            for length in LENGTHS
        },
    )


def _held_out(found: Measurements, held_out: Measurements) -> HeldOut:
    return HeldOut(
        documents=held_out.documents.total,
        shared_documents_rate=held_out.documents.share_of(found.shared_documents),
        long_lines=held_out.lines.total,
        shared_lines_rate=held_out.lines.share_of(found.shared_lines),
        exact=held_out.documents.whole and held_out.lines.whole,
    )
