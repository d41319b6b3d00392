"""Measurements in, a Diagnosis out: ratios, medians and excerpts for the rules in `findings` and for reports."""

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
from bertworks.text.statistics import Excerpt, TextStatistics, median
from bertworks.vocabulary.corpus_fit import LENGTHS, UnknownWords, VocabularyProfile

# The last length of each histogram bucket; one more bucket holds longer ones.
_BUCKETS = {
    "sentences per document": (1, 4, 19, 99, 999),
    "characters per document": (99, 999, 9_999, 99_999),
    "characters per sentence": (9, 29, 99, 299),
}
_NUM_WORDS_SHOWN = 12
# Lower bound of a mean similarity, so that ratios are finite.
_MIN_SCORE = 0.0001


@dataclass(slots=True, kw_only=True)
class Measurements:
    """Everything measured in some blocks. Merging is commutative, and the size is bounded.

    The bound: two samples of fingerprints (4 MiB each), the fingerprints shared with the held-out text (at most 2 MiB
    each), 20,000 unknown words and a few thousand totals: under 20 MB for any amount of text.
    """

    counts: Counts = field(default_factory=Counts)
    statistics: TextStatistics = field(default_factory=TextStatistics)
    documents: FingerprintSample = field(default_factory=FingerprintSample)
    lines: FingerprintSample = field(default_factory=FingerprintSample)
    shared_documents: Fingerprints = field(default_factory=empty_fingerprints)
    shared_lines: Fingerprints = field(default_factory=empty_fingerprints)
    unknown_words: UnknownWords = field(default_factory=UnknownWords)

    def merge(self, other: Measurements) -> None:
        """Add the measurements of other blocks."""
        self.counts.update(other.counts)
        self.statistics.merge(other.statistics)
        self.documents = self.documents.merge(other.documents)
        self.lines = self.lines.merge(other.lines)
        self.shared_documents = np.union1d(self.shared_documents, other.shared_documents)
        self.shared_lines = np.union1d(self.shared_lines, other.shared_lines)
        self.unknown_words.merge(other.unknown_words)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of the text with numbers as evidence; `severity` is "error", "warning" or "note"."""

    severity: str
    title: str
    evidence: str
    advice: str


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """The median and the longest length (both rounded to 7 bits), and the ratio of each bucket: "2-4" -> 0.31."""

    median: int
    longest: int
    bucket_ratios: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SimilarityTest:
    """The similarity of neighbouring sentences over that of others: the ratio of the means and its z-score.

    See `text.coherence`. A ratio of 1 means no difference; a z-score below 2 may be chance.
    """

    num_pairs: int
    ratio: float
    z_score: float


@dataclass(frozen=True, slots=True)
class Coherence:
    """Similarity of neighbouring sentences compared with random pairs, and with pairs of the same long document.

    `documents` compares the last sentence of a document and the first of the next one with random pairs.
    """

    sentences: SimilarityTest
    within_documents: SimilarityTest
    documents: SimilarityTest


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyFit:
    """How well a vocabulary fits the text; ratios are of tokens (`unknown_ratio`) or documents (`longer_ratios`)."""

    properties: VocabularyProfile
    tokens: int
    unknown_ratio: float
    tokens_per_word: float
    unknown_words: tuple[str, ...]
    median_document: int
    longer_ratios: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutOverlap:
    """The size of the held-out text and the ratio of it that occurs in the other text; estimates unless `exact`."""

    documents: int
    shared_documents_ratio: float
    long_lines: int
    shared_lines_ratio: float
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything the corpus doctor measured. Ratios are in [0, 1]; the keys of `to_dict` are these names."""

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
        """Return plain dicts, lists and numbers."""
        values = asdict(self)
        values["excerpts"] = {
            name: {"text": excerpt.text, "source": excerpt.source} for name, excerpt in sorted(self.excerpts.items())
        }
        values["findings"] = [asdict(finding) for finding in self.findings]
        return values


