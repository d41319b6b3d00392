"""Go on with a text: a text and how to draw in, the pieces that follow out; and the words that are likely to be next.

What has been read is carried along, so that a step costs one piece. T pieces of the text, V of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bertworks.encoders.encoded import EncoderState
from bertworks.encoders.stack import Encoder
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.surface_forms import decode_tokens, surface_form
from bertworks.vocabulary.tokenizer import Tokenizer

# A word of more pieces is shown as far as that.
_MAX_WORD_TOKENS = 8


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How the next piece is drawn, again and again.

    max_pieces    end after so many pieces, if nothing ended the text before
    top_k         draw among so many likeliest pieces; 1: always the likeliest (greedy); 0: among all
    nucleus       draw among the fewest pieces that have this probability together; 1: among all
    temperature   below 1 the likely gets likelier, above 1 less so
    seed          another seed, another text
    """

    max_new_tokens: int = 40
    top_k: int = 1
    top_p: float = 1.0
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.top_k < 0:
            raise SettingsError(
                f"{self.max_new_tokens} pieces among the top {self.top_k}: give at least 1, and 0 or more"
            )
        if not 0 < self.top_p <= 1 or self.temperature <= 0:
            raise SettingsError(
                f"a nucleus of {self.top_p} at temperature {self.temperature}: the first lies above 0 and up to 1, "
                f"the second above 0; for the likeliest piece always, say top_k = 1"
            )

    def probabilities(self, scores: torch.Tensor) -> torch.Tensor:
        """Return (V,): the probabilities of what may be drawn, given log probabilities (V,)."""
        scores = scores / self.temperature
        if self.top_k:
            scores = scores.masked_fill(scores < scores.topk(min(self.top_k, len(scores))).values[-1], float("-inf"))
        chances, order = torch.softmax(scores, -1).sort(descending=True, stable=True)
        if self.top_p < 1:
            before = chances.cumsum(0) - chances  # a piece stays while those before it are not enough
            chances = chances.masked_fill(before >= self.top_p, 0.0)
        return torch.zeros_like(chances).scatter(0, order, chances / chances.sum())


