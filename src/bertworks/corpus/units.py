"""The units of preparation: a Block of raw text in, a shard of clean text and a shard of pieces out.

A unit is a pure function of its block and the settings, so it does not matter who runs it, when, or how often: the
bytes are the same. Each unit passes two stages, with one look at the whole corpus between them:
  `read_unit`    cleans, splits and cuts its text, and notes fingerprints
  `settle_unit`  drops what the look at all fingerprints found to be duplicate; mostly that is nothing, and then what
                 the first stage wrote already is the result
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.corpus.deduplication import drops_of_unit, lines_of, write_fingerprints
from bertworks.corpus.text_shard import SplitDocument, read_text, write_text
from bertworks.corpus.token_shards import write_tokens
from bertworks.disk import atomic_write, read_json, sha256, write_json
from bertworks.errors import InputError, SettingsError
from bertworks.text.cleaning import CleanSettings, clean
from bertworks.text.document import Counts, Document
from bertworks.text.sources import Block, TextSource, read
from bertworks.vocabulary.tokenizer import Tokenizer

# A held-out split of fewer documents says little: the rate is raised until it has so many (see `settled_rate`).
MIN_HELD_OUT = 4


@dataclass(frozen=True, slots=True)
class PrepareSettings:
    """What the bytes of a corpus depend on, besides its sources and its vocabulary.

    held_out_rate   share of the documents, chosen by a hash of their text, that training never sees
    max_repeats     a long line that occurs more often is kept once; 0 keeps all
    clean           see CleanSettings
    """

    held_out_ratio: float = 0.01
    max_repeats: int = 10
    clean: CleanSettings = field(default_factory=CleanSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_ratio < 1:
            raise SettingsError(f"held_out_ratio = {self.held_out_ratio}: must be at least 0 and less than 1")
        if self.max_repeats < 0:
            raise SettingsError(f"max_repeats = {self.max_repeats}: must be 0 (keep all) or more")


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """What every unit of a preparation needs to know. `vocabulary` is where the tokenizer lies."""

    folder: Path
    sources: tuple[TextSource, ...]
    settings: PrepareSettings
    vocabulary: Path
    words: str
    key: str

    @property
    def work_folder(self) -> Path:
        """Where unfinished work lies; gone when the corpus is whole."""
        return self.folder / ".work"

    def work_file(self, unit: int, name: str) -> Path:
        return self.work_folder / f"{unit:06d}.{name}"

    def text_shard(self, unit: int) -> Path:
        return self.folder / "text" / f"{unit:06d}.jsonl"

    def token_shard(self, unit: int) -> Path:
        return self.folder / "tokens" / self.key / f"{unit:06d}.safetensors"


def read_unit(block: Block, job: PrepareJob) -> None:
    """First stage: write the unit's text, pieces and fingerprints under their working names."""
    counts = Counts()
    cleaned = (clean(passage, job.settings.clean, counts) for passage in read(block, counts))
    documents = [document for document in cleaned if document is not None]
    free = job.sources[block.source_index].split is None
    texts = [document.text for document in documents]
    draws = [split_hash(text) for text in texts]
    write_fingerprints(job.work_file(block.number, "fingerprints.npy"), documents, texts)
    placed = _assign_splits(documents, draws, block.source_index, job, job.settings.held_out_ratio)
    shard = _write_shards(job.work_file(block.number, "jsonl"), job.work_file(block.number, "safetensors"), placed, job)
    told = {
        "source": block.source_index,
        "payload": _payload_hash(block),
        "counts": dict(counts),
        "shard": shard,
        "lowest_draws": sorted(set(draws))[:MIN_HELD_OUT] if free else [],
        "num_free": len(documents) if free else 0,
    }
    write_json(job.work_file(block.number, "json"), told)  # written last: a unit with this file is finished


def is_read(block: Block, job: PrepareJob) -> bool:
    """Tell whether the first stage of this block is done; if it was done with other text from a pipe, refuse."""
    path = job.work_file(block.number, "json")
    if not path.exists():
        return False
    if read_json(path, "a unit of a preparation")["payload"] != _payload_hash(block):
        raise InputError(
            f"{block.origin} does not hold the text with which this preparation was begun; give the same again, or "
            f"delete {job.folder}"
        )
    return True