def diagnose(
    measurements: Measurements, held_out: Measurements | None, properties: VocabularyProfile | None
) -> Diagnosis:
    """Return a Diagnosis of the measurements, without findings."""
    statistics, totals = measurements.statistics, measurements.statistics.totals
    sentences = totals["sentences"]
    lengths = {
        name: _length_distribution(statistics.histograms.get(name, Counter()), buckets)
        for name, buckets in _BUCKETS.items()
    }
    letters = totals["capital letters"] + totals["lower-case letters"]
    return Diagnosis(
        documents=totals["documents"],
        sentences=sentences,
        words=totals["words"],
        characters=totals["characters"],
        lines=totals["lines"],
        sentences_per_document=lengths["sentences per document"],
        characters_per_document=lengths["characters per document"],
        characters_per_sentence=lengths["characters per sentence"],
        scripts=_ratios(statistics.group("script")),
        languages=_ratios(statistics.group("language")),
        pairable_ratio=1 - lengths["sentences per document"].bucket_ratios["1"] if sentences else 0.0,
        duplicate_documents_ratio=measurements.documents.duplicate_ratio,
        duplicate_lines_ratio=measurements.lines.duplicate_ratio,
        long_lines=measurements.lines.total,
        duplicates_exact=measurements.documents.is_complete and measurements.lines.is_complete,
        copied_lines_ratio=_ratio(totals["copied lines"], totals["lines"]),
        coherence=_coherence(totals),
        cased_letters=letters,
        capital_ratio=_ratio(totals["capital letters"], letters),
        lowercase_starts_ratio=_ratio(totals["sentences with lower-case start"], sentences),
        end_marks_ratio=_ratio(totals["sentences with an end mark"], sentences),
        spaced_marks=totals["spaced marks"],
        spaced_marks_ratio=_ratio(totals["spaced marks"], totals["narrow marks"]),
        spaced_ideographs_ratio=_ratio(totals["spaced ideographs"], totals["script: Han"]),
        tokenized_lines=statistics.group("tokenized"),
        markup_lines=statistics.group("markup"),
        damaged_lines=statistics.group("damage"),
        cleaning=dict(sorted((name, number) for name, number in measurements.counts.items() if number)),
        vocabulary=_vocabulary_fit(measurements, properties) if properties else None,
        held_out=_held_out_overlap(measurements, held_out) if held_out else None,
        excerpts=dict(statistics.excerpts),
    )


def _ratio(part: float, total: float) -> float:
    return part / total if total else 0.0


def _ratios(totals: Mapping[str, int]) -> dict[str, float]:
    grand_total = sum(totals.values())
    return {name: total / grand_total for name, total in totals.items() if total}


def _length_distribution(lengths: Counter[int], buckets: tuple[int, ...]) -> LengthDistribution:
    total = lengths.total()
    ratios: dict[str, float] = {}
    first = 1
    for last in buckets:
        inside = sum(number for length, number in lengths.items() if first <= length <= last)
        ratios[f"{first}-{last}" if first < last else str(first)] = _ratio(inside, total)
        first = last + 1
    ratios[f"{first}+"] = _ratio(sum(number for length, number in lengths.items() if length >= first), total)
    return LengthDistribution(median(lengths), max(lengths, default=0), ratios)


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
    """Return the mean of the scores and its standard error."""
    prefix = f"neighbouring {name}"
    num_pairs = totals[f"{prefix}, pairs"]
    if not num_pairs:
        return 0.0, 0.0
    mean = totals[f"{prefix}, score"] / num_pairs / SCORE_UNIT
    variance = totals[f"{prefix}, squares"] / num_pairs / SCORE_UNIT**2 - mean**2
    return mean, math.sqrt(max(0.0, variance) / num_pairs)


def _vocabulary_fit(measurements: Measurements, properties: VocabularyProfile) -> VocabularyFit:
    totals = measurements.statistics.totals
    return VocabularyFit(
        properties=properties,
        tokens=totals["tokens"],
        unknown_ratio=_ratio(totals["unknown tokens"], totals["tokens"]),
        tokens_per_word=_ratio(totals["tokens"], totals["words of the vocabulary"]),
        unknown_words=measurements.unknown_words.most_frequent(_NUM_WORDS_SHOWN),
        median_document=median(measurements.statistics.histograms.get("tokens per document", Counter())),
        longer_ratios={
            str(length): _ratio(totals[f"documents longer than {length} tokens"], totals["documents"])
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
