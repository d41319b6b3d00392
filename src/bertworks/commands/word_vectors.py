"""Static word vectors: text in, a folder of vectors out; vectors and word lists in, scores out."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import bertworks
from bertworks.corpus.manifest import MANIFEST, read_manifest
from bertworks.corpus.text_shard import read_text
from bertworks.disk import explain_os_error
from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_files import check_folder, read_vectors, write_vectors
from bertworks.embeddings.static_settings import GloveSettings, TrainedVectors, Word2VecSettings
from bertworks.embeddings.static_words import WordSettings, document_contexts
from bertworks.embeddings.word2vec import require_gensim, train_word2vec
from bertworks.embeddings.word_stream import WordStream, WordStreamWriter
from bertworks.errors import InputError
from bertworks.folder_lock import lock_output
from bertworks.metrics.word_vectors import (
    AnalogyQuestion,
    SectionScore,
    Similarity,
    analogies,
    read_word_list,
    similarity,
)
from bertworks.parallel.workers import in_order, num_cores, run_units
from bertworks.progress import Progress, ProgressCallback
from bertworks.text.cleaning import CleanSettings, clean
from bertworks.text.document import Counts
from bertworks.text.sources import Block, ReadSettings, TextSource, blocks, read, total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorsRequest:
    """Arguments of `train_vectors`. A single source may be a corpus folder: then its training documents are read."""

    sources: tuple[str, ...]
    output: Path
    kind: str
    training_settings: GloveSettings | Word2VecSettings
    word_settings: WordSettings = field(default_factory=WordSettings)
    read_settings: ReadSettings = field(default_factory=ReadSettings)


def train_vectors(
    request: VectorsRequest, num_workers: int | None = None, on_progress: ProgressCallback = lambda progress: None
) -> StaticVectors:
    """Train vectors and write them to the output folder. The same text, settings and seed give the same bytes.

    Temporary files are in a hidden folder next to the output, and are removed at the end.
    """
    if isinstance(request.training_settings, Word2VecSettings):
        require_gensim()
    with lock_output(request.output):
        check_folder(request.output)
        return _train_vectors(request, num_workers or num_cores(), on_progress)


def _train_vectors(request: VectorsRequest, num_workers: int, on_progress: ProgressCallback) -> StaticVectors:
    counts = Counts()
    with _work_folder(request.output) as work_folder:
        with WordStreamWriter(work_folder / "words.ids", counts) as writer:
            for part in _parts(request, num_workers, on_progress):
                counts.update(part.counts)
                writer.add(part.contexts)
            stream = writer.finish(request.word_settings)
        trained = _train(stream, request.training_settings, work_folder, on_progress)
    vectors = StaticVectors(stream.words, trained.table, _metadata(request, stream, trained, counts))
    write_vectors(request.output, vectors, "folder")
    return vectors


def evaluate_vectors(vectors: StaticVectors, files: Sequence[Path]) -> dict[str, Similarity | list[SectionScore]]:
    """Score vectors on word lists of similarity pairs or analogy questions; return the scores by file name."""
    scores: dict[str, Similarity | list[SectionScore]] = {}
    for path in files:
        items = read_word_list(path)
        questions = [item for item in items if isinstance(item, AnalogyQuestion)]
        pairs = [item for item in items if not isinstance(item, AnalogyQuestion)]
        scores[path.name] = analogies(vectors, questions) if questions else similarity(vectors, pairs)
    return scores


def convert_vectors(source: Path, output: Path, format: str) -> StaticVectors:  # noqa: A002
    """Read vectors in any format and write them in another one."""
    vectors = read_vectors(source)
    write_vectors(output, vectors, format)
    return vectors


def _train(
    stream: WordStream, settings: GloveSettings | Word2VecSettings, work_folder: Path, on_progress: ProgressCallback
) -> TrainedVectors:
    def report_progress(stage: str, done: int, total: int, unit: str) -> None:
        on_progress(Progress(stage, done, total, unit))

    if isinstance(settings, GloveSettings):
        from bertworks.embeddings.glove import train_glove  # imports torch, which word lookup does not need

        return train_glove(stream, settings, work_folder, report_progress)
    return train_word2vec(stream, settings, work_folder, report_progress)


def _metadata(
    request: VectorsRequest, stream: WordStream, trained_vectors: TrainedVectors, counts: Counts
) -> dict[str, Any]:
    return {
        "kind": request.kind,
        "made_by": f"bertworks {bertworks.__version__}",
        "settings": asdict(request.training_settings),
        "word_settings": asdict(request.word_settings),
        "corpus": {
            "sources": [Path(source).name for source in request.sources],
            "words_sha256": stream.sha256,
            "num_words": stream.num_words,
            "num_contexts": stream.num_contexts,
        },
        "training": trained_vectors.metadata,
        "counts": dict(sorted(counts.items())),
    }


@contextlib.contextmanager
def _work_folder(output: Path) -> Iterator[Path]:
    """Create an empty temporary folder next to `output`, and remove it at the end; a killed run's is removed first."""
    folder = output.absolute().with_name(f".{output.name}.work")
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield folder
    except OSError as error:
        raise explain_os_error(error, output) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class _WordPart:
    number: int
    num_bytes: int
    contexts: list[str]
    counts: Counts


@dataclass(frozen=True, slots=True)
class _Shard:
    number: int
    path: Path
    sha256: str


def _parts(request: VectorsRequest, num_workers: int, on_progress: ProgressCallback) -> Iterator[_WordPart]:
    """Yield the words of all sources in order, read by worker processes."""
    corpus = [source for source in request.sources if (Path(source) / MANIFEST).is_file()]
    if corpus and len(request.sources) > 1:
        raise InputError(f"{corpus[0]} is a corpus folder, which must be the only source; remove the others")
    units: Iterator[Any]
    work: Callable[[Any], _WordPart]
    if corpus:
        folder = Path(corpus[0])
        entries = read_manifest(folder)["shards"]
        shards = [_Shard(number, folder / entry["file"], entry["sha256"]) for number, entry in enumerate(entries)]
        total: int | None = sum(shard.path.stat().st_size for shard in shards if shard.path.is_file())
        units = iter(shards)
        work = functools.partial(_words_of_shard, settings=request.word_settings)
    else:
        sources = [TextSource(path) for path in request.sources]
        total = total_bytes(sources)
        units = blocks(sources, request.read_settings)
        work = functools.partial(_words_of_block, settings=request.word_settings)
    num_done = 0
    for part in in_order(run_units(work, units, num_workers)):
        num_done += part.num_bytes
        yield part
        on_progress(Progress("reading", num_done, total, "bytes"))


def _words_of_block(block: Block, settings: WordSettings) -> _WordPart:
    counts = Counts()
    contexts: list[str] = []
    for passage in read(block, counts):
        document = clean(passage, CleanSettings(), counts)
        if document is not None:
            contexts += document_contexts(document, settings)
    return _WordPart(block.number, block.num_bytes, contexts, counts)


def _words_of_shard(shard: _Shard, settings: WordSettings) -> _WordPart:
    """Return the words of the training documents of a shard; other splits are left out, as in pretraining."""
    counts = Counts()
    contexts: list[str] = []
    for document, split in read_text(shard.path, shard.sha256):
        if split == "train":
            contexts += document_contexts(document, settings)
            counts["documents read"] += 1
        else:
            counts[f"documents left out: split '{split}'"] += 1
    return _WordPart(shard.number, shard.path.stat().st_size, contexts, counts)
