"""Word senses: occurrences in sentences, one point or many, separated senses, with values by hand."""

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


def test_a_single_vector_is_as_accurate_as_chance():
    geometry = measure_senses(np.full((4, 3), 2.0, dtype=np.float32), ["a", "a", "b", "b"])
    assert (geometry.num_distinct_vectors, geometry.explained_variance_ratio) == (1, 1.0)
    assert geometry.points.tolist() == [[0, 0]] * 4
    assert (geometry.within_similarity, geometry.across_similarity) == (pytest.approx(1), pytest.approx(1))
    assert geometry.nearest_neighbor_accuracy == pytest.approx(1 / 3), "one of three neighbors has the same sense"


def test_clusters_are_separated_and_projected():
    vectors = np.array([[5, 0, 0], [1, 0.1, 0], [0, 2, 0], [0, 1, 0.1]], dtype=np.float32)
    geometry = measure_senses(vectors, ["a", "a", "b", "b"])
    assert geometry.num_distinct_vectors == 4
    assert geometry.nearest_neighbor_accuracy == 1.0
    assert geometry.within_similarity > 0.99
    assert geometry.across_similarity == pytest.approx((0 + 0 + 0.1 / 1.01**0.5 + 0.1 / 1.01) / 4, abs=1e-3)
    assert geometry.explained_variance_ratio > 0.99
    sides = np.sign(geometry.points[:, 0])
    assert sides[0] == sides[1] != sides[2] == sides[3]
    assert measure_senses(vectors, ["a", "b", "a", "b"]).nearest_neighbor_accuracy == 0.0


def test_the_plot_has_one_panel_per_model_and_all_sentences():
    texts = ["a <stick> & more", "stick it", "the stick"]
    spans = [find_word("stick", text) for text in texts]
    uses = [WordUse(sense, text, *span) for sense, text, span in zip("wvw", texts, spans, strict=True) if span]
    static = measure_senses(np.ones((3, 2), dtype=np.float32), [use.sense for use in uses])
    contextual = measure_senses(np.array([[1, 0], [0, 1], [1, 0.2]], dtype=np.float32), [use.sense for use in uses])
    svg = draw_senses("stick", uses, [Panel("static", static), Panel("bert", contextual)])
    assert svg.count("<circle") == 3, "three points of the second model"
    assert svg.count("<path") == 2, "one disc of two senses of the first"
    assert "3 sentences, one vector" in svg
    assert "3 sentences, 3 vectors, 100% of variance" in svg
    assert "a &lt;<tspan" in svg
    assert svg.count('font-weight="700"') == 3
    assert svg == draw_senses("stick", uses, [Panel("static", static), Panel("bert", contextual)])
