"""Train or extend a vocabulary: sources in, a vocabulary folder and a coverage report out."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import bertworks
from bertworks.corpus.units import split_hash
from bertworks.disk import check_on_disk, is_vacant, staged_folder, write_json
from bertworks.errors import FolderError
from bertworks.folder_lock import lock_output
from bertworks.parallel.workers import Workers, in_order, num_cores, run_units
from bertworks.progress import Progress, ProgressCallback, begin_stage
from bertworks.reading import convert_paths
from bertworks.text.cleaning import CleanSettings, clean
from bertworks.text.document import Counts
from bertworks.text.sources import Block, ReadSettings, TextSource, blocks, read, total_bytes
from bertworks.vocabulary.coverage import VocabularyCoverage, measure_coverage
from bertworks.vocabulary.extension import Extension, extend
from bertworks.vocabulary.tokenizer import Tokenizer
from bertworks.vocabulary.training import VocabularySettings, train

# Coverage is measured on documents that were not used for training: the same ones that `prepare` holds out.
HELD_OUT_RATIO = 0.01
# Maximum amount of held-out text for the report.
_MAX_HELD_OUT_CHARACTERS = 4_000_000


@dataclass(frozen=True, slots=True)
class VocabularyRequest:
    """The text to train on and the output folder."""

    sources: tuple[TextSource, ...]
    output: Path
    read_settings: ReadSettings = field(default_factory=ReadSettings)
    clean_settings: CleanSettings = field(default_factory=CleanSettings)

    def __post_init__(self) -> None:
        convert_paths(self, "output")


@dataclass(frozen=True, slots=True)
class VocabularyReport:
    """The trained vocabulary and its coverage of `evaluation_text`."""

    tokenizer: Tokenizer
    coverage: VocabularyCoverage
    evaluation_text: str
    counts: Counts

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.tokenizer.kind,
            "cased": self.tokenizer.cased,
            "size": self.tokenizer.vocab_size,
            "hash": self.tokenizer.hash,
            "evaluation_text": self.evaluation_text,
            **asdict(self.coverage),
            "counts": dict(sorted(self.counts.items())),
        }


def train_vocabulary(
    request: VocabularyRequest,
    settings: VocabularySettings,
    workers: Workers | None = None,
    watch: ProgressCallback = lambda progress: None,
) -> VocabularyReport:
    """Train a vocabulary, write it to the output folder and measure its coverage.

    The files do not depend on the number of workers.
    """
    check_on_disk(request.output)
    with lock_output(request.output):
        _check_output(request.output)
        texts = _Texts(request, workers or num_cores(), watch)
        tokenizer = Tokenizer.from_backend(train(texts, settings, texts.counts))
        return _save_with_report(tokenizer, texts, request.output)


def add_words(
    folder: Path,
    request: VocabularyRequest,
    num_new: int,
    workers: Workers | None = None,
    watch: ProgressCallback = lambda progress: None,
) -> tuple[Extension, VocabularyReport]:
    """Add at most `num_new` words of the sources to the vocabulary in `folder` and write it to the output folder."""
    with lock_output(request.output):
        _check_output(request.output)
        texts = _Texts(request, workers or num_cores(), watch)
        extension = extend(Tokenizer.load(folder).backend, texts, num_new, counts=texts.counts)
        return extension, _save_with_report(Tokenizer.from_backend(extension.backend), texts, request.output)


def _check_output(output: Path) -> None:
    if not is_vacant(output):
        raise FolderError(f"{output} already holds something; choose an empty or new folder with --output")


def _save_with_report(tokenizer: Tokenizer, texts: _Texts, output: Path) -> VocabularyReport:
    evaluation_texts = texts.held_out or texts.first
    description = "held-out documents" if texts.held_out else "the first training documents (none was held out)"
    coverage = measure_coverage(tokenizer.backend, evaluation_texts)
    report = VocabularyReport(tokenizer, coverage, description, texts.counts)
    with staged_folder(output) as staged:
        tokenizer.save(staged)
        write_json(staged / "report.json", {"made_by": f"bertworks {bertworks.__version__}", **report.to_dict()})
    return report


class _Texts:
    """The clean training texts of all sources in order, read by workers; held-out texts are collected separately."""

    def __init__(self, request: VocabularyRequest, workers: Workers, watch: ProgressCallback) -> None:
        self._request, self._workers, self._watch = request, workers, watch
        self.counts = Counts()
        self.held_out: list[str] = []
        self.first: list[str] = []

    def __iter__(self) -> Iterator[str]:
        total = total_bytes(self._request.sources)
        num_done = num_held_out = 0
        units = blocks(self._request.sources, self._request.read_settings)
        work = functools.partial(_clean_block, settings=self._request.clean_settings)
        for part in in_order(run_units(work, units, self._workers)):
            self.counts.update(part.counts)
            num_done += part.num_bytes
            if num_held_out < _MAX_HELD_OUT_CHARACTERS:
                self.held_out += part.held_out
                num_held_out += sum(map(len, part.held_out))
            if not self.first:
                self.first = part.texts[:1000]
            yield from part.texts
            self._watch(Progress("reading", num_done, total, "bytes"))
        self._watch(begin_stage("training the vocabulary"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _CleanBlock:
    number: int
    num_bytes: int
    texts: list[str]
    held_out: list[str]
    counts: Counts


def _clean_block(block: Block, settings: CleanSettings) -> _CleanBlock:
    counts = Counts()
    texts: list[str] = []
    held_out: list[str] = []
    for raw_document in read(block, counts):
        document = clean(raw_document, settings, counts)
        if document is not None:
            text = document.text
            (held_out if split_hash(text) < HELD_OUT_RATIO else texts).append(text)
    return _CleanBlock(number=block.number, num_bytes=block.num_bytes, texts=texts, held_out=held_out, counts=counts)
