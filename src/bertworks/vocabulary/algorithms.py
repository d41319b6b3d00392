"""The kinds of vocabulary: tokens, merges or scores in, a ready `tokenizers.Tokenizer` out.

A kind defines how text becomes words (normalizer, pre-tokenizer), how words become tokens (model), and the names and
template of the special tokens. All of it is written to `tokenizer.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import regex
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from bertworks.errors import InputError, SettingsError
from bertworks.vocabulary.characters import CONTROL_WHITESPACE, IDEOGRAPHS, SPACES
from bertworks.vocabulary.word_boundaries import jieba_words

# Longer words are [UNK] in Google's WordpieceTokenizer; the default of `tokenizers` is 100.
MAX_WORD_LENGTH = 200
CONTINUATION_PREFIX = "##"
WORD_END = "</w>"
# How many special tokens `add_missing_special_tokens` adds to a vocabulary without any.
NUM_ADDED_TOKENS = 4
SPACE_MARK = "▁"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The special tokens by role, and all of them in the order of their ids."""

    pad: str
    unknown: str
    cls: str
    sep: str
    mask: str
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The result of training: tokens by id, and the merges (BPE) or scores (Unigram) of kinds that have them."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of vocabulary. The argument of `normalizer` and `chunks` is `cased`.

    `chunks` splits raw text at positions that no word of this kind crosses, so that each distinct chunk is split into
    words only once. The words of the chunks are exactly the words of the text.
    """

    name: str
    specials: SpecialTokens
    normalizer: Callable[[bool], normalizers.Normalizer | None]
    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    decoder: Callable[[], decoders.Decoder | None]
    model: Callable[[Inventory, SpecialTokens], models.Model]
    post_processor: Callable[[SpecialTokens, dict[str, int]], processors.PostProcessor]
    chunks: Callable[[bool], Callable[[str], list[str]]]

    def untrained_tokenizer(self, cased: bool) -> tokenizers.Tokenizer:
        """Return a backend with normalizer and pre-tokenizer but without a vocabulary."""
        backend = tokenizers.Tokenizer(models.WordLevel({self.specials.unknown: 0}, self.specials.unknown))
        return self._set_pre_tokenization(backend, cased)

    def build(self, inventory: Inventory, cased: bool) -> tokenizers.Tokenizer:
        """Return a ready backend. Special tokens in text are ordinary text (see `ignore_special_tokens_in_text`)."""
        token_to_id = _validate_vocab(inventory, self)
        backend = tokenizers.Tokenizer(self.model(inventory, self.specials))
        self._set_pre_tokenization(backend, cased)
        decoder = self.decoder()
        if decoder is not None:
            backend.decoder = decoder
        backend.post_processor = self.post_processor(self.specials, token_to_id)
        backend.add_special_tokens([_added_token(token, self) for token in self.specials.order])
        return ignore_special_tokens_in_text(backend)

    def _set_pre_tokenization(self, backend: tokenizers.Tokenizer, cased: bool) -> tokenizers.Tokenizer:
        normalizer = self.normalizer(cased)
        if normalizer is not None:
            backend.normalizer = normalizer
        backend.pre_tokenizer = self.pre_tokenizer()
        return backend


def ignore_special_tokens_in_text(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Make "[MASK]" in text ordinary text. Must be called again when a backend is loaded from a file.

    Special tokens are registered in `tokenizer.json`, since `transformers` expects them there, and by default they are
    then recognized inside text. Text from outside must not be able to inject control tokens, and Google's release does
    not recognize them in text either. `encode_special_tokens = True` turns that off; the post-processor still adds the
    special tokens around the text. The switch is not saved in `tokenizer.json`.
    """
    backend.encode_special_tokens = True
    return backend


