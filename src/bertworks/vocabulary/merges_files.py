"""BPE files without a tokenizer.json: a vocab.json with its merges.txt in, a backend out.

RoBERTa's are byte-level. Those of the first GPT and of HerBERT mark the end of a word with </w>.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from bertworks.errors import InputError
from bertworks.reading import unreadable_reason
from bertworks.vocabulary.algorithms import KINDS, WORD_END, Inventory
from bertworks.vocabulary.files import parse_tokens

VOCAB_FILE, MERGES_FILE = "vocab.json", "merges.txt"


def read_merges(path: Path, settings: Mapping[str, Any], class_name: str = "") -> tokenizers.Tokenizer:
    """Return the backend of a vocab.json, beside which there is a merges.txt.

    `settings` are those of tokenizer_config.json, `class_name` is transformers' class of the tokenizer.
    """
    vocab, merges = _read_vocab(path), _read_merges(path.with_name(MERGES_FILE))
    unknown = [token for pair in merges for token in (*pair, "".join(pair)) if token not in vocab]
    if unknown:
        merges_file = path.with_name(MERGES_FILE)
        raise InputError(f"{merges_file} merges '{unknown[0]}', which {path} lacks; use files of one model")
    if class_name == "HerbertTokenizer":
        return _herbert_backend(path, vocab, merges)
    if any(token.endswith(WORD_END) for token in vocab):
        return _gpt_backend(vocab, merges)
    inventory = Inventory(tuple(sorted(vocab, key=vocab.__getitem__)), merges)
    backend = KINDS["byte-bpe"].build(inventory, cased=True)
    if settings.get("add_prefix_space"):
        specials = KINDS["byte-bpe"].specials
        sep, cls = ((token, vocab[token]) for token in (specials.sep, specials.cls))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        backend.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=True)
    return backend


def _herbert_backend(path: Path, vocab: dict[str, int], merges: tuple[tuple[str, str], ...]) -> tokenizers.Tokenizer:
    """HerBERT, the Polish BERT: cased, and with RoBERTa's special tokens in the layout of BERT."""
    specials = KINDS["byte-bpe"].specials
    missing = [token for token in (specials.cls, specials.sep, specials.unknown) if token not in vocab]
    if missing:
        raise InputError(f"{path} has no token {missing[0]}; it is not the file of a model of this family")
    backend = _word_end_backend(vocab, merges, normalizers.BertNormalizer(lowercase=False, strip_accents=False))
    sep, cls = ((token, vocab[token]) for token in (specials.sep, specials.cls))
    backend.post_processor = processors.BertProcessing(sep, cls)
    return backend


def _gpt_backend(vocab: dict[str, int], merges: tuple[tuple[str, str], ...]) -> tokenizers.Tokenizer:
    backend = _word_end_backend(vocab, merges, normalizers.BertNormalizer(lowercase=True))
    unknown = KINDS["byte-bpe"].specials.unknown  # <unk>, the only special token of the release
    if unknown in vocab:
        backend.add_special_tokens([AddedToken(unknown, normalized=False, special=True)])
    backend.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    return backend


def _word_end_backend(
    vocab: dict[str, int], merges: tuple[tuple[str, str], ...], normalizer: normalizers.Normalizer
) -> tokenizers.Tokenizer:
    """Return the backend of words and punctuation whose last token is marked."""
    unknown = KINDS["byte-bpe"].specials.unknown
    backend = tokenizers.Tokenizer(models.BPE(vocab, list(merges), unk_token=unknown, end_of_word_suffix=WORD_END))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix=WORD_END)
    return backend


def _read_vocab(path: Path) -> dict[str, int]:
    try:
        vocab = parse_tokens(_read_text(path))
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    ids: list[Any] = list(vocab.values()) if isinstance(vocab, dict) else [None]
    if not all(type(token_id) is int for token_id in ids) or sorted(ids) != list(range(len(ids))):
        raise InputError(f"{path} should map each token to its number, from 0 without gaps; use the file of the model")
    return vocab


def _read_merges(path: Path) -> tuple[tuple[str, str], ...]:
    if not path.is_file():
        raise InputError(f"{path.parent} has a {VOCAB_FILE}, but no {path.name}; copy that file, too")
    lines = _read_text(path).split("\n")
    merges = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2:
            raise InputError(f"{path}, line {number}: a merge is two tokens with a space between; use the model's file")
        merges.append((parts[0], parts[1]))
    return tuple(merges)


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {unreadable_reason(error)}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None
