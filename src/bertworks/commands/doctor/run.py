"""Examine text before training on it: sources in, a Diagnosis with findings out.

Blocks are measured in parallel on all cores. Memory does not grow with the amount of text: a worker holds one block
(about 200 MB of Python objects for a block of 4 MiB), the main process the sum of all Measurements (under 20 MB) and a
few that are not merged yet. With held-out text, its fingerprints (4 MiB at most) are sent with each block.
"""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bertworks.commands.doctor.diagnosis import Diagnosis, Finding, Measurements, diagnose
from bertworks.commands.doctor.findings import find
from bertworks.corpus.deduplication import fingerprint, long_lines
from bertworks.corpus.fingerprint_sample import Fingerprints, empty_fingerprints, sample_fingerprints
from bertworks.packages import packaged_model
from bertworks.parallel.workers import Workers, num_cores, run_units
from bertworks.progress import Progress, ProgressCallback
from bertworks.text.artifacts import find_artifacts, find_damage
from bertworks.text.cleaning import CleanSettings, clean
from bertworks.text.coherence import measure_coherence
from bertworks.text.document import Document
from bertworks.text.document_statistics import add_document_statistics
from bertworks.text.sources import Block, ReadSettings, TextSource, blocks, read, total_bytes
from bertworks.text.statistics import TextStatistics
from bertworks.vocabulary.corpus_fit import measure_fit, profile_vocabulary
from bertworks.vocabulary.tokenizer import Tokenizer

__all__ = ["Diagnosis", "Finding", "examine", "measure"]

_DEFAULT_READ_SETTINGS = ReadSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The settings of a measurement, with an optional vocabulary and the fingerprints of held-out text."""

    clean: CleanSettings = field(default_factory=CleanSettings)
    vocabulary: Path | None = None
    vocabulary_hash: str = ""
    held_out_documents: Fingerprints = field(default_factory=empty_fingerprints)
    held_out_lines: Fingerprints = field(default_factory=empty_fingerprints)


def examine(
    sources: Sequence[TextSource],
    held_out: Sequence[TextSource] = (),
    vocabulary: Tokenizer | Path | None = None,
    read_settings: ReadSettings = _DEFAULT_READ_SETTINGS,
    workers: Workers | None = None,
    watch: ProgressCallback = lambda progress: None,
) -> Diagnosis:
    """Measure the sources and return a diagnosis with findings.

    `held_out` is text that must not be trained on: it is searched in the sources. `vocabulary` is the one to be used,
    loaded or as a path; workers on other machines need a path.
    """
    workers = workers or num_cores()
    if isinstance(vocabulary, Path):
        vocabulary = packaged_model(str(vocabulary)) or vocabulary
    with ExitStack() as stack:
        tokenizer = Tokenizer.load(vocabulary) if isinstance(vocabulary, Path) else vocabulary
        inspection = Inspection()
        if tokenizer is not None:
            path = vocabulary.absolute() if isinstance(vocabulary, Path) else _save_temporarily(tokenizer, stack)
            inspection = replace(inspection, vocabulary=path, vocabulary_hash=tokenizer.hash)
        held_out_measurements = None
        if held_out:
            held_out_measurements = _measure_all(
                held_out, Inspection(), (read_settings, workers), _stage_progress("reading held-out text", watch)
            )
            inspection = replace(
                inspection,
                held_out_documents=held_out_measurements.documents.values,
                held_out_lines=held_out_measurements.lines.values,
            )
        measurements = _measure_all(sources, inspection, (read_settings, workers), _stage_progress("reading", watch))
    profile = profile_vocabulary(tokenizer) if tokenizer else None
    diagnosis = diagnose(measurements, held_out_measurements, profile)
    return replace(diagnosis, findings=find(diagnosis))


def _save_temporarily(tokenizer: Tokenizer, stack: ExitStack) -> Path:
    """Write a tokenizer to a temporary folder from which worker processes load it."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bertworks-doctor-")))
    tokenizer.save(folder)
    return folder


def _stage_progress(name: str, watch: ProgressCallback) -> Callable[[int, int | None], None]:
    return lambda done, total: watch(Progress(name, done, total, "bytes"))


