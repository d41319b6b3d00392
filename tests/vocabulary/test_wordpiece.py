"""WordPiece: the reference's pieces on every kind of text, and offsets that lead back to it."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_wordpiece import UNKNOWN, cleaned, is_point, normalised, reference_pieces

from bertworks.vocabulary import wordpiece
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.characters import IDEOGRAPH, SPACES, is_punctuation, is_removed
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer
from bertworks.vocabulary.wordpiece import WordPiece, WordPieceRules

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Both as the beginning of a word and, with ##, inside one. "q" and "z" are missing, so that some words are unknown.
ANYWHERE = [
    *"abceinostuABEIkKr0129",  # Latin
    *"éÉåßœıİ",  # kept only where accents are
    *"ασςοΑΣΟ",  # Greek with both small sigmas
    *"שלםابж",  # right to left, and Cyrillic
    *"\u1100\u1161\u11a8가각",  # Korean letters, and syllables that fall apart into them
    *"カかー",  # kana are no ideographs
    *"\u0301\u0323\u0307\u0338\u302e\U0001d165",  # marks: the last two are not dropped with the accents
    *"😀👩🏽\ufe0f€≮<\u1fef\u00b4",  # symbols; two of them turn into punctuation
    *"\ue000\U000f0000\u0378\U0002fffe",  # private use and unassigned
]
ALONE = [
    *"我们喜欢北京一㐀𠀀\U0002a700\U0002b740\U0002b820豈\uf900你\U0002f804",
    *".,;!?'`-$#[]@。，、「」“”…\u037e\u00b7",
]
WORDS = [
    "un",
    "##aff",
    "##able",
    "the",
    "##ing",
    "ab",
    "##ab",
    "##abc",
    "abc",
    "ας",
    "##ας",
    "##\U0001d165\u302e",
    "mask",
]
PIECES = [*SPECIALS, *ANYWHERE, *(f"##{piece}" for piece in ANYWHERE if piece != "<"), *ALONE, *WORDS]

TOKENIZERS = {cased: Tokenizer.from_backend(wordpiece_backend(PIECES, cased)) for cased in (False, True)}
both_cases = pytest.mark.parametrize("cased", [False, True], ids=["uncased", "cased"])

WHITE_SPACE = [chr(code) for code in range(0x3001) if chr(code).isspace()]
MARKS = [*"\u0301\u0300\u0323\u0327\u0338\u0345\u05b7\u3099\u302e\u302f\U0001d165\U0001d16d\u093e\u20dd\ufe0f"]
ODD = [
    *"\0\x01\x1b\x7f\x80\x9f\xad\ufffd\ufffe\uffff\ufeff\u200b\u200c\u200d\u200e\u202e\u2060\u180e\u061c\U000e0041",
    *"\ud800\udbff\udc00\udfff",  # surrogates
    *"\u03f4ſ\u212a\u212b\u1e9eǅﬁ½²\u2160\u24b6",  # lower case or decomposition with a twist
    *"ᾳᾼΐ\u0344\u1fbf\u2000\u2329\u037e\u0387",
    *"힣ㄱ\ua960\ud7b0",  # Korean beyond the common syllables
    *"\u2e80\u3007\u31c0\u9fff\ua000\u3400\u4dbf\u4dc0\U0002a6df\U0002ceb0\U00030000\ufaff\ufb00\U0002fa1f\u3042\u30f6",
    *"\u2fff\u4dff\u4e00\U0001f1e9\U0001f469\U00011047\U00016e97\u10fb\u0e01\u0915\u094d",
]
FRAGMENTS = [
    *ANYWHERE,
    *ALONE,
    *WORDS,
    "q",
    "Unaffable",
    "The",
    "ΟΣ",
    "ΑΣ",
    "Σ'",
    "Σ.Α",
    "👩\u200d👩\u200d👦",
    "[MASK]",
    " ",
    " ",
]

long_words = st.builds(
    lambda unit, length: unit * length,
    st.sampled_from(["a", "É", "e\u0301", "가", "q", "\u200ba"]),
    st.sampled_from([99, 100, 101, 199, 200, 201]),
)
marked_letters = st.builds(
    lambda letter, marks: letter + "".join(marks),
    st.sampled_from([*"aÉΣ我.가 "]),
    st.lists(st.sampled_from(MARKS), min_size=1, max_size=5),
)
short_texts = st.lists(
    st.one_of(
        st.sampled_from(FRAGMENTS),
        st.sampled_from(ODD + WHITE_SPACE),
        marked_letters,
        st.characters(exclude_categories=()),  # surrogates too
    ),
    max_size=8,
).map("".join)
# One long word is enough: the reference takes its time over them.
texts = st.tuples(short_texts, st.just("") | long_words, short_texts).map("".join)
thorough = settings(max_examples=150, deadline=None)


def without_surrogates(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)


def expected_pieces(text: str, cased: bool) -> list[str]:
    return reference_pieces(without_surrogates(text), set(PIECES), lower=not cased)


def pieces_of_sentences(tokenizer: Tokenizer, sentences: list[str]) -> list[list[str]]:
    flat = tokenizer.encode_sentences(sentences)
    bounds = pairwise([0, *flat.sentence_ends.tolist()])
    return [[tokenizer.tokens[number] for number in flat.input_ids[start:end]] for start, end in bounds]


def uncased_pieces(text: str) -> list[str]:
    """Both ways of cutting, which must agree."""
    inside = list(TOKENIZERS[False].encode(text).tokens[1:-1])
    assert pieces_of_sentences(TOKENIZERS[False], [text]) == [inside]
    return inside


@both_cases
@thorough
@given(text=texts)
def test_encode_gives_the_pieces_of_the_reference(cased: bool, text: str) -> None:
    encoding = TOKENIZERS[cased].encode(text)
    assert list(encoding.tokens) == ["[CLS]", *expected_pieces(text, cased), "[SEP]"]
    assert [PIECES[number] for number in encoding.input_ids] == list(encoding.tokens)
    assert encoding.num_replaced == sum("\ud800" <= character <= "\udfff" for character in text)


@both_cases
@thorough
@given(sentences=st.lists(texts, max_size=3))
def test_encode_sentences_gives_the_pieces_of_the_reference(cased: bool, sentences: list[str]) -> None:
    expected = [expected_pieces(sentence, cased) for sentence in sentences]
    assert pieces_of_sentences(TOKENIZERS[cased], sentences) == expected


@both_cases
@settings(max_examples=60, deadline=None)
@given(sentences=st.lists(texts, max_size=3))
def test_both_ways_agree_on_where_words_begin(cased: bool, sentences: list[str]) -> None:
    tokenizer = TOKENIZERS[cased]
    words = [tokenizer.encode(sentence).word_ids[1:-1] for sentence in sentences]
    expected = [place == 0 or word != one[place - 1] for one in words for place, word in enumerate(one)]
    assert tokenizer.encode_sentences(sentences).word_starts.tolist() == expected


def places(encoding: Encoding) -> list[tuple[str, int, int]]:
    """Each piece that is not special, and its offsets."""
    zipped = zip(encoding.tokens, encoding.offsets, strict=True)
    return [(piece, *offset) for piece, offset in zipped if offset is not None]


def with_one_sigma(text: str) -> str:
    """Cut out of its word a sigma no longer knows whether it is the last letter."""
    return text.replace("ς", "σ")


def comes_out_whole(character: str, lower: bool) -> bool:
    """False for characters that become several or that may change places with a neighbour."""
    moves = unicodedata.combining(character) > 0 and unicodedata.category(character) == "Mc"
    return len(normalised(character, lower)) <= 1 and not moves


@both_cases
@thorough
@given(text=texts)
def test_offsets_lead_back_to_the_text_of_each_piece(cased: bool, text: str) -> None:
    seen = without_surrogates(text)
    for piece, start, end in places(TOKENIZERS[cased].encode(text)):
        assert 0 <= start < end <= len(text)
        if piece == UNKNOWN:
            continue
        stretch = "".join(cleaned(character).strip() for character in seen[start:end])
        found, wanted = with_one_sigma(normalised(stretch, not cased)), with_one_sigma(piece.removeprefix("##"))
        assert wanted in found
        if all(comes_out_whole(character, not cased) for character in stretch):
            assert wanted == found


@both_cases
@thorough
@given(text=texts)
def test_starts_never_decrease_and_every_visible_character_is_covered(cased: bool, text: str) -> None:
    found = places(TOKENIZERS[cased].encode(text))
    starts = [start for _, start, _ in found]
    assert starts == sorted(starts)
    covered = {place for _, start, end in found for place in range(start, end)}
    for place, character in enumerate(without_surrogates(text)):
        if normalised(cleaned(character).strip(), not cased):
            assert place in covered


def test_every_character_is_what_the_reference_takes_it_to_be() -> None:
    # All planes with characters in them, and the tags of plane 14.
    for character in map(chr, [*range(0xD800), *range(0xE000, 0x32000), *range(0xE0000, 0xE0200)]):
        clean = cleaned(character)
        assert is_removed(character) == (clean == "")
        assert (IDEOGRAPH.match(character) is not None) == (len(clean) == 3)
        assert (character in SPACES) == (clean != "" and clean.isspace())
        assert is_punctuation(character) == is_point(character)


def test_the_longest_piece_wins_and_a_rest_that_fits_nowhere_makes_the_word_unknown() -> None:
    assert uncased_pieces("unaffable abcab abq") == ["un", "##aff", "##able", "abc", "##ab", "[UNK]"]


def test_a_final_sigma_is_one_only_where_no_letter_follows_even_behind_an_apostrophe() -> None:
    assert uncased_pieces("ΑΣ") == ["ας"]
    assert uncased_pieces("ΑΣ.") == ["ας", "."]
    # A full stop and an apostrophe do not end a word for Unicode's rule, a comma does.
    assert uncased_pieces("ΑΣ'Α") == ["α", "##σ", "'", "α"]
    assert uncased_pieces("ΑΣ.Α") == ["α", "##σ", ".", "α"]
    assert uncased_pieces("ΑΣ,Α") == ["ας", ",", "α"]
    assert uncased_pieces("Σ") == ["σ"]
    assert uncased_pieces("我ΑΣ'Α我") == ["我", "α", "##σ", "'", "α", "我"]


def test_the_turkish_letters_i_lose_their_dot_only_where_it_is_a_mark() -> None:
    assert uncased_pieces("İI ıi") == ["i", "##i", "ı", "##i"]


@both_cases
@pytest.mark.parametrize("length", [99, 100, 101, 199, 200])
def test_words_of_up_to_200_characters_are_cut(cased: bool, length: int) -> None:
    encoding = TOKENIZERS[cased].encode("e" * length)
    assert encoding.tokens[1:-1] == ("e", *["##e"] * (length - 1))


def test_a_word_of_201_characters_is_unknown_and_accents_do_not_count() -> None:
    assert uncased_pieces("e" * 201) == ["[UNK]"]
    assert uncased_pieces("e\u0301" * 200) == ["e", *["##e"] * 199]
    assert TOKENIZERS[True].encode("e\u0301" * 101).tokens[1:-1] == ("[UNK]",)  # 202 characters, all kept


@pytest.mark.parametrize("space", [*" \t\n\r\xa0\u1680\u2000\u2007\u200a\u2028\u2029\u202f\u205f\u3000"])
def test_white_space_parts_words(space: str) -> None:
    assert uncased_pieces(f"a{space}b") == ["a", "b"]


@pytest.mark.parametrize("control", [*"\0\x0b\x0c\x1c\x1d\x1e\x1f\x85\xad\u200b\u200d\u2060\ufeff\ufffd\ud800"])
def test_control_and_format_characters_vanish_and_their_neighbours_join(control: str) -> None:
    assert uncased_pieces(f"a{control}b") == ["ab"]
    assert uncased_pieces(f"我a{control}b") == ["我", "ab"]


def test_private_and_unassigned_characters_stay_in_their_words() -> None:
    assert uncased_pieces("a\ue000\u0378") == ["a", "##\ue000", "##\u0378"]


@pytest.mark.parametrize("ideograph", [*"一㐀𠀀\U0002a700\U0002b740\U0002b820"])
def test_an_ideograph_is_a_word_of_its_own(ideograph: str) -> None:
    assert uncased_pieces(f"a{ideograph}b") == ["a", ideograph, "b"]


def test_a_compatibility_ideograph_is_decomposed_only_without_case() -> None:
    assert uncased_pieces("a\uf900b\U0002f804") == ["a", "豈", "b", "你"]
    assert TOKENIZERS[True].encode("a\uf900b").tokens[1:-1] == ("a", "\uf900", "b")


def test_kana_and_korean_stay_in_words() -> None:
    assert uncased_pieces("カー각") == ["カ", "##ー", "##\u1100", "##\u1161", "##\u11a8"]
    assert TOKENIZERS[True].encode("각가").pieces[1:-1] == ("각", "##가")


def test_emoji_join_across_the_joiner_and_lose_the_variation_mark() -> None:
    assert uncased_pieces("👩\u200d👩\ufe0f🏽") == ["👩", "##👩", "##🏽"]


def test_symbols_that_decompose_into_punctuation_part_words() -> None:
    assert uncased_pieces("a≮b\u1fefc") == ["a", "<", "b", "`", "c"]


def test_offsets_count_the_characters_of_the_text_before_cleaning() -> None:
    text = "\ufeffThe  e\u0301a\u200bÉ, 我😀!"
    found = places(TOKENIZERS[False].encode(text))
    assert found == [
        ("the", 1, 4),
        ("e", 6, 8),
        ("##a", 8, 9),
        ("##e", 10, 11),
        (",", 11, 12),
        ("我", 13, 14),
        ("😀", 14, 15),
        ("!", 15, 16),
    ]


def test_an_unknown_word_covers_all_of_its_text() -> None:
    assert places(TOKENIZERS[False].encode("a quiz\u0301, a")) == [
        ("a", 0, 1),
        ("[UNK]", 2, 7),
        (",", 7, 8),
        ("a", 9, 10),
    ]


def test_the_parts_of_one_character_all_point_at_it() -> None:
    assert places(TOKENIZERS[False].encode("a각")) == [
        ("a", 0, 1),
        ("##\u1100", 1, 2),
        ("##\u1161", 1, 2),
        ("##\u11a8", 1, 2),
    ]


def test_marks_that_change_places_share_the_place_of_both() -> None:
    # Classes 224 and 216: the canonical order is the other way round, and neither is an accent that is dropped.
    assert places(TOKENIZERS[False].encode("a\u302e\U0001d165b")) == [
        ("a", 0, 1),
        ("##\U0001d165\u302e", 1, 3),
        ("##b", 3, 4),
    ]


def test_nothing_gives_nothing() -> None:
    assert TOKENIZERS[False].encode("").tokens == ("[CLS]", "[SEP]")
    none = TOKENIZERS[False].encode_sentences([])
    assert (none.input_ids.tolist(), none.sentence_ends.tolist(), none.word_starts.tolist()) == ([], [], [])
    empty = TOKENIZERS[False].encode_sentences(["", " \u3000", "\u200b", "a"])
    assert empty.sentence_ends.tolist() == [0, 0, 0, 1]


def test_forgetting_remembered_units_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpiece, "_MAX_UNITS", 2)
    forgetful = WordPiece(PIECES, WordPieceRules())
    sentences = ["the unaffable abc", "我们 喜欢 the abc!", "unaffable", "un able in no 一"] * 3
    expected = [expected_pieces(sentence, cased=False) for sentence in sentences]
    for sentence, wanted in zip(sentences, expected, strict=True):
        assert [PIECES[piece.id] for piece in forgetful.encode(sentence)] == wanted
        assert [PIECES[number] for number in forgetful.encode_sentences([sentence]).input_ids] == wanted


def test_rules_of_other_folders_hold() -> None:
    def cut(text: str, rules: WordPieceRules) -> list[str]:
        return [PIECES[piece.id] for piece in WordPiece(PIECES, rules).encode(text)]

    assert cut("a" * 101, WordPieceRules(max_characters=100)) == ["[UNK]"]
    assert cut("É", WordPieceRules(strip_accents=False)) == ["é"]
    assert cut("É", WordPieceRules(lower_case=False)) == ["E"]
    assert cut("我a", WordPieceRules(split_ideographs=False)) == ["我", "##a"]
