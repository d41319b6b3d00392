"""Look at text before hours are spent on it: sources in, a Diagnosis with findings out.

The work is done block by block on all cores. Memory does not grow with the amount of text: a worker holds one block
(about 200 MB with all its Python objects for blocks of 4 MiB), this process the sum of all Measurements (under 20 MB)
and a few that wait to be added. With held-out text, each block travels with its fingerprints (4 MiB at most).
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
from bertworks.parallel.workers import Workers, num_cores, run_units
from bertworks.progress import Progress, ProgressCallback
from bertworks.text.artifacts import find_artifacts, find_damage
from bertworks.text.cleaning import CleanSettings, clean
from bertworks.text.coherence import measure_coherence
from bertworks.text.document import Document
from bertworks.text.document_statistics import add_document_statistics
from bertworks.text.sources import Block, ReadSettings, TextSource, blocks, read, total_bytes
from bertworks.text.tally import TextStatistics
from bertworks.vocabulary.corpus_fit import measure_fit, profile_vocabulary
from bertworks.vocabulary.tokenizer import Tokenizer

__all__ = ["Diagnosis", "Finding", "examine", "measure"]

_DEFAULT_READ_SETTINGS = ReadSettings()


@dataclass(frozen=True, slots=True)
class Inspection:
    """What every block is looked at with: a vocabulary if any, and the fingerprints of held-out text if any."""

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
    """Measure the sources and say what is wrong with them.

    `held_out` is text that training must not see: it is looked for in the sources. `vocabulary` is the one that is
    meant to be used, loaded or the place where it lies; for workers of other machines the place.
    """
    workers = workers or num_cores()
    with ExitStack() as stack:
        tokenizer = Tokenizer.load(vocabulary) if isinstance(vocabulary, Path) else vocabulary
        inspection = Inspection()
        if tokenizer is not None:
            place = vocabulary.absolute() if isinstance(vocabulary, Path) else _save_temporarily(tokenizer, stack)
            inspection = replace(inspection, vocabulary=place, vocabulary_hash=tokenizer.hash)
        apart = None
        if held_out:
            apart = _measure_all(
                held_out, Inspection(), (read_settings, workers), _stage_progress("reading held-out text", watch)
            )
            inspection = replace(
                inspection, held_out_documents=apart.documents.values, held_out_lines=apart.lines.values
            )
        found = _measure_all(sources, inspection, (read_settings, workers), _stage_progress("reading", watch))
    diagnosis = diagnose(found, apart, profile_vocabulary(tokenizer) if tokenizer else None)
    return replace(diagnosis, findings=find(diagnosis))


def _save_temporarily(tokenizer: Tokenizer, stack: ExitStack) -> Path:
    """Write a tokenizer to where worker processes can load it."""
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
    """Measure all blocks of the sources and add them up as they come."""
    reading, workers = settings_and_workers
    total, done = total_bytes(sources), 0
    found = Measurements()
    work = functools.partial(_measure_block, inspection=inspection)
    for num_bytes, measured in run_units(work, blocks(sources, reading), workers):
        found.merge(measured)
        done += num_bytes
        watch(done, total)
    return found


def _measure_block(block: Block, inspection: Inspection) -> tuple[int, Measurements]:
    return block.num_bytes, measure(block, inspection)


def measure(block: Block, inspection: Inspection) -> Measurements:
    """Measure one block: a pure function, so that it does not matter who does it, and when."""
    found = Measurements(statistics=TextStatistics(block.number))
    documents = _read_documents(block, inspection, found)
    for document in documents:
        num_ideographs = add_document_statistics(document, found.statistics)
        find_artifacts(document, num_ideographs, found.statistics)
    measure_coherence(documents, found.statistics)
    _add_fingerprints(documents, inspection, found)
    if inspection.vocabulary is not None:
        tokenizer = _load_tokenizer(inspection.vocabulary, inspection.vocabulary_hash)
        for document in documents:
            measure_fit(document, tokenizer, found.statistics, found.unknown_words)
    return found


def _read_documents(block: Block, inspection: Inspection, measurements: Measurements) -> list[Document]:
    documents = []
    for passage in read(block, measurements.counts):
        repaired_before = measurements.counts["lines repaired: mojibake"]
        document = clean(passage, inspection.clean, measurements.counts)
        measurements.statistics.totals["documents read"] += 1
        find_damage(passage, measurements.counts["lines repaired: mojibake"] > repaired_before, measurements.statistics)
        if document is not None:
            documents.append(document)
        elif passage.text.strip():
            measurements.statistics.add_excerpt("dropped by cleaning", passage.text, passage.source)
    for name, number in measurements.counts.items():
        if "not valid UTF-8" in name:
            measurements.statistics.totals["damage: bytes that are not UTF-8"] += number
            measurements.statistics.add_excerpt("bytes that are not UTF-8", "", block.origin)
    return documents


def _add_fingerprints(documents: Sequence[Document], inspection: Inspection, measurements: Measurements) -> None:
    """Note which documents and long lines stand here, which of them again and again, and which are held out."""
    wholes = [fingerprint(document.text) for document in documents]
    lines = [(value, text, place) for place, one in enumerate(documents) for _, value, text in long_lines(one)]
    measurements.documents = sample_fingerprints(wholes)
    measurements.lines = sample_fingerprints([value for value, _, _ in lines])
    _count_repeated_lines(documents, measurements.statistics)
    measurements.shared_documents = np.intersect1d(np.array(wholes, np.uint64), inspection.held_out_documents)
    shared = np.intersect1d(np.array([value for value, _, _ in lines], np.uint64), inspection.held_out_lines)
    measurements.shared_lines = shared
    known, known_lines = set(measurements.shared_documents.tolist()), set(shared.tolist())
    for document, value in zip(documents, wholes, strict=True):
        if value in known:
            measurements.statistics.add_excerpt("held-out documents", document.text, document.source)
            break
    for value, text, place in lines:
        if value in known_lines:
            measurements.statistics.add_excerpt("held-out lines", text, documents[place].source)
            break


def _count_repeated_lines(documents: Sequence[Document], statistics: TextStatistics) -> None:
    """Count the lines, short ones too, that stand in this block before; the most frequent is the example."""
    lines: Counter[str] = Counter()
    for document in documents:
        lines.update(line for line in document.text.split("\n") if line)
    statistics.totals["copied lines"] += lines.total() - len(lines)
    for line, times in lines.most_common(1):
        if times > 1:
            source = next(one.source for one in documents if line in one.text)
            statistics.add_excerpt("copied lines", line, source, weight=-times)


@functools.lru_cache(maxsize=2)
def _load_tokenizer(path: Path, vocabulary_hash: str) -> Tokenizer:
    """Load a vocabulary once in each worker; the hash is there so that a changed file is loaded anew."""
    del vocabulary_hash
    return Tokenizer.load(path)