def _measure_all(
    sources: Sequence[TextSource],
    inspection: Inspection,
    settings_and_workers: tuple[ReadSettings, Workers],
    watch: Callable[[int, int | None], None],
) -> Measurements:
    """Measure all blocks of the sources and merge the results as they arrive."""
    read_settings, workers = settings_and_workers
    total, num_bytes_done = total_bytes(sources), 0
    merged = Measurements()
    work = functools.partial(_measure_block, inspection=inspection)
    for num_bytes, measurements in run_units(work, blocks(sources, read_settings), workers):
        merged.merge(measurements)
        num_bytes_done += num_bytes
        watch(num_bytes_done, total)
    return merged


def _measure_block(block: Block, inspection: Inspection) -> tuple[int, Measurements]:
    return block.num_bytes, measure(block, inspection)


def measure(block: Block, inspection: Inspection) -> Measurements:
    """Measure one block; a pure function of its arguments."""
    measurements = Measurements(statistics=TextStatistics(block.number))
    documents = _read_documents(block, inspection, measurements)
    for document in documents:
        num_ideographs = add_document_statistics(document, measurements.statistics)
        find_artifacts(document, num_ideographs, measurements.statistics)
    measure_coherence(documents, measurements.statistics)
    _add_fingerprints(documents, inspection, measurements)
    if inspection.vocabulary is not None:
        tokenizer = _load_tokenizer(inspection.vocabulary, inspection.vocabulary_hash)
        for document in documents:
            measure_fit(document, tokenizer, measurements.statistics, measurements.unknown_words)
    return measurements


def _read_documents(block: Block, inspection: Inspection, measurements: Measurements) -> list[Document]:
    documents = []
    counts, statistics = measurements.counts, measurements.statistics
    for raw_document in read(block, counts):
        num_repaired_before = counts["lines repaired: mojibake"]
        document = clean(raw_document, inspection.clean, counts)
        statistics.totals["documents read"] += 1
        find_damage(raw_document, counts["lines repaired: mojibake"] > num_repaired_before, statistics)
        if document is not None:
            documents.append(document)
        elif raw_document.text.strip():
            statistics.add_excerpt("dropped by cleaning", raw_document.text, raw_document.source)
    for name, count in counts.items():
        if "not valid UTF-8" in name:
            statistics.totals["damage: bytes that are not UTF-8"] += count
            statistics.add_excerpt("bytes that are not UTF-8", "", block.origin)
    return documents


def _add_fingerprints(documents: Sequence[Document], inspection: Inspection, measurements: Measurements) -> None:
    """Add the fingerprints of documents and long lines, and which of them are repeated or held out."""
    document_values = [fingerprint(document.text) for document in documents]
    lines = [(value, text, document.source) for document in documents for _, value, text in long_lines(document)]
    measurements.documents = sample_fingerprints(document_values)
    measurements.lines = sample_fingerprints([value for value, _, _ in lines])
    _count_repeated_lines(documents, measurements.statistics)
    shared_documents = np.intersect1d(np.array(document_values, np.uint64), inspection.held_out_documents)
    shared_lines = np.intersect1d(np.array([value for value, _, _ in lines], np.uint64), inspection.held_out_lines)
    measurements.shared_documents, measurements.shared_lines = shared_documents, shared_lines
    shared_document_set, shared_line_set = set(shared_documents.tolist()), set(shared_lines.tolist())
    for document, value in zip(documents, document_values, strict=True):
        if value in shared_document_set:
            measurements.statistics.add_excerpt("held-out documents", document.text, document.source)
            break
    for value, text, source in lines:
        if value in shared_line_set:
            measurements.statistics.add_excerpt("held-out lines", text, source)
            break


def _count_repeated_lines(documents: Sequence[Document], statistics: TextStatistics) -> None:
    """Count the repeated lines of a block, including short ones; the most frequent one is the excerpt."""
    lines: Counter[str] = Counter()
    for document in documents:
        lines.update(line for line in document.text.split("\n") if line)
    statistics.totals["copied lines"] += lines.total() - len(lines)
    for line, count in lines.most_common(1):
        if count > 1:
            source = next(document.source for document in documents if line in document.text)
            statistics.add_excerpt("copied lines", line, source, weight=-count)


@functools.lru_cache(maxsize=2)
def _load_tokenizer(path: Path, vocabulary_hash: str) -> Tokenizer:
    """Load a vocabulary once per worker; the hash is part of the cache key, so that a changed file is reloaded."""
    del vocabulary_hash
    return Tokenizer.load(path)
