"""A prepared corpus: a folder in, positions in its tokens out.

A shard is opened and compared with its hash when its first token is needed, so any size opens fast; a run compares all
shards in the background (`CorpusVerification`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertworks.corpus.manifest import read_manifest, read_tokens_manifest
from bertworks.corpus.shard import SPLITS, Region, ShardArrays, open_shard, problem_message
from bertworks.errors import FolderError, InputError
from bertworks.integrity.hashing import FileHash, FileVerification
from bertworks.packages import packaged_model
from bertworks.vocabulary.tokenizer import Tokenizer

# Shards that are open at once: each keeps a file open, of which systems allow about a thousand, and 0.2 MB in memory.
_MAX_OPEN_SHARDS = 256


class CorpusPosition(NamedTuple):
    """A position in a split: a shard and the indices of a sentence and a token in it."""

    shard_index: int
    shard: ShardArrays
    sentence: int
    token: int


class Corpus:
    """A prepared corpus folder with the tokens of one vocabulary."""

    def __init__(self, folder: Path, manifest: dict[str, Any], key: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokens_folder = folder / "tokens" / key
        self.tokens_manifest = read_tokens_manifest(folder, key, manifest)

    @classmethod
    def open(cls, folder: str | Path, vocabulary: str | None = None) -> Corpus:
        """Open a corpus folder. `vocabulary` is a path, a packaged model or a prefix of a hash; optional if single."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        prefix = vocabulary or ""
        if vocabulary and (Path(vocabulary).exists() or packaged_model(vocabulary)):
            prefix = Tokenizer.load(vocabulary).hash
        keys = [key for key in manifest["tokens"] if key.startswith(prefix)]
        if not keys:
            available = ", ".join(manifest["tokens"]) or "none"
            raise FolderError(
                f"{folder} has no tokens of vocabulary {vocabulary}; it has: {available}. "
                f"Run `bertworks prepare` on it again with that vocabulary"
            )
        if len(keys) > 1:
            raise InputError(f"{folder} has tokens of several vocabularies: {', '.join(keys)}; name one with --vocab")
        return cls(folder, manifest, keys[0])

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the tokens; refused if it is not the one that made them."""
        tokenizer = Tokenizer.load(self.tokens_folder)
        if tokenizer.hash != self.tokens_manifest["vocabulary"]:
            raise FolderError(
                f"{self.tokens_folder} has another vocabulary than was written; delete {self.folder} and prepare it "
                f"again"
            )
        return tokenizer

    def split(self, name: str) -> CorpusSplit:
        """Return one split; raise InputError if it is unknown or empty."""
        if name not in SPLITS:
            raise InputError(f"there is no split '{name}'; choose one of: {', '.join(SPLITS)}")
        shards = [
            SplitShard(
                path=self.tokens_folder / shard["file"],
                sha256=shard["sha256"],
                weight=shard["weight"],
                pairable=Region(**shard["regions"][name]["pairable"]),
                single_sentence=Region(**shard["regions"][name]["single_sentence"]),
                first_token=sum(region["tokens"] for region in _regions_before(shard, name)),
            )
            for shard in self.tokens_manifest["shards"]
        ]
        split = CorpusSplit(name, [shard for shard in shards if shard.num_tokens])
        if not split.shards:
            raise InputError(
                f"{self.folder} has no text in its split '{name}'; prepare it again with --held-out or a larger "
                f"--held-out-ratio"
            )
        return split


def _regions_before(shard: dict[str, Any], split: str) -> list[dict[str, int]]:
    earlier = SPLITS[: SPLITS.index(split)]
    return [region for name in earlier for region in shard["regions"][name].values()]


class CorpusVerification:
    """Compares all token shards of a corpus with their hashes in the background."""

    def __init__(self, corpus: Corpus) -> None:
        hashes = {shard["file"]: FileHash(shard["sha256"]) for shard in corpus.tokens_manifest["shards"]}
        self._folder = corpus.tokens_folder
        self._files = FileVerification(corpus.tokens_folder, hashes)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end, or for some seconds; return whether it is reached."""
        return self._files.wait(seconds)

    @property
    def error(self) -> str:
        """The message for the first bad shard that was found so far; empty if there is none."""
        for problem in self._files.problems:
            return problem_message(self._folder / problem.name, problem)
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitShard:
    """The documents of a split in one shard: from `first_token`, the pairable ones, then those of a single sentence."""

    path: Path
    sha256: str
    weight: float
    pairable: Region
    single_sentence: Region
    first_token: int

    @property
    def num_tokens(self) -> int:
        return self.pairable.tokens + self.single_sentence.tokens


