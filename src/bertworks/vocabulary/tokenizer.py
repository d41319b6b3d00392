"""The tokenizer: a text or a pair of texts in, an Encoding out; many sentences in, flat arrays of tokens out."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from bertworks.disk import write_json, write_text
from bertworks.display.bars import table_html
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.integrity.model_files import check_model_files
from bertworks.packages import check_installed, packaged_model
from bertworks.vocabulary.added_tokens import (
    AddedTokensModel,
    TokenizerModel,
    added_tokens_in,
    matching_backend,
    without_stripping,
)
from bertworks.vocabulary.algorithms import (
    CONTINUATION_PREFIX,
    detect_kind,
    has_multi_ideograph_words,
    is_cased,
)
from bertworks.vocabulary.backend import BackendModel, JiebaModel
from bertworks.vocabulary.characters import SPACE_AT_IDEOGRAPH, SURROGATE
from bertworks.vocabulary.files import prefix_errors, token_ids
from bertworks.vocabulary.named_tokens import read_tokenizer_settings
from bertworks.vocabulary.panics import explain_panics
from bertworks.vocabulary.special_ids import SpecialTokenIds as SpecialTokenIds
from bertworks.vocabulary.special_ids import control_ids, find_specials
from bertworks.vocabulary.special_tokens import BERT, SpecialTokenTemplate
from bertworks.vocabulary.text_inputs import check_texts, check_token_ids, several_texts, text_and_pair
from bertworks.vocabulary.token_arrays import FlatTokens, WordBoundaries
from bertworks.vocabulary.token_arrays import TokenizedText as TokenizedText
from bertworks.vocabulary.token_batch import TokenBatch, pad_encodings
from bertworks.vocabulary.vocabulary_files import (
    COMPANION_FILES,
    PEER_MAX_WORD_LENGTH,
    VOCABULARY_FILES,
    find_vocabulary,
    read_vocabulary_backend,
)
from bertworks.vocabulary.word_boundaries import jieba_boundaries
from bertworks.vocabulary.wordpiece import WordPiece, WordPieceRules

# What finds words in text with ideographs: nothing (each token begins a word), or jieba.
WORD_RULES: dict[str, WordBoundaries | None] = {"tokens": None, "jieba": jieba_boundaries}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """One text, or a pair, with special tokens: the input of a model. Sequences have one element per token.

    offsets        (start, end) in the original text, or in the second text of a pair; None for special tokens
    word_ids       index of the word in its text; None for special tokens
    num_replaced   number of lone surrogates that were replaced by U+FFFD, since they cannot be encoded
    unknown        the spelling of each out-of-vocabulary word, by its position
    """

    tokens: tuple[str, ...]
    input_ids: tuple[int, ...]
    token_type_ids: tuple[int, ...]
    offsets: tuple[tuple[int, int] | None, ...]
    word_ids: tuple[int | None, ...]
    num_replaced: int = 0
    unknown: Mapping[int, str] = field(default_factory=dict)

    @property
    def position_ids(self) -> tuple[int, ...]:
        """The index of each token in the sequence."""
        return tuple(range(len(self)))

    @property
    def attention_mask(self) -> tuple[int, ...]:
        """All ones: a single encoding has no padding."""
        return (1,) * len(self)

    def to_dict(self) -> dict[str, Any]:
        """Return tokens, ids, positions, token types, attention mask and offsets by their names in transformers."""
        names = ("tokens", "input_ids", "position_ids", "token_type_ids", "attention_mask", "offsets")
        return {name: getattr(self, name) for name in names}

    def _repr_html_(self) -> str:
        return table_html([self.tokens, self.input_ids, self.token_type_ids])

    def __len__(self) -> int:
        return len(self.input_ids)


class Tokenizer:
    """A vocabulary with its tokenization rules. Create one with `Tokenizer.load` or `Tokenizer.from_backend`.

    Tokens that transformers' `add_tokens` or `extra_special_tokens` added are one token wherever a text has them. The
    special tokens of a sequence, `control_ids`, are ordinary text there.
    """

    def __init__(self, backend: tokenizers.Tokenizer, specials: SpecialTokenIds, control_ids: Collection[int]) -> None:
        vocabulary = token_ids(backend)
        state = json.loads(backend.to_str())
        self.kind = detect_kind(backend).name
        self.marks_spaces = '"Metaspace"' in json.dumps(state["pre_tokenizer"])  # the vocabularies of SentencePiece
        self.specials = specials
        self.backend = backend
        self.truncation_side = "right"  # where tokens are dropped of a text that becomes one vector
        self.tokens: tuple[str, ...] = tuple(sorted(vocabulary, key=vocabulary.__getitem__))
        self.cased = is_cased(backend)
        # In RoBERTa's vocabulary a word begins with its space, and <mask> includes the space before it (lstrip).
        mask = self.tokens[specials.mask]
        self._mask_strips_space = any(
            added_token["lstrip"] for added_token in state["added_tokens"] if added_token["content"] == mask
        )
        self._added_tokens = added_tokens_in(state, control_ids)
        finder = matching_backend(backend, state, self._added_tokens)
        self._model: TokenizerModel = _select_model(state, self.tokens, finder)
        if self._added_tokens and not isinstance(self._model, BackendModel):
            ids = [token["id"] for token in self._added_tokens]
            continuation = state["model"].get("continuing_subword_prefix") or CONTINUATION_PREFIX
            self._model = AddedTokensModel(self._model, without_stripping(finder, ids), ids, continuation)
        self._state = state

    @classmethod
    def from_backend(
        cls,
        backend: tokenizers.Tokenizer,
        names: dict[str, Any] | None = None,
        *,
        split_special_tokens: bool = True,
        require_specials: bool = True,
    ) -> Tokenizer:
        """Wrap a `tokenizers.Tokenizer`; `names` gives unusual special tokens, as {"cls_token": ...}; see `load`."""
        specials = find_specials(backend, names or {}, require_specials)
        hidden_ids = control_ids(backend, specials, names or {}) if split_special_tokens else ()
        tokenizer = cls(backend, specials, hidden_ids)
        if (names or {}).get("truncation_side") == "left":
            tokenizer.truncation_side = "left"
        return tokenizer

    @classmethod
    def load(cls, path: str | Path, *, split_special_tokens: bool = True, require_specials: bool = True) -> Tokenizer:
        """Load a `vocab.txt`, a `tokenizer.json`, a folder that contains one of them, or that of a packaged model; see
        `vocabulary_files` for other formats.

        "[MASK]" or "[SEP]" in a text is ordinary text, as in Google's release, so that texts cannot inject special
        tokens; with `split_special_tokens=False`, the default of transformers, it is the special token. A vocabulary
        must have [CLS], [SEP] and so on, unless `require_specials` is False: then the unknown token stands for them.
        """
        path = packaged_model(str(path)) or Path(path)
        if path.is_dir():
            file = find_vocabulary(path)
            if file is None:
                raise FolderError(
                    f"{path} contains none of {', '.join(VOCABULARY_FILES)}; give a vocabulary or model folder"
                )
            return cls.load(file, split_special_tokens=split_special_tokens, require_specials=require_specials)
        if not path.is_file():
            check_installed(str(path))
            raise InputError(
                f"{path} does not exist; give a vocab.txt, a tokenizer.json or a folder that contains one of them"
            )
        check_model_files(path.parent, (path.name, *COMPANION_FILES))
        settings = read_tokenizer_settings(path.parent)
        backend = read_vocabulary_backend(path, settings)
        with prefix_errors(path), explain_panics():
            return cls.from_backend(
                backend, settings, split_special_tokens=split_special_tokens, require_specials=require_specials
            )

    def save(self, folder: str | Path, padding_side: str = "right", has_token_types: bool = True) -> None:
        """Write tokenizer.json, tokenizer_config.json and, for WordPiece, vocab.txt, for Hugging Face's libraries.

        `padding_side` and `has_token_types`, where the template has any, are settings for those libraries.
        """
        folder = Path(folder)
        write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))
        template = self.specials.template
        is_bert = template == BERT and _has_bert_rules(self._state, PEER_MAX_WORD_LENGTH)
        if self.kind == "wordpiece":
            write_text(folder / "vocab.txt", "\n".join(self.tokens) + "\n")
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        config: dict[str, Any] = {
            "tokenizer_class": "BertTokenizer" if is_bert else "PreTrainedTokenizerFast",
            **{name: self.tokens[token_id] for name, token_id in zip(names, self.specials.ids, strict=True)},
        }
        if self.specials.mask == self.specials.unknown:  # it has none
            del config["mask_token"]
        if self.kind == "wordpiece":
            normalizer = self._state["normalizer"] or {}
            config |= {
                "do_lower_case": not self.cased,
                "strip_accents": normalizer.get("strip_accents"),
                "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
            }
        if self.truncation_side != "right":  # the default of transformers
            config["truncation_side"] = self.truncation_side
        if padding_side != "right":
            config["padding_side"] = padding_side
        has_token_types = has_token_types and any(template.token_type_ids)
        if not (is_bert and has_token_types):  # the defaults of other classes changed with transformers 5
            config["model_input_names"] = ["input_ids", *["token_type_ids"] * has_token_types, "attention_mask"]
        write_json(folder / "tokenizer_config.json", config)

    def with_template(self, template: SpecialTokenTemplate) -> Tokenizer:
        """Return the tokenizer with another layout of special tokens."""
        tokenizer = copy.copy(self)
        tokenizer.specials = replace(self.specials, template=template)
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special and added ones included."""
        return len(self.tokens)

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits of a hash over everything that determines the tokens of a text."""
        state = [self._state["normalizer"], self._state["pre_tokenizer"], self._state["model"], self.specials.ids]
        state += [self._added_tokens] if self._added_tokens else []  # the hashes of older vocabularies remain
        return hashlib.sha256(json.dumps(state, ensure_ascii=False, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def mask_id(self) -> int:
        """The id of the mask token; InputError if the vocabulary has none, where the unknown token stands for it."""
        if self.specials.mask == self.specials.unknown:
            raise InputError("the vocabulary has no [MASK] or <mask> token, which masking needs; add it")
        return self.specials.mask

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, special tokens included, or None."""
        token_id: int | None = self.backend.token_to_id(token)
        return token_id

    def encode(self, text: str, pair: str | None = None, *, parse_masks: bool = False) -> Encoding:
        """Encode a text, or a pair of texts, with special tokens and without truncation.

        "[MASK]" in a text is ordinary text unless `parse_masks` is set: then it is the mask token.
        """
        texts = [text] if pair is None else [text, pair]
        parts = [self._tokenize_with_masks(text) if parse_masks else self.tokenize(text) for text in texts]
        ids, token_type_ids, starts = self.build_inputs(*(part.input_ids for part in parts))
        input_ids = tuple(ids.tolist())
        offsets: list[tuple[int, int] | None] = [None] * len(input_ids)
        word_ids: list[int | None] = [None] * len(input_ids)
        unknown: dict[int, str] = {}
        for part, start in zip(parts, starts, strict=True):
            offsets[start : start + len(part)] = zip(*part.offsets.T.tolist(), strict=True)
            word_ids[start : start + len(part)] = islice(accumulate(part.word_starts.tolist(), initial=-1), 1, None)
            unknown |= {start + index: word for index, word in part.unknown.items()}
        return Encoding(
            tokens=tuple(map(self.tokens.__getitem__, input_ids)),
            input_ids=input_ids,
            token_type_ids=tuple(token_type_ids.tolist()),
            offsets=tuple(offsets),
            word_ids=tuple(word_ids),
            num_replaced=sum(len(SURROGATE.findall(text)) for text in texts),
            unknown=unknown,
        )

    def __call__(self, text: Any, pair: Any = None) -> Any:
        """Encode a text or a pair, as `encode` does; of lists, the encoding of each text or pair.

        A pair may also be a tuple: `tokenizer([("a question?", "a passage")])`.
        """
        if isinstance(text, str):
            return self.encode(*check_texts([text] if pair is None else [text, pair]))
        if isinstance(text, tuple) and pair is None:
            return self.encode(*text_and_pair(text))
        texts = several_texts(text)
        if pair is None:
            return [self.encode(*text_and_pair(one)) for one in texts]
        pairs = several_texts(pair)
        if len(pairs) != len(texts):
            raise InputError(f"there are {len(texts):,} texts and {len(pairs):,} pairs; give one pair for each text")
        return [self.encode(*check_texts(both)) for both in zip(texts, pairs, strict=True)]

    def batch(self, texts: Iterable[str | tuple[str, str]], pairs: Iterable[str] | None = None) -> TokenBatch:
        """Encode texts, or pairs of texts, into arrays that are padded to the longest of them."""
        encodings: list[Encoding] = self(several_texts(texts), pairs)
        return pad_encodings(encodings, self.specials.pad)

    def decode(self, input_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; case, and spaces that the vocabulary does not store, are lost.

        Ideographs and their punctuation marks, each a token of WordPiece, are not separated by spaces.
        """
        ids = check_token_ids(input_ids)
        if any(not 0 <= token_id < self.vocab_size for token_id in ids):
            raise InputError(f"the token ids must be from 0 to {self.vocab_size - 1}; these are of another vocabulary")
        controls = (self.specials.cls, self.specials.sep, self.specials.pad) if skip_special_tokens else ()
        text = str(self.backend.decode([n for n in ids if n not in controls], skip_special_tokens=False)).strip()
        return SPACE_AT_IDEOGRAPH.sub("", text) if self.kind == "wordpiece" else text

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {'cased' if self.cased else 'uncased'}, {self.vocab_size:,} tokens)"

    def tokenize(self, text: str) -> TokenizedText:
        """Return the tokens of a text without special tokens; `build_inputs` adds these."""
        text = SURROGATE.sub("\ufffd", text)
        with explain_panics():
            tokens = self._model.encode(text)
            unknown = np.flatnonzero(tokens.input_ids == self.specials.unknown).tolist()
            if not unknown:
                return tokens
            spelling = {index: self._normalize_word(text[slice(*tokens.offsets[index])]) for index in unknown}
            return replace(tokens, unknown=spelling)

    def build_inputs(
        self, *parts: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[int]]:
        """Add special tokens to the token ids of one or two texts.

        Returns input_ids and token_type_ids (T,), and the position where each text begins.
        """
        template = self.specials.template
        length = sum(map(len, parts)) + template.num_special_tokens(len(parts))
        input_ids, token_type_ids = np.full(length, self.specials.sep), np.zeros(length, dtype=np.int64)
        starts, position = [], template.num_before
        input_ids[:position] = self.specials.cls
        for index, part in enumerate(parts):
            starts.append(position)
            input_ids[position : position + len(part)] = part
            end = position + len(part) + template.num_separators(index, len(parts))
            token_type_ids[position:end] = template.token_type_ids[index]
            position = end
        input_ids[position:] = self.specials.cls
        token_type_ids[position:] = template.token_type_ids[2]
        return input_ids, token_type_ids, starts

    def num_special_tokens(self, num_texts: int) -> int:
        """Return the number of special tokens that `build_inputs` adds to one or two texts."""
        return self.specials.template.num_special_tokens(num_texts)

    def encode_sentences(self, sentences: Sequence[str], word_rule: str = "tokens") -> FlatTokens:
        """Return the tokens of many sentences, without special tokens; `word_rule` is a key of WORD_RULES."""
        if word_rule not in WORD_RULES:
            raise SettingsError(f"there is no word rule '{word_rule}'; choose one of: {', '.join(WORD_RULES)}")
        with explain_panics():
            return self._model.encode_sentences(sentences, WORD_RULES[word_rule])

    def _tokenize_with_masks(self, text: str) -> TokenizedText:
        """Tokenize a text in which the mask token is written out, as in "the [MASK] sat"."""
        mask = self.tokens[self.specials.mask]
        *before_masks, last = text.split(mask)
        parts: list[TokenizedText] = []
        offset = 0
        for before in before_masks:
            parts.append(self._tokenize_part(before.rstrip() if self._mask_strips_space else before, offset))
            offset += len(before)
            parts.append(TokenizedText.from_tuples([(self.specials.mask, offset, offset + len(mask), True)]))
            offset += len(mask)
        return TokenizedText.concatenate([*parts, self._tokenize_part(last, offset)])

    def _tokenize_part(self, part: str, offset: int) -> TokenizedText:
        tokens = self.tokenize(part)
        return replace(tokens, offsets=tokens.offsets + offset)

    def _normalize_word(self, word: str) -> str:
        """Return an out-of-vocabulary word as the vocabulary would spell it: in lower case if it is uncased."""
        normalizer = self.backend.normalizer
        return word if normalizer is None else str(normalizer.normalize_str(word)).strip()


def _has_bert_rules(state: dict[str, Any], max_word_length: int | None = None) -> bool:
    """Whether a tokenizer.json has BERT's rules, with any limit of a word or the one that is given."""
    normalizer, pre_tokenizer = state["normalizer"] or {}, state["pre_tokenizer"] or {}
    is_bert = normalizer.get("type") == "BertNormalizer" and normalizer["clean_text"]
    is_wordpiece = state["model"]["type"] == "WordPiece" and pre_tokenizer.get("type") == "BertPreTokenizer"
    return is_bert and is_wordpiece and max_word_length in (None, state["model"]["max_input_chars_per_word"])


def _select_model(state: dict[str, Any], tokens: Sequence[str], backend: tokenizers.Tokenizer) -> TokenizerModel:
    """Choose our exact WordPiece where the rules are BERT's, and a model of `tokenizers` otherwise."""
    if state["model"]["type"] == "WordLevel" and has_multi_ideograph_words(state):
        return JiebaModel(backend)
    if not _has_bert_rules(state):
        return BackendModel(backend)
    model, normalizer = state["model"], state["normalizer"]
    lower_case = normalizer["lowercase"]
    strip_accents = normalizer["strip_accents"]
    rules = WordPieceRules(
        lower_case=lower_case,
        strip_accents=lower_case if strip_accents is None else strip_accents,
        split_ideographs=normalizer["handle_chinese_chars"],
        unknown=model["unk_token"],
        continuation=model["continuing_subword_prefix"],
        max_characters=model["max_input_chars_per_word"],
    )
    # Added tokens that are not part of the model are found before words are tokenized, and never inside a word.
    return WordPiece([token if token in model["vocab"] else "" for token in tokens], rules)
