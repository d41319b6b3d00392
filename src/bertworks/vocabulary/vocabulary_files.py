"""The formats of a vocabulary: the file of one in, a ready backend out, whichever library wrote it.

A folder of a model has a tokenizer.json, or what came before it: vocab.txt (BERT), vocab.json with merges.txt (RoBERTa,
GPT), or a SentencePiece file (ALBERT, XLNet, XLM-R, CamemBERT, DeBERTa). `named_tokens` reads the files beside it that
name special and added tokens.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors

from bertworks.errors import InputError
from bertworks.vocabulary import merges_files, sentencepiece_files
from bertworks.vocabulary.algorithms import (
    add_missing_special_tokens,
    ignore_special_tokens_in_text,
    wordpiece_backend,
)
from bertworks.vocabulary.files import prefix_errors, read_backend, read_config, read_vocabulary
from bertworks.vocabulary.named_tokens import (
    BERT_NAMES,
    GENERIC_CLASSES,
    WORDPIECE_CLASSES,
    add_named_tokens,
    token_name,
    tokenizer_class,
)
from bertworks.vocabulary.panics import explain_panics
from bertworks.vocabulary.special_tokens import ROBERTA, template_for

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
# Classes of transformers that read a format as it is read here. Others, such as BertJapaneseTokenizer, find the words
# of a text in another way before they look at the same vocabulary.
_WORDPIECE_READERS = (
    *WORDPIECE_CLASSES,
    "ConvBertTokenizer",
    "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DPRReaderTokenizer",
    "ErnieTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
)
_MERGES_READERS = ("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "OpenAIGPTTokenizer", "HerbertTokenizer")
# Classes that say nothing of the format.
_ANY_FORMAT = (*(name.removesuffix("Fast") for name in GENERIC_CLASSES), "PreTrainedTokenizer", "PythonBackend", "")
# In transformers, a longer word of a vocab.txt is unknown; in Google's code one of more than 200 characters.
PEER_MAX_WORD_LENGTH = 100


def find_vocabulary(folder: Path) -> Path | None:
    """Return the vocabulary file of a folder; None if it has none."""
    return next((folder / name for name in VOCABULARY_FILES if (folder / name).is_file()), None)


def read_vocabulary_backend(path: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return the backend of a vocabulary file; `settings` are those of `read_tokenizer_settings`."""
    class_name = tokenizer_class(path.parent, settings)
    _check_class(path, class_name)
    if path.name == merges_files.VOCAB_FILE:
        backend = merges_files.read_merges(path, settings, class_name)
    elif path.suffix == ".json":
        backend = read_backend(path)
        _apply_class_settings(backend, path.parent, settings)
    elif path.name in sentencepiece_files.FILES:
        with explain_panics():
            backend = sentencepiece_files.read_sentencepiece(path, settings, _layout_type(path.parent, class_name))
    else:
        backend = _read_wordpiece(path, settings)
    with prefix_errors(path):
        add_named_tokens(backend, path.parent, settings)
        if path.suffix == ".txt":
            backend.post_processor = _wordpiece_layout(backend, settings)
    with explain_panics():
        return add_missing_special_tokens(ignore_special_tokens_in_text(backend))


def _check_class(path: Path, class_name: str) -> None:
    """Refuse a vocabulary whose tokenizer, by its class, finds other tokens than the format has here."""
    if path.suffix == ".json" and path.name != merges_files.VOCAB_FILE:
        return  # a tokenizer.json states all of it
    if path.name == merges_files.VOCAB_FILE:
        readers: Collection[str] = _MERGES_READERS
    else:
        readers = _WORDPIECE_READERS if path.suffix == ".txt" else _TOKENIZER_CLASSES
    if class_name not in (*readers, *_ANY_FORMAT):
        raise InputError(
            f"{path} belongs to a {class_name} of transformers, which tokenizes in a way that is not implemented; save "
            f"that tokenizer as a tokenizer.json, or choose another model"
        )


