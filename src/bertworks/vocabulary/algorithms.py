"""The kinds of vocabulary: pieces, merges or scores in, a ready `tokenizers.Tokenizer` out.

A kind says how text becomes words (normaliser, pre-tokeniser) and how words become pieces (model), what the special
pieces are called and where they stand around one text or a pair. Everything it says goes into `tokenizer.json`.
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

# Google's WordpieceTokenizer gives up on words of more than 200 characters; `tokenizers` alone would take 100.
MAX_WORD_LENGTH = 200
CONTINUATION_PREFIX = "##"
WORD_END = "</w>"
# How many special pieces a vocabulary gets that was released without any (`with_specials`).
NUM_ADDED_TOKENS = 4
SPACE_MARK = "▁"


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The pieces that stand for no text, in the order of their ids."""

    pad: str
    unknown: str
    cls: str
    sep: str
    mask: str
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """What training yields and a model needs: pieces by id, and merges or scores where the kind has them."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of vocabulary reads text. The argument of `normalizer` and `chunks` is whether case is kept.

    `chunks` cuts raw text where no word of this kind can cross, so that each different chunk is split into words only
    once. Words joined from chunks are exactly the words of the whole text.
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
        """A backend that knows how to find words and has no pieces yet."""
        backend = tokenizers.Tokenizer(models.WordLevel({self.specials.unknown: 0}, self.specials.unknown))
        return self._set_pre_tokenization(backend, cased)

    def build(self, inventory: Inventory, cased: bool) -> tokenizers.Tokenizer:
        """A ready backend. Special pieces in running text are plain text (see `plain_specials`)."""
        ids = _validate_vocab(inventory, self)
        backend = tokenizers.Tokenizer(self.model(inventory, self.specials))
        self._set_pre_tokenization(backend, cased)
        decoder = self.decoder()
        if decoder is not None:
            backend.decoder = decoder
        backend.post_processor = self.post_processor(self.specials, ids)
        backend.add_special_tokens([_added_token(piece, self) for piece in self.specials.order])
        return ignore_special_tokens_in_text(backend)

    def _set_pre_tokenization(self, backend: tokenizers.Tokenizer, cased: bool) -> tokenizers.Tokenizer:
        normalizer = self.normalizer(cased)
        if normalizer is not None:
            backend.normalizer = normalizer
        backend.pre_tokenizer = self.pre_tokenizer()
        return backend


def ignore_special_tokens_in_text(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Make "[MASK]" in running text three ordinary words. To be called again after a backend is loaded from a file.

    Special pieces are registered in `tokenizer.json`, because `transformers` expects them there: it then finds "[MASK]"
    inside text. Text from the world must not be able to write control pieces, and Google's release does not look for
    them either. `encode_special_tokens = True` switches that search off; the frame ([CLS] A [SEP]) is put around the
    text all the same. The switch is not written to `tokenizer.json`, so it holds for this object only.
    """
    backend.encode_special_tokens = True
    return backend


def add_missing_special_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Give a BPE vocabulary that was released without any special piece, as GPT's was, those that rows are made with:
    behind its last piece."""
    kind, known = detect_kind(backend), backend.get_vocab()
    lacking = [piece for piece in kind.specials.order if piece != kind.specials.unknown]
    named = {*lacking, *_ROBERTA.order, *_XLNET} - {"<unk>"}
    if kind.name != "bpe" or any(piece in known for piece in named):
        return backend
    backend.add_special_tokens([_added_token(piece, kind) for piece in lacking])
    backend.post_processor = kind.post_processor(kind.specials, backend.get_vocab())
    return ignore_special_tokens_in_text(backend)


def wordpiece_backend(tokens: Sequence[str], cased: bool) -> tokenizers.Tokenizer:
    """A WordPiece backend from a list of pieces, id = place in the list, as in Google's `vocab.txt`."""
    return KINDS["wordpiece"].build(Inventory(tuple(tokens)), cased)


