"""The units of preparation: a Block of raw text in, a shard of clean text and a shard of tokens out.

A unit is a pure function of its block and the settings: the bytes do not depend on the worker, the time or the number
of attempts. Each unit passes two stages, with a comparison of all fingerprints between them:
  `read_unit`      cleans, splits and tokenizes its text, and writes fingerprints
  `finalize_unit`  drops duplicates; if there are none, the files of the first stage are the result
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertworks.corpus.deduplication import drops_of_unit, lines_of, write_fingerprints
from bertworks.corpus.text_shard import SplitDocument, read_text, write_text
from bertworks.corpus.token_shards import write_tokens
from bertworks.disk import LOCK, atomic_write, read_json, sha256, write_json
from bertworks.errors import InputError, SettingsError
from bertworks.text.cleaning import CleanSettings, clean
from bertworks.text.document import Counts, Document
from bertworks.text.sources import Block, TextSource, read
from bertworks.vocabulary.tokenizer import Tokenizer

# Fewer held-out documents give no useful evaluation: see `effective_held_out_ratio`.
MIN_HELD_OUT = 4
# What a preparation writes below text and tokens: the files of the vocabulary, which come first, and shards.
_VOCABULARY_FILE = re.compile(r"tokenizer\.json|vocab\.txt|tokenizer_config\.json|\..*\.part")
_WRITTEN_FILE = re.compile(rf"{_VOCABULARY_FILE.pattern}|\d{{6,}}\.(jsonl|safetensors)|manifest\.json")


@dataclass(frozen=True, slots=True)
class PrepareSettings:
    """What a corpus depends on besides its sources and its vocabulary.

    held_out_ratio  ratio of documents, chosen by a hash of their text, that are held out from training
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareJob:
    """What every unit of a preparation needs.

    folder      the corpus folder
    vocabulary  the folder of the tokenizer
    word_rule   a key of WORD_RULES
    key         the folder name of the tokens: the hash of the vocabulary and `word_rule`
    """

    folder: Path
    sources: tuple[TextSource, ...]
    settings: PrepareSettings
    vocabulary: Path
    word_rule: str
    key: str

    @property
    def work_folder(self) -> Path:
        """Intermediate files; removed when the corpus is complete."""
        return self.folder / ".work"

    @property
    def plan_file(self) -> Path:
        """What is prepared, from what, with which settings: the first file of a preparation."""
        return self.work_folder / "plan.json"

    def work_file(self, unit: int, name: str) -> Path:
        return self.work_folder / f"{unit:06d}.{name}"

    def text_shard(self, unit: int) -> Path:
        return self.folder / "text" / f"{unit:06d}.jsonl"

    def token_shard(self, unit: int) -> Path:
        return self.folder / "tokens" / self.key / f"{unit:06d}.safetensors"


def has_other_files(job: PrepareJob) -> bool:
    """Return whether a folder without a plan has files that no preparation left that was killed when it began.

    With a work folder, it was killed before it had written its plan or while it discarded everything. Without one, it
    was a preparation of an earlier version, which saved the vocabulary before its plan.
    """
    names = {path.name for path in job.folder.iterdir()} - {LOCK}
    is_begun = job.work_folder.is_dir()
    if not names <= ({job.work_folder.name, "text", "tokens"} if is_begun else {"tokens"}):
        return True
    pattern = _WRITTEN_FILE if is_begun else _VOCABULARY_FILE
    paths = [path for name in ("text", "tokens") for path in (job.folder / name).rglob("*") if not path.is_dir()]
    return not all(pattern.fullmatch(path.name) for path in paths)


def read_unit(block: Block, job: PrepareJob) -> None:
    """First stage: write the text, tokens and fingerprints of a unit to the work folder."""
    counts = Counts()
    clean_documents = (clean(raw_document, job.settings.clean, counts) for raw_document in read(block, counts))
    documents = [document for document in clean_documents if document is not None]
    texts = [document.text for document in documents]
    split_hashes = [split_hash(text) for text in texts]
    write_fingerprints(job.work_file(block.number, "fingerprints.npy"), documents, texts)
    split_documents = _assign_splits(documents, split_hashes, block.source_index, job, job.settings.held_out_ratio)
    text_path, token_path = job.work_file(block.number, "jsonl"), job.work_file(block.number, "safetensors")
    is_unassigned = job.sources[block.source_index].split is None
    result = {
        "source": block.source_index,
        "payload": _payload_hash(block),
        "counts": dict(counts),
        "shard": _write_shards(text_path, token_path, split_documents, job),
        "lowest_split_hashes": sorted(set(split_hashes))[:MIN_HELD_OUT] if is_unassigned else [],
        "num_unassigned": len(documents) if is_unassigned else 0,
    }
    write_json(job.work_file(block.number, "json"), result)  # last: a unit with this file is complete


def is_read(block: Block, job: PrepareJob) -> bool:
    """Return whether the first stage of this block is done; raise InputError if a stream had different text then."""
    path = job.work_file(block.number, "json")
    if not path.exists():
        return False
    if read_json(path, "a unit of a preparation")["payload"] != _payload_hash(block):
        raise InputError(
            f"{block.origin} has different text than when this preparation was started; give the same text again, or "
            f"delete {job.folder}"
        )
    return True


