"""Beam search: source sequences in, the most probable target of each out; all sources in one batch.

Keys and values are cached: a step computes one token of each beam, and a source is encoded once for all of its beams.
C sources still searched, K beams of each, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from bertworks.encoders.encoded import EncoderState
from bertworks.encoders.encoder import Encoder
from bertworks.encoders.transformer import DecoderState
from bertworks.sampling.batch import Batch
from bertworks.tasks.beam_search_settings import BeamSearchSettings

_NEG_INF = float("-inf")


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The tokens of a target without its end token, their log probability with it, and whether it has ended."""

    token_ids: tuple[int, ...]
    log_probability: float
    is_finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchDecoder:
    """A model with a decoder, the bias of its logits (V,), the start and end tokens, and tokens never generated."""

    encoder: Encoder
    bias: torch.Tensor
    start: int
    end: int
    suppress_tokens: tuple[int, ...] = ()

    @torch.inference_mode()
    def generate(self, sources: Batch, settings: BeamSearchSettings = BeamSearchSettings()) -> list[Hypothesis]:
        """Return the best hypothesis of each source."""
        max_positions = self.encoder.config.max_length
        max_lengths = [min(max_positions, length + settings.max_extra_tokens) for length in sources.lengths.tolist()]
        search = _Search(settings=settings, max_lengths=max_lengths, start=self.start, device=sources.input_ids.device)
        state: DecoderState = DecoderState()
        while search.source_indices:
            input_ids = search.last_token_ids.reshape(-1, 1)  # (C * K, 1)
            source = None if state.source_cache is not None else sources
            batch = Batch(
                input_ids=input_ids,
                token_type_ids=torch.zeros_like(input_ids),
                lengths=torch.ones_like(input_ids[:, 0]),
                source=source,
            )
            encoded = self.encoder(batch, state)
            assert isinstance(encoded.state, DecoderState)
            cache, source_cache = encoded.state.cache, encoded.state.source_cache
            assert source_cache is not None
            num_sources = len(search.source_indices)
            beam_indices, remaining = search.step(self._log_probabilities(encoded.last_hidden_state), self.end)
            layers = tuple((keys[beam_indices], values[beam_indices]) for keys, values in cache.layers)
            if len(remaining) != num_sources:
                source_cache = source_cache.select_sequences(remaining)
            state = DecoderState(EncoderState(cache.length, layers), source_cache)
        return search.hypotheses()

    def _log_probabilities(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return (C * K, V): the log probability of each next token."""
        logits = (vectors @ self.encoder.token_embeddings.weight.t()).float() + self.bias
        logits[:, list(self.suppress_tokens)] = _NEG_INF
        return torch.log_softmax(logits, -1)


@dataclass(slots=True, kw_only=True)
class _Search:
    """The beams of all sources, and the best finished hypothesis of each."""

    settings: BeamSearchSettings
    max_lengths: list[int]
    start: int
    device: torch.device
    source_indices: list[int] = field(init=False)  # (C,)
    scores: torch.Tensor = field(init=False)  # (C, K) log probabilities
    token_ids: torch.Tensor = field(init=False)  # (C, K, n) the start token and what was generated
    best_hypotheses: list[tuple[float, Hypothesis] | None] = field(init=False)

    def __post_init__(self) -> None:
        num_sources, num_beams = len(self.max_lengths), self.settings.num_beams
        self.source_indices = list(range(num_sources))
        self.scores = torch.full((num_sources, num_beams), _NEG_INF, device=self.device)
        self.scores[:, 0] = 0.0  # all beams start alike, so only one of them counts
        self.token_ids = torch.full((num_sources, num_beams, 1), self.start, device=self.device)
        self.best_hypotheses = [None] * num_sources

    @property
    def last_token_ids(self) -> torch.Tensor:
        """The last token of each beam (C, K)."""
        return self.token_ids[:, :, -1]

    def step(self, log_probabilities: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Append one token. Return which of the C * K beams the new ones continue, and which sources remain.

        2K candidates are enough: at most one per beam ends.
        """
        num_beams, vocab_size = self.settings.num_beams, log_probabilities.shape[1]
        totals = self.scores[:, :, None] + log_probabilities.view(-1, num_beams, vocab_size)
        top = totals.flatten(1).topk(min(2 * num_beams, num_beams * vocab_size))  # each (C, 2K), best first
        beams, tokens = top.indices // vocab_size, top.indices % vocab_size
        is_end = tokens == end
        self._finish(top.values.masked_fill(~is_end, _NEG_INF)[:, :num_beams], beams)
        alive = top.values.masked_fill(is_end, _NEG_INF).topk(num_beams)
        beams, tokens = beams.gather(1, alive.indices), tokens.gather(1, alive.indices)
        prefixes = self.token_ids.gather(1, beams[:, :, None].expand(-1, -1, self.token_ids.shape[2]))
        self.scores, self.token_ids = alive.values, torch.cat([prefixes, tokens[:, :, None]], 2)
        unfinished = [index for index in range(len(self.source_indices)) if not self._is_done(index)]
        remaining = torch.tensor(unfinished, dtype=torch.int64, device=self.device)
        first_beams = torch.arange(len(self.source_indices), device=self.device)[:, None] * num_beams
        beam_indices = (first_beams + beams)[remaining]
        self.source_indices = [self.source_indices[index] for index in unfinished]
        self.scores, self.token_ids = self.scores[remaining], self.token_ids[remaining]
        return beam_indices.flatten(), remaining

    def _finish(self, end_scores: torch.Tensor, beams: torch.Tensor) -> None:
        """Update the best finished hypothesis of each source from the candidates (C, K) that end."""
        values, columns = end_scores.max(1)
        length = self.token_ids.shape[2]  # generated tokens with the end: the start token is not counted
        for index, (value, column) in enumerate(zip(values.tolist(), columns.tolist(), strict=True)):
            score, source_index = value / self.settings.penalty(length), self.source_indices[index]
            best = self.best_hypotheses[source_index]
            if value > _NEG_INF and (best is None or score > best[0]):
                token_ids = tuple(self.token_ids[index, int(beams[index, column]), 1:].tolist())
                self.best_hypotheses[source_index] = (score, Hypothesis(token_ids, value, True))

    def _is_done(self, index: int) -> bool:
        """Whether no beam of a source can become better than its best hypothesis, even if all further tokens were
        certain."""
        source_index, score = self.source_indices[index], float(self.scores[index, 0])
        length, max_length = self.token_ids.shape[2] - 1, self.max_lengths[source_index]
        best = self.best_hypotheses[source_index]
        if length >= max_length or score == _NEG_INF:
            if best is None:
                token_ids = tuple(self.token_ids[index, 0, 1:].tolist())
                self.best_hypotheses[source_index] = (score, Hypothesis(token_ids, score, False))
            return True
        if best is None:
            return False
        bound = score / max(self.settings.penalty(length + 1), self.settings.penalty(max_length))
        return self.settings.num_beams == 1 or best[0] >= bound

    def hypotheses(self) -> list[Hypothesis]:
        return [scored[1] for scored in self.best_hypotheses if scored is not None]
