"""Beam search: source rows in, for each the likeliest text that a decoder writes out; all rows together.

What was read is carried along, so that a step costs one piece of each beam, and a source is read once for all of its
beams. C sources that are still searched, K beams of each, V pieces of the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from bertworks.encoders.encoded import EncoderState
from bertworks.encoders.stack import Encoder
from bertworks.encoders.transformer import DecoderState
from bertworks.errors import SettingsError
from bertworks.sampling.batch import Batch

_NEG_INF = float("-inf")


@dataclass(frozen=True, slots=True)
class BeamSearchSettings:
    """How the best text is looked for. The defaults are the paper's.

    beams            how many beginnings are followed; 1: always the likeliest piece (greedy)
    length_penalty   a text of n pieces, its end among them, is judged by its log probability over ((5 + n) / 6) to this
                     power: 0 favours short texts, above 0 less so
    max_more         a text has at most so many pieces more than its source
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    max_extra_tokens: int = 50

    def __post_init__(self) -> None:
        if self.num_beams < 1 or self.max_extra_tokens < 0 or not math.isfinite(self.length_penalty):
            raise SettingsError(
                f"{self.num_beams} beams, a length penalty of {self.length_penalty} and {self.max_extra_tokens} pieces more than "
                f"the source: give at least 1 beam, a number, and 0 pieces or more"
            )

    def penalty(self, length: int) -> float:
        """Return what the log probability of so many pieces is divided by."""
        return ((5 + length) / 6) ** self.length_penalty


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The pieces of a text without its end, their log probability with it, and whether it came to an end."""

    token_ids: tuple[int, ...]
    log_probability: float
    is_finished: bool


@dataclass(frozen=True, slots=True)
class BeamSearchDecoder:
    """What writes: a model with a decoder, the bias of its scores (V,), the pieces that begin and end a text, and those
    that never stand in one."""

    encoder: Encoder
    bias: torch.Tensor
    start: int
    end: int
    suppress_tokens: tuple[int, ...] = ()

    @torch.inference_mode()
    def generate(self, sources: Batch, settings: BeamSearchSettings = BeamSearchSettings()) -> list[Hypothesis]:
        """Return the best text of each source row."""
        positions = self.encoder.config.max_position_embeddings
        limits = [min(positions, length + settings.max_extra_tokens) for length in sources.lengths.tolist()]
        search = _Search(settings, limits, self.start, sources.input_ids.device)
        state: DecoderState = DecoderState()
        while search.source_indices:
            rows = search.last_token_ids.reshape(-1, 1)  # (C * K, 1)
            source = None if state.source_cache is not None else sources
            batch = Batch(rows, torch.zeros_like(rows), torch.ones_like(rows[:, 0]), source=source)
            encoded = self.encoder(batch, state)
            assert isinstance(encoded.state, DecoderState)
            carried, read = encoded.state.cache, encoded.state.source_cache
            assert read is not None
            num_sources = len(search.source_indices)
            chosen, left = search.step(self._log_probabilities(encoded.last_hidden_state), self.end)
            layers = tuple((keys[chosen], values[chosen]) for keys, values in carried.layers)
            kept = read if len(left) == num_sources else read.select_sequences(left)
            state = DecoderState(EncoderState(carried.length, layers), kept)
        return search.hypotheses()

    def _log_probabilities(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (C * K, V): of every piece that may follow."""
        scores = (vectors @ self.encoder.token_embeddings.weight.t()).float() + self.bias
        scores[:, list(self.suppress_tokens)] = _NEG_INF
        return torch.log_softmax(scores, -1)


