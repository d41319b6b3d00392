"""Fill blanks: a text with [MASK] in it, candidates for each blank and the best joint fillings out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bertworks.encoders.stack import Stack
from bertworks.errors import InputError
from bertworks.inference.generate import NextWord
from bertworks.objectives.heads import MaskedHead
from bertworks.sampling.batch import batch_of_rows
from bertworks.vocabulary.characters import IDEOGRAPH
from bertworks.vocabulary.surface_forms import Written, piece_written
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

# A beam keeps at least so many beginnings: with fewer, asking for one filling would give another than asking for five.
_NARROWEST = 16
# Of so many times as many candidates as are asked for, those are taken that are whole words.
_OFFERED = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A piece for one blank, and how likely it is there with the other blanks left open."""

    piece: str
    probability: float


@dataclass(frozen=True, slots=True)
class Filling:
    """All blanks filled together. `probability` is that of the pieces one after the other, each given those before."""

    text: str
    pieces: tuple[str, ...]
    probability: float


@dataclass(frozen=True, slots=True)
class Filled:
    """`blanks` has the candidates of each blank, likeliest first; `fillings` the best ways to fill them all."""

    text: str
    blanks: tuple[tuple[Candidate, ...], ...]
    fillings: tuple[Filling, ...]


@dataclass(frozen=True, slots=True)
class Filler:
    """What fills blanks: an encoder, its head, and the tokenizer they were trained with."""

    encoder: Stack
    head: MaskedHead
    tokenizer: Tokenizer

    @torch.inference_mode()
    def fill(self, text: str, top: int = 5) -> Filled:
        """Return the `top` candidates for each blank of `text` and the `top` joint fillings."""
        if top < 1:
            raise InputError(f"top is {top}; ask for at least one candidate")
        encoding = self._encoded(text)
        places = [place for place, number in enumerate(encoding.ids) if number == self.tokenizer.specials.mask]
        scores = self._scores(torch.tensor([encoding.ids]), encoding, places)[0]  # (blanks, V)
        blanks = tuple(self._candidates(row, top) for row in scores)
        return Filled(text, blanks, self._together(text, encoding, places, top))

    def beside(self, text: str, top: int = 5, backward: bool = False) -> tuple[NextWord, ...]:
        """Return the likeliest words behind a text, or before it: those of a blank there. Each is one piece."""
        mask = self.tokenizer.pieces[self.tokenizer.specials.mask]
        offered = self.fill(f"{mask} {text}" if backward else f"{text} {mask}", _OFFERED * top).blanks
        found = []
        for candidate in offered[0 if backward else -1]:
            number = self.tokenizer.id_of(candidate.piece)
            assert number is not None
            written = piece_written(self.tokenizer, number)
            if written.letters and not written.continues and written.ends is not False:
                found.append(NextWord(written.letters, (candidate.piece,), candidate.probability))
        return tuple(found[:top])

    def _encoded(self, text: str) -> Encoding:
        encoding = self.tokenizer.encode(text, masks=True)
        mask = self.tokenizer.pieces[self.tokenizer.specials.mask]
        if self.tokenizer.specials.mask not in encoding.ids:
            raise InputError(f"there is no blank in the text; write {mask} where a piece is to be filled in")
        if len(encoding) > self.encoder.sizes.positions:
            raise InputError(
                f"the text has {len(encoding)} pieces and the model reads {self.encoder.sizes.positions}; shorten it"
            )
        return encoding

    def _scores(self, ids: torch.Tensor, encoding: Encoding, places: list[int]) -> torch.Tensor:
        """Return (rows, blanks, V): log probabilities at the blanks of several fillings of one text."""
        batch = batch_of_rows([encoding] * len(ids), self.tokenizer.specials.pad)
        batch.ids.copy_(ids)
        device = self.encoder.pieces.weight.device
        width = ids.shape[1]
        flat = torch.tensor([row * width + place for row in range(len(ids)) for place in places], device=device)
        self.encoder.eval()
        vectors = self.encoder(batch.to(device), places=flat).at(flat)
        scores = self.head(vectors, self.encoder.pieces.weight).cpu()
        scores = scores[:, : self.tokenizer.size]  # a table may be padded to a round size: those rows are no pieces
        scores[:, list(self.tokenizer.specials.ids)] = float("-inf")  # a blank is never a [CLS]
        return torch.log_softmax(scores, -1).view(len(ids), len(places), -1)

    def _candidates(self, scores: torch.Tensor, top: int) -> tuple[Candidate, ...]:
        indices, values = _best(scores, top)
        found = zip(indices.tolist(), values.exp().tolist(), strict=True)
        return tuple(Candidate(self.tokenizer.pieces[number], chance) for number, chance in found)

    def _together(self, text: str, encoding: Encoding, places: list[int], top: int) -> tuple[Filling, ...]:
        """Fill the blanks from left to right, keeping the best beginnings (a beam), and return the `top` best ends."""
        rows = torch.tensor([encoding.ids])
        chances = torch.zeros(1)
        for number, place in enumerate(places):
            scores = self._scores(rows, encoding, places[number : number + 1])[:, 0]  # (rows, V)
            indices, chances = _best((chances[:, None] + scores).flatten(), max(top, _NARROWEST))
            rows = rows[indices // scores.shape[1]]
            rows[:, place] = indices % scores.shape[1]
        found = []
        for row, chance in zip(rows[:top].tolist(), chances[:top].exp().tolist(), strict=True):
            pieces = tuple(self.tokenizer.pieces[row[place]] for place in places)
            own = [piece_written(self.tokenizer, row[place]) for place in places]
            found.append(Filling(_written(text, encoding, places, own), pieces, chance))
        return tuple(found)


def _best(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the `count` highest scores stand, and these scores; what is ruled out is never among them."""
    best = scores.topk(min(count, int(torch.isfinite(scores).sum())))
    return best.indices, best.values


def _written(text: str, encoding: Encoding, places: list[int], pieces: Sequence[Written]) -> str:
    """Return the text with its blanks replaced, so that it reads as the pieces do.

    A piece that continues a word is joined to what stands before; two words in blanks that touch get a space between,
    and so does every piece that has the space before it in itself.
    """
    written, at = "", 0
    for place, piece in zip(places, pieces, strict=True):
        offset = encoding.offsets[place]
        assert offset is not None
        start, end = offset
        touches = 0 < at == start
        written += text[at:start]
        if piece.space is False:
            written = written.rstrip()
        elif written and not written[-1].isspace() and (piece.space or (touches and _run_together(written, piece))):
            written += " "
        written += piece.letters
        at = end
    return written + text[at:]


def _run_together(written: str, piece: Written) -> bool:
    return _is_letter(written[-1]) and _is_letter(piece.letters[0])


def _is_letter(character: str) -> bool:
    """Whether a character would run together with another letter beside it; an ideograph is always a word itself."""
    return character.isalnum() and not IDEOGRAPH.match(character)
