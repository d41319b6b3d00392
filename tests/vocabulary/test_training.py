"""Training: pieces by hand, limits that are counted, and the same bytes in every run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
import tokenizers

from bertworks.errors import InputError, SettingsError
from bertworks.text.document import Counts
from bertworks.vocabulary.algorithms import KINDS
from bertworks.vocabulary.training import VocabularySettings, train

HUGS = ["hug " * 10, "pug " * 5, "pun " * 12, "bun " * 4, "hugs " * 5]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def pieces_of(backend: tokenizers.Tokenizer) -> list[str]:
    return [piece for piece, _ in sorted(backend.get_vocab().items(), key=lambda item: item[1])]


def test_wordpiece_by_hand() -> None:
    # ##u##g 20, ##u##n 16, h##ug 15, p##un 12; then p##ug and hug##s 5 each: p has the smaller number; b##un 4.
    pieces = pieces_of(train(HUGS, VocabularySettings(vocab_size=100)))
    characters = [*"bghnpsu", *(f"##{letter}" for letter in "bghnpsu")]
    assert pieces == [*BERT, *characters, "##ug", "##un", "hug", "pun", "pug", "hugs", "bun"]


def test_bpe_by_hand() -> None:
    # u g</w> 15 (hug, pug), u n</w> 16, p u 17 first: pu; then pu n</w> 12, h u 15 before u g</w> (h is smaller).
    backend = train(HUGS, VocabularySettings(kind="bpe", vocab_size=5 + 14 + 4))
    characters = [*"bghnpsu", *(f"{letter}</w>" for letter in "bghnpsu")]
    assert pieces_of(backend) == [*BERT, *characters, "pu", "hu", "pun</w>", "hug</w>"]
    assert backend.encode("hug pun", add_special_tokens=False).tokens == ["hug</w>", "pun</w>"]


def test_byte_bpe_has_all_bytes_and_learns_words_with_their_space() -> None:
    # "ab" 3 times: once at the start, twice with a space before it.
    backend = train(["ab ab ab"], VocabularySettings(kind="byte-bpe", vocab_size=300, cased=True))
    pieces = pieces_of(backend)
    assert pieces[:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert len(pieces) == 5 + 256 + 2
    assert pieces[-2:] == ["ab", "Ġab"]


def test_unigram_gives_every_character_and_the_frequent_words_a_piece() -> None:
    backend = train(HUGS, VocabularySettings(kind="unigram", vocab_size=5 + 8 + 3))
    assert pieces_of(backend)[:13] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", *"bghnpsu", "▁"]
    assert backend.encode("hug pun", add_special_tokens=False).tokens == ["▁hug", "▁pun"]


def test_words_are_sorted_by_frequency_then_text() -> None:
    backend = train(["b b a a c c c d"], VocabularySettings(kind="words", vocab_size=100))
    assert pieces_of(backend) == [*BERT, "c", "a", "b"]


def test_a_cased_vocabulary_keeps_case() -> None:
    assert "Aa" in pieces_of(train(["Aa Aa aA aA"], VocabularySettings(vocab_size=50, cased=True)))
    assert "aa" in pieces_of(train(["Aa Aa aA aA"], VocabularySettings(vocab_size=50)))


def test_chinese_characters_and_punctuation_get_one_piece_each() -> None:
    pieces = pieces_of(train(["北京，北京，ab ab"], VocabularySettings(size=100)))
    assert pieces == [*BERT, "a", "b", "京", "北", "，", "##a", "##b", "ab"]


def test_free_slots_follow_the_special_pieces() -> None:
    backend = train(HUGS, VocabularySettings(vocab_size=100, num_unused=2))
    assert pieces_of(backend)[:8] == [*BERT, "[unused0]", "[unused1]", "b"]


def test_too_little_text_for_the_size_is_counted() -> None:
    counts = Counts()
    backend = train(HUGS, VocabularySettings(vocab_size=100), counts)
    assert backend.get_vocab_size() == counts["pieces"] == 26
    assert counts["pieces missing: too little text for the size"] == 74


def test_characters_beyond_the_size_are_left_out_rarest_first_and_counted() -> None:
    counts = Counts()
    backend = train(["京京京北北城城山"], VocabularySettings(size=7), counts)
    assert pieces_of(backend) == [*BERT, "京", "北"]
    assert counts["characters left out: no room"] == 1
    assert counts["occurrences of characters left out: no room"] == 2
    assert counts["characters left out: fewer than 2 occurrences"] == 1


def test_the_number_of_characters_can_be_limited() -> None:
    backend = train(["京京京北北城城 ab ab"], VocabularySettings(size=50, num_characters=1))
    assert pieces_of(backend) == [*BERT, "京"]


def test_words_over_200_characters_teach_nothing_and_are_counted() -> None:
    counts = Counts()
    pieces = pieces_of(train(["x" * 201 + " ab ab"], VocabularySettings(vocab_size=50), counts))
    assert pieces == [*BERT, "a", "b", "##a", "##b", "ab"]
    assert counts["words left out: over 200 characters"] == 1


@pytest.mark.parametrize("texts", [[], ["", " \n\t"]])
def test_text_without_a_word_is_refused(texts: list[str]) -> None:
    with pytest.raises(InputError, match="not a single word"):
        train(texts, VocabularySettings())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "bert"}, "choose one of: wordpiece"),
        ({"size": 5}, "needs at least 6"),
        ({"kind": "byte-bpe", "size": 260}, "needs at least 261"),
        ({"min_count": 0}, "min_count = 0"),
        ({"num_unused": -1}, "num_unused = -1"),
        ({"kind": "unigram", "num_unused": 9}, "only a wordpiece vocabulary has free slots"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        VocabularySettings(**wrong)  # type: ignore[arg-type]


# Many ties: every word occurs as often as many others.
SCRIPT = """
import hashlib, sys
from bertworks.vocabulary.training import VocabularySettings, train
letters = "abcdefghij"
texts = [f"{a}{b}{c} {c}{a}{b}{a}, {b}{c}京{a}" for a in letters for b in letters for c in letters]
for kind in sys.argv[1:]:
    backend = train(texts, VocabularySettings(kind=kind, size=420))
    print(kind, hashlib.sha256(backend.to_str().encode()).hexdigest())
"""


def run_in_a_process(number: int) -> str:
    parallel = number % 2
    changed = {
        "PYTHONHASHSEED": str(number),
        "RAYON_NUM_THREADS": str(1 + parallel),
        "OMP_NUM_THREADS": str(1 + parallel),
        "TOKENIZERS_PARALLELISM": "true" if parallel else "false",
    }
    command = [sys.executable, "-c", SCRIPT, *KINDS]
    done = subprocess.run(command, env={**os.environ, **changed}, capture_output=True, text=True, check=True)
    return done.stdout


def test_four_processes_learn_the_same_bytes_for_every_kind() -> None:
    outputs = {run_in_a_process(number) for number in range(4)}
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == len(KINDS)


@pytest.mark.soak
def test_twenty_processes_learn_the_same_bytes_for_every_kind() -> None:
    assert len({run_in_a_process(number) for number in range(20)}) == 1


def test_the_order_of_texts_does_not_matter() -> None:
    for kind in KINDS:
        settings = VocabularySettings(kind=kind, vocab_size=300)
        hashes = {hashlib.sha256(train(t, settings).to_str().encode()).digest() for t in (HUGS, HUGS[::-1])}
        assert len(hashes) == 1
