"""Split clean text into sentences: one paragraph in, its sentences out, each with its trailing white space.

One regular expression finds the candidates for a sentence end; a few cheap checks confirm or reject them. Wide marks
(。！？；) end a sentence anywhere, narrow ones (. ! ? …) only before white space or Chinese characters. The rules and
their known errors are listed in docs/sentences.md.
"""

from __future__ import annotations

import re
from itertools import cycle

from bertworks.text.abbreviations import (
    ABBREVIATIONS,
    DAY_WORDS,
    SENTENCE_STARTERS,
    SPEECH_VERBS,
    SPEECH_VERBS_ZH,
    AbbreviationKind,
)

# Marks that end a sentence by themselves: Chinese and Japanese, doubled forms, Arabic and Urdu, Indic, Armenian,
# Ethiopic, Khmer, Burmese, Mongolian. The Greek question mark is excluded: it equals the English semicolon.
_WIDE = "。！？；｡‼⁇⁈⁉؟۔।॥։።፧፨។៕။᠃"
_NARROW = ".．!?…⋯"
_MARKS = _WIDE + _NARROW
_OPENER_OF = dict(zip("”’」』）》】〉〕］｝〗)", "“‘「『（《【〈〔［｛〖(", strict=True))
_CLOSERS = "".join(_OPENER_OF)
_TITLE_CLOSERS = "》〉"
_SPEECH_CLOSERS = "”’」』"
# What may occur between the last mark and white space: „German“ and »German« marks close the other way round, French
# has a space before its closing mark.
_NARROW_CLOSERS = rf"(?:[\"'{_CLOSERS}\]}}»›«‹“‘_*]|\s»(?=\s))*+"
# What may occur between white space and the first letter of a sentence.
_OPENERS = "\"'“‘„«‹»›([{¿¡_*—–-"
_OPENER_SET = re.escape(_OPENERS)
_HAN = r"[\u2e80-\u2fff\u3001-\u9fff\uf900-\ufaff\uff00-\uffef“‘\U00020000-\U0003ffff]"
# Lower-case letters of the scripts that have capitals (Georgian has none).
_LOWERCASE = "a-z" + "".join(letter for letter in map(chr, range(0xDF, 0x590)) if letter.islower())


def _end_pattern(continuation: str) -> re.Pattern[str]:
    """Match candidates for a sentence end; `continuation` matches what, after white space, rules one out.

    The first set lets `re` skip quickly to a mark. A match without a group is a wide mark before plain text: an end
    without further checks, by far the most frequent case in Chinese. Only the first of a run of marks is tried, so
    that a line of ten thousand dots takes linear time.
    """
    return re.compile(
        rf"[{_MARKS}](?:"
        rf"(?<=[{_WIDE}])(?![{_MARKS}{_CLOSERS}\s，、：,:])"
        rf"|(?<![{_MARKS}].)(?<!\.\s\.)(?:"
        rf"(?<=[{_WIDE}])([{_MARKS}]*+[{_CLOSERS}]*+\s*+)"
        rf"|([{_NARROW}]*+(?:\s\.(?=[\s.]))*+{_NARROW_CLOSERS}\s++)(?!{continuation})"
        rf"|([{_MARKS}]*+[{_CLOSERS}]*+)(?={_HAN})"
        rf"))",
        re.DOTALL,
    )


_CASED_ENDS = _end_pattern(rf"[{_OPENER_SET}\s]*+[{_LOWERCASE}](?![{_LOWERCASE}]*+[A-Z])")
_UNCASED_ENDS = _end_pattern(r"\Z")

