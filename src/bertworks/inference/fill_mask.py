"""Fill [MASK] tokens: a text in, candidates for each mask and the best joint fillings out.

B sequences, V vocabulary, M masks of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from bertworks.display.bars import bars_html
from bertworks.errors import InputError, show_value
from bertworks.inference.generation_config import NextWord
from bertworks.sampling.padding import TokenSequence
from bertworks.vocabulary.characters import IDEOGRAPH
from bertworks.vocabulary.surface_forms import SurfaceForm, surface_form
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer

if TYPE_CHECKING:
    from bertworks.encoders.encoder import Encoder
    from bertworks.engines.graph_encoder import GraphEncoder
    from bertworks.inference.graph_models import GraphMlmHead
    from bertworks.objectives.heads import MlmHead

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# The beam is at least this wide, so that the best sequence does not depend on top_k.
_MIN_BEAM_SIZE = 16
# next_words asks for this many times top_k candidates, since only those that are whole words count.
_CANDIDATE_FACTOR = 8


@dataclass(frozen=True, slots=True)
class TokenCandidate:
    """A token for one mask, and its probability there while the other masks stay masked."""

    token: str
    probability: float


@dataclass(frozen=True, slots=True)
class SequenceCandidate:
    """All masks filled. `probability` is the product of the tokens' probabilities, each given the ones before it."""

    text: str
    tokens: tuple[str, ...]
    probability: float


