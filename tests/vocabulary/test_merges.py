"""BPE merges: by hand, ties, runs of one symbol, and parity with `tokenizers`."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bertworks.vocabulary.merges import BORDER, learn_merges


def join(left: str, right: str) -> str:
    return left + right


def test_the_most_frequent_pair_is_merged_first() -> None:
    # ab 3, bc 2: after "ab", "abc" occurs twice.
    merges = learn_merges([([0, 1], 1), ([0, 1, 2], 2)], ["a", "b", "c"], join, 5, 1)
    assert merges.pairs == (("a", "b"), ("ab", "c"))
    assert merges.symbols == ("a", "b", "c", "ab", "abc")


def test_ties_go_to_the_pair_with_smaller_symbols() -> None:
    merges = learn_merges([([2, 0], 1), ([1, 2], 1), ([1, 0], 1)], ["a", "b", "c"], join, 3, 1)
    assert merges.pairs == (("b", "a"), ("b", "c"), ("c", "a"))


def test_a_run_of_one_symbol_is_merged_from_the_left() -> None:
    # aaaaa: aa aa a, then "aaaa" (aa, aa) ties with (aa, a); a is the smaller symbol on the right.
    merges = learn_merges([([0] * 5, 1)], ["a"], join, 3, 1)
    assert merges.pairs == (("a", "a"), ("aa", "a"), ("aa", "aaa"))


def test_nothing_is_merged_across_a_border_or_below_min_count() -> None:
    assert learn_merges([([0, BORDER, 1], 9), ([1, 0], 1)], ["a", "b"], join, 3, 2).pairs == ()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_merges_equal_those_of_tokenizers_when_its_symbols_are_numbered_alike(seed: int) -> None:
    generator = random.Random(seed)
    words = ["".join(generator.choices("abcde", (5, 4, 3, 2, 1), k=generator.randint(1, 9))) for _ in range(400)]
    symbols = [*"abcde", *(f"##{letter}" for letter in "abcde")]
    reference = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    reference.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # As special tokens, "##" symbols have fixed ids; otherwise `tokenizers` breaks ties at random.
    trainer = trainers.WordPieceTrainer(vocab_size=150, min_frequency=2, special_tokens=symbols, show_progress=False)
    reference.train_from_iterator([" ".join(words)], trainer)
    expected = [symbol for symbol, _ in sorted(reference.get_vocab().items(), key=lambda item: item[1])]

    symbol_ids = {symbol: symbol_id for symbol_id, symbol in enumerate(symbols)}
    symbol_words = [([symbol_ids[word[0]], *(symbol_ids["##" + letter] for letter in word[1:])], 1) for word in words]
    merges = learn_merges(symbol_words, symbols, lambda left, right: left + right.removeprefix("##"), 140, 2)
    assert list(merges.symbols) == expected
