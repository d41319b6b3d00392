"""Windows: rows by hand, and for any lengths every piece in a row, in order, and none twice where it counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import SettingsError
from bertworks.sampling.windows import WindowRule, make_windows
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import TokenizedText, Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
TOKENIZER = Tokenizer.from_backend(wordpiece_backend(PIECES, cased=False))


def numbers(count: int, first: int = 100) -> TokenizedText:
    return TokenizedText.from_ids(np.arange(first, first + count))


def test_what_fits_is_one_row_as_encode_makes_it():
    cut = [TOKENIZER.tokenize("ab a"), TOKENIZER.tokenize("b")]
    row = make_windows(TOKENIZER, cut, WindowRule(12, 2)).sequences[0]
    encoding = TOKENIZER.encode("ab a", "b")
    assert tuple(row.input_ids) == encoding.input_ids
    assert tuple(row.token_type_ids) == encoding.token_type_ids


def test_a_long_text_slides_with_the_overlap():
    """Room for 6 of 10 pieces, 2 in common: from 0 and from 4."""
    windows = make_windows(TOKENIZER, [numbers(10)], WindowRule(8, 2))
    assert [row.input_ids.tolist() for row in windows.sequences] == [
        [2, 100, 101, 102, 103, 104, 105, 3],
        [2, 104, 105, 106, 107, 108, 109, 3],
    ]
    assert windows.owners(0).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]


def test_of_a_pair_the_longer_side_slides_under_the_whole_of_the_other():
    """Room for 9: the question takes 2, so the passage of 12 has 7 a row."""
    windows = make_windows(TOKENIZER, [numbers(2), numbers(12, 200)], WindowRule(12, 2))
    assert [row.input_ids.tolist() for row in windows.sequences] == [
        [2, 100, 101, 3, 200, 201, 202, 203, 204, 205, 206, 3],
        [2, 100, 101, 3, 205, 206, 207, 208, 209, 210, 211, 3],
    ]
    assert all(row.token_type_ids.tolist() == [0] * 4 + [1] * 8 for row in windows.sequences)
    assert [row.spans[1].position for row in windows.sequences] == [4, 4]


def test_truncation_leaves_out_of_the_longer_text_and_counts():
    windows = make_windows(TOKENIZER, [numbers(2), numbers(12, 200)], WindowRule(12, 2, truncate=True))
    assert len(windows.sequences) == 1
    assert windows.sequences[0].input_ids.tolist() == [2, 100, 101, 3, *range(200, 207), 3]
    assert windows.num_truncated == 5


def test_an_empty_text_is_a_row_of_special_pieces():
    windows = make_windows(TOKENIZER, [numbers(0)], WindowRule(8, 2))
    assert windows.sequences[0].input_ids.tolist() == [2, 3]
    assert len(windows.owners(0)) == 0


def test_unknown_words_keep_their_writing_in_every_row_they_stand_in():
    """Places by hand: [CLS] a x b [SEP] y a [SEP]; and of a long text, rows from its pieces 0 and 4 on, as above."""
    cuts = [TOKENIZER.tokenize("a X b"), TOKENIZER.tokenize("y a")]
    assert cuts[0].unknown == {1: "x"}
    row = make_windows(TOKENIZER, cuts, WindowRule(12, 2)).sequences[0]
    assert row.unknown == TOKENIZER.encode("a X b", "y a").unknown == {2: "x", 5: "y"}
    long = TOKENIZER.tokenize("a b c d x f g h a y")
    assert [row.unknown for row in make_windows(TOKENIZER, [long], WindowRule(8, 2)).sequences] == [
        {5: "x"},
        {1: "x", 6: "y"},
    ]


def test_a_rule_that_cannot_work_is_refused():
    with pytest.raises(SettingsError, match="an overlap of at most a quarter"):
        WindowRule(16, 5)


lengths = st.one_of(st.integers(0, 40), st.integers(0, 700))


@given(st.lists(lengths, min_size=1, max_size=2), st.integers(8, 60), st.integers(0, 15))
def test_every_piece_is_in_a_row_that_fits_and_has_one_owner(sizes: list[int], length: int, overlap: int):
    rule = WindowRule(length, min(overlap, length // 4))
    texts = [numbers(size, 1000 * (at + 1)) for at, size in enumerate(sizes)]
    windows = make_windows(TOKENIZER, texts, rule)
    assert windows.num_truncated == 0
    for row in windows.sequences:
        assert len(row) <= length
        for text, run in zip(texts, row.spans, strict=True):
            assert np.array_equal(
                row.input_ids[run.position : run.position + run.count],
                text.input_ids[run.first : run.first + run.count],
            )
    for at, text in enumerate(texts):
        owners = windows.owners(at)
        assert len(owners) == len(text)
        for piece, owner in enumerate(owners):
            run = windows.sequences[owner].runs[at]
            assert run.first <= piece < run.first + run.count