@dataclass(frozen=True, slots=True)
class FillMaskResult:
    """`mask_candidates` has the candidates of each mask, `sequences` the joint fillings; both most probable first."""

    text: str
    mask_candidates: tuple[tuple[TokenCandidate, ...], ...]
    sequences: tuple[SequenceCandidate, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        return bars_html(self.text, ((sequence.text, sequence.probability) for sequence in self.sequences))

    def __repr__(self) -> str:
        shown = ", ".join(f"{sequence.text!r}: {sequence.probability:.3f}" for sequence in self.sequences)
        return f"FillMaskResult({{{shown}}})"


@dataclass(frozen=True, slots=True)
class MaskFiller:
    """Fills masks with an encoder, its MLM head and its tokenizer."""

    encoder: Encoder | GraphEncoder
    head: MlmHead | GraphMlmHead
    tokenizer: Tokenizer

    def fill_mask(self, text: str, top_k: int = 5) -> FillMaskResult:
        """Return the `top_k` candidates for each mask of `text` and the `top_k` best joint fillings."""
        if not hasattr(top_k, "__index__"):
            raise InputError(f"top_k is {show_value(top_k)}; give a whole number")
        if top_k < 1:
            raise InputError(f"top_k is {top_k}; it must be at least 1")
        encoding = self._encode(text)
        mask_id = self.tokenizer.specials.mask
        positions = [position for position, token_id in enumerate(encoding.input_ids) if token_id == mask_id]
        log_probs = self._log_probs(np.array([encoding.input_ids]), encoding, positions)[0]  # (M, V)
        mask_candidates = tuple(self._candidates(mask_log_probs, top_k) for mask_log_probs in log_probs)
        return FillMaskResult(text, mask_candidates, self._beam_search(text, encoding, positions, top_k))

    def next_words(self, text: str, top_k: int = 5, backward: bool = False) -> tuple[NextWord, ...]:
        """Return the most probable single-token words after a text (before it if `backward`), by adding a mask."""
        mask = self.tokenizer.tokens[self.tokenizer.specials.mask]
        result = self.fill_mask(f"{mask} {text}" if backward else f"{text} {mask}", _CANDIDATE_FACTOR * top_k)
        words = []
        for candidate in result.mask_candidates[0 if backward else -1]:
            token_id = self.tokenizer.token_to_id(candidate.token)
            assert token_id is not None
            form = surface_form(self.tokenizer, token_id)
            if form.text and not form.is_continuation and form.is_word_end is not False:
                words.append(NextWord(form.text, (candidate.token,), candidate.probability))
        return tuple(words[:top_k])

    def logits(self, sequences: Sequence[TokenSequence], positions: Sequence[Ints]) -> Floats:
        """Return the logits (P, V) of the masked-LM head at the positions of each sequence."""
        encoder = cast("Encoder", self.encoder)
        return self.head.logits_at(encoder, sequences, positions, self.tokenizer.specials.pad)

    def _encode(self, text: str) -> Encoding:
        encoding = self.tokenizer.encode(text, parse_masks=True)
        mask, max_length = self.tokenizer.mask_id, self.encoder.config.max_length
        if mask not in encoding.input_ids:
            raise InputError(
                f"the text has no mask token; write {self.tokenizer.tokens[mask]} where a token is missing"
            )
        if len(encoding) > max_length:
            raise InputError(
                f"the text has {len(encoding)} tokens, but the model reads at most {max_length}; shorten it"
            )
        return encoding

    def _log_probs(self, input_ids: Ints, encoding: Encoding, positions: list[int]) -> Floats:
        """Return (B, M, V): log probabilities at `positions`, for several fillings (B, T) of one text."""
        sequences = [replace(encoding, input_ids=tuple(own_ids)) for own_ids in input_ids.tolist()]
        logits = self.logits(sequences, [np.array(positions, dtype=np.int64)] * len(sequences))
        logits = logits[:, : self.tokenizer.vocab_size].copy()  # the embedding table may be padded to a round size
        logits[:, list(self.tokenizer.specials.ids)] = -np.inf  # never predict a special token
        return log_softmax(logits).reshape(len(sequences), len(positions), -1)

    def _candidates(self, log_probs: Floats, top_k: int) -> tuple[TokenCandidate, ...]:
        token_ids, values = _top_k(log_probs, top_k)
        pairs = zip(token_ids.tolist(), np.exp(values).tolist(), strict=True)
        return tuple(TokenCandidate(self.tokenizer.tokens[token_id], probability) for token_id, probability in pairs)

    def _beam_search(
        self, text: str, encoding: Encoding, positions: list[int], top_k: int
    ) -> tuple[SequenceCandidate, ...]:
        """Fill the masks from left to right by beam search and return the `top_k` best sequences."""
        beams = np.array([encoding.input_ids])
        beam_scores = np.zeros(1, dtype=np.float32)
        for index, position in enumerate(positions):
            log_probs = self._log_probs(beams, encoding, positions[index : index + 1])[:, 0]  # (beams, V)
            indices, beam_scores = _top_k((beam_scores[:, None] + log_probs).flatten(), max(top_k, _MIN_BEAM_SIZE))
            beams = beams[indices // log_probs.shape[1]]
            beams[:, position] = indices % log_probs.shape[1]
        candidates = []
        for input_ids, probability in zip(beams[:top_k].tolist(), np.exp(beam_scores[:top_k]).tolist(), strict=True):
            tokens = tuple(self.tokenizer.tokens[input_ids[position]] for position in positions)
            forms = [surface_form(self.tokenizer, input_ids[position]) for position in positions]
            candidates.append(SequenceCandidate(_replace_masks(text, encoding, positions, forms), tokens, probability))
        return tuple(candidates)


def log_softmax(logits: Floats) -> Floats:
    """Return the log probabilities of logits (…, V); -inf stays -inf."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _top_k(scores: Floats, k: int) -> tuple[Ints, Floats]:
    """Return indices and values of the k highest finite scores; of equal ones, the lower index first."""
    k = min(k, int(np.isfinite(scores).sum()))
    lowest = np.partition(scores, len(scores) - k)[len(scores) - k] if k else np.inf
    candidates = np.flatnonzero(scores >= lowest)
    indices = candidates[np.argsort(-scores[candidates], kind="stable")][:k]
    return indices, scores[indices]


def _replace_masks(text: str, encoding: Encoding, positions: list[int], surface_forms: Sequence[SurfaceForm]) -> str:
    """Return the text with its masks replaced by the surface forms of tokens, spaced as the tokens are written.

    A continuation token (##ing) is appended to the text before it. A token that carries its own leading space gets
    one, and so do two words in adjacent masks.
    """
    output, consumed = "", 0
    for position, form in zip(positions, surface_forms, strict=True):
        offset = encoding.offsets[position]
        assert offset is not None
        start, end = offset
        is_adjacent = 0 < consumed == start
        output += text[consumed:start]
        if form.has_space_before is False:
            output = output.rstrip()
        elif (
            output
            and not output[-1].isspace()
            and (form.has_space_before or (is_adjacent and _needs_space(output, form)))
        ):
            output += " "
        output += form.text
        consumed = end
    return output + text[consumed:]


def _needs_space(text: str, surface_form: SurfaceForm) -> bool:
    return _is_letter(text[-1]) and _is_letter(surface_form.text[0])


def _is_letter(character: str) -> bool:
    """Whether a character would merge with a letter next to it into one word; ideographs never do."""
    return character.isalnum() and not IDEOGRAPH.match(character)
