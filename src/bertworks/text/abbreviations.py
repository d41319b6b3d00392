"""Word lists of the sentence splitter: abbreviations, words that start sentences, verbs of speech."""

from __future__ import annotations

from enum import Enum


class AbbreviationKind(Enum):
    """Whether the full stop after an abbreviation can end a sentence."""

    NEVER = "never ends a sentence: Mr. e.g. vs."
    BEFORE_NUMBER = "an abbreviation only before a number: No. 5, but also: No. It is not."
    BEFORE_NAME = "ends one only before a common first word: U.S. Army, but: the U.S. They left."
    TIME_OF_DAY = "ends one before a capital letter, unless that is a day or a time zone: 6 p.m. Monday"


_NEVER = """
    adm approx atty brig ca capt cf cmdr col cpl det dipl dr e.g esp gen gov hon i.e insp lieut lt maj messrs mlle mme
    mr mrs ms msgr ph pres prof pvt rep rev sen sgt sra supt v viz vs
"""
_BEFORE_NUMBER = "art ch chap eq eqs ex fig figs no nos nr p par pl pp ref sec sect tab vol vols"
_BEFORE_NAME = """
    al apr assn aug ave blvd bros co corp dec dept ed eds est feb ft inc jan jr jul jun llc ltd mar mt mts nov oct
    op rd sept sep sr st ste univ
"""

# Single letters are case-sensitive: "p. 42" is a page, but the "P." in "J. P. Morgan" an initial.
ABBREVIATIONS: dict[str, AbbreviationKind] = {
    form: kind
    for kind, words in (
        (AbbreviationKind.NEVER, _NEVER),
        (AbbreviationKind.BEFORE_NUMBER, _BEFORE_NUMBER),
        (AbbreviationKind.BEFORE_NAME, _BEFORE_NAME),
    )
    for word in words.split()
    for form in ((word, word.capitalize()) if len(word) > 1 else word)
}
ABBREVIATIONS |= dict.fromkeys(("MR", "MRS", "MS", "DR"), AbbreviationKind.NEVER)
ABBREVIATIONS |= dict.fromkeys(("a.m", "p.m", "A.M", "P.M"), AbbreviationKind.TIME_OF_DAY)

# Words that rarely follow an abbreviation inside a sentence: capitalized, they start one. The lower-case forms are for
# texts without capital letters.
_SENTENCE_STARTERS = """
    A After All Although An And Another Any Are As At Because Before Both But By Can Could Did Do Does During Each Even
    Every Everybody Everyone Few For From Had Has Have He Her Here His How However I If In Instead Is It Its Just Last
    Later Many May Maybe Meanwhile Most My Never Next No Nobody None Not Nothing Now Of On Once One Only Or Our Perhaps
    She Since So Some Somebody Someone Soon Still Such That The Their Then There These They This Those Though Through
    Thus To Today Two Under Until Was We Were What When Where Whether Which While Who Why Will With Would Yes Yet You
    Your
"""
SENTENCE_STARTERS = frozenset(form for word in _SENTENCE_STARTERS.split() for form in (word, word.lower()))

# Capitalized words that may follow "6 p.m." inside a sentence.
_DAY_WORDS = """
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday Mon Tue Wed Thu Fri Sat Sun Eastern Central Mountain
    Pacific Greenwich GMT UTC EST EDT CST CDT MST MDT PST PDT CET CEST BST
"""
DAY_WORDS = frozenset(_DAY_WORDS.split())

# Verbs that introduce the speaker after a quotation: "Stop!" Anna cried.
_SPEECH_VERBS = """
    added answered answers asked asks began called continued cried cries demanded enquired exclaimed gasped growled
    inquired laughed murmured muttered repeated replied replies returned roared said says screamed shouted sighed
    snapped whispered wondered yelled
"""
SPEECH_VERBS = tuple(_SPEECH_VERBS.split())
_SPEECH_VERBS_ZH = """
    说 說 说道 說道 问 問 问道 問道 道 喊 喊道 叫 叫道 嚷 嚷道 答 答道 回答 回答道 回答说 回答說 骂 罵 骂道 罵道
    吼 吼道 笑道 叹道 嘆道 解释 解释道 解釋 解釋道 插嘴 低语 嘀咕 嘟囔 叮嘱 命令 命令道 哭道 哭喊 惊呼 宣布 感叹 感慨
"""
SPEECH_VERBS_ZH = tuple(_SPEECH_VERBS_ZH.split())
