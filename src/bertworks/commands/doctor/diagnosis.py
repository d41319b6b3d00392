"""What the doctor measured in, a Diagnosis out: shares, medians and examples that rules and people can read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bertworks.corpus.fingerprint_sample import Fingerprints, FingerprintSample, empty_fingerprints
from bertworks.text.coherence import SCORE_UNIT
from bertworks.text.document import Counts
from bertworks.text.tally import Excerpt, TextStatistics, median
from bertworks.vocabulary.corpus_fit import LENGTHS, UnknownWords, VocabularyProfile

# Of each spread, the last length of every bucket; one more holds what is longer.
_BUCKETS = {
    "sentences a document": (1, 4, 19, 99, 999),
    "characters a document": (99, 999, 9_999, 99_999),
    "characters a sentence": (9, 29, 99, 299),
}
_NUM_WORDS_SHOWN = 12
# Where others have nothing in common at all, this score stands in for nothing.
_MIN_SCORE = 0.0001


@dataclass(slots=True)
class Measurements:
    """Everything that is known of some blocks. The order of merging does not matter, and the size is bounded.

    The bound: two samples of fingerprints (4 MiB each), the fingerprints shared with the held-out text (2 MiB each at
    most), 20,000 unknown words and a tally of some thousand numbers: under 20 MB, whatever the amount of text.
    """

    counts: Counts = field(default_factory=Counts)
    statistics: TextStatistics = field(default_factory=TextStatistics)
    documents: FingerprintSample = field(default_factory=FingerprintSample)
    lines: FingerprintSample = field(default_factory=FingerprintSample)
    shared_documents: Fingerprints = field(default_factory=empty_fingerprints)
    shared_lines: Fingerprints = field(default_factory=empty_fingerprints)
    unknown_words: UnknownWords = field(default_factory=UnknownWords)

    def merge(self, other: Measurements) -> None:
        """Add what was measured in other blocks."""
        self.counts.update(other.counts)
        self.statistics.merge(other.statistics)
        self.documents = self.documents.merge(other.documents)
        self.lines = self.lines.merge(other.lines)
        self.shared_documents = np.union1d(self.shared_documents, other.shared_documents)
        self.shared_lines = np.union1d(self.shared_lines, other.shared_lines)
        self.unknown_words.merge(other.unknown_words)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a person should know: `severity` is "error", "warning" or "note"; the evidence holds numbers."""

    severity: str
    title: str
    evidence: str
    advice: str


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Lengths: the median, the longest (both rounded to 7 bits) and the shares by bucket, "2-4" -> 0.31."""

    median: int
    longest: int
    bucket_ratios: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SimilarityTest:
    """How much more neighbours have in common than others: `ratio` times, `errors` standard errors of the difference.

    See `text.neighbours`. A ratio of 1 means nothing more; one error or two may be chance.
    """

    num_pairs: int
    ratio: float
    z_score: float


@dataclass(frozen=True, slots=True)
class Coherence:
    """Neighbouring sentences against sentences anywhere, those inside against others of the same long document.

    `documents` compares the last sentence of a document and the first of the next one with sentences anywhere.
    """

    sentences: SimilarityTest
    within_documents: SimilarityTest
    documents: SimilarityTest


@dataclass(frozen=True, slots=True)
class VocabularyFit:
    """How the text looks through a vocabulary; rates are shares of pieces or of documents."""

    properties: VocabularyProfile
    tokens: int
    unknown_ratio: float
    tokens_per_word: float
    unknown_words: tuple[str, ...]
    median_document: int
    longer_ratios: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HeldOutOverlap:
    """The held-out text and how much of it the other text holds as well; estimates unless `exact`."""

    documents: int
    shared_documents_ratio: float
    long_lines: int
    shared_lines_ratio: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor saw. Shares lie in 0..1; `to_json` has these names as its keys."""

    documents: int
    sentences: int
    words: int
    characters: int
    lines: int
    sentences_per_document: LengthDistribution
    characters_per_document: LengthDistribution
    characters_per_sentence: LengthDistribution
    scripts: Mapping[str, float]
    languages: Mapping[str, float]
    pairable_ratio: float
    duplicate_documents_ratio: float
    duplicate_lines_ratio: float
    long_lines: int
    duplicates_exact: bool
    copied_lines_ratio: float
    coherence: Coherence
    cased_letters: int
    capital_ratio: float
    lowercase_starts_ratio: float
    end_marks_ratio: float
    spaced_marks: int
    spaced_marks_ratio: float
    spaced_ideographs_ratio: float
    tokenized_lines: Mapping[str, int]
    markup_lines: Mapping[str, int]
    damaged_lines: Mapping[str, int]
    cleaning: Mapping[str, int]
    vocabulary: VocabularyFit | None
    held_out: HeldOutOverlap | None
    excerpts: Mapping[str, Excerpt]
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers; an example is its text and its source."""
        told = {name: value for name, value in asdict(self).items() if name != "examples"}
        told["examples"] = {
            name: {"text": example.text, "source": example.source} for name, example in sorted(self.excerpts.items())
        }
        told["findings"] = [asdict(finding) for finding in self.findings]
        return told


def diagnose(
    measurements: Measurements, held_out: Measurements | None, properties: VocabularyProfile | None
) -> Diagnosis:
    """Turn what was measured into a Diagnosis without findings."""
    tally, numbers = measurements.statistics, measurements.statistics.totals
    sentences = numbers["sentences"]
    spreads = {
        name: _length_distribution(tally.histograms.get(name, Counter()), buckets) for name, buckets in _BUCKETS.items()
    }
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
        scripts=_ratios(tally.group("script")),
        languages=_ratios(tally.group("language")),
        pairable_ratio=1 - spreads["sentences a document"].bucket_ratios["1"] if sentences else 0.0,
        duplicate_documents_ratio=measurements.documents.duplicate_ratio,
        duplicate_lines_ratio=measurements.lines.duplicate_ratio,
        long_lines=measurements.lines.total,
        duplicates_exact=measurements.documents.is_complete and measurements.lines.is_complete,
        copied_lines_ratio=_ratio(numbers["copied lines"], numbers["lines"]),
        coherence=_coherence(numbers),
        cased_letters=letters,
        capital_ratio=_ratio(numbers["capital letters"], letters),
        lowercase_starts_ratio=_ratio(numbers["sentences that begin with a small letter"], sentences),
        end_marks_ratio=_ratio(numbers["sentences with an end mark"], sentences),
        spaced_marks=numbers["spaced marks"],
        spaced_marks_ratio=_ratio(numbers["spaced marks"], numbers["narrow marks"]),
        spaced_ideographs_ratio=_ratio(numbers["spaced ideographs"], numbers["script: Han"]),
        tokenized_lines=tally.group("tokenized"),
        markup_lines=tally.group("markup"),
        damaged_lines=tally.group("damage"),
        cleaning=dict(sorted((name, number) for name, number in measurements.counts.items() if number)),
        vocabulary=_vocabulary_fit(measurements, properties) if properties else None,
        held_out=_held_out_overlap(measurements, held_out) if held_out else None,
        excerpts=dict(tally.excerpts),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _ratios(totals: Mapping[str, int]) -> dict[str, float]:
    whole = sum(totals.values())
    return {name: total / whole for name, total in totals.items() if total}


def _length_distribution(lengths: Counter[int], buckets: tuple[int, ...]) -> LengthDistribution:
    total = lengths.total()
    shares: dict[str, float] = {}
    first = 1
    for last in buckets:
        inside = sum(number for length, number in lengths.items() if first <= length <= last)
        shares[f"{first}-{last}" if first < last else str(first)] = _ratio(inside, total)
        first = last + 1
    shares[f"{first}+"] = _ratio(sum(number for length, number in lengths.items() if length >= first), total)
    return LengthDistribution(median(lengths), max(lengths, default=0), shares)


def _coherence(totals: Counter[str]) -> Coherence:
    return Coherence(
        sentences=_similarity_test("sentences: near", "sentences: far", totals),
        within_documents=_similarity_test("sentences: near, long documents", "sentences: inside", totals),
        documents=_similarity_test("documents: near", "documents: far", totals),
    )


def _similarity_test(near: str, others: str, totals: Counter[str]) -> SimilarityTest:
    near_mean, near_error = _mean_score(near, totals)
    others_mean, others_error = _mean_score(others, totals)
    error = math.hypot(near_error, others_error)
    return SimilarityTest(
        num_pairs=totals[f"neighbouring {near}, pairs"],
        ratio=max(near_mean, _MIN_SCORE) / max(others_mean, _MIN_SCORE),
        z_score=(near_mean - others_mean) / error if error else 0.0,
    )


def _mean_score(name: str, totals: Counter[str]) -> tuple[float, float]:
    """Return the mean of some scores and the standard error of that mean."""
    head = f"neighbouring {name}"
    num_pairs = totals[f"{head}, pairs"]
    if not num_pairs:
        return 0.0, 0.0
    mean = totals[f"{head}, score"] / num_pairs / SCORE_UNIT
    variance = totals[f"{head}, squares"] / num_pairs / SCORE_UNIT**2 - mean**2
    return mean, math.sqrt(max(0.0, variance) / num_pairs)


def _vocabulary_fit(measurements: Measurements, properties: VocabularyProfile) -> VocabularyFit:
    numbers = measurements.statistics.totals
    return VocabularyFit(
        properties=properties,
        tokens=numbers["pieces"],
        unknown_ratio=_ratio(numbers["unknown pieces"], numbers["pieces"]),
        tokens_per_word=_ratio(numbers["pieces"], numbers["words of the vocabulary"]),
        unknown_words=measurements.unknown_words.most_frequent(_NUM_WORDS_SHOWN),
        median_document=median(measurements.statistics.histograms.get("pieces a document", Counter())),
        longer_ratios={
            str(length): _ratio(numbers[f"documents longer than {length} pieces"], numbers["documents"])
            for length in LENGTHS
        },
    )


def _held_out_overlap(measurements: Measurements, held_out: Measurements) -> HeldOutOverlap:
    return HeldOutOverlap(
        documents=held_out.documents.total,
        shared_documents_ratio=held_out.documents.overlap_ratio(measurements.shared_documents),
        long_lines=held_out.lines.total,
        shared_lines_ratio=held_out.lines.overlap_ratio(measurements.shared_lines),
        exact=held_out.documents.is_complete and held_out.lines.is_complete,
    )
