"""Entities from BIO tags: by hand, and equal to seqeval's reports in both modes."""

import warnings

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from seqeval.metrics import classification_report
from seqeval.scheme import IOB2

from bertworks.errors import InputError, SettingsError
from bertworks.metrics.classification import Matches
from bertworks.metrics.entities import EntityTally, entity_scores

TAG = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-law-firm", "I-law-firm"])
SENTENCES = st.lists(st.lists(st.tuples(TAG, TAG), min_size=1, max_size=8), min_size=1, max_size=5)

GOLD = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "B-LOC", "O"]]


def test_an_entity_is_correct_if_both_ends_and_the_type_are():
    predicted = [
        ["B-PER", "O", "O", "B-LOC"],
        ["B-PER", "B-LOC", "B-LOC"],
    ]  # too short, correct; wrong type, correct, spurious
    scores = entity_scores(predicted, GOLD)
    assert scores.by_type == {"LOC": Matches(2, 3, 3), "PER": Matches(0, 2, 1)}
    assert scores.overall == Matches(2, 5, 4)
    assert scores.overall.precision == 2 / 5
    assert scores.overall.recall == 2 / 4
    assert scores.overall.f1 == pytest.approx(4 / 9)
    assert scores.macro_f1 == pytest.approx((4 / 6 + 0) / 2)


def test_an_entity_without_b_counts_by_default_and_not_in_strict_mode():
    predicted = [["I-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "B-LOC", "O"]]
    assert entity_scores(predicted, GOLD).overall == Matches(4, 4, 4)
    assert entity_scores(predicted, GOLD, "strict").overall == Matches(3, 3, 4)


def test_a_change_of_type_ends_an_entity_in_both_modes():
    predicted, gold = [["B-PER", "I-LOC"]], [["B-PER", "B-LOC"]]
    assert entity_scores(predicted, gold).overall == Matches(2, 2, 2)
    assert entity_scores(predicted, gold, "strict").overall == Matches(1, 1, 2)


def test_entities_end_with_their_sentence():
    assert entity_scores([["B-PER"], ["I-PER"]], [["B-PER"], ["B-PER"]]).overall == Matches(2, 2, 2)


def test_without_entities_all_scores_are_zero():
    scores = entity_scores([["O", "O"]], [["O", "O"]])
    assert (scores.overall.f1, scores.macro_f1, scores.by_type) == (0.0, 0.0, {})


@pytest.mark.parametrize("tag", ["PER", "S-PER", "B-", "I", "", "o"])
def test_a_tag_that_is_not_bio_raises_an_error(tag: str):
    with pytest.raises(InputError, match=f"tag 2 of a sentence is '{tag}'"):
        entity_scores([["O", tag]], [["O", "O"]])


def test_an_unknown_mode_raises_an_error():
    with pytest.raises(SettingsError, match="default, strict"):
        EntityTally("lenient")


def test_sentences_of_different_lengths_raise_an_error():
    with pytest.raises(AssertionError):
        entity_scores([["O"]], [["O", "O"]])
    with pytest.raises(ValueError, match="longer"):
        entity_scores([["O"]], [["O"], ["O"]])


@pytest.mark.parametrize(("mode", "options"), [("default", {}), ("strict", {"mode": "strict", "scheme": IOB2})])
@given(sentences=SENTENCES)
def test_scores_equal_seqeval_s_report(mode: str, options: dict, sentences: list[list[tuple[str, str]]]):
    predicted = [[tag for tag, _ in sentence] for sentence in sentences]
    gold = [[tag for _, tag in sentence] for sentence in sentences]
    scores = entity_scores(predicted, gold, mode)
    assume(scores.by_type)  # seqeval cannot report without entities; that case is tested above
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about types that are never predicted
        report = classification_report(gold, predicted, output_dict=True, zero_division=0, **options)
    our_scores = {**scores.by_type, "micro avg": scores.overall}
    assert report.keys() == our_scores.keys() | {"macro avg", "weighted avg"}
    for name, matches in our_scores.items():
        their_scores = report[name]
        assert (matches.precision, matches.recall) == pytest.approx((their_scores["precision"], their_scores["recall"]))
        assert (matches.f1, matches.num_gold) == (pytest.approx(their_scores["f1-score"]), their_scores["support"])
    assert scores.macro_f1 == pytest.approx(report["macro avg"]["f1-score"])


@given(sentences=SENTENCES)
def test_scores_do_not_depend_on_batches(sentences: list[list[tuple[str, str]]]):
    tally = EntityTally()
    for sentence in sentences:
        tally.add([[predicted_tag for predicted_tag, _ in sentence]], [[gold_tag for _, gold_tag in sentence]])
    predicted = [[predicted_tag for predicted_tag, _ in sentence] for sentence in sentences]
    gold = [[gold_tag for _, gold_tag in sentence] for sentence in sentences]
    assert tally.scores() == entity_scores(predicted, gold)