# "Stop!" Anna cried. But not: "Stop!" He said nothing.
_SPEAKER = re.compile(
    rf"(?!(?:{'|'.join(sorted(SENTENCE_STARTERS - {'I', 'i'}))})\b)"
    rf"(?:[A-Z][\w'’.-]* ){{1,3}}(?:{'|'.join(SPEECH_VERBS)})\b"
)
# “走吧！”他说。 But not: “走吧！”他没有回答。 Nor, since the quotation continues: “走吧！”他说：“快！”
_SPEAKER_ZH = re.compile(
    rf"[^，、：；。！？,“”「」『』（）…\s没沒不]{{0,14}}?(?<![知报報])(?:{'|'.join(SPEECH_VERBS_ZH)})"
    rf"(?:着|著|了|起来|了起来|一声|了一声)?[，。,.]"
)
_NEXT_WORD = re.compile(rf"[{_OPENER_SET}]*+(\w+)(\.?)")
_ACRONYM = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")
_ROMAN = re.compile(r"[IVXLC]+")
_HAN_END = re.compile(rf"(?!\d){_HAN}|\)")
_CLAUSE_MARKS = re.compile(r"[，、：；。！？,“”‘’「」『』（）…\s]")
# A shorter clause before an ellipsis is a hesitation: 我……我不知道。
_SHORTEST_CLAUSE = 5


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of one paragraph; concatenated they are the paragraph."""
    text = _curl_quotes(paragraph) if '"' in paragraph and not paragraph.isascii() else paragraph
    # In a text without capitals, a lower-case letter does not rule out a sentence start.
    ends = _UNCASED_ENDS if paragraph.islower() else _CASED_ENDS
    sentences = []
    start, size = 0, len(paragraph)
    for match in ends.finditer(text):
        end, group = match.end(), match.lastindex
        if end == size:
            break
        if group is not None and not _CHECKS[group](text, match, start):
            continue
        sentences.append(paragraph[start:end])
        start = end
    if start < size:
        sentences.append(paragraph[start:])
    return sentences


def _curl_quotes(paragraph: str) -> str:
    """In a paragraph with Chinese, replace straight quotation marks by opening and closing ones in turn.

    Without white space around it, a straight mark does not show which of the two it is. The length is unchanged.
    """
    if not re.search(_HAN, paragraph):
        return paragraph
    return "".join(part + mark for part, mark in zip(paragraph.split('"'), cycle("“”"), strict=False))[:-1]


def _is_wide_end(text: str, match: re.Match[str], start: int) -> bool:
    """Return whether a wide mark, followed by more marks, closing marks or white space, ends the sentence."""
    following = text[match.end()]
    if following in "，、：；,:":
        return False
    closer = next((mark for mark in match[0] if mark in _OPENER_OF), "")
    if not closer:
        return True
    if closer in _TITLE_CLOSERS or following == "的":
        return False
    opener = text.rfind(_OPENER_OF[closer], start, match.start())
    if closer not in _SPEECH_CLOSERS:
        # A bracket ends a sentence only if it contains whole sentences.
        return opener <= start
    # Direct speech follows a colon, a comma or another sentence; a quoted phrase follows a word directly. With a full
    # stop inside, the phrase is mostly a whole sentence that ends this one too.
    if opener > start and text[opener - 1].isalnum() and text[match.start()] != "。":
        return False
    if closer in "」』" and text.startswith(("と", "って"), match.end()):
        return False
    return not _SPEAKER_ZH.match(text, match.end())


def _is_tight_end(text: str, match: re.Match[str], start: int) -> bool:
    """Return whether a narrow mark directly before Chinese characters ends the sentence."""
    first = match.start()
    marks = match[0].rstrip(_CLOSERS)
    if marks in (".", "．") and not _HAN_END.match(text[max(start, first - 1) : first]):
        # Not a full stop: between digits, after the number of a list item or after a Latin letter.
        return False
    if match[0] == marks and (marks[-1] in "…⋯" or marks.endswith("..")):
        before = text[max(start, first - 2 * _SHORTEST_CLAUSE) : first]
        if "、" in before or len(_CLAUSE_MARKS.split(before)[-1]) < _SHORTEST_CLAUSE:
            return False
    return _is_wide_end(text, match, start)


def _is_spaced_end(text: str, match: re.Match[str], start: int) -> bool:
    """Return whether a narrow mark before white space ends the sentence."""
    first = match.start()
    if text[first] == "." and text[first + 1] not in ".…!?":
        word = text[max(start, text.rfind(" ", start, first) + 1) : first].lstrip(_OPENERS)
        if len(word) > 1 and word not in ABBREVIATIONS and word.isalpha() and not _ROMAN.fullmatch(word.upper()):
            return True
        return _is_end_after(re.split("[—–-]", word)[-1], text, match, start)
    if text[first] in ".…":
        # "I" is always upper case: Well ... I think so.
        following = _NEXT_WORD.match(text, match.end())
        return following is None or following[1] != "I"
    # The speaker may follow a quotation that ends with ! or ?; instead of a full stop there would be a comma.
    return match[0].rstrip()[-1] not in "\"'”’" or not _SPEAKER.match(text, match.end())


def _is_end_after(word: str, text: str, match: re.Match[str], start: int) -> bool:
    """Return whether the full stop after a word, perhaps an abbreviation, an initial or a number, ends the sentence."""
    following = _NEXT_WORD.match(text, match.end())
    next_word = following[1] if following else ""
    opens_sentence = match.start() - start <= len(word) + 1
    roman = _ROMAN.fullmatch(word.upper())
    if opens_sentence and (len(word) == 1 or (word.isdigit() and len(word) <= 3) or (roman and word.isupper())):
        return False
    if roman and next_word[:1].isdigit():
        return False
    kind = ABBREVIATIONS.get(word)
    if len(word) == 1 and word.isalpha() and kind is None:
        return _is_end_after_letter(word, following)
    if kind is AbbreviationKind.NEVER:
        return False
    if kind is AbbreviationKind.BEFORE_NUMBER:
        # "I" alone is the pronoun: "No. I had a hateful time."
        return not (next_word[:1].isdigit() or (next_word != "I" and _ROMAN.fullmatch(next_word)))
    if kind is AbbreviationKind.TIME_OF_DAY:
        return next_word not in DAY_WORDS
    return next_word in SENTENCE_STARTERS if kind or _ACRONYM.fullmatch(word) else True


def _is_end_after_letter(letter: str, following: re.Match[str] | None) -> bool:
    """Return whether the full stop after a single letter ends the sentence; that of an initial does not."""
    if following is None:
        return True
    next_word, next_stop = following[1], following[2]
    if len(next_word) == 1 and next_stop:
        return False
    return next_word in SENTENCE_STARTERS if letter.isupper() else not next_word[0].isdigit()


# Group number in `_end_pattern` -> check.
_CHECKS = {1: _is_wide_end, 2: _is_spaced_end, 3: _is_tight_end}
