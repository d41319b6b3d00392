"""Small vocabularies in the layouts of transformers' tokenizers: a class of transformers in, a tokenizer of it out."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import transformers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from bertworks.vocabulary.training import VocabularySettings, train

LINES = (
    "The quick brown fox jumps over the lazy dog.",
    "In the morning the river was cold, and the film was good.",
    "She didn't say where the children's books were lying.",
    "It costs 12,50 euros; a naïve café in Paris isn't cheaper!",
    "Who wrote the letters that were found in 1987?",
    "我喜欢看电影，也喜欢足球。",
    "北京的冬天很冷。",
)
# Texts that tokenizers are compared on: case, accents, spaces, numbers, scripts, symbols, unknown and long words.
TEXTS = (
    *LINES,
    "the quick  brown\tfox\nand   a dog ",
    " THE FILM WAS GOOD",
    "naïve café, Naïve Café, ÀÉÎ",
    "don't isn't they're I'd 'quoted' ``double''",
    "12,50 1987 3.14159 1e-5 +49 30 1234",
    "我喜欢the film 北京，2024年。",
    "日本語のテキスト 한국어 текст العربية",
    "🙂 emoji 👩‍🔬 and ™ ® ½ ﬁne ①",
    "a\u00a0b\u200bc\u3000d e\u0301",
    "x" * 90,  # a vocab.txt has words of up to 200 characters, as in Google's code, in transformers of up to 100
    "https://example.org/path?x=1&y=2 user@example.org #tag",
    "",
    ".",
)
PAIRS = tuple(zip(TEXTS[:6], TEXTS[6:12], strict=True))
_SPECIALS = ("[PAD]", "<pad>", "[UNK]", "<unk>", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<mask>")
_SIZES = {"wordpiece": 320, "byte-bpe": 420, "bpe": 320, "unigram": 260}
# The special tokens at the beginning of each vocabulary, where transformers expects them.
_FIRST = {
    "BertTokenizer": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "MPNetTokenizer": ("<s>", "<pad>", "</s>", "<unk>", "[UNK]"),
    "RobertaTokenizer": ("<s>", "<pad>", "</s>", "<unk>"),
    "OpenAIGPTTokenizer": ("<unk>",),
    "AlbertTokenizer": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "XLNetTokenizer": ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"),
    "XLMRobertaTokenizer": ("<s>", "<pad>", "</s>", "<unk>"),
    "CamembertTokenizer": ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"),
    "DebertaV2Tokenizer": ("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
}
_LAST = {
    "MPNetTokenizer": ("<mask>",),
    "RobertaTokenizer": ("<mask>",),
    "XLMRobertaTokenizer": ("<mask>",),
    "CamembertTokenizer": ("<mask>",),
    "DebertaV2Tokenizer": ("[MASK]",),
}
_WORDPIECE = ("BertTokenizer", "MPNetTokenizer")
_BPE = {"RobertaTokenizer": "byte-bpe", "OpenAIGPTTokenizer": "bpe"}


@functools.cache
def trained_model(kind: str, cased: bool = True) -> dict[str, Any]:
    """Return the model of a tokenizer.json that is trained on `LINES`."""
    settings = VocabularySettings(kind=kind, vocab_size=_SIZES[kind], cased=cased, min_count=1)
    model: dict[str, Any] = json.loads(train(LINES, settings).to_str())["model"]
    return model


def pieces_of(first: Sequence[str], last: Sequence[str] = ()) -> list[tuple[str, float]]:
    """Return the pieces of a unigram vocabulary with their scores, with special tokens before and after them."""
    pieces = [(piece, float(score)) for piece, score in trained_model("unigram")["vocab"] if piece not in _SPECIALS]
    return [*((token, 0.0) for token in first), *pieces, *((token, 0.0) for token in last)]


def make_tokenizer(class_name: str, **settings: Any) -> Any:
    """Return a tokenizer of a class of transformers with a small vocabulary of the kind that the class has."""
    tokenizer_class = getattr(transformers, class_name)
    first, last = _FIRST[class_name], _LAST.get(class_name, ())
    if class_name not in _WORDPIECE and class_name not in _BPE:
        return tokenizer_class(vocab=pieces_of(first, last), **settings)
    is_cased = not settings.get("do_lower_case", True)
    model = trained_model(_BPE.get(class_name, "wordpiece"), is_cased)
    tokens = [*first, *(token for token in model["vocab"] if token not in _SPECIALS), *last]
    if class_name in _BPE:
        settings["merges"] = [tuple(merge) for merge in model["merges"]]
    return tokenizer_class(vocab={token: index for index, token in enumerate(tokens)}, **settings)


def tokenizer_for(model_type: str) -> Any:
    """Return a tokenizer of the class that transformers has for a model type; BERT's if that class is a general one."""
    class_name = TOKENIZER_MAPPING_NAMES.get(model_type)
    return make_tokenizer(class_name if class_name in _FIRST else "BertTokenizer")