@dataclass(slots=True)
class _Search:
    """The beams of all sources, and the best text of each that has come to its end."""

    settings: BeamSearchSettings
    max_lengths: list[int]
    start: int
    device: torch.device
    source_indices: list[int] = field(init=False)  # which source each of the C is
    scores: torch.Tensor = field(init=False)  # (C, K) log probabilities
    token_ids: torch.Tensor = field(init=False)  # (C, K, n) what was written so far, behind the piece that begins
    best_hypotheses: list[tuple[float, Hypothesis] | None] = field(init=False)

    def __post_init__(self) -> None:
        count, beams = len(self.max_lengths), self.settings.num_beams
        self.source_indices = list(range(count))
        self.scores = torch.full((count, beams), _NEG_INF, device=self.device)
        self.scores[:, 0] = 0.0  # all begin alike, so one of them is enough
        self.token_ids = torch.full((count, beams, 1), self.start, device=self.device)
        self.best_hypotheses = [None] * count

    @property
    def last_token_ids(self) -> torch.Tensor:
        """The last piece of each beam (C, K)."""
        return self.token_ids[:, :, -1]

    def step(self, log_probabilities: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one piece more. Return which rows (C * K) go on as the new ones, and which sources are still searched.

        Twice as many beginnings as beams are looked at: of each beam one at most has come to its end.
        """
        beams, size = self.settings.num_beams, log_probabilities.shape[1]
        totals = self.scores[:, :, None] + log_probabilities.view(-1, beams, size)
        top = totals.flatten(1).topk(min(2 * beams, beams * size))  # each (C, 2K), the best first
        origins, pieces = top.indices // size, top.indices % size
        ends = pieces == end
        self._finish(top.values.masked_fill(~ends, _NEG_INF)[:, :beams], origins)
        alive = top.values.masked_fill(ends, _NEG_INF).topk(beams)
        origins, pieces = origins.gather(1, alive.indices), pieces.gather(1, alive.indices)
        before = self.token_ids.gather(1, origins[:, :, None].expand(-1, -1, self.token_ids.shape[2]))
        self.scores, self.token_ids = alive.values, torch.cat([before, pieces[:, :, None]], 2)
        left = [number for number in range(len(self.source_indices)) if not self._is_done(number)]
        kept = torch.tensor(left, dtype=torch.int64, device=self.device)
        rows = (torch.arange(len(self.source_indices), device=self.device)[:, None] * beams + origins)[kept]
        self.source_indices = [self.source_indices[number] for number in left]
        self.scores, self.token_ids = self.scores[kept], self.token_ids[kept]
        return rows.flatten(), kept

    def _finish(self, end_scores: torch.Tensor, origins: torch.Tensor) -> None:
        """Keep the best text of each source that has come to its end: those among the best K alone (C, K)."""
        values, places = end_scores.max(1)
        length = self.token_ids.shape[2]  # of pieces with the end, since the first of them only begins
        for number, (value, place) in enumerate(zip(values.tolist(), places.tolist(), strict=True)):
            score, owner = value / self.settings.penalty(length), self.source_indices[number]
            kept = self.best_hypotheses[owner]
            if value > _NEG_INF and (kept is None or score > kept[0]):
                text = tuple(self.token_ids[number, int(origins[number, place]), 1:].tolist())
                self.best_hypotheses[owner] = (score, Hypothesis(text, value, True))

    def _is_done(self, index: int) -> bool:
        """Whether nothing better can come of a source: not even if all further pieces were certain."""
        length, limit = self.token_ids.shape[2] - 1, self.max_lengths[self.source_indices[index]]
        kept, score = self.best_hypotheses[self.source_indices[index]], float(self.scores[index, 0])
        if length >= limit or score == _NEG_INF:
            if kept is None:
                text = tuple(self.token_ids[index, 0, 1:].tolist())
                self.best_hypotheses[self.source_indices[index]] = (score, Hypothesis(text, score, False))
            return True
        if kept is None:
            return False
        hope = score / max(self.settings.penalty(length + 1), self.settings.penalty(limit))
        return self.settings.num_beams == 1 or kept[0] >= hope

    def hypotheses(self) -> list[Hypothesis]:
        return [one[1] for one in self.best_hypotheses if one is not None]