def get_kind(name: str) -> Kind:
    """The kind of that name, or a SettingsError with the list of valid ones."""
    if name not in KINDS:
        raise SettingsError(f"vocabulary kind '{name}' is unknown; choose one of: {', '.join(KINDS)}")
    return KINDS[name]


def detect_kind(backend: tokenizers.Tokenizer) -> Kind:
    """The kind a backend belongs to, judged by its model and pre-tokeniser."""
    content = json.loads(backend.to_str())
    model = content["model"]["type"]
    if model == "BPE":
        return KINDS["byte-bpe" if '"ByteLevel"' in json.dumps(content["pre_tokenizer"]) else "bpe"]
    if model == "WordLevel":
        return KINDS["jieba-words" if has_multi_ideograph_words(content) else "words"]
    return KINDS[{"WordPiece": "wordpiece", "Unigram": "unigram"}[model]]


def has_multi_ideograph_words(content: Mapping[str, Any]) -> bool:
    """Whether the words of a tokenizer.json may have several ideographs: jieba finds them, before anything else."""
    normalizer = content["normalizer"] or {}
    return normalizer.get("type") == "BertNormalizer" and not normalizer["handle_chinese_chars"]


def is_cased(backend: tokenizers.Tokenizer) -> bool:
    """Whether a backend tells "A" from "a"."""
    return backend.normalizer is None or backend.normalizer.normalize_str("A").strip() == "A"


def unused_token(number: int) -> str:
    """The name of a free slot, as in Google's vocabularies."""
    return f"[unused{number}]"


def _validate_vocab(inventory: Inventory, kind: Kind) -> dict[str, int]:
    ids: dict[str, int] = {}
    for number, piece in enumerate(inventory.tokens):
        if piece in ids:
            raise InputError(
                f"vocabulary, line {number + 1}: piece '{piece}' appears twice (first on line {ids[piece] + 1});"
                " remove one"
            )
        ids[piece] = number
    missing = [piece for piece in kind.specials.order if piece not in ids]
    if missing:
        raise InputError(
            f"vocabulary of {len(ids)} pieces lacks {' '.join(missing)}; a {kind.name} vocabulary needs all of "
            f"{' '.join(kind.specials.order)}: add a line for each"
        )
    return ids


def _added_token(token: str, kind: Kind) -> AddedToken:
    # roberta-base lets <mask> swallow the space before it, since its words begin with their space.
    swallows_space = kind.name == "byte-bpe" and token == kind.specials.mask
    return AddedToken(token, lstrip=swallows_space, normalized=False, special=True)


# ---------------------------------------------------------------- words

# Chinese has no white space: chunks would be whole paragraphs if they were not cut at its punctuation too.
_CHINESE_PUNCTUATION = "、-】！-／：-？"
_ALONE = "".join(f"{chr(first)}-{chr(last)}" for first, last in IDEOGRAPHS) + _CHINESE_PUNCTUATION
_BASIC_CHUNK = re.compile(f"[{_ALONE}]|[^{SPACES}{_ALONE}]+")


def _basic_chunks(text: str) -> list[str]:
    # Plain English takes the fast way: `str.split` is several times as fast as a pattern.
    if text.isascii() and CONTROL_WHITESPACE.search(text) is None:
        return text.split()
    return _BASIC_CHUNK.findall(text)


# The pre-tokeniser of a unigram vocabulary parts words at white space alone. Our pieces never mix letters and
# punctuation, so cutting there too changes no piece; but what follows such a cut must not get the mark of a space.
CONTINUATION_MARK = "\0"
_WHITESPACE_CHUNK = re.compile(f"[^{SPACES}]+")
_PUNCTUATION_PART = re.compile(f"[{_CHINESE_PUNCTUATION}]+|[^{_CHINESE_PUNCTUATION}]+")


