"""A prepared corpus: a folder in, places in its text out. Nothing is loaded whole; any size opens as fast."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertworks.corpus.shard import SPLITS, Region, ShardArrays, map_shard
from bertworks.disk import read_json
from bertworks.errors import FolderError, InputError
from bertworks.vocabulary.tokenizer import Tokenizer

MANIFEST = "manifest.json"

# Shards that stay mapped at once: each holds a file open, and systems allow about a thousand.
_MAX_OPEN_SHARDS = 256


class CorpusPosition(NamedTuple):
    """A place in a split: the number of the shard, its arrays, and the sentence and piece there."""

    shard_index: int
    shard: ShardArrays
    sentence: int
    token: int


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a corpus folder; another folder is refused."""
    manifest = read_json(folder / MANIFEST, "a prepared corpus (see `bertworks prepare`)")
    if not isinstance(manifest, dict) or "tokens" not in manifest:
        raise FolderError(f"{folder / MANIFEST} is not the manifest of a prepared corpus")
    return manifest


class Corpus:
    """A prepared corpus folder, seen through one vocabulary."""

    def __init__(self, folder: Path, manifest: dict[str, Any], key: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokens_folder = folder / "tokens" / key
        self.tokens_manifest = read_json(self.tokens_folder / MANIFEST, "the pieces of a prepared corpus")

    @classmethod
    def open(cls, folder: str | Path, vocabulary: str | None = None) -> Corpus:
        """Open a corpus folder with the pieces of one vocabulary, named by its path, its hash or the start of that.

        With a single vocabulary there is nothing to name.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        begins = Tokenizer.load(vocabulary).hash if vocabulary and Path(vocabulary).exists() else vocabulary or ""
        keys = [key for key in manifest["tokens"] if key.startswith(begins)]
        if not keys:
            known = ", ".join(manifest["tokens"]) or "none"
            raise FolderError(
                f"{folder} has no pieces of vocabulary {vocabulary}; it has: {known}. "
                f"Run `bertworks prepare` on it again with that vocabulary"
            )
        if len(keys) > 1:
            raise InputError(f"{folder} holds pieces of several vocabularies: {', '.join(keys)}; name one")
        return cls(folder, manifest, keys[0])

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.tokens_folder)

    def split(self, name: str) -> CorpusSplit:
        """Return one split; an unknown or empty one is refused."""
        if name not in SPLITS:
            raise InputError(f"there is no split '{name}'; choose one of: {', '.join(SPLITS)}")
        shards = [
            SplitShard(
                path=self.tokens_folder / shard["file"],
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
                f"--held-out-rate"
            )
        return split


def _regions_before(shard: dict[str, Any], split: str) -> list[dict[str, int]]:
    earlier = SPLITS[: SPLITS.index(split)]
    return [region for name in earlier for region in shard["regions"][name].values()]


@dataclass(frozen=True, slots=True)
class SplitShard:
    """Where a split's documents lie in one shard: `first_piece`, then the paired ones, then the lone ones."""

    path: Path
    weight: float
    pairable: Region
    single_sentence: Region
    first_token: int

    @property
    def num_tokens(self) -> int:
        return self.pairable.tokens + self.single_sentence.tokens


class CorpusSplit:
    """The documents of one split as two long rows of pieces: of the paired documents, and of all.

    A source's weight stretches its pieces in the row: weight 2 makes it twice as likely to be met in an epoch.
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
        """Go to another process without what is mapped: it would travel as a copy of whole shards."""
        return CorpusSplit, (self.name, self.shards)

    @property
    def length_pairable(self) -> float:
        return float(self._ends_pairable[-1])

    @property
    def length(self) -> float:
        return float(self._ends_all[-1])

    def pairable_position_at(self, offset: float) -> CorpusPosition:
        """Return the place at `position` of the row of paired documents."""
        return self._locate(self._ends_pairable, offset)

    def position_at(self, offset: float) -> CorpusPosition:
        """Return the place at `position` of the row of all documents."""
        return self._locate(self._ends_all, offset)

    def sample_other_document(self, origin: CorpusPosition, random_value: float) -> CorpusPosition:
        """Return a place in another document than `place`'s, uniformly by pieces; `draw` lies in 0..1."""
        first, last = origin.shard.document_span(origin.sentence)
        shard = self.shards[origin.shard_index]
        before = float(self._ends_all[origin.shard_index - 1]) if origin.shard_index else 0.0
        own_start = before + (origin.shard.first_token(first) - shard.first_token) * shard.weight
        own_length = (origin.shard.first_token(last) - origin.shard.first_token(first)) * shard.weight
        position = random_value * (self.length - own_length)
        found = self.position_at(position + own_length if position >= own_start else position)
        if (
            found.shard_index == origin.shard_index and first <= found.sentence < last
        ):  # rounding at an edge of the document
            return self.position_at(0.0 if own_start > 0 else self.length)
        return found

    def region_end(self, position: CorpusPosition) -> int:
        """Return the last sentence + 1 of this split in the shard of `place`."""
        shard = self.shards[position.shard_index]
        return position.shard.sentence_at(shard.first_token + shard.num_tokens - 1) + 1

    def _locate(self, ends: npt.NDArray[np.float64], offset: float) -> CorpusPosition:
        number = min(int(ends.searchsorted(offset, side="right")), len(ends) - 1)
        while number and ends[number] == ends[number - 1]:  # the row ends with shards that have nothing in it
            number -= 1
        shard = self.shards[number]
        before = float(ends[number - 1]) if number else 0.0
        last = round((float(ends[number]) - before) / shard.weight) - 1
        piece = shard.first_token + min(max(int((offset - before) / shard.weight), 0), last)
        mapped = self.shard_arrays(number)
        return CorpusPosition(number, mapped, mapped.sentence_at(piece), piece)

    def shard_arrays(self, shard_index: int) -> ShardArrays:
        """Return the arrays of one of the shards."""
        mapped = self._shard_cache.pop(shard_index, None) or map_shard(self.shards[shard_index].path)
        self._shard_cache[shard_index] = mapped  # now the youngest
        if len(self._shard_cache) > _MAX_OPEN_SHARDS:
            del self._shard_cache[next(iter(self._shard_cache))]
        return mapped


def _weighted_ends(lengths: list[int], weights: list[float]) -> npt.NDArray[np.float64]:
    return np.cumsum(np.array(lengths, dtype=np.float64) * np.array(weights, dtype=np.float64))
