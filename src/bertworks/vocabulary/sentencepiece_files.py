"""SentencePiece files without a tokenizer.json: a spiece.model, sentencepiece.bpe.model or spm.model in, a backend out.

Each family arranges the pieces and special tokens in its own way; the layouts are those of transformers. The models are
unigram, which the releases of these families are, whatever the file is called, or BPE. The rules of a family, by which
texts are normalized and split, are also those of its tokenizer.json.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from bertworks.errors import InputError
from bertworks.protobuf import fields_of, messages_of, numbers_of
from bertworks.reading import unreadable_reason

FILES = ("spiece.model", "sentencepiece.bpe.model", "spm.model")
Pieces = list[tuple[str, float]]
Settings = Mapping[str, Any]
# Field numbers of ModelProto, and of its pieces and specs.
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
_MODEL_TYPE, _UNIGRAM, _BPE = 3, 1, 2
_BYTE_FALLBACK = 35
_CHARACTER_MAP = 2
_BERT_PAIR = ("{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1")
_ROBERTA_PAIR = ("{cls} $A {sep}", "{cls} $A {sep} {sep} $B {sep}")
_XLNET_PAIR = ("$A:0 {sep}:0 {cls}:2", "$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel:
    """The content of a file: pieces with their scores, and the table of its normalization.

    A BPE model merges the pair of neighbors whose piece has the highest score; with `has_bytes` it spells unknown
    characters as bytes.
    """

    pieces: Pieces
    character_map: bytes
    is_bpe: bool = False
    has_bytes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a family arranges a vocabulary.

    arrange         the pieces of the file -> those of the vocabulary, in the order of their ids
    specials        padding, unknown, [CLS], [SEP], mask; those that are no pieces are appended
    normalizer      settings of tokenizer_config.json, and the table of the model -> the normalizer, if there is one
    templates       where special tokens stand around one text and around two
    split_spaces    whether white space separates words before the space mark is added
    unprefixed      which words get a space mark where add_prefix_space is false: never, first or always
    others          further special tokens
    """

    arrange: Callable[[Pieces], Pieces]
    specials: tuple[str, str, str, str, str]
    normalizer: Callable[[Settings, bytes], normalizers.Normalizer | None]
    templates: tuple[str, str]
    split_spaces: bool = True
    unprefixed: str = "never"
    others: tuple[str, ...] = ()


def read_sentencepiece(path: Path, settings: Settings, model_type: str) -> tokenizers.Tokenizer:
    """Return the backend of a SentencePiece file, with the layout of the family `model_type`, "" if it is unknown.

    `settings` are those of tokenizer_config.json.
    """
    model = _parse(path)
    layout = LAYOUTS[_layout_name(path, model, model_type)]
    pieces = layout.arrange(model.pieces)
    names = [piece for piece, _ in pieces]
    unknown = layout.specials[1]
    if unknown not in names:
        raise InputError(f"{path} has no piece {unknown}; it is not the file of a model of this family")
    if len(set(names)) != len(names):
        raise InputError(f"{path} has a piece twice; use the file of the model")
    if model.is_bpe:
        backend = tokenizers.Tokenizer(_bpe_model(pieces, unknown, model.has_bytes))
    else:
        backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=names.index(unknown), byte_fallback=False))
    _set_rules(backend, layout, settings, model.character_map)
    if model.is_bpe and model.has_bytes:
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), backend.decoder])
    tokens = (*layout.specials, *(token for token in layout.others if token in names))
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])
    _, _, cls, sep, _ = layout.specials
    single, pair = (template.format(cls=cls, sep=sep) for template in layout.templates)
    ids = [(token, backend.token_to_id(token)) for token in dict.fromkeys((cls, sep))]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return backend


def apply_family_rules(backend: tokenizers.Tokenizer, settings: Settings, model_type: str) -> None:
    """Give the unigram model of a tokenizer.json the rules of its family, which transformers' classes follow whatever
    the file states; they take only the table of its normalization. Other families and models keep their own."""
    if model_type in LAYOUTS and isinstance(backend.model, models.Unigram):
        _set_rules(backend, LAYOUTS[model_type], settings, _stored_map(backend.normalizer))


def _set_rules(backend: tokenizers.Tokenizer, layout: Layout, settings: Settings, character_map: bytes) -> None:
    """Set how texts are normalized and split, and how tokens are joined again."""
    backend.normalizer = layout.normalizer(settings, character_map)
    scheme = "always" if settings.get("add_prefix_space", True) else layout.unprefixed
    mark = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    before = [pre_tokenizers.WhitespaceSplit()] if layout.split_spaces else _punctuation_splits(settings)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*before, mark])
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)


def _stored_map(normalizer: normalizers.Normalizer | None) -> bytes:
    """Return the table of normalization in the normalizer of a tokenizer.json; empty if it has none."""
    state = {} if normalizer is None else json.loads(normalizer.__getstate__())
    tables = [
        part["precompiled_charsmap"] for part in state.get("normalizers", [state]) if "precompiled_charsmap" in part
    ]
    return base64.b64decode(tables[0] or "") if tables else b""