def add_missing_special_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Append special tokens to a BPE vocabulary that was released without any, such as GPT's."""
    kind, vocabulary = detect_kind(backend), backend.get_vocab()
    missing = [token for token in kind.specials.order if token != kind.specials.unknown]
    usual_tokens = {*missing, *_ROBERTA.order, *_XLNET} - {"<unk>"}
    if kind.name != "bpe" or any(token in vocabulary for token in usual_tokens):
        return backend
    backend.add_special_tokens([_added_token(token, kind) for token in missing])
    backend.post_processor = kind.post_processor(kind.specials, backend.get_vocab())
    return ignore_special_tokens_in_text(backend)


def wordpiece_backend(tokens: Sequence[str], cased: bool) -> tokenizers.Tokenizer:
    """Return a WordPiece backend; the id of a token is its index in `tokens`, as in Google's `vocab.txt`."""
    return KINDS["wordpiece"].build(Inventory(tuple(tokens)), cased)


def get_kind(name: str) -> Kind:
    """Return the kind of that name; raise a SettingsError with the valid names if there is none."""
    if name not in KINDS:
        raise SettingsError(f"vocabulary kind '{name}' is unknown; choose one of: {', '.join(KINDS)}")
    return KINDS[name]


def detect_kind(backend: tokenizers.Tokenizer) -> Kind:
    """Return the kind of a backend, by its model and pre-tokenizer."""
    content = json.loads(backend.to_str())
    model = content["model"]["type"]
    if model == "BPE":
        return KINDS["byte-bpe" if '"ByteLevel"' in json.dumps(content["pre_tokenizer"]) else "bpe"]
    if model == "WordLevel":
        return KINDS["jieba-words" if has_multi_ideograph_words(content) else "words"]
    return KINDS[{"WordPiece": "wordpiece", "Unigram": "unigram"}[model]]


def has_multi_ideograph_words(content: Mapping[str, Any]) -> bool:
    """Whether the words of a tokenizer.json can have several ideographs: then jieba segments the text first."""
    normalizer = content["normalizer"] or {}
    return normalizer.get("type") == "BertNormalizer" and not normalizer["handle_chinese_chars"]


def is_cased(backend: tokenizers.Tokenizer) -> bool:
    """Whether a backend distinguishes "A" from "a"."""
    return backend.normalizer is None or backend.normalizer.normalize_str("A").strip() == "A"


def unused_token(index: int) -> str:
    """Return the name of an unused vocabulary entry, as in Google's vocabularies."""
    return f"[unused{index}]"


def _validate_vocab(inventory: Inventory, kind: Kind) -> dict[str, int]:
    token_to_id: dict[str, int] = {}
    for token_id, token in enumerate(inventory.tokens):
        if token in token_to_id:
            raise InputError(
                f"vocabulary, line {token_id + 1}: token '{token}' appears twice (first on line"
                f" {token_to_id[token] + 1}); remove one"
            )
        token_to_id[token] = token_id
    missing = [token for token in kind.specials.order if token not in token_to_id]
    if missing:
        raise InputError(
            f"vocabulary of {len(token_to_id)} tokens lacks {' '.join(missing)}; a {kind.name} vocabulary needs all of "
            f"{' '.join(kind.specials.order)}: add a line for each"
        )
    return token_to_id


def _added_token(token: str, kind: Kind) -> AddedToken:
    # As in roberta-base, <mask> includes the space before it, since words begin with their space.
    strips_space = kind.name == "byte-bpe" and token == kind.specials.mask
    return AddedToken(token, lstrip=strips_space, normalized=False, special=True)


# ---------------------------------------------------------------- words

# Chinese has no white space: chunks would be whole paragraphs if they were not split at its punctuation too. Each
# character of _ALONE is a chunk.
_CHINESE_PUNCTUATION = "、-】！-／：-？"
_ALONE = "".join(f"{chr(first)}-{chr(last)}" for first, last in IDEOGRAPHS) + _CHINESE_PUNCTUATION
_BASIC_CHUNK = re.compile(f"[{_ALONE}]|[^{SPACES}{_ALONE}]+")