def effective_held_out_ratio(units: Sequence[dict[str, Any]], held_out_ratio: float, num_copies: int) -> float:
    """Raise the ratio until the held-out split has MIN_HELD_OUT documents, but at most a quarter of all.

    The split gets at least two documents, which random next sentences require; with fewer than four documents none is
    held out. A ratio of 0 is not changed: held-out text then comes from separate sources, or there is none.
    """
    hashes = sorted({value for unit in units for value in unit["lowest_split_hashes"]})
    num_distinct = max(0, sum(unit["num_unassigned"] for unit in units) - num_copies)
    num_required = min(MIN_HELD_OUT, max(2, num_distinct // 4), len(hashes)) if num_distinct >= 4 else 0
    if not held_out_ratio or not num_required or hashes[num_required - 1] < held_out_ratio:
        return held_out_ratio
    return float(hashes[num_required - 1] + 2.0**-53)


def finalize_unit(unit: int, job: PrepareJob, held_out_ratio: float) -> None:
    """Second stage: write the final shards of a unit, without duplicates."""
    result = read_json(job.work_file(unit, "json"), "a unit of a preparation")
    counts = Counts(result["counts"])
    documents, lines = drops_of_unit(job.work_folder, unit)
    split_changes = any(
        job.settings.held_out_ratio <= value < held_out_ratio for value in result["lowest_split_hashes"]
    )
    text_path, token_path = job.text_shard(unit), job.token_shard(unit)
    if documents or lines or split_changes:
        all_documents = [document for document, _ in read_text(job.work_file(unit, "jsonl"))]
        remaining = _remove_duplicates(all_documents, documents, lines, counts)
        split_hashes = [split_hash(document.text) for document in remaining]
        split_documents = _assign_splits(remaining, split_hashes, result["source"], job, held_out_ratio)
        shard = _write_shards(text_path, token_path, split_documents, job)
    else:
        shard = result["shard"]
        if shard:
            _publish(job.work_file(unit, "jsonl"), text_path)
            _publish(job.work_file(unit, "safetensors"), token_path)
    final = {"unit": unit, "source": result["source"], "counts": dict(counts), "shard": shard}
    if shard:
        final |= {"text_sha256": sha256(text_path), "tokens_sha256": sha256(token_path)}
    write_json(job.work_file(unit, "final.json"), final)  # last, as above


def tokenize_unit(unit: int, text_hash: str, job: PrepareJob) -> dict[str, Any]:
    """Tokenize the text of a finished corpus with another vocabulary; return the entry for its manifest.

    Text that does not have the sha256 `text_hash` is refused.
    """
    documents = list(read_text(job.text_shard(unit), text_hash))
    regions, counts = write_tokens(job.token_shard(unit), documents, _load_tokenizer(job.vocabulary), job.word_rule)
    return {"unit": unit, "regions": regions, "counts": counts, "tokens_sha256": sha256(job.token_shard(unit))}


def _write_shards(
    text_path: Path, token_path: Path, documents: list[SplitDocument], job: PrepareJob
) -> dict[str, Any] | None:
    """Write the text shard and the token shard; return their sizes, or None if there are no documents."""
    if not documents:
        return None
    write_text(text_path, documents)
    regions, counts = write_tokens(token_path, documents, _load_tokenizer(job.vocabulary), job.word_rule)
    return {
        "documents": len(documents),
        "sentences": sum(len(document.sentences) for document, _ in documents),
        "characters": sum(len(sentence) for document, _ in documents for sentence in document.sentences),
        "regions": regions,
        "token_counts": counts,
    }


def _assign_splits(
    documents: Sequence[Document], split_hashes: Sequence[float], source: int, job: PrepareJob, held_out_ratio: float
) -> list[SplitDocument]:
    """Assign each document to the split of its source, or else by the hash of its text."""
    source_split = job.sources[source].split
    return [
        SplitDocument(document, source_split or ("held-out" if value < held_out_ratio else "train"))
        for document, value in zip(documents, split_hashes, strict=True)
    ]


def split_hash(text: str) -> float:
    """Return a hash of the text in [0, 1), which decides whether it is held out."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"split").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _remove_duplicates(
    documents: Sequence[Document], duplicates: set[int], lines: set[tuple[int, int]], counts: Counts
) -> list[Document]:
    """Return the documents without duplicates; what is dropped is added to `counts`."""
    remaining = []
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
            remaining.append(Document(tuple(sentences), document.source))
        else:
            counts["documents dropped: nothing but repeated lines"] += 1
    return remaining


def _payload_hash(block: Block) -> str:
    """Return a hash of the text that was read from streams; files are identified by size and time instead."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in block.chunks:
        digest.update(chunk.data)
    return digest.hexdigest()


def _publish(work_path: Path, final_path: Path) -> None:
    """Hard-link a file to its final name. The work file is kept until the end, so that a killed run can resume."""
    with atomic_write(final_path) as temporary:
        try:
            temporary.unlink(missing_ok=True)
            os.link(work_path, temporary)
        except OSError:  # a file system without hard links
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            shutil.copyfile(work_path, temporary)


@functools.lru_cache(maxsize=2)
def _load_tokenizer(path: Path) -> Tokenizer:
    """Load a vocabulary once per worker; it caches the tokens of words."""
    return Tokenizer.load(path)