def _bpe_model(pieces: Pieces, unknown: str, has_bytes: bool) -> models.BPE:
    """Return the BPE model of pieces: any two pieces that make a third are merged, those of the highest score first."""
    vocab = {piece: index for index, (piece, _) in enumerate(pieces)}
    merges = [
        (-score, vocab[piece], cut, piece)
        for piece, score in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    pairs = [(piece[:cut], piece[cut:]) for _, _, cut, piece in sorted(merges)]
    return models.BPE(vocab, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)


def _punctuation_splits(settings: Settings) -> list[pre_tokenizers.PreTokenizer]:
    """Return what separates punctuation from words, where the settings of a DeBERTa ask for it."""
    return [pre_tokenizers.Punctuation(behavior="isolated")] if settings.get("split_by_punct") else []


def _parse(path: Path) -> SentencePieceModel:
    try:
        data = path.read_bytes()
        specs = messages_of(data)
        pieces = [_piece(value) for number, value in fields_of(data) if number == _PIECE and isinstance(value, bytes)]
        trainer = numbers_of(specs.get(_TRAINER, b""))
        model_type = trainer.get(_MODEL_TYPE, _UNIGRAM)
        character_map = messages_of(specs.get(_NORMALIZER, b"")).get(_CHARACTER_MAP, b"")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {unreadable_reason(error)}") from None
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise InputError(f"{path} is not a SentencePiece model, or it is damaged ({error}); copy it again") from None
    if model_type not in (_UNIGRAM, _BPE) or not pieces:
        raise InputError(f"{path} is no unigram or BPE model, the kinds that are read; use a tokenizer.json")
    return SentencePieceModel(
        pieces=pieces,
        character_map=character_map,
        is_bpe=model_type == _BPE,
        has_bytes=bool(trainer.get(_BYTE_FALLBACK)),
    )


def _piece(data: bytes) -> tuple[str, float]:
    """Read a piece: 1 its text, 2 its score, a float32 that is 0 if it is missing."""
    score = struct.unpack("<f", numbers_of(data).get(2, 0).to_bytes(4, "little"))[0]
    return messages_of(data)[1].decode(), float(score)


def _layout_name(path: Path, model: SentencePieceModel, model_type: str) -> str:
    """Return the layout of a family; without one, by the name of the file and its pieces."""
    if model_type in LAYOUTS:
        return model_type
    names = {piece for piece, _ in model.pieces}
    if "<cls>" in names:
        return "xlnet"
    if "[CLS]" in names:
        return "deberta-v2" if path.name == "spm.model" else "albert"
    return "xlm-roberta"


def _map_normalizers(character_map: bytes) -> list[normalizers.Normalizer]:
    return [normalizers.Precompiled(character_map)] if character_map else []


def _quotes_and_accents(keep_accents: bool, lower_case: bool, character_map: bytes) -> normalizers.Normalizer:
    accents = [] if keep_accents else [normalizers.NFKD(), normalizers.StripAccents()]
    lowering = [normalizers.Lowercase()] if lower_case else []
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    return normalizers.Sequence([*quotes, *accents, *lowering, *_map_normalizers(character_map)])


def _albert_normalizer(settings: Settings, character_map: bytes) -> normalizers.Normalizer:
    keep_accents, lower_case = bool(settings.get("keep_accents", False)), bool(settings.get("do_lower_case", True))
    return _quotes_and_accents(keep_accents, lower_case, character_map)


def _xlnet_normalizer(settings: Settings, character_map: bytes) -> normalizers.Normalizer:
    return _quotes_and_accents(False, bool(settings.get("do_lower_case", False)), character_map)


def _map_normalizer(settings: Settings, character_map: bytes) -> normalizers.Normalizer | None:
    return next(iter(_map_normalizers(character_map)), None)


def _deberta_normalizer(settings: Settings, character_map: bytes) -> normalizers.Normalizer:
    lowering = [normalizers.Lowercase()] if settings.get("do_lower_case") else []
    spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    return normalizers.Sequence([*lowering, spaces, normalizers.NFC(), normalizers.Strip(left=False, right=True)])


def _xlm_roberta_pieces(pieces: Pieces) -> Pieces:
    """The first three pieces, <unk>, <s> and </s>, make room for four in fairseq's order, and <mask> is the last."""
    first: Pieces = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    return [*first, *pieces[3:], ("<mask>", 0.0)]


def _camembert_pieces(pieces: Pieces) -> Pieces:
    """As in fairseq, whose first tokens are not used, since the file has pieces of its own for them."""
    first: Pieces = [(token, 0.0) for token in ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>")]
    return [*first, ("<unk>NOTUSED", -100.0), *pieces[1:], ("<mask>", 0.0)]


_FAIRSEQ_SPECIALS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
LAYOUTS: dict[str, Layout] = {
    "albert": Layout(
        arrange=list,
        specials=("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        normalizer=_albert_normalizer,
        templates=_BERT_PAIR,
    ),
    "xlnet": Layout(
        arrange=list,
        specials=("<pad>", "<unk>", "<cls>", "<sep>", "<mask>"),
        normalizer=_xlnet_normalizer,
        templates=_XLNET_PAIR,
        unprefixed="always",  # transformers' class does not read the setting
        others=("<s>", "</s>", "<eop>", "<eod>"),
    ),
    "xlm-roberta": Layout(
        arrange=_xlm_roberta_pieces,
        specials=_FAIRSEQ_SPECIALS,
        normalizer=_map_normalizer,
        templates=_ROBERTA_PAIR,
    ),
    "camembert": Layout(
        arrange=_camembert_pieces,
        specials=_FAIRSEQ_SPECIALS,
        normalizer=_map_normalizer,
        templates=_ROBERTA_PAIR,
        others=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    ),
    "deberta-v2": Layout(
        arrange=list,
        specials=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        normalizer=_deberta_normalizer,
        templates=_BERT_PAIR,
        split_spaces=False,
        unprefixed="first",
    ),
}
