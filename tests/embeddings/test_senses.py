"""Where a word lies: found in sentences, one point or many, senses told apart, with values by hand."""

import numpy as np
import pytest

from bertworks.embeddings.senses import WordUse, find_word, measure_senses
from bertworks.reports.senses import Panel, draw_senses


@pytest.mark.parametrize(
    ("word", "text", "span"),
    [
        ("stick", "Sticky, a stick.", (10, 15)),
        ("stick", "STICK it", (0, 5)),
        ("stick", "sticks", None),
        ("stick", "a stick_man", (2, 7)),
        ("杜鹃", "山上的杜鹃开了", (3, 5)),
        ("c++", "c++ and c", (0, 3)),
    ],
)
def test_a_word_is_found_as_a_whole(word: str, text: str, span: tuple[int, int] | None):
    assert find_word(word, text) == span


def test_one_vector_tells_as_much_as_chance():
    found = measure_senses(np.full((4, 3), 2.0, dtype=np.float32), ["a", "a", "b", "b"])
    assert (found.num_distinct_vectors, found.explained_variance_ratio) == (1, 1.0)
    assert found.points.tolist() == [[0, 0]] * 4
    assert (found.within_similarity, found.across_similarity) == (pytest.approx(1), pytest.approx(1))
    assert found.nearest_neighbor_accuracy == pytest.approx(1 / 3), "of three others one has the same sense"


def test_clusters_are_told_apart_and_shown_in_a_plane():
    vectors = np.array([[5, 0, 0], [1, 0.1, 0], [0, 2, 0], [0, 1, 0.1]], dtype=np.float32)
    found = measure_senses(vectors, ["a", "a", "b", "b"])
    assert found.num_distinct_vectors == 4
    assert found.nearest_neighbor_accuracy == 1.0
    assert found.within_similarity > 0.99
    assert found.across_similarity == pytest.approx((0 + 0 + 0.1 / 1.01**0.5 + 0.1 / 1.01) / 4, abs=1e-3)
    assert found.explained_variance_ratio > 0.99
    sides = np.sign(found.points[:, 0])
    assert sides[0] == sides[1] != sides[2] == sides[3]
    assert measure_senses(vectors, ["a", "b", "a", "b"]).nearest_neighbor_accuracy == 0.0


def test_a_picture_has_a_panel_a_model_and_all_sentences():
    texts = ["a <stick> & more", "stick it", "the stick"]
    spans = [find_word("stick", text) for text in texts]
    uses = [WordUse(sense, text, *span) for sense, text, span in zip("wvw", texts, spans, strict=True) if span]
    one = measure_senses(np.ones((3, 2), dtype=np.float32), [use.sense for use in uses])
    many = measure_senses(np.array([[1, 0], [0, 1], [1, 0.2]], dtype=np.float32), [use.sense for use in uses])
    drawn = draw_senses("stick", uses, [Panel("static", one), Panel("bert", many)])
    assert drawn.count("<circle") == 3, "three places of the second model"
    assert drawn.count("<path") == 2, "one disc of two senses of the first"
    assert "3 sentences, one vector" in drawn
    assert "3 sentences, 3 vectors; the plane shows 100% of their spread" in drawn
    assert "a &lt;<tspan" in drawn
    assert drawn.count('font-weight="700"') == 3
    assert drawn == draw_senses("stick", uses, [Panel("static", one), Panel("bert", many)])