def _basic_chunks(text: str) -> list[str]:
    # For plain English `str.split` is several times as fast as a pattern.
    if text.isascii() and CONTROL_WHITESPACE.search(text) is None:
        return text.split()
    return _BASIC_CHUNK.findall(text)


# The pre-tokenizer of a unigram vocabulary splits at white space only. Our tokens never mix letters and punctuation, so
# splitting at punctuation too changes no token; but the part after such a split must not get a space mark.
CONTINUATION_MARK = "\0"
_WHITESPACE_CHUNK = re.compile(f"[^{SPACES}]+")
_PUNCTUATION_PART = re.compile(f"[{_CHINESE_PUNCTUATION}]+|[^{_CHINESE_PUNCTUATION}]+")


def _whitespace_chunks(text: str) -> list[str]:
    if text.isascii() and CONTROL_WHITESPACE.search(text) is None:
        return text.split()
    chunks: list[str] = []
    for chunk in _WHITESPACE_CHUNK.findall(text):
        first, *continuations = _PUNCTUATION_PART.findall(chunk)
        chunks.append(first)
        chunks.extend(CONTINUATION_MARK + part for part in continuations)
    return chunks


# The words of the ByteLevel pre-tokenizer.
_BYTE_CHUNK = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+"
    r"|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+"
)


def _byte_chunks(cased: bool) -> Callable[[str], list[str]]:
    if cased:
        return lambda text: list(_BYTE_CHUNK.findall(text))
    # Lowering changes word boundaries: "'S" becomes the suffix "'s", and "İ" a letter and an accent.
    lowering = normalizers.Lowercase()
    return lambda text: list(_BYTE_CHUNK.findall(lowering.normalize_str(text)))


def _bert_normalizer(cased: bool, split_ideographs: bool = True) -> normalizers.Normalizer:
    # strip_accents=None strips accents exactly when lowering, as Google's BasicTokenizer does.
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=split_ideographs, strip_accents=None, lowercase=not cased
    )


def _sentencepiece_normalizer(cased: bool) -> normalizers.Normalizer:
    # NFKC after StripAccents recomposes what NFKD decomposed besides accents, such as Korean syllables.
    lowering: list[normalizers.Normalizer] = []
    if not cased:
        lowering = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    collapse_spaces = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    return normalizers.Sequence(
        [normalizers.Nmt(), *lowering, normalizers.NFKC(), collapse_spaces, normalizers.Strip()]
    )


def _sentencepiece_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    # A unigram model finds any token inside a word, special tokens too. Splitting off their first bracket keeps "[CLS]"
    # in text ordinary text.
    names = "|".join(re.escape(token[1:]) for token in _ALBERT.order)
    bracket = tokenizers.Regex(rf"[\[<](?={names})")
    mark = pre_tokenizers.Metaspace(replacement=SPACE_MARK, prepend_scheme="always")
    return pre_tokenizers.Sequence([mark, pre_tokenizers.Split(bracket, "isolated")])


# ---------------------------------------------------------------- models


def _wordpiece_model(inventory: Inventory, specials: SpecialTokens) -> models.Model:
    return models.WordPiece(
        _token_to_id(inventory),
        unk_token=specials.unknown,
        max_input_chars_per_word=MAX_WORD_LENGTH,
        continuing_subword_prefix=CONTINUATION_PREFIX,
    )


def _bpe_model(inventory: Inventory, specials: SpecialTokens) -> models.Model:
    return models.BPE(
        vocab=_token_to_id(inventory),
        merges=list(inventory.merges),
        unk_token=specials.unknown,
        end_of_word_suffix=WORD_END,
    )


def _byte_bpe_model(inventory: Inventory, specials: SpecialTokens) -> models.Model:
    return models.BPE(vocab=_token_to_id(inventory), merges=list(inventory.merges))


