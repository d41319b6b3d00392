"""The words beside a text, by a model that reads both ways: a text in, the likeliest behind or before it out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bertworks.encoders.stack import Encoder
from bertworks.errors import InputError
from bertworks.inference.generate import NextWord
from bertworks.objectives.bilm import neighbor_log_probs
from bertworks.objectives.large_softmax import Softmax
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class BilmWordPredictor:
    """What tells the words beside a text: an encoder of two halves, the head that both share, and their vocabulary."""

    encoder: Encoder
    head: Softmax
    tokenizer: Tokenizer

    @torch.inference_mode()
    def next_words(self, text: str, top_k: int = 5, backward: bool = False) -> tuple[NextWord, ...]:
        """Return the likeliest words behind a text, or before it; special pieces are none."""
        if top_k < 1:
            raise InputError(f"top is {top_k}; ask for at least one word")
        batch = self._encode(text, backward)
        place = 0 if backward else batch.input_ids.shape[1] - 1
        scores = neighbor_log_probs(self.encoder, self.head, batch, batch.input_ids.new_tensor([place]), backward)[0]
        scores = scores[: self.tokenizer.vocab_size].float().cpu()  # (V,)
        scores[list(self.tokenizer.specials.ids)] = float("-inf")
        best = torch.softmax(scores, 0).topk(min(top_k, len(scores) - len(self.tokenizer.specials.ids)))
        pieces = (self.tokenizer.tokens[number] for number in best.indices.tolist())
        return tuple(
            NextWord(piece, (piece,), chance) for piece, chance in zip(pieces, best.values.tolist(), strict=True)
        )

    def _encode(self, text: str, backward: bool) -> Batch:
        """Return the text behind the first special piece, as rows begin, or before the last one, as they end."""
        cut, specials = self.tokenizer.tokenize(text), self.tokenizer.specials
        if len(cut) >= self.encoder.config.max_position_embeddings:
            raise InputError(
                f"the text has {len(cut)} words and the model reads {self.encoder.config.max_position_embeddings - 1}; shorten it"
            )
        own = [*cut.input_ids.tolist(), specials.sep] if backward else [specials.cls, *cut.input_ids.tolist()]
        ids = torch.tensor([own])
        unknown = {number + (not backward): word for number, word in cut.unknown.items()}
        return Batch(ids, torch.zeros_like(ids), torch.tensor([ids.shape[1]]), unknown=unknown).to(self.encoder.device)
