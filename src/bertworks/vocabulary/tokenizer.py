"""The tokenizer: a text or a pair of texts in, an Encoding out; and many sentences in, flat arrays of pieces out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tokenizers

from bertworks.disk import write_json, write_text
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.vocabulary.algorithms import detect_kind, has_multi_ideograph_words, is_cased, wordpiece_backend
from bertworks.vocabulary.backend import BackendModel, JiebaModel
from bertworks.vocabulary.characters import SURROGATE
from bertworks.vocabulary.files import prefix_errors, read_backend, read_config, read_vocabulary
from bertworks.vocabulary.special_tokens import BERT, SpecialTokenTemplate, template_for
from bertworks.vocabulary.token_arrays import FlatTokens, TokenWithOffsets, WordBoundaries
from bertworks.vocabulary.word_boundaries import jieba_boundaries
from bertworks.vocabulary.wordpiece import WordPiece, WordPieceRules

# Who says where words begin in text with ideographs: nobody (each ideograph is a word), or jieba.
WORD_RULES: dict[str, WordBoundaries | None] = {"pieces": None, "jieba": jieba_boundaries}


@dataclass(frozen=True, slots=True)
class SpecialTokenIds:
    """The ids of the five special pieces, by what they do: BERT writes [CLS], RoBERTa <s>, and so on; and where in a
    row they stand."""

    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int
    template: SpecialTokenTemplate = field(default=BERT, compare=False)

    @property
    def ids(self) -> tuple[int, ...]:
        return (self.pad, self.unknown, self.cls, self.sep, self.mask)


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text, or a pair, as a model reads it. All fields have one element a piece.

    `offsets` are (start, end) in the original text (in the second one where the segment says so) and `words` count
    the words of each text from 0; both are None for special pieces. `num_replaced` counts the lone surrogates, which
    no encoder can take, that were read as U+FFFD. `unknown` says how a word outside the vocabulary is written, by the
    place where it stands.
    """

    input_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int] | None, ...]
    word_ids: tuple[int | None, ...]
    token_type_ids: tuple[int, ...]
    num_replaced: int = 0
    unknown: Mapping[int, str] = field(default_factory=dict)

    @property
    def position_ids(self) -> tuple[int, ...]:
        return tuple(range(len(self.input_ids)))

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text as P pieces, none of them special: ids (P,), offsets into the text (P, 2), where words begin (P,); and
    how a word outside the vocabulary is written, by the number of its piece."""

    input_ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    begins_word: npt.NDArray[np.bool_]
    unknown: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def from_ids(cls, input_ids: npt.NDArray[np.int64], unknown: Mapping[int, str] | None = None) -> TokenizedText:
        """Return pieces of which nobody knows where in a text they stand; each is taken as a word."""
        return cls(
            input_ids,
            np.zeros((len(input_ids), 2), dtype=np.int64),
            np.ones(len(input_ids), dtype=np.bool_),
            unknown or {},
        )

    @classmethod
    def concatenate(cls, parts: Sequence[TokenizedText]) -> TokenizedText:
        """Return the pieces of several one after the other; offsets stay those in the text of each."""
        begins = np.cumsum([0, *map(len, parts)]).tolist()
        unknown = {
            begin + at: word for begin, cut in zip(begins, parts, strict=False) for at, word in cut.unknown.items()
        }
        arrays = zip(*((cut.input_ids, cut.offsets, cut.begins_word) for cut in parts), strict=True)
        ids, offsets, begins_word = map(np.concatenate, arrays)
        return cls(ids, offsets, begins_word, unknown)

    def between(self, first: int, stop: int) -> TokenizedText:
        """Return the pieces `first` up to but not including `stop`."""
        own = slice(first, stop)
        unknown = {at - first: word for at, word in self.unknown.items() if first <= at < stop}
        return TokenizedText(self.input_ids[own], self.offsets[own], self.begins_word[own], unknown)

    def __len__(self) -> int:
        return len(self.input_ids)


class TokenizerModel(Protocol):
    """What cuts text: WordPiece, or a `tokenizers` model of another kind."""

    def encode(self, text: str) -> list[TokenWithOffsets]: ...

    def encode_sentences(self, sentences: Sequence[str], boundaries: WordBoundaries | None = None) -> FlatTokens: ...


class Tokenizer:
    """A vocabulary and the rules that go with it. Make one with `Tokenizer.load` or `Tokenizer.of`."""

    def __init__(self, backend: tokenizers.Tokenizer, specials: SpecialTokenIds) -> None:
        state = json.loads(backend.to_str())
        self.kind = detect_kind(backend).name
        self.specials = specials
        self.backend = backend
        vocabulary = _validate_vocab(backend)
        self.tokens: tuple[str, ...] = tuple(sorted(vocabulary, key=vocabulary.__getitem__))
        self.cased = is_cased(backend)
        # RoBERTa's mask takes the space before it along, for its words begin with theirs.
        mask = self.tokens[specials.mask]
        self._mask_takes_space = any(added["lstrip"] for added in state["added_tokens"] if added["content"] == mask)
        self._model: TokenizerModel = _select_model(state, self.tokens, backend)
        self._state = state

    @classmethod
    def from_backend(cls, backend: tokenizers.Tokenizer, names: dict[str, str] | None = None) -> Tokenizer:
        """Wrap a `tokenizers.Tokenizer`; `names` are Hugging Face's (cls_token and so on) where they are not usual."""
        return cls(backend, _find_specials(backend, names or {}))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Return the tokenizer in `path`: a `vocab.txt`, a `tokenizer.json`, or a folder that holds one of them."""
        path = Path(path)
        if path.is_dir():
            inside = [path / "tokenizer.json", path / "vocab.txt"]
            found = next((file for file in inside if file.is_file()), None)
            if found is None:
                raise FolderError(
                    f"{path} holds neither tokenizer.json nor vocab.txt; name a vocabulary or model folder"
                )
            return cls.load(found)
        if not path.is_file():
            raise InputError(f"{path} does not exist; name a vocab.txt, a tokenizer.json or a folder that holds one")
        config = read_config(path.parent / "tokenizer_config.json")
        if path.suffix == ".json":
            backend = read_backend(path)
        else:
            pieces = read_vocabulary(path)
            cased = not config["do_lower_case"] if "do_lower_case" in config else _looks_cased(pieces)
            with prefix_errors(path):
                backend = wordpiece_backend(pieces, cased)
        with prefix_errors(path):
            return cls.from_backend(backend, config)

    def save(self, folder: str | Path, padding_side: str = "right") -> None:
        """Write what the Hugging Face ecosystem reads: tokenizer.json, tokenizer_config.json and, if any, vocab.txt.

        `padding_side` is where others have to pad rows.
        """
        folder = Path(folder)
        write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))
        if self.kind == "wordpiece":
            write_text(folder / "vocab.txt", "\n".join(self.tokens) + "\n")
        classes = {"wordpiece": "BertTokenizer"}
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        config: dict[str, Any] = {
            "tokenizer_class": classes.get(self.kind, "PreTrainedTokenizerFast"),
            **{name: self.tokens[number] for name, number in zip(names, self.specials.ids, strict=True)},
        }
        if self.kind == "wordpiece":
            normalizer = self._state["normalizer"] or {}
            config |= {
                "do_lower_case": not self.cased,
                "strip_accents": normalizer.get("strip_accents"),
                "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
            }
        if padding_side != "right":  # that is what others do unasked
            config["padding_side"] = padding_side
        if self.specials.template.num_after:  # transformers leaves segments out of its rows, and XLNet's count
            config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        write_json(folder / "tokenizer_config.json", config)

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits that change whenever some text would be cut otherwise."""
        told = [self._state["normalizer"], self._state["pre_tokenizer"], self._state["model"], self.specials.ids]
        return hashlib.sha256(json.dumps(told, ensure_ascii=False, sort_keys=True).encode()).hexdigest()[:16]

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a piece written out, special ones too, or None."""
        number: int | None = self.backend.token_to_id(token)
        return number

    def encode(self, text: str, pair: str | None = None, *, parse_masks: bool = False) -> Encoding:
        """Return `text`, or `text` and `pair`, between the special pieces, whatever its length.

        "[MASK]" in a text is plain text, unless `masks` asks that it be the special piece (as `fill` does).
        """
        first, num_replaced = self._tokenize_with_offsets(text, parse_masks)
        parts = [(first, 0, self._unknown_words(text, first))]
        if pair is not None:
            second, more = self._tokenize_with_offsets(pair, parse_masks)
            num_replaced += more
            parts.append((second, self.specials.template.token_type_ids[1], self._unknown_words(pair, second)))
        return self._assemble(parts, num_replaced)

    def tokenize(self, text: str) -> TokenizedText:
        """Return the pieces of a text without special ones, to be put together by `row`."""
        placed, _ = self._tokenize_with_offsets(text, parse_masks=False)
        table = np.array(placed, dtype=np.int64).reshape(-1, 4)
        return TokenizedText(table[:, 0], table[:, 1:3], table[:, 3].astype(bool), self._unknown_words(text, placed))

    def build_inputs(
        self, *parts: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[int]]:
        """Return the ids and segments of a row of one or two runs of pieces between special ones, as `encode` makes it,
        and at which place of the row each run begins."""
        frame, first = self.specials.template, self.specials.cls
        ids, segments, starts = [[first] * frame.num_before], [[0] * frame.num_before], []
        at = frame.num_before
        for number, part in enumerate(parts):
            num_separators = frame.num_separators(number, len(parts))
            starts.append(at)
            at += len(part) + num_separators
            ids += [part, [self.specials.sep] * num_separators]  # type: ignore[list-item]
            segments.append([frame.token_type_ids[number]] * (len(part) + num_separators))
        ids.append([first] * frame.num_after)
        segments.append([frame.token_type_ids[2]] * frame.num_after)
        return np.concatenate(ids).astype(np.int64), np.concatenate(segments).astype(np.int64), starts

    def num_special_tokens(self, num_texts: int) -> int:
        """Return how many special pieces a row of one or two texts has."""
        return self.specials.template.num_special_tokens(num_texts)

    def encode_sentences(self, sentences: Sequence[str], word_rule: str = "pieces") -> FlatTokens:
        """Return many sentences as flat arrays, without special pieces; `words` is one of WORD_RULES."""
        if word_rule not in WORD_RULES:
            raise SettingsError(f"there is no word rule '{word_rule}'; choose one of: {', '.join(WORD_RULES)}")
        return self._model.encode_sentences(sentences, WORD_RULES[word_rule])

    def _tokenize_with_offsets(self, text: str, parse_masks: bool) -> tuple[list[TokenWithOffsets], int]:
        text, num_replaced = SURROGATE.subn("\ufffd", text)
        if not parse_masks:
            return self._model.encode(text), num_replaced
        placed: list[TokenWithOffsets] = []
        mask = self.tokens[self.specials.mask]
        at = 0
        *before_masks, last = text.split(mask)
        for part in before_masks:
            placed += self._tokenize_part(at, part.rstrip() if self._mask_takes_space else part)
            at += len(part)
            placed.append(TokenWithOffsets(self.specials.mask, at, at + len(mask), True))
            at += len(mask)
        return placed + self._tokenize_part(at, last), num_replaced

    def _tokenize_part(self, offset: int, part: str) -> list[TokenWithOffsets]:
        return [
            TokenWithOffsets(p.id, offset + p.start, offset + p.end, p.begins_word) for p in self._model.encode(part)
        ]

    def _unknown_words(self, text: str, tokens: list[TokenWithOffsets]) -> dict[int, str]:
        """Return how words outside the vocabulary are written, in the letters that the vocabulary has its own in."""
        found = {number: piece for number, piece in enumerate(tokens) if piece.id == self.specials.unknown}
        return {number: self._normalize_word(text[piece.start : piece.end]) for number, piece in found.items()}

    def _normalize_word(self, word: str) -> str:
        word, normalizer = SURROGATE.sub("\ufffd", word), self.backend.normalizer
        return word if normalizer is None else str(normalizer.normalize_str(word)).strip()

    def _assemble(self, parts: list[tuple[list[TokenWithOffsets], int, dict[int, str]]], num_replaced: int) -> Encoding:
        frame, first = self.specials.template, self.specials.cls
        ids, segments = [first] * frame.num_before, [0] * frame.num_before
        offsets: list[tuple[int, int] | None] = [None] * frame.num_before
        words: list[int | None] = [None] * frame.num_before
        unknown: dict[int, str] = {}
        for place, (placed, segment, written) in enumerate(parts):
            unknown |= {len(ids) + number: word for number, word in written.items()}
            num_separators = frame.num_separators(place, len(parts))
            word = -1
            for piece in placed:
                word += piece.begins_word
                ids.append(piece.id)
                offsets.append((piece.start, piece.end))
                words.append(word)
            ids += [self.specials.sep] * num_separators
            offsets += [None] * num_separators
            words += [None] * num_separators
            segments += [segment] * (len(placed) + num_separators)
        ids += [first] * frame.num_after
        segments += [frame.token_type_ids[2]] * frame.num_after
        offsets += [None] * frame.num_after
        words += [None] * frame.num_after
        pieces = tuple(self.tokens[number] for number in ids)
        return Encoding(tuple(ids), pieces, tuple(offsets), tuple(words), tuple(segments), num_replaced, unknown)


def _validate_vocab(backend: tokenizers.Tokenizer) -> dict[str, int]:
    """Return each piece's id. The ids must fill a row from 0: `pieces[id]` is how a piece is found."""
    ids: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    if sorted(ids.values()) != list(range(len(ids))):
        raise InputError(
            f"the vocabulary has {len(ids)} pieces but ids up to {max(ids.values())}; number its pieces from 0 without"
            " gaps or repeats"
        )
    return ids


