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
from bertworks.corpus.token_shards import write_pieces
from bertworks.disk import read_json, replacing, sha256, write_json
from bertworks.errors import InputError, SettingsError
from bertworks.text.cleaning import CleanSettings, clean
from bertworks.text.document import Counts, Document
from bertworks.text.portions import Payload
from bertworks.text.sources import Block, Source, read
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

    held_out_rate: float = 0.01
    max_repeats: int = 10
    clean: CleanSettings = field(default_factory=CleanSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_rate < 1:
            raise SettingsError(f"held_out_rate = {self.held_out_rate}: must be at least 0 and less than 1")
        if self.max_repeats < 0:
            raise SettingsError(f"max_repeats = {self.max_repeats}: must be 0 (keep all) or more")


@dataclass(frozen=True, slots=True)
class Job:
    """What every unit of a preparation needs to know. `vocabulary` is where the tokenizer lies."""

    folder: Path
    sources: tuple[Source, ...]
    settings: PrepareSettings
    vocabulary: Path
    words: str
    key: str

    @property
    def work(self) -> Path:
        """Where unfinished work lies; gone when the corpus is whole."""
        return self.folder / ".work"

    def working(self, unit: int, name: str) -> Path:
        return self.work / f"{unit:06d}.{name}"

    def text_shard(self, unit: int) -> Path:
        return self.folder / "text" / f"{unit:06d}.jsonl"

    def piece_shard(self, unit: int) -> Path:
        return self.folder / "pieces" / self.key / f"{unit:06d}.safetensors"


def read_unit(block: Block, job: Job) -> None:
    """First stage: write the unit's text, pieces and fingerprints under their working names."""
    counts = Counts()
    cleaned = (clean(passage, job.settings.clean, counts) for passage in read(block, counts))
    documents = [document for document in cleaned if document is not None]
    free = job.sources[block.source].split is None
    texts = [document.text for document in documents]
    draws = [split_draw(text) for text in texts]
    write_fingerprints(job.working(block.number, "fingerprints.npy"), documents, texts)
    placed = _place(documents, draws, block.source, job, job.settings.held_out_rate)
    shard = _write_shards(job.working(block.number, "jsonl"), job.working(block.number, "safetensors"), placed, job)
    told = {
        "source": block.source,
        "payload": _payload_hash(block),
        "counts": dict(counts),
        "shard": shard,
        "lowest_draws": sorted(set(draws))[:MIN_HELD_OUT] if free else [],
        "num_free": len(documents) if free else 0,
    }
    write_json(job.working(block.number, "json"), told)  # written last: a unit with this file is finished


def is_read(block: Block, job: Job) -> bool:
    """Tell whether the first stage of this block is done; if it was done with other text from a pipe, refuse."""
    path = job.working(block.number, "json")
    if not path.exists():
        return False
    if read_json(path, "a unit of a preparation")["payload"] != _payload_hash(block):
        raise InputError(
            f"{block.origin} does not hold the text with which this preparation was begun; give the same again, or "
            f"delete {job.folder}"
        )
    return True


def settled_rate(units: Sequence[dict[str, Any]], rate: float, num_copies: int) -> float:
    """Return the rate at which the held-out split has MIN_HELD_OUT documents, but at most a quarter of all.

    It has at least two, without which there is no random pair; of fewer than four documents none is held out. A rate
    of 0 stays 0: then the held-out text comes from sources of its own, or is not wanted.
    """
    draws = sorted({draw for unit in units for draw in unit["lowest_draws"]})
    num_different = max(0, sum(unit["num_free"] for unit in units) - num_copies)
    wanted = min(MIN_HELD_OUT, max(2, num_different // 4), len(draws)) if num_different >= 4 else 0
    if not rate or not wanted or draws[wanted - 1] < rate:
        return rate
    return float(draws[wanted - 1] + 2.0**-53)


def settle_unit(unit: int, job: Job, held_out_rate: float) -> None:
    """Second stage: put the unit's final shards in place, without what was found to be duplicate."""
    told = read_json(job.working(unit, "json"), "a unit of a preparation")
    counts = Counts(told["counts"])
    documents, lines = drops_of_unit(job.work, unit)
    moves = any(job.settings.held_out_rate <= draw < held_out_rate for draw in told["lowest_draws"])
    text, pieces = job.text_shard(unit), job.piece_shard(unit)
    if documents or lines or moves:
        whole = [placed.document for placed in read_text(job.working(unit, "jsonl"))]
        kept = _without(whole, documents, lines, counts)
        draws = [split_draw(document.text) for document in kept]
        shard = _write_shards(text, pieces, _place(kept, draws, told["source"], job, held_out_rate), job)
    else:
        shard = told["shard"]
        if shard:
            _publish(job.working(unit, "jsonl"), text)
            _publish(job.working(unit, "safetensors"), pieces)
    settled = {"unit": unit, "source": told["source"], "counts": dict(counts), "shard": shard}
    if shard:
        settled |= {"text_sha256": sha256(text), "pieces_sha256": sha256(pieces)}
    write_json(job.working(unit, "settled.json"), settled)  # written last, as above


def cut_unit(unit: int, job: Job) -> dict[str, Any]:
    """Cut the text of a finished corpus with another vocabulary; return the line for the manifest of its pieces."""
    placed = list(read_text(job.text_shard(unit)))
    regions, counts = write_pieces(job.piece_shard(unit), placed, _tokenizer(job.vocabulary), job.words)
    return {"unit": unit, "regions": regions, "counts": counts, "pieces_sha256": sha256(job.piece_shard(unit))}


def _write_shards(text: Path, pieces: Path, placed: list[SplitDocument], job: Job) -> dict[str, Any] | None:
    """Write both shards and return their sizes, or None where there is nothing to write."""
    if not placed:
        return None
    write_text(text, placed)
    regions, counts = write_pieces(pieces, placed, _tokenizer(job.vocabulary), job.words)
    return {
        "documents": len(placed),
        "sentences": sum(len(one.document.sentences) for one in placed),
        "characters": sum(len(sentence) for one in placed for sentence in one.document.sentences),
        "regions": regions,
        "piece_counts": counts,
    }


def _place(
    documents: Sequence[Document], draws: Sequence[float], source: int, job: Job, held_out_rate: float
) -> list[SplitDocument]:
    """Give each document its split: what its source says, or else by the number that its text hashes to."""
    forced = job.sources[source].split
    return [
        SplitDocument(document, forced or ("held-out" if draw < held_out_rate else "train"))
        for document, draw in zip(documents, draws, strict=True)
    ]


def split_draw(text: str) -> float:
    """Return a number in 0..1 that depends on the text alone."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"split").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _without(
    documents: Sequence[Document], dropped: set[int], lines: set[tuple[int, int]], counts: Counts
) -> list[Document]:
    """Return the documents without duplicates, and add to `counts` what went."""
    kept = []
    for number, document in enumerate(documents):
        if number in dropped:
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
    for portion in block.portions:
        if isinstance(portion, Payload):
            digest.update(portion.stretch.data)
    return digest.hexdigest()


def _publish(working: Path, final: Path) -> None:
    """Give a finished file its final name too. The working name stays until all is done: a kill then loses nothing."""
    with replacing(final) as temporary:
        try:
            temporary.unlink(missing_ok=True)
            os.link(working, temporary)
        except OSError:  # a file system without links
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            shutil.copyfile(working, temporary)


@functools.lru_cache(maxsize=2)
def _tokenizer(path: Path) -> Tokenizer:
    """Load a vocabulary once in each worker: it remembers the words it has cut."""
    return Tokenizer.load(path)