def make_generation_config(
    max_new_tokens: int, top_k: int | None, top_p: float | None, temperature: float | None, seed: int
) -> GenerationConfig:
    """Return how to draw, given what a person asks: the likeliest piece each time unless there is to be chance."""
    usual = 1 if top_p is None and temperature is None else 0
    return GenerationConfig(
        max_new_tokens,
        usual if top_k is None else top_k,
        1.0 if top_p is None else top_p,
        1.0 if temperature is None else temperature,
        seed,
    )


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The text with what was added, the added pieces, how likely each was, and why it ended: end, pieces or positions.

    Probabilities are the model's own, before anything narrowed the choice.
    """

    text: str
    continuation: str
    tokens: tuple[str, ...]
    probabilities: tuple[float, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class NextWord:
    """A word that may stand next, its pieces, and how likely these are, one after the other."""

    word: str
    tokens: tuple[str, ...]
    probability: float


@dataclass(frozen=True, slots=True)
class TextGenerator:
    """What goes on with a text: an encoder that reads to the left and its vocabulary."""

    encoder: Encoder
    tokenizer: Tokenizer

    @torch.inference_mode()
    def generate(self, text: str, generation_config: GenerationConfig = GenerationConfig()) -> GenerationResult:
        """Go on with a text."""
        ids, end = self._encode(text), self.tokenizer.specials.sep
        generator = torch.Generator().manual_seed(generation_config.seed)
        added: list[int] = []
        chances: list[float] = []
        ended = "pieces"
        for scores in self._scores(ids, added):
            number = int(torch.multinomial(generation_config.probabilities(scores), 1, generator=generator))
            if number == end:
                ended = "end"
                break
            added.append(number)
            chances.append(float(scores[number].exp()))
            if len(added) == generation_config.max_new_tokens:
                break
        else:
            ended = "positions"
        more = self._decode(ids[1:], added)
        return GenerationResult(
            text + more, more, tuple(self.tokenizer.tokens[one] for one in added), tuple(chances), ended
        )

    @torch.inference_mode()
    def next_words(self, text: str, top_k: int = 5) -> tuple[NextWord, ...]:
        """Return the likeliest next words: of each likely first piece the likeliest word that begins with it."""
        if top_k < 1:
            raise InputError(f"top is {top_k}; ask for at least one word")
        ids = self._encode(text)
        scores, state = self._step(ids, EncoderState())
        scores[self.tokenizer.specials.sep] = float("-inf")
        continuing = [n for n in range(self.tokenizer.vocab_size) if surface_form(self.tokenizer, n).is_continuation]
        scores[continuing] = float("-inf")
        best = scores.topk(min(top_k, int(torch.isfinite(scores).sum())))
        found = []
        for number, score in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            pieces, total = self._complete_word([number], score, state)
            own = tuple(self.tokenizer.tokens[one] for one in pieces)
            word = "".join(surface_form(self.tokenizer, one).text for one in pieces)
            found.append(NextWord(word, own, float(torch.tensor(total).exp())))
        return tuple(sorted(found, key=lambda one: -one.probability))

    def _complete_word(self, token_ids: list[int], score: float, state: EncoderState) -> tuple[list[int], float]:
        """Return a word to its likely end, and the log probability of its pieces."""
        while len(token_ids) < _MAX_WORD_TOKENS and state.length < self.encoder.max_cached_length:
            last = surface_form(self.tokenizer, token_ids[-1])
            if last.is_word_end:
                break
            scores, state = self._step(token_ids[-1:], state)
            best = int(scores.argmax())
            if last.is_word_end is None and not surface_form(self.tokenizer, best).is_continuation:
                break
            token_ids, score = [*token_ids, best], score + float(scores[best])
        return token_ids, score

    def _encode(self, text: str) -> list[int]:
        """Return the pieces of a text behind the first special one, as a block of a corpus begins."""
        ids = [self.tokenizer.specials.cls, *self.tokenizer.tokenize(text).input_ids.tolist()]
        if len(ids) > self.encoder.config.max_position_embeddings:
            raise InputError(
                f"the text has {len(ids)} pieces and the model reads {self.encoder.config.max_position_embeddings}; shorten it"
            )
        return ids

    def _scores(self, input_ids: list[int], new_ids: list[int]) -> Iterator[torch.Tensor]:
        """Yield (V,) log probabilities of what follows the text and what has been added to it, until it is full."""
        scores, state = self._step(input_ids, EncoderState())
        yield scores
        while state.length < self.encoder.max_cached_length:
            scores, state = self._step(new_ids[-1:], state)
            yield scores

    def _step(self, input_ids: list[int], state: EncoderState) -> tuple[torch.Tensor, EncoderState]:
        """Return (V,) log probabilities of what follows some pieces, and what they carry on."""
        self.encoder.eval()
        rows = torch.tensor([input_ids], device=self.encoder.device)
        encoded = self.encoder(Batch(rows, torch.zeros_like(rows), torch.tensor([len(input_ids)])), state)
        scores = (
            (self.encoder.token_embeddings.weight @ encoded.last_hidden_state[-1])
            .float()
            .cpu()[: self.tokenizer.vocab_size]
        )
        specials = self.tokenizer.specials
        scores[[one for one in specials.ids if one != specials.sep]] = float("-inf")
        assert isinstance(encoded.state, EncoderState)
        return torch.log_softmax(scores, -1), encoded.state

    def _decode(self, prompt_ids: list[int], new_ids: list[int]) -> str:
        """Return what was added as text, with the space before it if there is one."""
        start = decode_tokens(self.tokenizer, prompt_ids)
        whole = decode_tokens(self.tokenizer, [*prompt_ids, *new_ids])
        return whole[len(start) :] if whole.startswith(start) else " " + decode_tokens(self.tokenizer, new_ids)