def _unigram_model(inventory: Inventory, specials: SpecialTokens) -> models.Model:
    token_scores = list(zip(inventory.tokens, inventory.scores, strict=True))
    return models.Unigram(token_scores, unk_id=inventory.tokens.index(specials.unknown), byte_fallback=False)


def _words_model(inventory: Inventory, specials: SpecialTokens) -> models.Model:
    return models.WordLevel(_token_to_id(inventory), unk_token=specials.unknown)


def _token_to_id(inventory: Inventory) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(inventory.tokens)}


# ---------------------------------------------------------------- special tokens


def _bert_post_processor(specials: SpecialTokens, token_to_id: dict[str, int]) -> processors.PostProcessor:
    cls, sep = specials.cls, specials.sep
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, token_to_id[cls]), (sep, token_to_id[sep])],
    )


def _roberta_post_processor(specials: SpecialTokens, token_to_id: dict[str, int]) -> processors.PostProcessor:
    # <s> A </s></s> B </s>, all of token type 0; trimmed offsets exclude the space that a word begins with.
    return processors.RobertaProcessing(
        sep=(specials.sep, token_to_id[specials.sep]),
        cls_token=(specials.cls, token_to_id[specials.cls]),
        trim_offsets=True,
        add_prefix_space=False,
    )


_BERT = SpecialTokens(
    pad="[PAD]",
    unknown="[UNK]",
    cls="[CLS]",
    sep="[SEP]",
    mask="[MASK]",
    order=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
)
_ROBERTA = SpecialTokens(
    pad="<pad>",
    unknown="<unk>",
    cls="<s>",
    sep="</s>",
    mask="<mask>",
    order=("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
)
_XLNET = ("<cls>", "<sep>")
_ALBERT = replace(_BERT, pad="<pad>", unknown="<unk>", order=("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))


def _basic_kind(
    name: str,
    model: Callable[[Inventory, SpecialTokens], models.Model],
    decoder: Callable[[], decoders.Decoder | None],
) -> Kind:
    """Return a kind over BERT's basic words: split at white space, punctuation and each Chinese character."""
    return Kind(
        name=name,
        specials=_BERT,
        normalizer=_bert_normalizer,
        pre_tokenizer=pre_tokenizers.BertPreTokenizer,
        decoder=decoder,
        model=model,
        post_processor=_bert_post_processor,
        chunks=lambda cased: _basic_chunks,
    )


_WORDS = _basic_kind("words", _words_model, lambda: None)
KINDS: dict[str, Kind] = {
    "wordpiece": _basic_kind("wordpiece", _wordpiece_model, lambda: decoders.WordPiece(prefix=CONTINUATION_PREFIX)),
    "bpe": _basic_kind("bpe", _bpe_model, lambda: decoders.BPEDecoder(suffix=WORD_END)),
    "byte-bpe": Kind(
        name="byte-bpe",
        specials=_ROBERTA,
        normalizer=lambda cased: None if cased else normalizers.Lowercase(),
        pre_tokenizer=lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        decoder=decoders.ByteLevel,
        model=_byte_bpe_model,
        post_processor=_roberta_post_processor,
        chunks=_byte_chunks,
    ),
    "unigram": Kind(
        name="unigram",
        specials=_ALBERT,
        normalizer=_sentencepiece_normalizer,
        pre_tokenizer=_sentencepiece_pre_tokenizer,
        decoder=lambda: decoders.Metaspace(replacement=SPACE_MARK, prepend_scheme="always"),
        model=_unigram_model,
        post_processor=_bert_post_processor,
        chunks=lambda cased: _whitespace_chunks,
    ),
    "words": _WORDS,
    "jieba-words": replace(
        _WORDS,
        name="jieba-words",
        normalizer=lambda cased: _bert_normalizer(cased, split_ideographs=False),
        chunks=lambda cased: lambda text: [word for _, word in jieba_words(text)],
    ),
}
