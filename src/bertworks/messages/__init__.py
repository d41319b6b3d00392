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


def localize(text: str) -> str:
    """Return a message in the language of the user."""
    return text if language() == "en" else _translate(text, language())


def fill(template: str, *values: object) -> str:
    """Return a message with values in the place of each {}: for one that says too little to be recognized by itself."""
    translation = None if language() == "en" else read_catalogue(language()).get(template)
    return (template if translation is None else translation).format(*values)


def localize_sentences(text: str) -> str:
    """Return a text of several sentences, each of which is a message."""
    if language() == "en":
        return text
    return "".join(_translate(sentence, language()) for sentence in _SENTENCE_END.split(text))


@functools.cache
def read_catalogue(code: str) -> dict[str, str]:
    """Return the messages of a language by their English texts."""
    content: dict[str, str] = json.loads(files("bertworks.messages").joinpath(f"{code}.json").read_text("utf-8"))
    return content


@functools.cache
def _patterns(code: str) -> list[tuple[re.Pattern[str], list[bool], str]]:
    """Return the entries with values, as pattern, whether each value is a message, and translation; longest first."""
    keys = [key for key in read_catalogue(code) if _PLACEHOLDER.search(key) and _is_distinctive(key)]
    return [
        (
            re.compile("(.*?)".join(map(re.escape, _PLACEHOLDER.split(key))), re.DOTALL),
            [mark == "{~}" for mark in _PLACEHOLDER.findall(key)],
            read_catalogue(code)[key],
        )
        for key in sorted(keys, key=lambda key: -len(_PLACEHOLDER.sub("", key)))
    ]


def _is_distinctive(key: str) -> bool:
    """Return whether a key says enough to recognize its messages: "{} of {} {}" would match any sentence with "of"."""
    return sum(map(str.isalpha, key)) >= (_MIN_LETTERS_AFTER_VALUE if key[0] == "{" else _MIN_LETTERS)


def _translate(text: str, code: str) -> str:
    exact = read_catalogue(code).get(text)
    if exact is not None:
        return exact
    for pattern, are_messages, translation in _patterns(code):
        match = pattern.fullmatch(text)
        if match is not None:
            values = zip(match.groups(), are_messages, strict=True)
            return translation.format(
                *(_translate(value, code) if is_message else value for value, is_message in values)
            )
    return text
