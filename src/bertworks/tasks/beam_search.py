"""Beam search: source rows in, for each the likeliest text that a decoder writes out; all rows together.

What was read is carried along, so that a step costs one piece of each beam, and a source is read once for all of its
beams. C sources that are still searched, K beams of each, V pieces of the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from bertworks.encoders.encoded import Carried
from bertworks.encoders.stack import Stack
from bertworks.encoders.transformer import Going
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Searching:
    """How the best text is looked for. The defaults are the paper's.

    beams            how many beginnings are followed; 1: always the likeliest piece (greedy)
    length_penalty   a text of n pieces, its end among them, is judged by its log probability over ((5 + n) / 6) to this
                     power: 0 favours short texts, above 0 less so
    max_more         a text has at most so many pieces more than its source
    """

    beams: int = 4
    length_penalty: float = 0.6
    max_more: int = 50

    def __post_init__(self) -> None:
        if self.beams < 1 or self.max_more < 0 or not math.isfinite(self.length_penalty):
            raise SettingsError(
                f"{self.beams} beams, a length penalty of {self.length_penalty} and {self.max_more} pieces more than "
                f"the source: give at least 1 beam, a number, and 0 pieces or more"
            )

    def penalty(self, length: int) -> float:
        """Return what the log probability of so many pieces is divided by."""
        return ((5 + length) / 6) ** self.length_penalty


@dataclass(frozen=True, slots=True)
class Found:
    """The pieces of a text without its end, their log probability with it, and whether it came to an end."""

    pieces: tuple[int, ...]
    log_probability: float
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Writer:
    """What writes: a model with a decoder, the bias of its scores (V,), the pieces that begin and end a text, and those
    that never stand in one."""

    encoder: Stack
    bias: torch.Tensor
    start: int
    end: int
    never: tuple[int, ...] = ()

    @torch.inference_mode()
    def write(self, sources: Batch, searching: Searching = Searching()) -> list[Found]:
        """Return the best text of each source row."""
        positions = self.encoder.sizes.positions
        limits = [min(positions, length + searching.max_more) for length in sources.lengths.tolist()]
        search = _Search(searching, limits, self.start, sources.ids.device)
        state: Going = Going()
        while search.owners:
            rows = search.last.reshape(-1, 1)  # (C * K, 1)
            source = None if state.source is not None else sources
            batch = Batch(rows, torch.zeros_like(rows), torch.ones_like(rows[:, 0]), source=source)
            encoded = self.encoder(batch, state)
            assert isinstance(encoded.state, Going)
            carried, read = encoded.state.carried, encoded.state.source
            assert read is not None
            num_sources = len(search.owners)
            chosen, left = search.step(self._log_probabilities(encoded.last), self.end)
            layers = tuple((keys[chosen], values[chosen]) for keys, values in carried.layers)
            kept = read if len(left) == num_sources else read.of_rows(left)
            state = Going(Carried(carried.length, layers), kept)
        return search.found()

    def _log_probabilities(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (C * K, V): of every piece that may follow."""
        scores = (vectors @ self.encoder.pieces.weight.t()).float() + self.bias
        scores[:, list(self.never)] = _NEVER
        return torch.log_softmax(scores, -1)


@dataclass(slots=True)
class _Search:
    """The beams of all sources, and the best text of each that has come to its end."""

    searching: Searching
    limits: list[int]
    start: int
    device: torch.device
    owners: list[int] = field(init=False)  # which source each of the C is
    scores: torch.Tensor = field(init=False)  # (C, K) log probabilities
    pieces: torch.Tensor = field(init=False)  # (C, K, n) what was written so far, behind the piece that begins
    best: list[tuple[float, Found] | None] = field(init=False)

    def __post_init__(self) -> None:
        count, beams = len(self.limits), self.searching.beams
        self.owners = list(range(count))
        self.scores = torch.full((count, beams), _NEVER, device=self.device)
        self.scores[:, 0] = 0.0  # all begin alike, so one of them is enough
        self.pieces = torch.full((count, beams, 1), self.start, device=self.device)
        self.best = [None] * count

    @property
    def last(self) -> torch.Tensor:
        """The last piece of each beam (C, K)."""
        return self.pieces[:, :, -1]

    def step(self, log_probabilities: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one piece more. Return which rows (C * K) go on as the new ones, and which sources are still searched.

        Twice as many beginnings as beams are looked at: of each beam one at most has come to its end.
        """
        beams, size = self.searching.beams, log_probabilities.shape[1]
        totals = self.scores[:, :, None] + log_probabilities.view(-1, beams, size)
        top = totals.flatten(1).topk(min(2 * beams, beams * size))  # each (C, 2K), the best first
        origins, pieces = top.indices // size, top.indices % size
        ends = pieces == end
        self._finish(top.values.masked_fill(~ends, _NEVER)[:, :beams], origins)
        alive = top.values.masked_fill(ends, _NEVER).topk(beams)
        origins, pieces = origins.gather(1, alive.indices), pieces.gather(1, alive.indices)
        before = self.pieces.gather(1, origins[:, :, None].expand(-1, -1, self.pieces.shape[2]))
        self.scores, self.pieces = alive.values, torch.cat([before, pieces[:, :, None]], 2)
        left = [number for number in range(len(self.owners)) if not self._is_done(number)]
        kept = torch.tensor(left, dtype=torch.int64, device=self.device)
        rows = (torch.arange(len(self.owners), device=self.device)[:, None] * beams + origins)[kept]
        self.owners = [self.owners[number] for number in left]
        self.scores, self.pieces = self.scores[kept], self.pieces[kept]
        return rows.flatten(), kept

    def _finish(self, ended: torch.Tensor, origins: torch.Tensor) -> None:
        """Keep the best text of each source that has come to its end: those among the best K alone (C, K)."""
        values, places = ended.max(1)
        length = self.pieces.shape[2]  # of pieces with the end, since the first of them only begins
        for number, (value, place) in enumerate(zip(values.tolist(), places.tolist(), strict=True)):
            score, owner = value / self.searching.penalty(length), self.owners[number]
            kept = self.best[owner]
            if value > _NEVER and (kept is None or score > kept[0]):
                text = tuple(self.pieces[number, int(origins[number, place]), 1:].tolist())
                self.best[owner] = (score, Found(text, value, True))

    def _is_done(self, number: int) -> bool:
        """Whether nothing better can come of a source: not even if all further pieces were certain."""
        length, limit = self.pieces.shape[2] - 1, self.limits[self.owners[number]]
        kept, score = self.best[self.owners[number]], float(self.scores[number, 0])
        if length >= limit or score == _NEVER:
            if kept is None:
                text = tuple(self.pieces[number, 0, 1:].tolist())
                self.best[self.owners[number]] = (score, Found(text, score, False))
            return True
        if kept is None:
            return False
        hope = score / max(self.searching.penalty(length + 1), self.searching.penalty(limit))
        return self.searching.beams == 1 or kept[0] >= hope

    def found(self) -> list[Found]:
        return [one[1] for one in self.best if one is not None]