def effective_held_out_ratio(units: Sequence[dict[str, Any]], held_out_ratio: float, num_copies: int) -> float:
    """Return the rate at which the held-out split has MIN_HELD_OUT documents, but at most a quarter of all.

    It has at least two, without which there is no random pair; of fewer than four documents none is held out. A rate
    of 0 stays 0: then the held-out text comes from sources of its own, or is not wanted.
    """
    draws = sorted({draw for unit in units for draw in unit["lowest_draws"]})
    num_different = max(0, sum(unit["num_free"] for unit in units) - num_copies)
    wanted = min(MIN_HELD_OUT, max(2, num_different // 4), len(draws)) if num_different >= 4 else 0
    if not held_out_ratio or not wanted or draws[wanted - 1] < held_out_ratio:
        return held_out_ratio
    return float(draws[wanted - 1] + 2.0**-53)


def finalize_unit(unit: int, job: PrepareJob, held_out_ratio: float) -> None:
    """Second stage: put the unit's final shards in place, without what was found to be duplicate."""
    told = read_json(job.work_file(unit, "json"), "a unit of a preparation")
    counts = Counts(told["counts"])
    documents, lines = drops_of_unit(job.work_folder, unit)
    moves = any(job.settings.held_out_ratio <= draw < held_out_ratio for draw in told["lowest_draws"])
    text, pieces = job.text_shard(unit), job.token_shard(unit)
    if documents or lines or moves:
        whole = [placed.document for placed in read_text(job.work_file(unit, "jsonl"))]
        kept = _remove_duplicates(whole, documents, lines, counts)
        draws = [split_hash(document.text) for document in kept]
        shard = _write_shards(text, pieces, _assign_splits(kept, draws, told["source"], job, held_out_ratio), job)
    else:
        shard = told["shard"]
        if shard:
            _publish(job.work_file(unit, "jsonl"), text)
            _publish(job.work_file(unit, "safetensors"), pieces)
    settled = {"unit": unit, "source": told["source"], "counts": dict(counts), "shard": shard}
    if shard:
        settled |= {"text_sha256": sha256(text), "tokens_sha256": sha256(pieces)}
    write_json(job.work_file(unit, "settled.json"), settled)  # written last, as above


def tokenize_unit(unit: int, job: PrepareJob) -> dict[str, Any]:
    """Cut the text of a finished corpus with another vocabulary; return the line for the manifest of its pieces."""
    placed = list(read_text(job.text_shard(unit)))
    regions, counts = write_tokens(job.token_shard(unit), placed, _load_tokenizer(job.vocabulary), job.words)
    return {"unit": unit, "regions": regions, "counts": counts, "tokens_sha256": sha256(job.token_shard(unit))}


def _write_shards(text: Path, tokens: Path, documents: list[SplitDocument], job: PrepareJob) -> dict[str, Any] | None:
    """Write both shards and return their sizes, or None where there is nothing to write."""
    if not documents:
        return None
    write_text(text, documents)
    regions, counts = write_tokens(tokens, documents, _load_tokenizer(job.vocabulary), job.words)
    return {
        "documents": len(documents),
        "sentences": sum(len(one.document.sentences) for one in documents),
        "characters": sum(len(sentence) for one in documents for sentence in one.document.sentences),
        "regions": regions,
        "token_counts": counts,
    }


def _assign_splits(
    documents: Sequence[Document], split_hashes: Sequence[float], source: int, job: PrepareJob, held_out_ratio: float
) -> list[SplitDocument]:
    """Give each document its split: what its source says, or else by the number that its text hashes to."""
    forced = job.sources[source].split
    return [
        SplitDocument(document, forced or ("held-out" if draw < held_out_ratio else "train"))
        for document, draw in zip(documents, split_hashes, strict=True)
    ]


def split_hash(text: str) -> float:
    """Return a number in 0..1 that depends on the text alone."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"split").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _remove_duplicates(
    documents: Sequence[Document], duplicates: set[int], lines: set[tuple[int, int]], counts: Counts
) -> list[Document]:
    """Return the documents without duplicates, and add to `counts` what went."""
    kept = []
    for number, document in enumerate(documents):
        if number in duplicates:
            counts["documents dropped: duplicate"] += 1
            counts["characters dropped: duplicate"] += len(document.text)
            continue
        sentences: list[str] = []
        for line, (first, last, text) in enumerate(lines_of(document)):
            if (number, line) in lines:
                counts["lines dropped: repeated many times"] += 1
                counts["characters dropped: repeated many times"] += len(text)
            else:
                sentences += document.sentences[first:last]
        if sentences:
            kept.append(Document(tuple(sentences), document.source))
        else:
            counts["documents dropped: nothing but repeated lines"] += 1
    return kept


def _payload_hash(block: Block) -> str:
    """Return a hash of the text that came through a stream; files are known by their size and time instead."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in block.chunks:
        digest.update(chunk.data)
    return digest.hexdigest()


def _publish(work_path: Path, final: Path) -> None:
    """Give a finished file its final name too. The working name stays until all is done: a kill then loses nothing."""
    with atomic_write(final) as temporary:
        try:
            temporary.unlink(missing_ok=True)
            os.link(work_path, temporary)
        except OSError:  # a file system without links
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            shutil.copyfile(work_path, temporary)


@functools.lru_cache(maxsize=2)
def _load_tokenizer(path: Path) -> Tokenizer:
    """Load a vocabulary once in each worker: it remembers the words it has cut."""
    return Tokenizer.load(path)
