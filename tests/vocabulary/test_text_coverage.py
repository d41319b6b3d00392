"""Unknown tokens, fragments and minor scripts: counted by hand on a few words, and loud beyond the thresholds."""

from __future__ import annotations

import pytest
import tokenizers

from bertworks.vocabulary.algorithms import KINDS, Inventory, wordpiece_backend
from bertworks.vocabulary.text_coverage import CoverageWarning, TextCoverage
from bertworks.vocabulary.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENGLISH = [
    *"the cat sat on a mat it was good play i".split(),
    "##ing",
    "##s",
    ".",
    ",",
    *"приветм",
    *("##" + c for c in "приветм"),
]
CHINESE = [*"我们很喜欢这部电影他来了在北京看书", "the", "ca", "##t", "sa", "ma", "on", "go", "##od", "."]


def tokenizer_of(tokens: list[str]) -> Tokenizer:
    return Tokenizer.from_backend(wordpiece_backend([*SPECIALS, *dict.fromkeys(tokens)], cased=False))


def coverage_of(tokens: list[str], *texts: str) -> TextCoverage:
    tokenizer = tokenizer_of(tokens)
    coverage = TextCoverage(tokenizer)
    coverage.add([tokenizer.encode(text) for text in texts])
    return coverage


def warning_of(coverage: TextCoverage) -> CoverageWarning:
    (warning,) = coverage.warnings()
    return warning


def test_tokens_unknown_words_and_fragments_are_counted_by_hand() -> None:
    # the cat play ##s [UNK] . | п ##р i: "i" is a word of one letter, п and ##р are parts of a word.
    coverage = coverage_of(ENGLISH, "The cat plays 京.", "пр i")
    assert (coverage.num_tokens, coverage.num_unknown, coverage.num_unknown_words) == (9, 1, 1)
    assert coverage.num_fragments == 3  # ##s п ##р
    assert coverage.unknown_ratio == pytest.approx(1 / 9)
    assert coverage.describe_unknown() == "1 of 9 tokens are unknown to the vocabulary; most often: 京"


def test_special_tokens_and_empty_texts_do_not_count() -> None:
    coverage = coverage_of(ENGLISH, "")
    assert (coverage.num_tokens, coverage.warnings(), coverage.describe_unknown()) == (0, [], "")
    coverage.add([])
    assert coverage.num_tokens == 0


def test_chinese_text_and_an_english_vocabulary_is_loud() -> None:
    warning = warning_of(coverage_of(ENGLISH, "我们很喜欢这部电影我"))
    assert (warning.type, warning.ratio, warning.examples[0]) == ("unknown_tokens", 1.0, "我")
    assert "100% of 10 tokens are unknown to the vocabulary ([UNK])" in warning.message
    assert "most often: 我 们" in warning.message


def test_cyrillic_that_falls_to_single_letters_is_loud_without_any_unknown_token() -> None:
    coverage = coverage_of(ENGLISH, "Привет мир привет.")
    assert (coverage.num_unknown, coverage.num_fragments, coverage.num_tokens) == (0, 15, 16)
    warning = warning_of(coverage)
    assert (warning.type, warning.examples) == ("fragments", ("Cyrillic",))
    assert "94% of 16 tokens are bytes or single letters of longer words" in warning.message


def test_english_text_and_a_chinese_vocabulary_is_loud() -> None:
    # the ca ##t sa ##t on the ma ##t .: 9 tokens in 6 words of Latin script, of which the vocabulary has 8.
    warning = warning_of(coverage_of(CHINESE, "The cat sat on the mat."))
    assert (warning.type, warning.ratio, warning.examples) == ("minor_script", 0.9, ("Latin",))
    assert (
        "90% of 10 tokens are of Latin script, of which the vocabulary has only 8 of its 31 tokens" in warning.message
    )
    assert "1.5 tokens per word" in warning.message


def test_words_of_a_minor_script_within_the_main_one_are_fine() -> None:
    assert coverage_of(CHINESE, "我们很喜欢这部电影 the cat sat").warnings() == []


def test_whole_words_of_a_minor_script_are_fine() -> None:
    assert coverage_of(CHINESE, "the on the on the on the on").warnings() == []


def test_a_few_unknown_tokens_are_counted_and_not_loud() -> None:
    coverage = coverage_of(ENGLISH, "the cat sat on a mat it was 好.")
    assert (coverage.num_unknown, coverage.warnings()) == (1, [])
    assert coverage_of(ENGLISH, "good 京 京").num_unknown == 2
    assert coverage_of(ENGLISH, "the cat sat 京 京").warnings() == []  # 40%, but two only


@pytest.mark.parametrize(("num_words", "is_loud"), [(17, False), (16, True)])
def test_unknown_words_are_loud_above_15_percent(num_words: int, is_loud: bool) -> None:
    assert bool(coverage_of(ENGLISH, "京 海 山 " + "cat " * num_words).warnings()) == is_loud


@pytest.mark.parametrize(("num_words", "is_loud"), [(9, False), (8, True)])
def test_emoji_are_loud_above_25_percent(num_words: int, is_loud: bool) -> None:
    assert bool(coverage_of(ENGLISH, "😂 🔥 🎉 " + "cat " * num_words).warnings()) == is_loud


def test_words_of_one_letter_are_no_fragments() -> None:
    coverage = coverage_of(ENGLISH, "a i a i a i a i")
    assert (coverage.num_fragments, coverage.warnings()) == (0, [])


def test_bytes_of_byte_level_bpe_are_loud() -> None:
    tokens = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = Tokenizer.from_backend(KINDS["byte-bpe"].build(Inventory(tokens), cased=True))
    coverage = TextCoverage(tokenizer)
    coverage.add([tokenizer.tokenize("我喜欢")])
    assert (coverage.num_tokens, coverage.num_fragments) == (9, 9)
    assert "vocabulary hardly has the script or the language of the texts" in warning_of(coverage).message


def test_unknown_words_that_an_encoder_reads_by_their_characters_are_not_loud() -> None:
    tokenizer = tokenizer_of(ENGLISH)
    coverage = TextCoverage(tokenizer, reads_characters=True)
    coverage.add([tokenizer.encode("我们很喜欢")])
    assert (coverage.num_unknown, coverage.warnings()) == (5, [])


def test_batches_add_up_and_words_do_not_reach_over_sequences() -> None:
    tokenizer = tokenizer_of(ENGLISH)
    together, apart = TextCoverage(tokenizer), TextCoverage(tokenizer)
    texts = [tokenizer.tokenize(text) for text in ("i", "привет", "a")]
    together.add(texts)
    for text in texts:
        apart.add([text])
    assert together.num_fragments == apart.num_fragments == 6


def test_a_warning_is_json() -> None:
    fields = warning_of(coverage_of(ENGLISH, "我们很喜欢")).to_dict()
    assert list(fields) == ["type", "message", "ratio", "examples"]
