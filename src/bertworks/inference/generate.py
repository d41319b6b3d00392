"""Go on with a text: a text and how to draw in, the pieces that follow out; and the words that are likely to be next.

What has been read is carried along, so that a step costs one piece. T pieces of the text, V of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bertworks.encoders.encoded import Carried
from bertworks.encoders.stack import Stack
from bertworks.errors import InputError, SettingsError
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.surface_forms import piece_written, text_written
from bertworks.vocabulary.tokenizer import Tokenizer

# A word of more pieces is shown as far as that.
_MOST_PIECES = 8


@dataclass(frozen=True, slots=True)
class Drawing:
    """How the next piece is drawn, again and again.

    max_pieces    end after so many pieces, if nothing ended the text before
    top_k         draw among so many likeliest pieces; 1: always the likeliest (greedy); 0: among all
    nucleus       draw among the fewest pieces that have this probability together; 1: among all
    temperature   below 1 the likely gets likelier, above 1 less so
    seed          another seed, another text
    """

    max_pieces: int = 40
    top_k: int = 1
    nucleus: float = 1.0
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_pieces < 1 or self.top_k < 0:
            raise SettingsError(f"{self.max_pieces} pieces among the top {self.top_k}: give at least 1, and 0 or more")
        if not 0 < self.nucleus <= 1 or self.temperature <= 0:
            raise SettingsError(
                f"a nucleus of {self.nucleus} at temperature {self.temperature}: the first lies above 0 and up to 1, "
                f"the second above 0; for the likeliest piece always, say top_k = 1"
            )

    def chances(self, scores: torch.Tensor) -> torch.Tensor:
        """Return (V,): the probabilities of what may be drawn, given log probabilities (V,)."""
        scores = scores / self.temperature
        if self.top_k:
            scores = scores.masked_fill(scores < scores.topk(min(self.top_k, len(scores))).values[-1], float("-inf"))
        chances, order = torch.softmax(scores, -1).sort(descending=True, stable=True)
        if self.nucleus < 1:
            before = chances.cumsum(0) - chances  # a piece stays while those before it are not enough
            chances = chances.masked_fill(before >= self.nucleus, 0.0)
        return torch.zeros_like(chances).scatter(0, order, chances / chances.sum())


def drawing_of(
    max_pieces: int, top_k: int | None, nucleus: float | None, temperature: float | None, seed: int
) -> Drawing:
    """Return how to draw, given what a person asks: the likeliest piece each time unless there is to be chance."""
    usual = 1 if nucleus is None and temperature is None else 0
    return Drawing(
        max_pieces,
        usual if top_k is None else top_k,
        1.0 if nucleus is None else nucleus,
        1.0 if temperature is None else temperature,
        seed,
    )


@dataclass(frozen=True, slots=True)
class Generated:
    """The text with what was added, the added pieces, how likely each was, and why it ended: end, pieces or positions.

    Probabilities are the model's own, before anything narrowed the choice.
    """

    text: str
    added: str
    pieces: tuple[str, ...]
    probabilities: tuple[float, ...]
    ended: str


@dataclass(frozen=True, slots=True)
class NextWord:
    """A word that may stand next, its pieces, and how likely these are, one after the other."""

    word: str
    pieces: tuple[str, ...]
    probability: float


@dataclass(frozen=True, slots=True)
class Continuer:
    """What goes on with a text: an encoder that reads to the left and its vocabulary."""

    encoder: Stack
    tokenizer: Tokenizer

    @torch.inference_mode()
    def generate(self, text: str, drawing: Drawing = Drawing()) -> Generated:
        """Go on with a text."""
        ids, end = self._read(text), self.tokenizer.specials.separator
        generator = torch.Generator().manual_seed(drawing.seed)
        added: list[int] = []
        chances: list[float] = []
        ended = "pieces"
        for scores in self._scores(ids, added):
            number = int(torch.multinomial(drawing.chances(scores), 1, generator=generator))
            if number == end:
                ended = "end"
                break
            added.append(number)
            chances.append(float(scores[number].exp()))
            if len(added) == drawing.max_pieces:
                break
        else:
            ended = "positions"
        more = self._written(ids[1:], added)
        return Generated(text + more, more, tuple(self.tokenizer.pieces[one] for one in added), tuple(chances), ended)

    @torch.inference_mode()
    def next_words(self, text: str, top: int = 5) -> tuple[NextWord, ...]:
        """Return the likeliest next words: of each likely first piece the likeliest word that begins with it."""
        if top < 1:
            raise InputError(f"top is {top}; ask for at least one word")
        ids = self._read(text)
        scores, state = self._step(ids, Carried())
        scores[self.tokenizer.specials.separator] = float("-inf")
        continuing = [n for n in range(self.tokenizer.size) if piece_written(self.tokenizer, n).continues]
        scores[continuing] = float("-inf")
        best = scores.topk(min(top, int(torch.isfinite(scores).sum())))
        found = []
        for number, score in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            pieces, total = self._word([number], score, state)
            own = tuple(self.tokenizer.pieces[one] for one in pieces)
            word = "".join(piece_written(self.tokenizer, one).letters for one in pieces)
            found.append(NextWord(word, own, float(torch.tensor(total).exp())))
        return tuple(sorted(found, key=lambda one: -one.probability))

    def _word(self, pieces: list[int], score: float, state: Carried) -> tuple[list[int], float]:
        """Return a word to its likely end, and the log probability of its pieces."""
        while len(pieces) < _MOST_PIECES and state.length < self.encoder.most_places:
            last = piece_written(self.tokenizer, pieces[-1])
            if last.ends:
                break
            scores, state = self._step(pieces[-1:], state)
            best = int(scores.argmax())
            if last.ends is None and not piece_written(self.tokenizer, best).continues:
                break
            pieces, score = [*pieces, best], score + float(scores[best])
        return pieces, score

    def _read(self, text: str) -> list[int]:
        """Return the pieces of a text behind the first special one, as a block of a corpus begins."""
        ids = [self.tokenizer.specials.first, *self.tokenizer.cut(text).ids.tolist()]
        if len(ids) > self.encoder.sizes.positions:
            raise InputError(
                f"the text has {len(ids)} pieces and the model reads {self.encoder.sizes.positions}; shorten it"
            )
        return ids

    def _scores(self, ids: list[int], added: list[int]) -> Iterator[torch.Tensor]:
        """Yield (V,) log probabilities of what follows the text and what has been added to it, until it is full."""
        scores, state = self._step(ids, Carried())
        yield scores
        while state.length < self.encoder.most_places:
            scores, state = self._step(added[-1:], state)
            yield scores

    def _step(self, ids: list[int], state: Carried) -> tuple[torch.Tensor, Carried]:
        """Return (V,) log probabilities of what follows some pieces, and what they carry on."""
        self.encoder.eval()
        rows = torch.tensor([ids], device=self.encoder.device)
        encoded = self.encoder(Batch(rows, torch.zeros_like(rows), torch.tensor([len(ids)])), state)
        scores = (self.encoder.pieces.weight @ encoded.last[-1]).float().cpu()[: self.tokenizer.size]
        specials = self.tokenizer.specials
        scores[[one for one in specials.ids if one != specials.separator]] = float("-inf")
        assert isinstance(encoded.state, Carried)
        return torch.log_softmax(scores, -1), encoded.state

    def _written(self, before: list[int], added: list[int]) -> str:
        """Return what was added as text, with the space before it if there is one."""
        start = text_written(self.tokenizer, before)
        whole = text_written(self.tokenizer, [*before, *added])
        return whole[len(start) :] if whole.startswith(start) else " " + text_written(self.tokenizer, added)
