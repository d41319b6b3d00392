"""Text in, its scripts and its likely language out: scripts by character, languages in Latin script by function words.

The guess is for an overview, not for filtering: languages that are not listed here are reported by their script.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import regex

_SCRIPTS = (
    *("Latin", "Han", "Hiragana", "Katakana", "Hangul", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari"),
    *("Bengali", "Tamil", "Telugu", "Thai", "Georgian", "Armenian", "Ethiopic", "Khmer", "Myanmar", "Tibetan"),
)
_SCRIPT = regex.compile("|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in _SCRIPTS))

# Frequent function words. Those that are also frequent in English are left out of the other lists.
_FUNCTION_WORDS = {
    "en": "the and of to is that was with his her for are were which this have not they you from",
    "de": "der die das und ist nicht ein eine den dem des mit auf für sich von zu auch war wird sind ich",
    "fr": "le la les et des est une dans que qui pour pas sur avec plus du au il elle sont cette ce",
    "es": "el la los las y que en por con una del se para es su lo como más pero fue",
    "it": "il la di che e non una del della con gli sono nel alla dei si è ha anche più ma",
    "pt": "os e que da em um uma não com para por na dos se foi mais ao pela como são ele",
    "nl": "de het een en van is niet dat met op voor zijn te aan ook er maar werd naar hij",
    "sv": "och att det som är på för med inte av till ett han om hade jag sig från vid",
    "pl": "w nie na się że jest z jak przez od był za jego ale po oraz dla jako tym",
    "tr": "ve bir bu için ile çok olarak daha olan gibi kadar değil sonra ama her",
    "id": "yang dan di untuk dengan dari ini itu pada tidak dalam akan adalah oleh juga",
    "vi": "và của là có không được trong cho một người những với các này đã để khi",
}
_LANGUAGES_OF: dict[str, list[str]] = {}
for _language, _words in _FUNCTION_WORDS.items():
    for _word in _words.split():
        _LANGUAGES_OF.setdefault(_word, []).append(_language)

_LATIN_WORD = re.compile(r"[^\W\d_]+")
_MAX_CHARACTERS = 6_000  # about a thousand words; more do not change the guess
# At least a third of running text is function words; the most frequent twenty are a fifth.
_MIN_HIT_RATIO = 0.06
_MIN_HITS = 2
# Texts are joined up to this length before a guess, and a language counts from this share of the letters on.
_MIN_GUESS_CHARACTERS = 400
_MIN_LANGUAGE_RATIO = 0.05

_LANGUAGE_OF_SCRIPT = {
    "Hangul": "ko",
    "Greek": "el",
    "Hebrew": "he",
    "Devanagari": "hi",
    "Bengali": "bn",
    "Tamil": "ta",
    "Telugu": "te",
    "Thai": "th",
    "Georgian": "ka",
    "Armenian": "hy",
    "Ethiopic": "am",
    "Khmer": "km",
    "Myanmar": "my",
    "Tibetan": "bo",
}


@functools.lru_cache(maxsize=2**16)
def script_of(character: str) -> str | None:
    """Return the script of a letter; None for other characters and unlisted scripts."""
    match = _SCRIPT.match(character)
    return match.lastgroup if match else None


def scripts_of(characters: Mapping[str, int]) -> Counter[str]:
    """Return the number of letters per script, given the count of each character."""
    scripts: Counter[str] = Counter()
    for character, number in characters.items():
        script = script_of(character)
        if script:
            scripts[script] += number
    return scripts


def languages_in(texts: Iterable[str]) -> list[str]:
    """Return the languages of many texts, the most frequent first; those of less than 5% of the letters are left out.

    Short texts are guessed together, those of each script by themselves.
    """
    letters: Counter[str] = Counter()
    short_texts: dict[str, list[str]] = {}
    for text in texts:
        scripts = scripts_of(Counter(text))
        if not scripts:
            continue
        script = max(sorted(scripts), key=lambda name: scripts[name])
        pending = short_texts.setdefault(script, [])
        pending.append(text)
        if sum(map(len, pending)) >= _MIN_GUESS_CHARACTERS:
            _add_guess(short_texts.pop(script), letters)
    for pending in short_texts.values():
        _add_guess(pending, letters)
    by_count = sorted(letters, key=lambda language: (-letters[language], language))
    return [language for language in by_count if letters[language] >= _MIN_LANGUAGE_RATIO * letters.total()]


def _add_guess(texts: Sequence[str], letters: Counter[str]) -> None:
    text = "\n".join(texts)
    characters = Counter(text)
    scripts = scripts_of(characters)
    language = language_of(text, characters, scripts)
    assert language is not None  # each text has letters
    letters[language] += scripts.total()


def language_of(text: str, characters: Mapping[str, int], scripts: Mapping[str, int]) -> str | None:
    """Guess the language of a document from its most frequent script; None if it has no letters."""
    if not scripts:
        return None
    kana = scripts.get("Hiragana", 0) + scripts.get("Katakana", 0)
    east_asian = scripts.get("Han", 0) + kana
    script = max(sorted(scripts), key=lambda name: scripts[name])
    if east_asian >= scripts[script]:
        # Japanese text almost always has hiragana; Chinese text may have katakana in a name.
        return "ja" if scripts.get("Hiragana", 0) > 0.05 * east_asian or kana > 0.5 * east_asian else "zh"
    if script == "Latin":
        return _latin_language(text)
    if script == "Cyrillic":
        return "uk" if _ratio(characters, "іїєґ", scripts[script]) > 0.01 else "ru"
    if script == "Arabic":
        return "fa" if _ratio(characters, "پچژگ", scripts[script]) > 0.01 else "ar"
    return _LANGUAGE_OF_SCRIPT.get(script, f"other ({script})")


def _latin_language(text: str) -> str:
    words = _LATIN_WORD.findall(text[:_MAX_CHARACTERS].lower())
    hits: Counter[str] = Counter()
    for word in words:
        hits.update(_LANGUAGES_OF.get(word, ()))
    if not hits:
        return "other (Latin)"
    best = max(sorted(hits), key=lambda language: hits[language])
    is_certain = hits[best] >= max(_MIN_HITS, _MIN_HIT_RATIO * len(words))
    return best if is_certain else "other (Latin)"


def _ratio(characters: Mapping[str, int], letters: str, total: int) -> float:
    return sum(characters.get(letter, 0) for letter in letters) / total
