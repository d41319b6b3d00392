"""Added tokens of a vocabulary: a text in, the added tokens found in it as one token each, the rest tokenized as usual.

transformers' `add_tokens` and `extra_special_tokens` register tokens such as the entity marker <e1>, which are found in
a text before it is split into words. The special tokens that structure a sequence ([CLS], <s>, …) are not among them
here: written in a text they are ordinary text, unless a tokenizer is loaded with `split_special_tokens=False`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tokenizers

from bertworks.vocabulary.algorithms import ignore_special_tokens_in_text
from bertworks.vocabulary.characters import SURROGATE
from bertworks.vocabulary.token_arrays import FlatTokens, TokenizedText, WordBoundaries, token_dtype

# A code point that is no character: a piece that begins with it is in no text.
_UNWRITABLE = "\ufdd0"
# An added token in a text: its id and the span of characters that it covers.
Match = tuple[int, int, int]


class TokenizerModel(Protocol):
    """Text to tokens: WordPiece, or a `tokenizers` model of another kind."""

    def encode(self, text: str) -> TokenizedText: ...

    def encode_sentences(self, sentences: Sequence[str], boundaries: WordBoundaries | None = None) -> FlatTokens: ...


def added_tokens_in(state: Mapping[str, Any], control_ids: Collection[int]) -> list[dict[str, Any]]:
    """Return the entries of a tokenizer.json for added tokens that are found in text: all but the control tokens."""
    return [token for token in state["added_tokens"] if token["id"] not in control_ids]


def matching_backend(
    backend: tokenizers.Tokenizer, state: Mapping[str, Any], added_tokens: Sequence[Mapping[str, Any]]
) -> tokenizers.Tokenizer:
    """Return a backend that finds these added tokens in text, and no others; `state` is its tokenizer.json."""
    ids = {token["id"] for token in added_tokens}
    others = [token for token in state["added_tokens"] if token["id"] not in ids]
    hidden = {token["content"] for token in others if _is_piece(backend, token["content"], token["id"])}
    if not hidden and not any(token["special"] for token in added_tokens):
        return backend
    # The library ignores either all special tokens in text or none: those to be found are made ordinary added tokens.
    tokens = [{**token, "special": token["special"] and token["id"] not in ids} for token in state["added_tokens"]]
    model = state["model"]
    if hidden:
        pieces = [[_UNWRITABLE + piece if piece in hidden else piece, score] for piece, score in model["vocab"]]
        model, tokens = {**model, "vocab": pieces}, [token for token in tokens if token["content"] not in hidden]
    content = json.dumps({**state, "model": model, "added_tokens": tokens})
    return ignore_special_tokens_in_text(tokenizers.Tokenizer.from_str(content))


def without_stripping(backend: tokenizers.Tokenizer, ids: Collection[int]) -> tokenizers.Tokenizer:
    """Return a backend that finds added tokens without the spaces around them, which some of them take as a part.

    The spaces may be those that a normalizer puts around ideographs: the span of such a token has the ideograph, too.
    """
    state = json.loads(backend.to_str())
    strips = any(token["id"] in ids and (token["lstrip"] or token["rstrip"]) for token in state["added_tokens"])
    if not strips:
        return backend
    tokens = [
        {**token, "lstrip": False, "rstrip": False} if token["id"] in ids else token for token in state["added_tokens"]
    ]
    content = json.dumps({**state, "added_tokens": tokens})
    return ignore_special_tokens_in_text(tokenizers.Tokenizer.from_str(content))


def _is_piece(backend: tokenizers.Tokenizer, content: str, token_id: int) -> bool:
    """Whether a unigram model finds a special token inside a word, as SentencePiece does not with control symbols."""
    is_unigram = isinstance(backend.model, tokenizers.models.Unigram)
    return is_unigram and token_id in backend.encode(content, add_special_tokens=False).ids


class AddedTokensModel:
    """Finds added tokens in a text with `backend`, as transformers does, and tokenizes the text between with `model`.

    `continuation` is the prefix of tokens inside a word: a token before one of these is the beginning of a word that
    only looks like an added token.
    """

    def __init__(
        self, model: TokenizerModel, backend: tokenizers.Tokenizer, ids: Collection[int], continuation: str
    ) -> None:
        self._model, self._backend, self._ids, self._continuation = model, backend, frozenset(ids), continuation
        self._dtype = token_dtype(backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> TokenizedText:
        matches = self._matches(self._backend.encode(text, add_special_tokens=False))
        if not matches:
            return self._model.encode(text)
        parts = []
        for (start, stop), match in zip(_spans_between(matches, len(text)), [*matches, None], strict=True):
            tokens = self._model.encode(text[start:stop])
            parts.append(replace(tokens, offsets=tokens.offsets + start))
            if match is not None:
                parts.append(TokenizedText.from_tuples([(*match, True)]))
        return TokenizedText.concatenate(parts)

    def encode_sentences(self, sentences: Sequence[str], boundaries: WordBoundaries | None = None) -> FlatTokens:
        """Return the tokens of many sentences; those without added tokens keep the speed of the model."""
        readable = [SURROGATE.sub("\ufffd", sentence) for sentence in sentences]  # of equal lengths
        encodings = self._backend.encode_batch(readable, add_special_tokens=False)
        all_matches = [self._matches(encoding) for encoding in encodings]
        if not any(all_matches):
            return self._model.encode_sentences(sentences, boundaries)
        spans = [_spans_between(matches, len(text)) for matches, text in zip(all_matches, sentences, strict=True)]
        texts = [text[slice(*span)] for text, between in zip(sentences, spans, strict=True) for span in between]
        tokens = self._model.encode_sentences(texts, boundaries)
        starts = [0, *tokens.sentence_ends.tolist()]
        input_ids: list[npt.NDArray[np.integer]] = []
        word_starts: list[npt.NDArray[np.bool_]] = []
        lengths, index = [], 0
        for matches in all_matches:
            parts = [slice(*starts[part : part + 2]) for part in range(index, index + len(matches) + 1)]
            index += len(parts)
            for part, match in zip(parts, [*matches, None], strict=True):
                own = [] if match is None else [match[0]]
                input_ids += [tokens.input_ids[part], np.array(own, dtype=self._dtype)]
                word_starts += [tokens.word_starts[part], np.ones(len(own), dtype=np.bool_)]
            lengths.append(sum(part.stop - part.start for part in parts) + len(matches))
        return FlatTokens(
            np.concatenate(input_ids), np.array(list(accumulate(lengths)), dtype=np.int64), np.concatenate(word_starts)
        )

    def _matches(self, encoding: tokenizers.Encoding) -> list[Match]:
        """Return the added tokens of a text in order."""
        tokens = [*encoding.tokens, ""][1:] if encoding.tokens else []
        return [
            (token_id, start, end)
            for token_id, (start, end), following in zip(encoding.ids, encoding.offsets, tokens, strict=True)
            if token_id in self._ids and not following.startswith(self._continuation)
        ]


def _spans_between(matches: Sequence[Match], length: int) -> list[tuple[int, int]]:
    """Return the spans of a text before, between and after the added tokens in it."""
    starts = [0, *(end for _, _, end in matches)]
    ends = [*(start for _, start, _ in matches), length]
    return list(zip(starts, ends, strict=True))
