"""Intrinsic evaluation of word vectors: values by hand, equal to gensim, unknown words counted."""

from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors

from bertworks.embeddings.static import StaticVectors
from bertworks.errors import InputError
from bertworks.metrics.word_vectors import (
    AnalogyQuestion,
    SectionScore,
    WordPair,
    analogies,
    read_word_list,
    similarity,
    total,
)

PLANE = StaticVectors(
    ["east", "northeast", "north", "west"], np.array([[2, 0], [3, 3], [0, 1], [-1, 0]], dtype=np.float32)
)


def test_similarity_is_a_rank_correlation_without_unknown_words():
    pairs = [
        WordPair("east", "northeast", 9.0),  # cosine 0.71
        WordPair("East", "north", 5.0),  # 0
        WordPair("east", "west", 1.0),  # -1
        WordPair("east", "up", 10.0),  # no vector
    ]
    score = similarity(PLANE, pairs)
    assert (score.num_pairs, score.num_known) == (4, 3)
    assert score.spearman == pytest.approx(1.0)
    reversed_pairs = [pair._replace(score=-pair.score) for pair in pairs]
    assert similarity(PLANE, reversed_pairs).spearman == pytest.approx(-1.0)
    assert similarity(PLANE, pairs[3:]).num_known == 0


def test_analogies_are_scored_by_section():
    questions = [
        AnalogyQuestion("turns", "east", "north", "north", "west"),  # north - east + north is between north and west
        AnalogyQuestion("turns", "east", "north", "up", "west"),
        AnalogyQuestion("others", "north", "east", "west", "northeast"),
    ]
    scores = analogies(PLANE, questions)
    assert scores[0] == SectionScore("turns", 2, 1, 1)
    assert (scores[1].num_questions, scores[1].num_known) == (1, 1)
    assert scores[0].accuracy == 1.0
    assert SectionScore("none", 3, 0, 0).accuracy == 0.0
    assert total(scores) == SectionScore("all", 3, 2, scores[0].num_correct + scores[1].num_correct)


def test_scores_equal_gensim(tmp_path: Path):
    generator = np.random.default_rng(5)
    words = [f"w{index}" for index in range(60)]
    table = generator.standard_normal((60, 4)).astype(np.float32)
    theirs = KeyedVectors(vector_size=4)
    theirs.add_vectors(words, table)
    ours = StaticVectors(words, table)
    pairs = [(*generator.choice(words, 2, replace=False), f"{generator.random():.3f}") for _ in range(40)]
    (tmp_path / "pairs.tsv").write_text("\n".join("\t".join(pair) for pair in pairs) + "\nw1\tunknown\t3\n")
    questions = [" ".join(generator.choice(words, 4, replace=False)) for _ in range(300)]
    for line in range(0, 300, 2):  # a random answer is never correct: every second one is made so
        first, second, third, _ = questions[line].split()
        questions[line] = f"{first} {second} {third} {ours.analogy(first, second, third, 1)[0].word}"
    (tmp_path / "questions.txt").write_text(
        "\n".join([": one", *questions[:150], ": two", *questions[150:], "w1 w2 w3 unknown"])
    )

    read_pairs = read_word_list(tmp_path / "pairs.tsv")
    _, spearman, unknown_percent = theirs.evaluate_word_pairs(str(tmp_path / "pairs.tsv"))
    score = similarity(ours, read_pairs)
    assert score.spearman == pytest.approx(spearman[0], abs=1e-6)
    assert 1 - score.num_known / score.num_pairs == pytest.approx(unknown_percent / 100)

    scores = analogies(ours, read_word_list(tmp_path / "questions.txt"))
    accuracy, sections = theirs.evaluate_word_analogies(str(tmp_path / "questions.txt"), case_insensitive=False)
    assert [score.num_correct for score in scores] == [len(section["correct"]) for section in sections[:2]]
    assert total(scores).accuracy == pytest.approx(accuracy)
    assert total(scores).num_correct >= 150
    assert (scores[1].num_questions, scores[1].num_known) == (151, 150)


@pytest.mark.parametrize(
    "text",
    [
        "tiger\tcat\t7.35\nbook\tpaper\t7.46\n",
        "Word 1,Word 2,Human (mean)\ntiger,cat,7.35\nbook,paper,7.46\n",
        "word1\tword2\tPOS\tSimLex999\tconc(w1)\ntiger\tcat\tN\t7.35\t2\nbook\tpaper\tN\t7.46\t1\n",
        "\ufefftiger cat 7.35\n\nbook paper 7.46",
    ],
)
def test_pairs_are_read_in_the_published_formats(tmp_path: Path, text: str):
    (tmp_path / "pairs").write_text(text, encoding="utf-8")
    assert read_word_list(tmp_path / "pairs") == [WordPair("tiger", "cat", 7.35), WordPair("book", "paper", 7.46)]


def test_questions_have_sections(tmp_path: Path):
    (tmp_path / "q").write_text(": family\nman king woman queen\n: gram1\ncalm calmly rapid rapidly\n")
    assert read_word_list(tmp_path / "q") == [
        AnalogyQuestion("family", "man", "king", "woman", "queen"),
        AnalogyQuestion("gram1", "calm", "calmly", "rapid", "rapidly"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "list is empty"),
        (": family\n", "list has no pairs or questions"),
        ("first\tsecond\tscore\n", "list has no pairs or questions"),
        ("a\tb\t1\nc\td\n", "list, line 2: not two words and a score"),
        ("a\tb\t1\nc\td\tnan\n", "line 2"),
        (": s\na b c d\na b c\n", "list, line 3: 3 words instead of four"),
    ],
)
def test_an_invalid_line_raises_an_error_with_its_number(tmp_path: Path, text: str, message: str):
    (tmp_path / "list").write_text(text)
    with pytest.raises(InputError, match=message):
        read_word_list(tmp_path / "list")


def test_a_binary_file_raises_an_error(tmp_path: Path):
    (tmp_path / "list").write_bytes(b"\x80\x81 not text")
    with pytest.raises(InputError, match="list is not UTF-8 text"):
        read_word_list(tmp_path / "list")
