"""Generate text: a prompt and a GenerationConfig in, the continuation out; also the most probable next words.

The key/value cache makes a step cost one token. V is the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bertworks.encoders.encoded import EncoderState
from bertworks.encoders.encoder import Encoder
from bertworks.errors import InputError
from bertworks.inference.generation_config import GenerationConfig, GenerationResult, NextWord
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.surface_forms import decode_tokens, surface_form
from bertworks.vocabulary.tokenizer import Tokenizer

# next_words completes a word up to this many tokens.
_MAX_WORD_TOKENS = 8


@dataclass(frozen=True, slots=True)
class TextGenerator:
    """Generates text with a causal encoder and its tokenizer."""

    encoder: Encoder
    tokenizer: Tokenizer

    @torch.inference_mode()
    def generate(self, text: str, generation_config: GenerationConfig = GenerationConfig()) -> GenerationResult:
        """Continue a text."""
        prompt_ids, eos_id = self._encode(text), self.tokenizer.specials.sep
        generator = torch.Generator().manual_seed(generation_config.seed)
        new_ids: list[int] = []
        probabilities: list[float] = []
        finish_reason = "max_new_tokens"
        for log_probs in self._log_probs(prompt_ids, new_ids):
            token_id = int(torch.multinomial(generation_config.probabilities(log_probs), 1, generator=generator))
            if token_id == eos_id:
                finish_reason = "eos"
                break
            new_ids.append(token_id)
            probabilities.append(float(log_probs[token_id].exp()))
            if len(new_ids) == generation_config.max_new_tokens:
                break
        else:
            finish_reason = "max_length"
        continuation = self._decode(prompt_ids[1:], new_ids)
        return GenerationResult(
            text=text + continuation,
            continuation=continuation,
            tokens=tuple(self.tokenizer.tokens[token_id] for token_id in new_ids),
            probabilities=tuple(probabilities),
            finish_reason=finish_reason,
        )

    @torch.inference_mode()
    def next_words(self, text: str, top_k: int = 5) -> tuple[NextWord, ...]:
        """Return the most probable next words: each of the `top_k` first tokens, completed greedily to a word."""
        if top_k < 1:
            raise InputError(f"top_k is {top_k}; it must be at least 1")
        log_probs, state = self._step(self._encode(text), EncoderState())
        log_probs[self.tokenizer.specials.sep] = float("-inf")
        continuations = [n for n in range(self.tokenizer.vocab_size) if surface_form(self.tokenizer, n).is_continuation]
        log_probs[continuations] = float("-inf")
        best = log_probs.topk(min(top_k, int(torch.isfinite(log_probs).sum())))
        words = []
        for token_id, log_prob in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            token_ids, total = self._complete_word([token_id], log_prob, state)
            tokens = tuple(self.tokenizer.tokens[word_token_id] for word_token_id in token_ids)
            word = "".join(surface_form(self.tokenizer, word_token_id).text for word_token_id in token_ids)
            words.append(NextWord(word, tokens, float(torch.tensor(total).exp())))
        return tuple(sorted(words, key=lambda word: -word.probability))

    def _complete_word(self, token_ids: list[int], log_prob: float, state: EncoderState) -> tuple[list[int], float]:
        """Append the most probable tokens up to the end of the word; return its tokens and their log probability."""
        while len(token_ids) < _MAX_WORD_TOKENS and state.length < self.encoder.max_cached_length:
            last = surface_form(self.tokenizer, token_ids[-1])
            if last.is_word_end:
                break
            log_probs, state = self._step(token_ids[-1:], state)
            best = int(log_probs.argmax())
            if last.is_word_end is None and not surface_form(self.tokenizer, best).is_continuation:
                break
            token_ids, log_prob = [*token_ids, best], log_prob + float(log_probs[best])
        return token_ids, log_prob

    def _encode(self, text: str) -> list[int]:
        """Return the token ids of a text after the start token, as blocks of a corpus begin."""
        input_ids = [self.tokenizer.specials.cls, *self.tokenizer.tokenize(text).input_ids.tolist()]
        max_length = self.encoder.config.max_length
        if len(input_ids) > max_length:
            raise InputError(
                f"the text has {len(input_ids)} tokens, but the model reads at most {max_length}; shorten it"
            )
        return input_ids

    def _log_probs(self, prompt_ids: list[int], new_ids: list[int]) -> Iterator[torch.Tensor]:
        """Yield log probabilities (V,) of the token after the prompt and `new_ids`, which the caller appends to."""
        log_probs, state = self._step(prompt_ids, EncoderState())
        yield log_probs
        while state.length < self.encoder.max_cached_length:
            log_probs, state = self._step(new_ids[-1:], state)
            yield log_probs

    def _step(self, input_ids: list[int], state: EncoderState) -> tuple[torch.Tensor, EncoderState]:
        """Run the encoder on some tokens; return log probabilities (V,) of the next token, and the new state."""
        self.encoder.eval()
        batch_ids = torch.tensor([input_ids], device=self.encoder.device)
        encoded = self.encoder(
            Batch(
                input_ids=batch_ids, token_type_ids=torch.zeros_like(batch_ids), lengths=torch.tensor([len(input_ids)])
            ),
            state,
        )
        logits = self.encoder.token_embeddings.weight @ encoded.last_hidden_state[-1]
        logits = logits.float().cpu()[: self.tokenizer.vocab_size]
        specials = self.tokenizer.specials
        logits[[token_id for token_id in specials.ids if token_id != specials.sep]] = float("-inf")
        assert isinstance(encoded.state, EncoderState)
        return torch.log_softmax(logits, -1), encoded.state

    def _decode(self, prompt_ids: list[int], new_ids: list[int]) -> str:
        """Return the new tokens as text, with a leading space where one belongs."""
        prompt = decode_tokens(self.tokenizer, prompt_ids)
        full_text = decode_tokens(self.tokenizer, [*prompt_ids, *new_ids])
        if full_text.startswith(prompt):
            return full_text[len(prompt) :]
        return " " + decode_tokens(self.tokenizer, new_ids)
