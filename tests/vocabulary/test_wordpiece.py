"""WordPiece: parity with the reference on every kind of text, and offsets into the original text."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_wordpiece import UNKNOWN, clean_character, normalize, reference_tokens
from reference_wordpiece import is_punctuation as reference_is_punctuation

from bertworks.vocabulary import wordpiece
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.characters import IDEOGRAPH, SPACES, is_punctuation, is_removed
from bertworks.vocabulary.tokenizer import Encoding, Tokenizer
from bertworks.vocabulary.wordpiece import WordPiece, WordPieceRules

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Both at the beginning of a word and, with ##, inside a word. "q" and "z" are missing, so that some words are unknown.
SUBWORDS = [
    *"abceinostuABEIkKr0129",  # Latin
    *"éÉåßœıİ",  # only if accents are kept
    *"ασςοΑΣΟ",  # Greek with both small sigmas
    *"שלםابж",  # right to left, and Cyrillic
    *"\u1100\u1161\u11a8가각",  # Korean letters, and syllables that decompose into them
    *"カかー",  # kana are not ideographs
    *"\u0301\u0323\u0307\u0338\u302e\U0001d165",  # marks: the last two are not stripped as accents
    *"😀👩🏽\ufe0f€≮<\u1fef\u00b4",  # symbols; two of them turn into punctuation
    *"\ue000\U000f0000\u0378\U0002fffe",  # private use and unassigned
]
SINGLE_CHARACTER_WORDS = [
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
TOKENS = [*SPECIALS, *SUBWORDS, *(f"##{token}" for token in SUBWORDS if token != "<"), *SINGLE_CHARACTER_WORDS, *WORDS]

TOKENIZERS = {cased: Tokenizer.from_backend(wordpiece_backend(TOKENS, cased)) for cased in (False, True)}
both_cases = pytest.mark.parametrize("cased", [False, True], ids=["uncased", "cased"])

WHITE_SPACE = [chr(code) for code in range(0x3001) if chr(code).isspace()]
MARKS = [*"\u0301\u0300\u0323\u0327\u0338\u0345\u05b7\u3099\u302e\u302f\U0001d165\U0001d16d\u093e\u20dd\ufe0f"]
UNUSUAL_CHARACTERS = [
    *"\0\x01\x1b\x7f\x80\x9f\xad\ufffd\ufffe\uffff\ufeff\u200b\u200c\u200d\u200e\u202e\u2060\u180e\u061c\U000e0041",
    *"\ud800\udbff\udc00\udfff",  # surrogates
    *"\u03f4ſ\u212a\u212b\u1e9eǅﬁ½²\u2160\u24b6",  # lower case or decomposition with a twist
    *"ᾳᾼΐ\u0344\u1fbf\u2000\u2329\u037e\u0387",
    *"힣ㄱ\ua960\ud7b0",  # Korean beyond the common syllables
    *"\u2e80\u3007\u31c0\u9fff\ua000\u3400\u4dbf\u4dc0\U0002a6df\U0002ceb0\U00030000\ufaff\ufb00\U0002fa1f\u3042\u30f6",
    *"\u2fff\u4dff\u4e00\U0001f1e9\U0001f469\U00011047\U00016e97\u10fb\u0e01\u0915\u094d",
]
FRAGMENTS = [
    *SUBWORDS,
    *SINGLE_CHARACTER_WORDS,
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
        st.sampled_from(UNUSUAL_CHARACTERS + WHITE_SPACE),
        marked_letters,
        st.characters(exclude_categories=()),  # surrogates too
    ),
    max_size=8,
).map("".join)
# At most one long word: the reference is slow on them.
texts = st.tuples(short_texts, st.just("") | long_words, short_texts).map("".join)
thorough = settings(max_examples=150, deadline=None)


def replace_surrogates(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)


def expected_tokens(text: str, cased: bool) -> list[str]:
    return reference_tokens(replace_surrogates(text), set(TOKENS), lower=not cased)


def tokens_of_sentences(tokenizer: Tokenizer, sentences: list[str]) -> list[list[str]]:
    flat = tokenizer.encode_sentences(sentences)
    bounds = pairwise([0, *flat.sentence_ends.tolist()])
    return [[tokenizer.tokens[token_id] for token_id in flat.input_ids[start:end]] for start, end in bounds]


def uncased_tokens(text: str) -> list[str]:
    """The tokens of encode and of encode_sentences, which must agree."""
    tokens = list(TOKENIZERS[False].encode(text).tokens[1:-1])
    assert tokens_of_sentences(TOKENIZERS[False], [text]) == [tokens]
    return tokens


@both_cases
@thorough
@given(text=texts)
def test_encode_equals_the_reference(cased: bool, text: str) -> None:
    encoding = TOKENIZERS[cased].encode(text)
    assert list(encoding.tokens) == ["[CLS]", *expected_tokens(text, cased), "[SEP]"]
    assert [TOKENS[token_id] for token_id in encoding.input_ids] == list(encoding.tokens)
    assert encoding.num_replaced == sum("\ud800" <= character <= "\udfff" for character in text)


@both_cases
@thorough
@given(sentences=st.lists(texts, max_size=3))
def test_encode_sentences_equals_the_reference(cased: bool, sentences: list[str]) -> None:
    expected = [expected_tokens(sentence, cased) for sentence in sentences]
    assert tokens_of_sentences(TOKENIZERS[cased], sentences) == expected


@both_cases
@settings(max_examples=60, deadline=None)
@given(sentences=st.lists(texts, max_size=3))
def test_encode_and_encode_sentences_agree_on_word_starts(cased: bool, sentences: list[str]) -> None:
    tokenizer = TOKENIZERS[cased]
    words = [tokenizer.encode(sentence).word_ids[1:-1] for sentence in sentences]
    expected = [
        index == 0 or word != sentence_words[index - 1]
        for sentence_words in words
        for index, word in enumerate(sentence_words)
    ]
    assert tokenizer.encode_sentences(sentences).word_starts.tolist() == expected


def tokens_with_offsets(encoding: Encoding) -> list[tuple[str, int, int]]:
    """Each token that is not special, with its offsets."""
    pairs = zip(encoding.tokens, encoding.offsets, strict=True)
    return [(token, *offset) for token, offset in pairs if offset is not None]


def normalize_sigma(text: str) -> str:
    """A sigma taken out of its word is not recognized as final."""
    return text.replace("ς", "σ")


def maps_to_one_character(character: str, lower: bool) -> bool:
    """False for characters that decompose or that may be reordered."""
    is_reordered = unicodedata.combining(character) > 0 and unicodedata.category(character) == "Mc"
    return len(normalize(character, lower)) <= 1 and not is_reordered


@both_cases
@thorough
@given(text=texts)
def test_offsets_restore_the_text_of_each_token(cased: bool, text: str) -> None:
    clean_text = replace_surrogates(text)
    for token, start, end in tokens_with_offsets(TOKENIZERS[cased].encode(text)):
        assert 0 <= start < end <= len(text)
        if token == UNKNOWN:
            continue
        covered_text = "".join(clean_character(character).strip() for character in clean_text[start:end])
        tokens, expected_text = (
            normalize_sigma(normalize(covered_text, not cased)),
            normalize_sigma(token.removeprefix("##")),
        )
        assert expected_text in tokens
        if all(maps_to_one_character(character, not cased) for character in covered_text):
            assert expected_text == tokens


@both_cases
@thorough
@given(text=texts)
def test_starts_never_decrease_and_every_visible_character_is_covered(cased: bool, text: str) -> None:
    tokens = tokens_with_offsets(TOKENIZERS[cased].encode(text))
    starts = [start for _, start, _ in tokens]
    assert starts == sorted(starts)
    covered = {index for _, start, end in tokens for index in range(start, end)}
    for index, character in enumerate(replace_surrogates(text)):
        if normalize(clean_character(character).strip(), not cased):
            assert index in covered


def test_character_classes_equal_the_reference() -> None:
    # All planes with assigned characters, and the tags of plane 14.
    for character in map(chr, [*range(0xD800), *range(0xE000, 0x32000), *range(0xE0000, 0xE0200)]):
        cleaned = clean_character(character)
        assert is_removed(character) == (cleaned == "")
        assert (IDEOGRAPH.match(character) is not None) == (len(cleaned) == 3)
        assert (character in SPACES) == (cleaned != "" and cleaned.isspace())
        assert is_punctuation(character) == reference_is_punctuation(character)


def test_the_longest_match_wins_and_an_unmatched_rest_makes_the_word_unknown() -> None:
    assert uncased_tokens("unaffable abcab abq") == ["un", "##aff", "##able", "abc", "##ab", "[UNK]"]


def test_final_sigma_needs_no_letter_after_it_even_behind_an_apostrophe() -> None:
    assert uncased_tokens("ΑΣ") == ["ας"]
    assert uncased_tokens("ΑΣ.") == ["ας", "."]
    # In Unicode's rule a full stop and an apostrophe do not end a word; a comma does.
    assert uncased_tokens("ΑΣ'Α") == ["α", "##σ", "'", "α"]
    assert uncased_tokens("ΑΣ.Α") == ["α", "##σ", ".", "α"]
    assert uncased_tokens("ΑΣ,Α") == ["ας", ",", "α"]
    assert uncased_tokens("Σ") == ["σ"]
    assert uncased_tokens("我ΑΣ'Α我") == ["我", "α", "##σ", "'", "α", "我"]


def test_the_turkish_letters_i_lose_their_dot_only_where_it_is_a_mark() -> None:
    assert uncased_tokens("İI ıi") == ["i", "##i", "ı", "##i"]


@both_cases
@pytest.mark.parametrize("length", [99, 100, 101, 199, 200])
def test_words_of_up_to_200_characters_are_tokenized(cased: bool, length: int) -> None:
    encoding = TOKENIZERS[cased].encode("e" * length)
    assert encoding.tokens[1:-1] == ("e", *["##e"] * (length - 1))


def test_a_word_of_201_characters_is_unknown_and_accents_do_not_count() -> None:
    assert uncased_tokens("e" * 201) == ["[UNK]"]
    assert uncased_tokens("e\u0301" * 200) == ["e", *["##e"] * 199]
    assert TOKENIZERS[True].encode("e\u0301" * 101).tokens[1:-1] == ("[UNK]",)  # 202 characters, all kept


@pytest.mark.parametrize("space", [*" \t\n\r\xa0\u1680\u2000\u2007\u200a\u2028\u2029\u202f\u205f\u3000"])
def test_white_space_splits_words(space: str) -> None:
    assert uncased_tokens(f"a{space}b") == ["a", "b"]


@pytest.mark.parametrize("control", [*"\0\x0b\x0c\x1c\x1d\x1e\x1f\x85\xad\u200b\u200d\u2060\ufeff\ufffd\ud800"])
def test_control_and_format_characters_are_removed_without_splitting(control: str) -> None:
    assert uncased_tokens(f"a{control}b") == ["ab"]
    assert uncased_tokens(f"我a{control}b") == ["我", "ab"]


def test_private_and_unassigned_characters_do_not_split_words() -> None:
    assert uncased_tokens("a\ue000\u0378") == ["a", "##\ue000", "##\u0378"]


@pytest.mark.parametrize("ideograph", [*"一㐀𠀀\U0002a700\U0002b740\U0002b820"])
def test_each_ideograph_is_a_word(ideograph: str) -> None:
    assert uncased_tokens(f"a{ideograph}b") == ["a", ideograph, "b"]


def test_a_compatibility_ideograph_is_decomposed_only_without_case() -> None:
    assert uncased_tokens("a\uf900b\U0002f804") == ["a", "豈", "b", "你"]
    assert TOKENIZERS[True].encode("a\uf900b").tokens[1:-1] == ("a", "\uf900", "b")


def test_kana_and_korean_are_not_split() -> None:
    assert uncased_tokens("カー각") == ["カ", "##ー", "##\u1100", "##\u1161", "##\u11a8"]
    assert TOKENIZERS[True].encode("각가").tokens[1:-1] == ("각", "##가")


def test_emoji_join_across_the_joiner_and_lose_the_variation_mark() -> None:
    assert uncased_tokens("👩\u200d👩\ufe0f🏽") == ["👩", "##👩", "##🏽"]


def test_symbols_that_decompose_into_punctuation_split_words() -> None:
    assert uncased_tokens("a≮b\u1fefc") == ["a", "<", "b", "`", "c"]


def test_offsets_refer_to_the_text_before_cleaning() -> None:
    text = "\ufeffThe  e\u0301a\u200bÉ, 我😀!"
    tokens = tokens_with_offsets(TOKENIZERS[False].encode(text))
    assert tokens == [
        ("the", 1, 4),
        ("e", 6, 8),
        ("##a", 8, 9),
        ("##e", 10, 11),
        (",", 11, 12),
        ("我", 13, 14),
        ("😀", 14, 15),
        ("!", 15, 16),
    ]


def test_the_offsets_of_an_unknown_word_cover_the_word() -> None:
    assert tokens_with_offsets(TOKENIZERS[False].encode("a quiz\u0301, a")) == [
        ("a", 0, 1),
        ("[UNK]", 2, 7),
        (",", 7, 8),
        ("a", 9, 10),
    ]


def test_the_parts_of_a_decomposed_character_share_its_offsets() -> None:
    assert tokens_with_offsets(TOKENIZERS[False].encode("a각")) == [
        ("a", 0, 1),
        ("##\u1100", 1, 2),
        ("##\u1161", 1, 2),
        ("##\u11a8", 1, 2),
    ]


def test_reordered_combining_marks_share_their_offsets() -> None:
    # Classes 224 and 216: the canonical order is reversed, and neither is stripped as an accent.
    assert tokens_with_offsets(TOKENIZERS[False].encode("a\u302e\U0001d165b")) == [
        ("a", 0, 1),
        ("##\U0001d165\u302e", 1, 3),
        ("##b", 3, 4),
    ]


def test_empty_input_has_no_tokens() -> None:
    assert TOKENIZERS[False].encode("").tokens == ("[CLS]", "[SEP]")
    no_tokens = TOKENIZERS[False].encode_sentences([])
    assert (no_tokens.input_ids.tolist(), no_tokens.sentence_ends.tolist(), no_tokens.word_starts.tolist()) == (
        [],
        [],
        [],
    )
    empty = TOKENIZERS[False].encode_sentences(["", " \u3000", "\u200b", "a"])
    assert empty.sentence_ends.tolist() == [0, 0, 0, 1]


def test_clearing_the_unit_cache_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpiece, "_MAX_UNITS", 2)
    model = WordPiece(TOKENS, WordPieceRules())
    sentences = ["the unaffable abc", "我们 喜欢 the abc!", "unaffable", "un able in no 一"] * 3
    expected = [expected_tokens(sentence, cased=False) for sentence in sentences]
    for sentence, expected_text in zip(sentences, expected, strict=True):
        assert [TOKENS[token_id] for token_id in model.encode(sentence).input_ids] == expected_text
        assert [TOKENS[token_id] for token_id in model.encode_sentences([sentence]).input_ids] == expected_text


def test_wordpiece_rules_are_configurable() -> None:
    def tokenize(text: str, rules: WordPieceRules) -> list[str]:
        return [TOKENS[token_id] for token_id in WordPiece(TOKENS, rules).encode(text).input_ids]

    assert tokenize("a" * 101, WordPieceRules(max_characters=100)) == ["[UNK]"]
    assert tokenize("É", WordPieceRules(strip_accents=False)) == ["é"]
    assert tokenize("É", WordPieceRules(lower_case=False)) == ["E"]
    assert tokenize("我a", WordPieceRules(split_ideographs=False)) == ["我", "##a"]
