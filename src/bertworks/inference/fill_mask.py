"""Fill blanks: a text with [MASK] in it, candidates for each blank and the best joint fillings out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bertworks.encoders.stack import Encoder
from bertworks.errors import InputError
from bertworks.inference.generate import NextWord
from bertworks.objectives.heads import MlmHead
from bertworks.sampling.batch import collate_sequences
from bertworks.vocabulary.characters import IDEOGRAPH
from bertworks.vocabulary.surface_forms import SurfaceForm, surface_form
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

# A beam keeps at least so many beginnings: with fewer, asking for one filling would give another than asking for five.
_MIN_BEAM_SIZE = 16
# Of so many times as many candidates as are asked for, those are taken that are whole words.
_CANDIDATE_FACTOR = 8


@dataclass(frozen=True, slots=True)
class TokenCandidate:
    """A piece for one blank, and how likely it is there with the other blanks left open."""

    token: str
    probability: float


@dataclass(frozen=True, slots=True)
class SequenceCandidate:
    """All blanks filled together. `probability` is that of the pieces one after the other, each given those before."""

    text: str
    tokens: tuple[str, ...]
    probability: float


@dataclass(frozen=True, slots=True)
class FillMaskResult:
    """`blanks` has the candidates of each blank, likeliest first; `fillings` the best ways to fill them all."""

    text: str
    mask_candidates: tuple[tuple[TokenCandidate, ...], ...]
    sequences: tuple[SequenceCandidate, ...]


@dataclass(frozen=True, slots=True)
class MaskFiller:
    """What fills blanks: an encoder, its head, and the tokenizer they were trained with."""

    encoder: Encoder
    head: MlmHead
    tokenizer: Tokenizer

    @torch.inference_mode()
    def fill_mask(self, text: str, top_k: int = 5) -> FillMaskResult:
        """Return the `top` candidates for each blank of `text` and the `top` joint fillings."""
        if top_k < 1:
            raise InputError(f"top is {top_k}; ask for at least one candidate")
        encoding = self._encode(text)
        places = [place for place, number in enumerate(encoding.input_ids) if number == self.tokenizer.specials.mask]
        scores = self._scores(torch.tensor([encoding.input_ids]), encoding, places)[0]  # (blanks, V)
        blanks = tuple(self._candidates(row, top_k) for row in scores)
        return FillMaskResult(text, blanks, self._beam_search(text, encoding, places, top_k))

    def next_words(self, text: str, top_k: int = 5, backward: bool = False) -> tuple[NextWord, ...]:
        """Return the likeliest words behind a text, or before it: those of a blank there. Each is one piece."""
        mask = self.tokenizer.tokens[self.tokenizer.specials.mask]
        offered = self.fill_mask(
            f"{mask} {text}" if backward else f"{text} {mask}", _CANDIDATE_FACTOR * top_k
        ).mask_candidates
        found = []
        for candidate in offered[0 if backward else -1]:
            number = self.tokenizer.token_to_id(candidate.token)
            assert number is not None
            written = surface_form(self.tokenizer, number)
            if written.text and not written.is_continuation and written.is_word_end is not False:
                found.append(NextWord(written.text, (candidate.token,), candidate.probability))
        return tuple(found[:top_k])

    def _encode(self, text: str) -> Encoding:
        encoding = self.tokenizer.encode(text, parse_masks=True)
        mask = self.tokenizer.tokens[self.tokenizer.specials.mask]
        if self.tokenizer.specials.mask not in encoding.input_ids:
            raise InputError(f"there is no blank in the text; write {mask} where a piece is to be filled in")
        if len(encoding) > self.encoder.config.max_position_embeddings:
            raise InputError(
                f"the text has {len(encoding)} pieces and the model reads {self.encoder.config.max_position_embeddings}; shorten it"
            )
        return encoding

    def _scores(self, input_ids: torch.Tensor, encoding: Encoding, positions: list[int]) -> torch.Tensor:
        """Return (rows, blanks, V): log probabilities at the blanks of several fillings of one text."""
        batch = collate_sequences([encoding] * len(input_ids), self.tokenizer.specials.pad)
        batch.input_ids.copy_(input_ids)
        device = self.encoder.token_embeddings.weight.device
        width = input_ids.shape[1]
        flat = torch.tensor(
            [row * width + place for row in range(len(input_ids)) for place in positions], device=device
        )
        self.encoder.eval()
        vectors = self.encoder(batch.to(device), positions=flat).gather(flat)
        scores = self.head(vectors, self.encoder.token_embeddings.weight).cpu()
        scores = scores[
            :, : self.tokenizer.vocab_size
        ]  # a table may be padded to a round size: those rows are no pieces
        scores[:, list(self.tokenizer.specials.ids)] = float("-inf")  # a blank is never a [CLS]
        return torch.log_softmax(scores, -1).view(len(input_ids), len(positions), -1)

    def _candidates(self, scores: torch.Tensor, top_k: int) -> tuple[TokenCandidate, ...]:
        indices, values = _top_k(scores, top_k)
        found = zip(indices.tolist(), values.exp().tolist(), strict=True)
        return tuple(TokenCandidate(self.tokenizer.tokens[number], chance) for number, chance in found)

    def _beam_search(
        self, text: str, encoding: Encoding, positions: list[int], top_k: int
    ) -> tuple[SequenceCandidate, ...]:
        """Fill the blanks from left to right, keeping the best beginnings (a beam), and return the `top` best ends."""
        rows = torch.tensor([encoding.input_ids])
        chances = torch.zeros(1)
        for number, place in enumerate(positions):
            scores = self._scores(rows, encoding, positions[number : number + 1])[:, 0]  # (rows, V)
            indices, chances = _top_k((chances[:, None] + scores).flatten(), max(top_k, _MIN_BEAM_SIZE))
            rows = rows[indices // scores.shape[1]]
            rows[:, place] = indices % scores.shape[1]
        found = []
        for row, chance in zip(rows[:top_k].tolist(), chances[:top_k].exp().tolist(), strict=True):
            pieces = tuple(self.tokenizer.tokens[row[place]] for place in positions)
            own = [surface_form(self.tokenizer, row[place]) for place in positions]
            found.append(SequenceCandidate(_replace_masks(text, encoding, positions, own), pieces, chance))
        return tuple(found)


def _top_k(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the `count` highest scores stand, and these scores; what is ruled out is never among them."""
    best = scores.topk(min(k, int(torch.isfinite(scores).sum())))
    return best.indices, best.values


def _replace_masks(text: str, encoding: Encoding, positions: list[int], surface_forms: Sequence[SurfaceForm]) -> str:
    """Return the text with its blanks replaced, so that it reads as the pieces do.

    A piece that continues a word is joined to what stands before; two words in blanks that touch get a space between,
    and so does every piece that has the space before it in itself.
    """
    written, at = "", 0
    for place, piece in zip(positions, surface_forms, strict=True):
        offset = encoding.offsets[place]
        assert offset is not None
        start, end = offset
        touches = 0 < at == start
        written += text[at:start]
        if piece.has_space_before is False:
            written = written.rstrip()
        elif (
            written
            and not written[-1].isspace()
            and (piece.has_space_before or (touches and _needs_space(written, piece)))
        ):
            written += " "
        written += piece.text
        at = end
    return written + text[at:]


def _needs_space(text: str, surface_form: SurfaceForm) -> bool:
    return _is_letter(text[-1]) and _is_letter(surface_form.text[0])


def _is_letter(character: str) -> bool:
    """Whether a character would run together with another letter beside it; an ideograph is always a word itself."""
    return character.isalnum() and not IDEOGRAPH.match(character)