def _select_model(state: dict[str, Any], tokens: Sequence[str], backend: tokenizers.Tokenizer) -> TokenizerModel:
    """Choose our exact WordPiece wherever the rules are BERT's; everything else is cut by `tokenizers` itself."""
    normalizer = state["normalizer"] or {}
    splitter = state["pre_tokenizer"] or {}
    is_bert = normalizer.get("type") == "BertNormalizer" and normalizer["clean_text"]
    if state["model"]["type"] == "WordLevel" and has_multi_ideograph_words(state):
        return JiebaModel(backend)
    if not (state["model"]["type"] == "WordPiece" and is_bert and splitter.get("type") == "BertPreTokenizer"):
        return BackendModel(backend)
    model = state["model"]
    lower = normalizer["lowercase"]
    strip = normalizer["strip_accents"]
    rules = WordPieceRules(
        lower_case=lower,
        strip_accents=lower if strip is None else strip,
        split_ideographs=normalizer["handle_chinese_chars"],
        unknown=model["unk_token"],
        continuation=model["continuing_subword_prefix"],
        max_characters=model["max_input_chars_per_word"],
    )
    return WordPiece(tokens, rules)


# Hugging Face's name of each special piece, and what the releases of the family call it. XLNet's has <s> and </s>, too,
# and does not use them.
_DEFAULT_NAMES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<cls>", "<s>"),
    "sep_token": ("[SEP]", "<sep>", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def _find_specials(backend: tokenizers.Tokenizer, names: dict[str, Any]) -> SpecialTokenIds:
    found = []
    for role, usual in _DEFAULT_NAMES.items():
        told = names.get(role)
        told = told.get("content") if isinstance(told, dict) else told
        candidates = ((told,) if told else ()) + usual
        number = next((n for n in map(backend.token_to_id, candidates) if n is not None), None)
        if number is None:
            raise InputError(f"the vocabulary has no {' or '.join(usual)} piece; BERT needs it, so add it")
        found.append(number)
    pad, unknown, first, separator, mask = found
    return SpecialTokenIds(pad, unknown, first, separator, mask, template_for(backend.id_to_token(first) or ""))


def _looks_cased(tokens: Sequence[str]) -> bool:
    """Guess from a bare vocab.txt: an uncased one has no piece that begins with a capital letter of any script.

    Special pieces such as [CLS], and the <S> and <T> of Chinese BERT, begin with a bracket; the ℝ of the uncased
    release is a capital that has no small form.
    """
    firsts = {piece.removeprefix("##")[:1] for piece in tokens}
    return any(first != first.lower() for first in firsts)
