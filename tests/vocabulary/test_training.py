"""Vocabulary training: tokens by hand, limits and their counts, and the same bytes in every run."""

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


def tokens_of(backend: tokenizers.Tokenizer) -> list[str]:
    return [token for token, _ in sorted(backend.get_vocab().items(), key=lambda item: item[1])]


def test_wordpiece_by_hand() -> None:
    # ##u##g 20, ##u##n 16, h##ug 15, p##un 12; then p##ug and hug##s 5 each: p has the smaller id; b##un 4.
    tokens = tokens_of(train(HUGS, VocabularySettings(vocab_size=100)))
    characters = [*"bghnpsu", *(f"##{letter}" for letter in "bghnpsu")]
    assert tokens == [*BERT, *characters, "##ug", "##un", "hug", "pun", "pug", "hugs", "bun"]


def test_bpe_by_hand() -> None:
    # u g</w> 15 (hug, pug), u n</w> 16, p u 17 first: pu; then pu n</w> 12, h u 15 before u g</w> (h is smaller).
    backend = train(HUGS, VocabularySettings(kind="bpe", vocab_size=5 + 14 + 4))
    characters = [*"bghnpsu", *(f"{letter}</w>" for letter in "bghnpsu")]
    assert tokens_of(backend) == [*BERT, *characters, "pu", "hu", "pun</w>", "hug</w>"]
    assert backend.encode("hug pun", add_special_tokens=False).tokens == ["hug</w>", "pun</w>"]


def test_byte_bpe_has_all_bytes_and_learns_words_with_their_space() -> None:
    # "ab" 3 times: once at the start, twice with a space before it.
    backend = train(["ab ab ab"], VocabularySettings(kind="byte-bpe", vocab_size=300, cased=True))
    tokens = tokens_of(backend)
    assert tokens[:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert len(tokens) == 5 + 256 + 2
    assert tokens[-2:] == ["ab", "Ġab"]


def test_unigram_gives_every_character_and_frequent_words_a_token() -> None:
    backend = train(HUGS, VocabularySettings(kind="unigram", vocab_size=5 + 8 + 3))
    assert tokens_of(backend)[:13] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", *"bghnpsu", "▁"]
    assert backend.encode("hug pun", add_special_tokens=False).tokens == ["▁hug", "▁pun"]


def test_words_are_sorted_by_frequency_then_text() -> None:
    backend = train(["b b a a c c c d"], VocabularySettings(kind="words", vocab_size=100))
    assert tokens_of(backend) == [*BERT, "c", "a", "b"]


def test_a_cased_vocabulary_keeps_case() -> None:
    assert "Aa" in tokens_of(train(["Aa Aa aA aA"], VocabularySettings(vocab_size=50, cased=True)))
    assert "aa" in tokens_of(train(["Aa Aa aA aA"], VocabularySettings(vocab_size=50)))


def test_chinese_characters_and_punctuation_get_one_token_each() -> None:
    tokens = tokens_of(train(["北京，北京，ab ab"], VocabularySettings(vocab_size=100)))
    assert tokens == [*BERT, "a", "b", "京", "北", "，", "##a", "##b", "ab"]


def test_unused_entries_follow_the_special_tokens() -> None:
    backend = train(HUGS, VocabularySettings(vocab_size=100, num_unused=2))
    assert tokens_of(backend)[:8] == [*BERT, "[unused0]", "[unused1]", "b"]


def test_missing_tokens_are_counted() -> None:
    counts = Counts()
    backend = train(HUGS, VocabularySettings(vocab_size=100), counts)
    assert backend.get_vocab_size() == counts["tokens"] == 26
    assert counts["tokens missing: too little text for vocab_size"] == 74


def test_characters_beyond_vocab_size_are_left_out_rarest_first_and_counted() -> None:
    counts = Counts()
    backend = train(["京京京北北城城山"], VocabularySettings(vocab_size=7), counts)
    assert tokens_of(backend) == [*BERT, "京", "北"]
    assert counts["characters left out: vocabulary full"] == 1
    assert counts["occurrences of characters left out: vocabulary full"] == 2
    assert counts["characters left out: fewer than 2 occurrences"] == 1


def test_the_number_of_characters_can_be_limited() -> None:
    backend = train(["京京京北北城城 ab ab"], VocabularySettings(vocab_size=50, num_characters=1))
    assert tokens_of(backend) == [*BERT, "京"]


def test_words_over_200_characters_are_ignored_and_counted() -> None:
    counts = Counts()
    tokens = tokens_of(train(["x" * 201 + " ab ab"], VocabularySettings(vocab_size=50), counts))
    assert tokens == [*BERT, "a", "b", "##a", "##b", "ab"]
    assert counts["words left out: over 200 characters"] == 1


@pytest.mark.parametrize("texts", [[], ["", " \n\t"]])
def test_text_without_words_is_rejected(texts: list[str]) -> None:
    with pytest.raises(InputError, match="contain no words"):
        train(texts, VocabularySettings())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "bert"}, "choose one of: wordpiece"),
        ({"vocab_size": 5}, "needs at least 6"),
        ({"kind": "byte-bpe", "vocab_size": 260}, "needs at least 261"),
        ({"min_count": 0}, "min_count = 0"),
        ({"num_unused": -1}, "num_unused = -1"),
        ({"kind": "unigram", "num_unused": 9}, "only a wordpiece vocabulary has unused entries"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        VocabularySettings(**settings)  # type: ignore[arg-type]


# Many ties: every word occurs as often as many others.
SCRIPT = """
import hashlib, sys
from bertworks.vocabulary.training import VocabularySettings, train
letters = "abcdefghij"
texts = [f"{a}{b}{c} {c}{a}{b}{a}, {b}{c}京{a}" for a in letters for b in letters for c in letters]
for kind in sys.argv[1:]:
    backend = train(texts, VocabularySettings(kind=kind, vocab_size=420))
    print(kind, hashlib.sha256(backend.to_str().encode()).hexdigest())
"""


def train_in_a_process(number: int) -> str:
    parallel = number % 2
    environment = {
        "PYTHONHASHSEED": str(number),
        "RAYON_NUM_THREADS": str(1 + parallel),
        "OMP_NUM_THREADS": str(1 + parallel),
        "TOKENIZERS_PARALLELISM": "true" if parallel else "false",
    }
    command = [sys.executable, "-c", SCRIPT, *KINDS]
    process = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return process.stdout


def test_four_processes_train_the_same_bytes_for_every_kind() -> None:
    outputs = {train_in_a_process(number) for number in range(4)}
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == len(KINDS)


@pytest.mark.soak
def test_twenty_processes_train_the_same_bytes_for_every_kind() -> None:
    assert len({train_in_a_process(number) for number in range(20)}) == 1


def test_the_order_of_texts_does_not_matter() -> None:
    for kind in KINDS:
        settings = VocabularySettings(kind=kind, vocab_size=300)
        hashes = {hashlib.sha256(train(texts, settings).to_str().encode()).digest() for texts in (HUGS, HUGS[::-1])}
        assert len(hashes) == 1
