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
_MOST_MAPPED = 256


class Place(NamedTuple):
    """A place in a split: the number of the shard, its arrays, and the sentence and piece there."""

    number: int
    shard: ShardArrays
    sentence: int
    piece: int


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a corpus folder; another folder is refused."""
    manifest = read_json(folder / MANIFEST, "a prepared corpus (see `bertworks prepare`)")
    if not isinstance(manifest, dict) or "pieces" not in manifest:
        raise FolderError(f"{folder / MANIFEST} is not the manifest of a prepared corpus")
    return manifest


class Corpus:
    """A prepared corpus folder, seen through one vocabulary."""

    def __init__(self, folder: Path, manifest: dict[str, Any], key: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.pieces_folder = folder / "pieces" / key
        self.pieces_manifest = read_json(self.pieces_folder / MANIFEST, "the pieces of a prepared corpus")

    @classmethod
    def open(cls, folder: str | Path, vocabulary: str | None = None) -> Corpus:
        """Open a corpus folder with the pieces of one vocabulary, named by its path, its hash or the start of that.

        With a single vocabulary there is nothing to name.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        begins = Tokenizer.load(vocabulary).hash if vocabulary and Path(vocabulary).exists() else vocabulary or ""
        keys = [key for key in manifest["pieces"] if key.startswith(begins)]
        if not keys:
            known = ", ".join(manifest["pieces"]) or "none"
            raise FolderError(
                f"{folder} has no pieces of vocabulary {vocabulary}; it has: {known}. "
                f"Run `bertworks prepare` on it again with that vocabulary"
            )
        if len(keys) > 1:
            raise InputError(f"{folder} holds pieces of several vocabularies: {', '.join(keys)}; name one")
        return cls(folder, manifest, keys[0])

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.pieces_folder)

    def split(self, name: str) -> Split:
        """Return one split; an unknown or empty one is refused."""
        if name not in SPLITS:
            raise InputError(f"there is no split '{name}'; choose one of: {', '.join(SPLITS)}")
        shards = [
            ShardOfSplit(
                path=self.pieces_folder / shard["file"],
                weight=shard["weight"],
                paired=Region(**shard["regions"][name]["paired"]),
                lone=Region(**shard["regions"][name]["lone"]),
                first_piece=sum(region["pieces"] for region in _regions_before(shard, name)),
            )
            for shard in self.pieces_manifest["shards"]
        ]
        split = Split(name, [shard for shard in shards if shard.num_pieces])
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
class ShardOfSplit:
    """Where a split's documents lie in one shard: `first_piece`, then the paired ones, then the lone ones."""

    path: Path
    weight: float
    paired: Region
    lone: Region
    first_piece: int

    @property
    def num_pieces(self) -> int:
        return self.paired.pieces + self.lone.pieces


class Split:
    """The documents of one split as two long rows of pieces: of the paired documents, and of all.

    A source's weight stretches its pieces in the row: weight 2 makes it twice as likely to be met in an epoch.
    """

    def __init__(self, name: str, shards: Sequence[ShardOfSplit]) -> None:
        self.name = name
        self.shards = shards
        self.num_documents = sum(shard.paired.documents + shard.lone.documents for shard in shards)
        self.num_lone = sum(shard.lone.documents for shard in shards)
        self.num_pieces = sum(shard.num_pieces for shard in shards)
        self._ends_paired = _stretched_ends([s.paired.pieces for s in shards], [s.weight for s in shards])
        self._ends_all = _stretched_ends([s.num_pieces for s in shards], [s.weight for s in shards])
        self._mapped: dict[int, ShardArrays] = {}

    def __reduce__(self) -> tuple[type[Split], tuple[str, Sequence[ShardOfSplit]]]:
        """Go to another process without what is mapped: it would travel as a copy of whole shards."""
        return Split, (self.name, self.shards)

    @property
    def length_paired(self) -> float:
        return float(self._ends_paired[-1])

    @property
    def length(self) -> float:
        return float(self._ends_all[-1])

    def paired_at(self, position: float) -> Place:
        """Return the place at `position` of the row of paired documents."""
        return self._place(self._ends_paired, position)

    def at(self, position: float) -> Place:
        """Return the place at `position` of the row of all documents."""
        return self._place(self._ends_all, position)

    def elsewhere(self, place: Place, draw: float) -> Place:
        """Return a place in another document than `place`'s, uniformly by pieces; `draw` lies in 0..1."""
        first, last = place.shard.document_of(place.sentence)
        shard = self.shards[place.number]
        before = float(self._ends_all[place.number - 1]) if place.number else 0.0
        own_start = before + (place.shard.start_of(first) - shard.first_piece) * shard.weight
        own_length = (place.shard.start_of(last) - place.shard.start_of(first)) * shard.weight
        position = draw * (self.length - own_length)
        found = self.at(position + own_length if position >= own_start else position)
        if found.number == place.number and first <= found.sentence < last:  # rounding at an edge of the document
            return self.at(0.0 if own_start > 0 else self.length)
        return found

    def region_end(self, place: Place) -> int:
        """Return the last sentence + 1 of this split in the shard of `place`."""
        shard = self.shards[place.number]
        return place.shard.sentence_at(shard.first_piece + shard.num_pieces - 1) + 1

    def _place(self, ends: npt.NDArray[np.float64], position: float) -> Place:
        number = min(int(ends.searchsorted(position, side="right")), len(ends) - 1)
        while number and ends[number] == ends[number - 1]:  # the row ends with shards that have nothing in it
            number -= 1
        shard = self.shards[number]
        before = float(ends[number - 1]) if number else 0.0
        last = round((float(ends[number]) - before) / shard.weight) - 1
        piece = shard.first_piece + min(max(int((position - before) / shard.weight), 0), last)
        mapped = self.mapped(number)
        return Place(number, mapped, mapped.sentence_at(piece), piece)

    def mapped(self, number: int) -> ShardArrays:
        """Return the arrays of one of the shards."""
        mapped = self._mapped.pop(number, None) or map_shard(self.shards[number].path)
        self._mapped[number] = mapped  # now the youngest
        if len(self._mapped) > _MOST_MAPPED:
            del self._mapped[next(iter(self._mapped))]
        return mapped


def _stretched_ends(lengths: list[int], weights: list[float]) -> npt.NDArray[np.float64]:
    return np.cumsum(np.array(lengths, dtype=np.float64) * np.array(weights, dtype=np.float64))
