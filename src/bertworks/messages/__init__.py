"""Messages in the language of the user: an English text in, the same in Chinese out if that is the language.

The catalogue of a language, such as zh.json, has the English text as key; the console, the help and the reports share
it. In a key, {} stands for a value that stays as it is, {~} for one that is a message itself; in a translation {0},
{1}, … are these values, so that their order may differ. A text without an entry stays English.
"""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import dataclass
from importlib.resources import files

LANGUAGES = ("en", "zh")
_VARIABLES = ("BERTWORKS_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
# A message is recognized by at least so many letters; by more if it begins with a value.
_MIN_LETTERS, _MIN_LETTERS_AFTER_VALUE = 5, 8
_PLACEHOLDER = re.compile(r"\{~?\}")
_SENTENCE_END = re.compile(r"(?<=[.:]) (?=[A-Z])")


def language() -> str:
    """Return the language of the environment: BERTWORKS_LANG if it is set, else that of the locale; en or zh."""
    value = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "")
    return "zh" if value.lower().startswith("zh") else "en"


def requested_language(accept_language: str) -> str:
    """Return the first language of an Accept-Language header that there is, else that of the environment."""
    codes = (tag.strip()[:2].lower() for tag in accept_language.split(","))
    return next((code for code in codes if code in LANGUAGES), language())


def localize(text: str, code: str | None = None) -> str:
    """Return a message in a language, by default that of the user."""
    code = code or language()
    return text if code == "en" else _translate(text, code)


def fill(template: str, *values: object) -> str:
    """Return a message with values in the place of each {}: for one that says too little to be recognized by itself."""
    translation = None if language() == "en" else read_catalogue(language()).get(template)
    return (template if translation is None else translation).format(*values)


def localize_sentences(text: str) -> str:
    """Return a text of several sentences, each of which is a message."""
    if language() == "en":
        return text
    return _join_sentences([_translate(sentence, language()) for sentence in _SENTENCE_END.split(text)])


@functools.cache
def read_catalogue(code: str) -> dict[str, str]:
    """Return the messages of a language by their English texts."""
    content: dict[str, str] = json.loads(files("bertworks.messages").joinpath(f"{code}.json").read_text("utf-8"))
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """An entry with values: what it matches, which of its values are messages, and its longest part without values."""

    expression: re.Pattern[str]
    are_messages: list[bool]
    landmark: str
    translation: str


@functools.cache
def _patterns(code: str) -> list[_Pattern]:
    """Return the entries with values."""
    return [
        _Pattern(
            expression=re.compile("(.*?)".join(map(re.escape, _PLACEHOLDER.split(key))), re.DOTALL),
            are_messages=[mark == "{~}" for mark in _PLACEHOLDER.findall(key)],
            landmark=max(_PLACEHOLDER.split(key), key=len),
            translation=translation,
        )
        for key, translation in read_catalogue(code).items()
        if _PLACEHOLDER.search(key) and _is_distinctive(key)
    ]


def _is_distinctive(key: str) -> bool:
    """Return whether a key says enough to recognize its messages: "{} of {} {}" would match any sentence with "of"."""
    return sum(map(str.isalpha, key)) >= (_MIN_LETTERS_AFTER_VALUE if key[0] == "{" else _MIN_LETTERS)


def _translate(text: str, code: str) -> str:
    return _best_translation(text, code)[0]


@functools.lru_cache(maxsize=4096)
def _best_translation(text: str, code: str) -> tuple[str, int]:
    """Return the translation that leaves the fewest characters as they are, and how many these are.

    A message may be the value of another one, and then several entries match: "x: not JSON (the file is read as …)".
    """
    exact = read_catalogue(code).get(text)
    if exact is not None:
        return exact, 0
    by_part = (_translation_after_place, _translation_by_sentence, _translation_of_list)
    best = min((translate(text, code) for translate in by_part), key=lambda pair: pair[1])
    for pattern in _patterns(code):
        match = pattern.expression.fullmatch(text) if pattern.landmark in text else None
        if match is not None:
            values = [
                _best_translation(value, code) if is_message else (value, len(value))
                for value, is_message in zip(match.groups(), pattern.are_messages, strict=True)
            ]
            num_kept = sum(count for _, count in values)
            if num_kept < best[1]:
                best = pattern.translation.format(*(value for value, _ in values)), num_kept
    return best


def _translation_after_place(text: str, code: str) -> tuple[str, int]:
    """Return a message after the place it is about, "recipe.toml: a message"; the text itself if it has none."""
    place, colon, message = text.partition(": ")
    translation, num_kept = _best_translation(message, code) if colon else (message, len(message))
    if translation == message:
        return text, len(text)
    return f"{place}：{translation}", len(place) + num_kept + len(colon)


def _translation_by_sentence(text: str, code: str) -> tuple[str, int]:
    """Return a text of several sentences, each of which is a message or stays as it is."""
    sentences = _SENTENCE_END.split(text)
    if len(sentences) == 1:
        return text, len(text)
    translations = [_translate_sentence(sentence, code) for sentence in sentences]
    return _join_sentences([translation for translation, _ in translations]), sum(count for _, count in translations)


def _translation_of_list(text: str, code: str) -> tuple[str, int]:
    """Return several messages with semicolons between them, if each of them has an entry."""
    items = text.split("; ")
    translations = [_best_translation(item, code) for item in items] if len(items) > 1 else []
    if not translations or any(translation == item for (translation, _), item in zip(translations, items, strict=True)):
        return text, len(text)
    return "；".join(translation for translation, _ in translations), sum(count for _, count in translations)


def _translate_sentence(sentence: str, code: str) -> tuple[str, int]:
    """Return a sentence of several; the entry of a message that may also stand alone has no full stop."""
    best = _best_translation(sentence, code)
    if sentence.endswith("."):
        message, num_kept = _best_translation(sentence[:-1], code)
        best = min(best, (f"{message}。", num_kept), key=lambda pair: pair[1])
    return best


def _join_sentences(sentences: list[str]) -> str:
    """Join sentences, with a space after each that ends as in English."""
    return "".join(f"{sentence} " if sentence[-1:].isascii() else sentence for sentence in sentences).rstrip()
