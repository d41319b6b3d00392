"""Windows: by hand, and for any lengths every token is in a window and has exactly one owner."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import SettingsError
from bertworks.sampling.windows import WindowRule, make_text_windows, make_windows
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.token_arrays import TokenizedText
from bertworks.vocabulary.tokenizer import Tokenizer

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
TOKENIZER = Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False))


def numbered_tokens(count: int, first: int = 100) -> TokenizedText:
    return TokenizedText.from_ids(np.arange(first, first + count))


def test_texts_that_fit_are_one_window_equal_to_encode():
    texts = [TOKENIZER.tokenize("ab a"), TOKENIZER.tokenize("b")]
    window = make_windows(TOKENIZER, texts, WindowRule(12, 2)).sequences[0]
    encoding = TOKENIZER.encode("ab a", "b")
    assert tuple(window.input_ids) == encoding.input_ids
    assert tuple(window.token_type_ids) == encoding.token_type_ids


def test_windows_of_a_long_text_overlap():
    """6 of 10 tokens fit, with an overlap of 2: windows start at 0 and 4."""
    windows = make_windows(TOKENIZER, [numbered_tokens(10)], WindowRule(8, 2))
    assert [window.input_ids.tolist() for window in windows.sequences] == [
        [2, 100, 101, 102, 103, 104, 105, 3],
        [2, 104, 105, 106, 107, 108, 109, 3],
    ]
    assert windows.owners(0).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]


def test_windows_slide_over_the_longer_text_beside_the_whole_shorter_one():
    """9 tokens fit: the first text takes 2, so each window has 7 of the 12 tokens of the second."""
    windows = make_windows(TOKENIZER, [numbered_tokens(2), numbered_tokens(12, 200)], WindowRule(12, 2))
    assert [window.input_ids.tolist() for window in windows.sequences] == [
        [2, 100, 101, 3, 200, 201, 202, 203, 204, 205, 206, 3],
        [2, 100, 101, 3, 205, 206, 207, 208, 209, 210, 211, 3],
    ]
    assert all(window.token_type_ids.tolist() == [0] * 4 + [1] * 8 for window in windows.sequences)
    assert [window.spans[1].position for window in windows.sequences] == [4, 4]


def test_truncation_shortens_the_longer_text_and_counts():
    windows = make_windows(TOKENIZER, [numbered_tokens(2), numbered_tokens(12, 200)], WindowRule(12, 2, truncate=True))
    assert len(windows.sequences) == 1
    assert windows.sequences[0].input_ids.tolist() == [2, 100, 101, 3, *range(200, 207), 3]
    assert windows.num_truncated == 5


def test_an_empty_text_is_a_window_of_special_tokens():
    windows = make_windows(TOKENIZER, [numbered_tokens(0)], WindowRule(8, 2))
    assert windows.sequences[0].input_ids.tolist() == [2, 3]
    assert len(windows.owners(0)) == 0


def test_unknown_words_keep_their_spelling_in_every_window():
    """[CLS] a x b [SEP] y a [SEP]; the windows of the long text start at its tokens 0 and 4, as above."""
    texts = [TOKENIZER.tokenize("a X b"), TOKENIZER.tokenize("y a")]
    assert texts[0].unknown == {1: "x"}
    window = make_windows(TOKENIZER, texts, WindowRule(12, 2)).sequences[0]
    assert window.unknown == TOKENIZER.encode("a X b", "y a").unknown == {2: "x", 5: "y"}
    long = TOKENIZER.tokenize("a b c d x f g h a y")
    assert [window.unknown for window in make_windows(TOKENIZER, [long], WindowRule(8, 2)).sequences] == [
        {5: "x"},
        {1: "x", 6: "y"},
    ]


def test_an_overlap_above_a_quarter_is_rejected():
    with pytest.raises(SettingsError, match="overlap at most a quarter"):
        WindowRule(16, 5)


lengths = st.one_of(st.integers(0, 40), st.integers(0, 700))


@given(st.lists(lengths, min_size=1, max_size=2), st.integers(8, 60), st.integers(0, 15))
def test_every_token_is_in_a_window_that_fits_and_has_one_owner(sizes: list[int], max_length: int, overlap: int):
    window_rule = WindowRule(max_length, min(overlap, max_length // 4))
    texts = [numbered_tokens(size, 1000 * (index + 1)) for index, size in enumerate(sizes)]
    windows = make_windows(TOKENIZER, texts, window_rule)
    assert windows.num_truncated == 0
    for window in windows.sequences:
        assert len(window) <= max_length
        for text, span in zip(texts, window.spans, strict=True):
            assert np.array_equal(
                window.input_ids[span.position : span.position + span.count],
                text.input_ids[span.first : span.first + span.count],
            )
    for index, text in enumerate(texts):
        owners = windows.owners(index)
        assert len(owners) == len(text)
        for token, owner in enumerate(owners):
            span = windows.sequences[owner].spans[index]
            assert span.first <= token < span.first + span.count


@pytest.mark.parametrize(("side", "expected"), [("right", range(100, 106)), ("left", range(104, 110))])
def test_a_text_is_truncated_on_the_side_of_the_tokenizer(side: str, expected: range):
    tokenizer = Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False), {"truncation_side": side})
    windows = make_text_windows(tokenizer, numbered_tokens(10), WindowRule(8, 2, truncate=True))
    assert [window.input_ids.tolist() for window in windows.sequences] == [[2, *expected, 3]]
    assert windows.num_truncated == 4
    whole = make_text_windows(tokenizer, numbered_tokens(10), WindowRule(8, 2))
    assert len(whole.sequences) == 2