class CorpusSplit:
    """The documents of one split as two weighted token axes: of the pairable documents, and of all documents.

    Each token has the length of its source's weight on the axis: weight 2 doubles its probability to be sampled.
    """

    def __init__(self, name: str, shards: Sequence[SplitShard]) -> None:
        self.name = name
        self.shards = shards
        self.num_documents = sum(shard.pairable.documents + shard.single_sentence.documents for shard in shards)
        self.num_single_sentence = sum(shard.single_sentence.documents for shard in shards)
        self.num_tokens = sum(shard.num_tokens for shard in shards)
        self._ends_pairable = _weighted_ends([s.pairable.tokens for s in shards], [s.weight for s in shards])
        self._ends_all = _weighted_ends([s.num_tokens for s in shards], [s.weight for s in shards])
        self._shard_cache: dict[int, ShardArrays] = {}

    def __reduce__(self) -> tuple[type[CorpusSplit], tuple[str, Sequence[SplitShard]]]:
        """Pickle without the open shards, whose files belong to this process."""
        return CorpusSplit, (self.name, self.shards)

    @property
    def length_pairable(self) -> float:
        return float(self._ends_pairable[-1])

    @property
    def length(self) -> float:
        return float(self._ends_all[-1])

    def pairable_position_at(self, offset: float) -> CorpusPosition:
        """Return the position at `offset` on the axis of pairable documents."""
        return self._locate(self._ends_pairable, offset)

    def position_at(self, offset: float) -> CorpusPosition:
        """Return the position at `offset` on the axis of all documents."""
        return self._locate(self._ends_all, offset)

    def sample_other_document(self, origin: CorpusPosition, random_value: float) -> CorpusPosition:
        """Return a position in another document than `origin`, uniform over tokens; `random_value` is in [0, 1)."""
        first, last = origin.shard.document_span(origin.sentence)
        shard = self.shards[origin.shard_index]
        before = float(self._ends_all[origin.shard_index - 1]) if origin.shard_index else 0.0
        start = before + (origin.shard.first_token(first) - shard.first_token) * shard.weight
        length = (origin.shard.first_token(last) - origin.shard.first_token(first)) * shard.weight
        offset = random_value * (self.length - length)
        position = self.position_at(offset + length if offset >= start else offset)
        # Rounding at an edge of the document may lead back into it.
        if position.shard_index == origin.shard_index and first <= position.sentence < last:
            return self.position_at(0.0 if start > 0 else self.length)
        return position

    def region_end(self, position: CorpusPosition) -> int:
        """Return the index after the last sentence of this split in the shard of `position`."""
        shard = self.shards[position.shard_index]
        return position.shard.sentence_at(shard.first_token + shard.num_tokens - 1) + 1

    def _locate(self, ends: npt.NDArray[np.float64], offset: float) -> CorpusPosition:
        index = min(int(ends.searchsorted(offset, side="right")), len(ends) - 1)
        while index and ends[index] == ends[index - 1]:  # skip empty shards at the end of the axis
            index -= 1
        shard = self.shards[index]
        before = float(ends[index - 1]) if index else 0.0
        last = round((float(ends[index]) - before) / shard.weight) - 1
        token = shard.first_token + min(max(int((offset - before) / shard.weight), 0), last)
        arrays = self.shard_arrays(index)
        return CorpusPosition(index, arrays, arrays.sentence_at(token), token)

    def shard_arrays(self, shard_index: int) -> ShardArrays:
        """Return the arrays of a shard from an LRU cache."""
        shard = self.shards[shard_index]
        arrays = self._shard_cache.pop(shard_index, None) or open_shard(shard.path, shard.sha256)
        self._shard_cache[shard_index] = arrays
        if len(self._shard_cache) > _MAX_OPEN_SHARDS:
            del self._shard_cache[next(iter(self._shard_cache))]
        return arrays


def _weighted_ends(lengths: list[int], weights: list[float]) -> npt.NDArray[np.float64]:
    return np.cumsum(np.array(lengths, dtype=np.float64) * np.array(weights, dtype=np.float64))
