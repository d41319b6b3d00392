"""Entities from BIO tags: by hand, and equal to seqeval's own reports in both readings."""

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


def test_an_entity_is_right_if_both_ends_and_the_type_are():
    predicted = [["B-PER", "O", "O", "B-LOC"], ["B-PER", "B-LOC", "B-LOC"]]  # too short, right; wrong type, right, none
    scores = entity_scores(predicted, GOLD)
    assert scores.by_type == {"LOC": Matches(2, 3, 3), "PER": Matches(0, 2, 1)}
    assert scores.overall == Matches(2, 5, 4)
    assert scores.overall.precision == 2 / 5
    assert scores.overall.recall == 2 / 4
    assert scores.overall.f1 == pytest.approx(4 / 9)
    assert scores.macro_f1 == pytest.approx((4 / 6 + 0) / 2)


def test_an_entity_without_its_first_tag_counts_by_default_and_not_when_strict():
    predicted = [["I-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "B-LOC", "O"]]
    assert entity_scores(predicted, GOLD).overall == Matches(4, 4, 4)
    assert entity_scores(predicted, GOLD, "strict").overall == Matches(3, 3, 4)


def test_a_change_of_type_inside_ends_an_entity_in_both_readings():
    predicted, gold = [["B-PER", "I-LOC"]], [["B-PER", "B-LOC"]]
    assert entity_scores(predicted, gold).overall == Matches(2, 2, 2)
    assert entity_scores(predicted, gold, "strict").overall == Matches(1, 1, 2)


def test_entities_do_not_run_on_over_the_end_of_a_sentence():
    assert entity_scores([["B-PER"], ["I-PER"]], [["B-PER"], ["B-PER"]]).overall == Matches(2, 2, 2)


def test_without_any_entity_all_scores_are_zero():
    scores = entity_scores([["O", "O"]], [["O", "O"]])
    assert (scores.overall.f1, scores.macro_f1, scores.by_type) == (0.0, 0.0, {})


@pytest.mark.parametrize("tag", ["PER", "S-PER", "B-", "I", "", "o"])
def test_what_is_no_bio_tag_is_refused_by_name(tag: str):
    with pytest.raises(InputError, match=f"tag 2 of a sentence is '{tag}'"):
        entity_scores([["O", tag]], [["O", "O"]])


def test_an_unknown_reading_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match="default, strict"):
        EntityTally("lenient")


def test_sentences_of_different_lengths_are_our_mistake():
    with pytest.raises(AssertionError):
        entity_scores([["O"]], [["O", "O"]])
    with pytest.raises(ValueError, match="longer"):
        entity_scores([["O"]], [["O"], ["O"]])


@pytest.mark.parametrize(("reading", "options"), [("default", {}), ("strict", {"mode": "strict", "scheme": IOB2})])
@given(sentences=SENTENCES)
def test_scores_equal_the_report_of_seqeval(reading: str, options: dict, sentences: list[list[tuple[str, str]]]):
    predicted = [[ours for ours, _ in sentence] for sentence in sentences]
    gold = [[theirs for _, theirs in sentence] for sentence in sentences]
    scores = entity_scores(predicted, gold, reading)
    assume(scores.by_type)  # seqeval cannot report on nothing; what we say then is tested above
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where a type was never predicted
        report = classification_report(gold, predicted, output_dict=True, zero_division=0, **options)
    ours = {**scores.by_type, "micro avg": scores.overall}
    assert report.keys() == ours.keys() | {"macro avg", "weighted avg"}
    for name, matches in ours.items():
        theirs = report[name]
        assert (matches.precision, matches.recall) == pytest.approx((theirs["precision"], theirs["recall"]))
        assert (matches.f1, matches.num_gold) == (pytest.approx(theirs["f1-score"]), theirs["support"])
    assert scores.macro_f1 == pytest.approx(report["macro avg"]["f1-score"])


@given(sentences=SENTENCES)
def test_batches_give_the_scores_of_the_whole(sentences: list[list[tuple[str, str]]]):
    tally = EntityTally()
    for sentence in sentences:
        tally.add([[ours for ours, _ in sentence]], [[theirs for _, theirs in sentence]])
    predicted = [[ours for ours, _ in sentence] for sentence in sentences]
    gold = [[theirs for _, theirs in sentence] for sentence in sentences]
    assert tally.scores() == entity_scores(predicted, gold)
