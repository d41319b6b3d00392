"""Words next to a text by a bidirectional language model (ELMo): a text in, the most probable neighbors out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bertworks.encoders.encoder import Encoder
from bertworks.errors import InputError
from bertworks.inference.generation_config import NextWord
from bertworks.objectives.bilm import neighbor_log_probs
from bertworks.objectives.large_softmax import Softmax
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class BilmWordPredictor:
    """Predicts the next or previous word with the two directions of an encoder and the softmax that they share."""

    encoder: Encoder
    head: Softmax
    tokenizer: Tokenizer

    @torch.inference_mode()
    def next_words(self, text: str, top_k: int = 5, backward: bool = False) -> tuple[NextWord, ...]:
        """Return the most probable words after a text, or before it if `backward`; special tokens are excluded."""
        if top_k < 1:
            raise InputError(f"top_k is {top_k}; it must be at least 1")
        batch = self._encode(text, backward)
        position = 0 if backward else batch.input_ids.shape[1] - 1
        positions = batch.input_ids.new_tensor([position])
        scores = neighbor_log_probs(self.encoder, self.head, batch, positions, backward)[0]
        scores = scores[: self.tokenizer.vocab_size].float().cpu()  # (V,)
        scores[list(self.tokenizer.specials.ids)] = float("-inf")
        best = torch.softmax(scores, 0).topk(min(top_k, len(scores) - len(self.tokenizer.specials.ids)))
        words = (self.tokenizer.tokens[token_id] for token_id in best.indices.tolist())
        return tuple(
            NextWord(word, (word,), probability) for word, probability in zip(words, best.values.tolist(), strict=True)
        )

    def _encode(self, text: str, backward: bool) -> Batch:
        """Return a batch of the text after the start token, or before the end token if `backward`."""
        tokens, specials = self.tokenizer.tokenize(text), self.tokenizer.specials
        max_length = self.encoder.config.max_length - 1  # one position is the special token's
        if len(tokens) > max_length:
            raise InputError(f"the text has {len(tokens)} words, but the model reads at most {max_length}; shorten it")
        token_ids = tokens.input_ids.tolist()
        input_ids = torch.tensor([[*token_ids, specials.sep] if backward else [specials.cls, *token_ids]])
        unknown = {index + (not backward): word for index, word in tokens.unknown.items()}
        lengths = torch.tensor([input_ids.shape[1]])
        return Batch(
            input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=lengths, unknown=unknown
        ).to(self.encoder.device)
