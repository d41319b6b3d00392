"""The formats of a vocabulary: the file of one in, a ready backend out, whichever library wrote it.

A folder of a model has a tokenizer.json, or what came before it: vocab.txt (BERT), vocab.json with merges.txt (RoBERTa,
GPT), or a SentencePiece file (ALBERT, XLNet, XLM-R, CamemBERT, DeBERTa). Tokens that transformers added to one of these
are in added_tokens.json or tokenizer_config.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, normalizers

from bertworks.errors import InputError
from bertworks.vocabulary import merges_files, sentencepiece_files
from bertworks.vocabulary.algorithms import ignore_special_tokens_in_text, wordpiece_backend
from bertworks.vocabulary.files import prefix_errors, read_backend, read_config, read_vocabulary
from bertworks.vocabulary.panics import explain_panics

# In order of preference.
VOCABULARY_FILES = ("tokenizer.json", "vocab.txt", merges_files.VOCAB_FILE, *sentencepiece_files.FILES)
# Files beside a vocabulary that its tokens depend on, too.
COMPANION_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", merges_files.MERGES_FILE)
# transformers' tokenizer classes of SentencePiece files -> the model_type that they belong to.
_TOKENIZER_CLASSES = {
    "AlbertTokenizer": "albert",
    "XLNetTokenizer": "xlnet",
    "XLMRobertaTokenizer": "xlm-roberta",
    "CamembertTokenizer": "camembert",
    "DebertaV2Tokenizer": "deberta-v2",
}
# In transformers, a longer word of a vocab.txt is unknown; in Google's code one of more than 200 characters.
_MAX_WORD_LENGTH = 100
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def find_vocabulary(folder: Path) -> Path | None:
    """Return the vocabulary file of a folder; None if it has none."""
    return next((folder / name for name in VOCABULARY_FILES if (folder / name).is_file()), None)


def read_vocabulary_backend(path: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return the backend of a vocabulary file; `settings` are those of the tokenizer_config.json beside it."""
    if path.name == merges_files.VOCAB_FILE:
        backend = merges_files.read_merges(path, settings)
    elif path.suffix == ".json":
        return read_backend(path)
    elif path.name in sentencepiece_files.FILES:
        with explain_panics():
            backend = sentencepiece_files.read_sentencepiece(path, settings, _model_type(path.parent, settings))
    else:
        backend = _read_wordpiece(path, settings)
    with prefix_errors(path):
        _add_tokens(backend, _stored_tokens(path.parent, settings))
    return ignore_special_tokens_in_text(backend)


def _read_wordpiece(path: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    tokens = read_vocabulary(path)
    cased = not settings["do_lower_case"] if "do_lower_case" in settings else _looks_cased(tokens)
    with prefix_errors(path):
        backend = wordpiece_backend(tokens, cased)
    strip_accents = settings.get("strip_accents")
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        strip_accents=strip_accents if isinstance(strip_accents, bool) else None,
        lowercase=not cased,
    )
    if settings or (path.parent / "config.json").is_file():  # a folder of transformers, not one of Google's
        backend.model.max_input_chars_per_word = _MAX_WORD_LENGTH
    return backend


def _model_type(folder: Path, settings: Mapping[str, Any]) -> str:
    """Return the model_type of the folder by its config.json, else by the class of its tokenizer, else ""."""
    model_type = read_config(folder / "config.json").get("model_type")
    if isinstance(model_type, str):
        return model_type
    return _TOKENIZER_CLASSES.get(str(settings.get("tokenizer_class")).removesuffix("Fast"), "")


def _stored_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Return the tokens that transformers added, by id."""
    tokens: dict[int, AddedToken] = {}
    for content, token_id in read_config(folder / "added_tokens.json").items():
        if isinstance(token_id, int):
            tokens[token_id] = AddedToken(content)
    entries = settings.get("added_tokens_decoder")
    for key, entry in entries.items() if isinstance(entries, dict) else ():
        if key.isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str):
            flags = {flag: bool(entry[flag]) for flag in _FLAGS if flag in entry}
            tokens[int(key)] = AddedToken(entry["content"], **flags)
    return tokens


def _add_tokens(backend: tokenizers.Tokenizer, tokens: Mapping[int, AddedToken]) -> None:
    """Add tokens to a backend; refuse ids that do not follow those of the vocabulary."""
    for token_id in sorted(tokens):
        token = tokens[token_id]
        backend.add_special_tokens([token]) if token.special else backend.add_tokens([token])
        if backend.token_to_id(token.content) != token_id:
            raise InputError(
                f"the added token '{token.content}' should have id {token_id}, but would have "
                f"{backend.token_to_id(token.content)}; use the vocabulary that it was added to"
            )


def _looks_cased(tokens: Sequence[str]) -> bool:
    """Guess from a vocab.txt: an uncased vocabulary has no token that begins with an upper-case letter of any script.

    Special tokens such as [CLS], and the <S> and <T> of Chinese BERT, begin with a bracket. The ℝ of the uncased
    release is upper case without a lower-case form.
    """
    first_characters = {token.removeprefix("##")[:1] for token in tokens}
    return any(character != character.lower() for character in first_characters)