def _whitespace_chunks(text: str) -> list[str]:
    if text.isascii() and CONTROL_WHITESPACE.search(text) is None:
        return text.split()
    chunks: list[str] = []
    for chunk in _WHITESPACE_CHUNK.findall(text):
        first, *others = _PUNCTUATION_PART.findall(chunk)
        chunks.append(first)
        chunks.extend(CONTINUATION_MARK + part for part in others)
    return chunks


# The words of the ByteLevel pre-tokeniser themselves.
_BYTE_CHUNK = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+"
    r"|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+"
)


def _byte_chunks(cased: bool) -> Callable[[str], list[str]]:
    if cased:
        return lambda text: list(_BYTE_CHUNK.findall(text))
    # Lowering moves the borders of words: "'S" becomes the ending "'s", and "İ" a letter and an accent.
    lowering = normalizers.Lowercase()
    return lambda text: list(_BYTE_CHUNK.findall(lowering.normalize_str(text)))


def _bert_normalizer(cased: bool, split_ideographs: bool = True) -> normalizers.Normalizer:
    # strip_accents=None means: strip them exactly when lowering, as Google's BasicTokenizer does.
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=split_ideographs, strip_accents=None, lowercase=not cased
    )


def _sentencepiece_normalizer(cased: bool) -> normalizers.Normalizer:
    # After stripping accents NFKC joins what NFKD took apart and is no accent, such as Korean syllables.
    lowering: list[normalizers.Normalizer] = []
    if not cased:
        lowering = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    blanks = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    return normalizers.Sequence([normalizers.Nmt(), *lowering, normalizers.NFKC(), blanks, normalizers.Strip()])


def _sentencepiece_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    # A unigram model looks its pieces up anywhere in a word, special ones too. Cutting their first bracket off keeps
    # "[CLS]" in running text plain text.
    names = "|".join(re.escape(piece[1:]) for piece in _ALBERT.order)
    bracket = tokenizers.Regex(rf"[\[<](?={names})")
    mark = pre_tokenizers.Metaspace(replacement=SPACE_MARK, prepend_scheme="always")
    return pre_tokenizers.Sequence([mark, pre_tokenizers.Split(bracket, "isolated")])


# ---------------------------------------------------------------- pieces


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
    scored = list(zip(inventory.tokens, inventory.scores, strict=True))
    return models.Unigram(scored, unk_id=inventory.tokens.index(specials.unknown), byte_fallback=False)


def _words_model(inventory: Inventory, specials: SpecialTokens) -> models.Model:
    return models.WordLevel(_token_to_id(inventory), unk_token=specials.unknown)


def _token_to_id(inventory: Inventory) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(inventory.tokens)}


# ---------------------------------------------------------------- frames


def _bert_post_processor(specials: SpecialTokens, token_to_id: dict[str, int]) -> processors.PostProcessor:
    start, end = specials.cls, specials.sep
    return processors.TemplateProcessing(
        single=f"{start}:0 $A:0 {end}:0",
        pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(start, token_to_id[start]), (end, token_to_id[end])],
    )


def _roberta_post_processor(specials: SpecialTokens, token_to_id: dict[str, int]) -> processors.PostProcessor:
    # <s> A </s></s> B </s>, all in segment 0; offsets are trimmed to leave out the space a word begins with.
    return processors.RobertaProcessing(
        sep=(specials.sep, token_to_id[specials.sep]),
        cls_token=(specials.cls, token_to_id[specials.cls]),
        trim_offsets=True,
        add_prefix_space=False,
    )


_BERT = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))
_ROBERTA = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>", ("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
_XLNET = ("<cls>", "<sep>")
_ALBERT = SpecialTokens("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))


def _basic_kind(
    name: str,
    model: Callable[[Inventory, SpecialTokens], models.Model],
    decoder: Callable[[], decoders.Decoder | None],
) -> Kind:
    """A kind over BERT's basic words: white space, punctuation and each Chinese character part words."""
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
