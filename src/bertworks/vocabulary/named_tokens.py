"""The tokens that the files beside a vocabulary name: a folder of transformers in, its tokenizer's settings and added
tokens out.

tokenizer_config.json names special tokens, and the added tokens with their ids (`added_tokens_decoder`). Before that,
special_tokens_map.json and added_tokens.json did. All of them may name tokens that the vocabulary file does not mark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from bertworks.errors import InputError
from bertworks.vocabulary.files import read_config

# The tokens that transformers' classes have unless a file names others.
BERT_NAMES = {
    "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]",
}  # fmt: skip
_ROBERTA_NAMES = {
    "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>",
    "unk_token": "<unk>", "mask_token": "<mask>",
}  # fmt: skip
_CLASS_NAMES = {
    "BertTokenizer": BERT_NAMES,
    "DistilBertTokenizer": BERT_NAMES,
    "ElectraTokenizer": BERT_NAMES,
    "HerbertTokenizer": _ROBERTA_NAMES,
    "RobertaTokenizer": _ROBERTA_NAMES,
    "MPNetTokenizer": {**_ROBERTA_NAMES, "unk_token": "[UNK]"},
}
WORDPIECE_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
# The class that transformers takes for a model_type if tokenizer_config.json names none.
_MODEL_CLASSES = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "ernie": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "mpnet": "MPNetTokenizer",
}
# Classes that take everything from tokenizer.json; only transformers 5 writes the first.
GENERIC_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
# Classes that return no token_type_ids unless tokenizer_config.json asks for them, though their layout has some.
_CLASSES_WITHOUT_TYPES = ("TokenizersBackend", "DistilBertTokenizer", "DistilBertTokenizerFast")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
# Keys for lists of special tokens without a role: today's, and that of transformers 4.
_EXTRA_KEYS = ("extra_special_tokens", "additional_special_tokens")


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Return the content of tokenizer_config.json, with the tokens that special_tokens_map.json names, and those of
    the tokenizer's class; an empty dict for a folder that has no such files."""
    settings = read_config(folder / "tokenizer_config.json")
    if settings.get("additional_special_tokens") and not settings.get("extra_special_tokens"):
        settings["extra_special_tokens"] = settings.pop("additional_special_tokens")
    has_list = isinstance(settings.get("extra_special_tokens"), list) and bool(settings["extra_special_tokens"])
    if has_list:
        settings.pop("additional_special_tokens", None)  # transformers takes one list or the other
    if "added_tokens_decoder" not in settings:
        names = read_config(folder / "special_tokens_map.json")
        if has_list:
            names.pop("additional_special_tokens", None)
        extra = [entry for source in (settings, names) for entry in _extra_tokens(source, "extra_special_tokens")]
        settings |= {**names, **({"extra_special_tokens": extra} if extra else {})}
    return {**_CLASS_NAMES.get(tokenizer_class(folder, settings), {}), **settings}


def tokenizer_class(folder: Path, settings: Mapping[str, Any]) -> str:
    """Return the name of transformers' class of the tokenizer: the one that is stated, in either config, else that of
    the model_type; "" if neither is known."""
    config = read_config(folder / "config.json")
    for stated in (settings.get("tokenizer_class"), config.get("tokenizer_class")):
        if isinstance(stated, str):
            return stated.removesuffix("Fast")
    return _MODEL_CLASSES.get(str(config.get("model_type")), "")


def token_name(settings: Mapping[str, Any], key: str, default: str) -> str:
    """Return the special token of a role, such as cls_token."""
    return _content(settings.get(key)) or default


def returns_token_types(settings: Mapping[str, Any]) -> bool:
    """Whether the tokenizer returns token_type_ids; without them, transformers' models take type 0 for all tokens."""
    inputs = settings.get("model_input_names")
    if isinstance(inputs, list):
        return "token_type_ids" in inputs
    return settings.get("tokenizer_class") not in _CLASSES_WITHOUT_TYPES


def add_named_tokens(backend: tokenizers.Tokenizer, folder: Path, settings: Mapping[str, Any]) -> None:
    """Register the added and special tokens that the files name and the vocabulary does not mark as such."""
    special = {token.content: token for token in _special_tokens(settings)}
    tokens = _tokens_by_id(folder, settings)
    for token_id in sorted(tokens):
        token, is_known = tokens[token_id], backend.token_to_id(tokens[token_id].content) is not None
        _register(backend, token)
        if not is_known and backend.token_to_id(token.content) != token_id:
            raise InputError(
                f"the added token '{token.content}' should have id {token_id}, but would have "
                f"{backend.token_to_id(token.content)}; use the vocabulary that it was added to"
            )
    registered = {token.content for token in backend.get_added_tokens_decoder().values()}
    extra = {content for key in _EXTRA_KEYS for content in map(_content, _extra_tokens(settings, key))}
    # A new token needs a row of the embeddings; transformers adds it anyway, but fails on a text that has it.
    stated_size = read_config(folder / "config.json").get("vocab_size")
    num_embeddings = stated_size if isinstance(stated_size, int) else math.inf
    for token in [token for content, token in special.items() if content not in registered]:
        is_known = backend.token_to_id(token.content) is not None
        if is_known or (token.content in extra and backend.get_vocab_size() < num_embeddings):
            _register(backend, token)


def _tokens_by_id(folder: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Return the added tokens that are named with their ids; tokenizer_config.json replaces added_tokens.json.

    An added_tokens.json has no flags. Its tokens are found in the text as it is written if they are special, and else
    in the normalized text: the [E1] of an uncased vocabulary is also found as [e1]. transformers 5 takes those that
    only the `additional_special_tokens` of special_tokens_map.json name for the second kind.
    """
    entries = settings.get("added_tokens_decoder")
    if isinstance(entries, dict):
        return {
            int(key): _added_token(entry, bool(entry.get("special")))
            for key, entry in entries.items()
            if key.isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str)
        }
    named = {key: value for key, value in settings.items() if key != "additional_special_tokens"}
    special = {token.content: token for token in _special_tokens(named)}
    return {
        token_id: special.get(content, AddedToken(content))
        for content, token_id in read_config(folder / "added_tokens.json").items()
        if isinstance(token_id, int)
    }


def _special_tokens(settings: Mapping[str, Any]) -> Iterator[AddedToken]:
    """Return the special tokens that are named without an id: those of a role, such as cls_token, and the others."""
    named = [value for key, value in settings.items() if key.endswith("_token")]
    for entry in (*named, *(entry for key in _EXTRA_KEYS for entry in _extra_tokens(settings, key))):
        if _content(entry):
            yield _added_token(entry, is_special=True)


def _extra_tokens(settings: Mapping[str, Any], key: str) -> list[Any]:
    """Return the entries of a list of special tokens; transformers 5 may write a dict with a name for each."""
    tokens = settings.get(key)
    tokens = tokens.values() if isinstance(tokens, dict) else tokens
    return [entry for entry in tokens or () if _content(entry)]


def _content(entry: object) -> str:
    """Return the text of a token, which is named by a string or by a dict with its flags; "" if it is neither."""
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) else ""


def _added_token(entry: object, is_special: bool) -> AddedToken:
    flags = {flag: bool(entry[flag]) for flag in _FLAGS if flag in entry} if isinstance(entry, dict) else {}
    return AddedToken(_content(entry), special=is_special, **flags)


def _register(backend: tokenizers.Tokenizer, token: AddedToken) -> None:
    """Add a token, or change the flags of one that is registered already."""
    backend.add_special_tokens([token]) if token.special else backend.add_tokens([token])