def _apply_class_settings(backend: tokenizers.Tokenizer, folder: Path, settings: Mapping[str, Any]) -> None:
    """Apply the settings that transformers' classes take from tokenizer_config.json, whatever tokenizer.json states.

    A class that is stated has defaults for them, too. Normalizers and pre-tokenizers of other types stay as they are,
    but those of the families with SentencePiece files, which are all by their class.
    """
    name, is_stated = tokenizer_class(folder, settings), "tokenizer_class" in settings
    normalizer, pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    if name in WORDPIECE_CLASSES and isinstance(normalizer, normalizers.BertNormalizer):
        lower_case, split_ideographs = (
            (True, True) if is_stated else (normalizer.lowercase, normalizer.handle_chinese_chars)
        )
        strip_accents = settings.get("strip_accents", None if is_stated else normalizer.strip_accents)
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=normalizer.clean_text,
            handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", split_ideographs)),
            strip_accents=strip_accents if isinstance(strip_accents, bool) else None,
            lowercase=bool(settings.get("do_lower_case", lower_case)),
        )
    if name == "RobertaTokenizer" and isinstance(pre_tokenizer, pre_tokenizers.ByteLevel):
        default = False if is_stated else pre_tokenizer.add_prefix_space
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=bool(settings.get("add_prefix_space", default)), use_regex=pre_tokenizer.use_regex
        )
    if name in (*_TOKENIZER_CLASSES, ""):
        sentencepiece_files.apply_family_rules(backend, settings, _layout_type(folder, name))


def _read_wordpiece(path: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    tokens = read_vocabulary(path)
    cased = not settings["do_lower_case"] if "do_lower_case" in settings else _looks_cased(tokens)
    with prefix_errors(path):
        backend = wordpiece_backend(tokens, cased)
    if any(token_name(settings, key, usual) != usual for key, usual in BERT_NAMES.items()):
        # Its special tokens are others: those of BERT are ordinary tokens, as in the vocabulary of MPNet.
        backend = tokenizers.Tokenizer.from_str(json.dumps({**json.loads(backend.to_str()), "added_tokens": []}))
    strip_accents = settings.get("strip_accents")
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        strip_accents=strip_accents if isinstance(strip_accents, bool) else None,
        lowercase=not cased,
    )
    return backend


def _wordpiece_layout(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> processors.PostProcessor:
    """Return the post-processor of a vocab.txt: MPNet's [CLS] token is RoBERTa's, and so is its layout."""
    separator, first = (_named_token(backend, settings, key) for key in ("sep_token", "cls_token"))
    is_roberta = template_for(first[0]) == ROBERTA
    return (processors.RobertaProcessing if is_roberta else processors.BertProcessing)(separator, first)


def _named_token(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], key: str) -> tuple[str, int]:
    """Return the special token of a role and its id: that of BERT, if the vocabulary does not have the one named."""
    vocabulary = backend.get_vocab()
    name = token_name(settings, key, BERT_NAMES[key])
    name = name if name in vocabulary else BERT_NAMES[key]
    return name, vocabulary[name]


def _layout_type(folder: Path, class_name: str) -> str:
    """Return the model_type whose layout a SentencePiece file has: that of its tokenizer's class if one is known, else
    that of the folder's config.json, or ""."""
    model_type = read_config(folder / "config.json").get("model_type")
    return _TOKENIZER_CLASSES.get(class_name) or (model_type if isinstance(model_type, str) else "")


def _looks_cased(tokens: Sequence[str]) -> bool:
    """Guess from a vocab.txt: an uncased vocabulary has no token that begins with an upper-case letter of any script.

    Special tokens such as [CLS], and the <S> and <T> of Chinese BERT, begin with a bracket. The ℝ of the uncased
    release is upper case without a lower-case form.
    """
    first_characters = {token.removeprefix("##")[:1] for token in tokens}
    return any(character != character.lower() for character in first_characters)
