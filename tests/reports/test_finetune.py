"""The report of a fine-tuning run: every metric on the page, text escaped, parts without data omitted."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outline import Outline, outline

from bertworks.errors import FolderError
from bertworks.metrics.classification import Matches
from bertworks.records import Records, RunRecord, ScoreRecord, StepRecord
from bertworks.reports.bars import BarChart, draw_bars
from bertworks.reports.errors_by_class import calibration_part, classes_part, confusion_part, mistakes_part
from bertworks.reports.finetune import FinetuneContents, WindowCoverage, length_edges, write_finetune_report
from bertworks.sampling.windows import WindowRule, WindowSpan
from bertworks.tasks.contract import Features, InputSequence, Mistake, TaskScores

EVIL = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"
CONFUSION = np.array([[8, 2], [1, 9]])
LABELS = ("bad", "好")
# Count, summed confidence and number of correct predictions of each of 15 bins.
BINS = np.zeros((15, 3))
BINS[12], BINS[14] = (4, 3.2, 2), (10, 9.8, 9)
MISTAKES = [
    Mistake(confidence=0.98, texts=("Not bad at all.",), expected="好", predicted="bad", location="dev.tsv, line 7"),
    Mistake(confidence=0.75, texts=("这家酒店不错。",), expected="好", predicted="bad", location="dev.tsv, line 9"),
]
DETAILS = {"confusion": CONFUSION, "labels": LABELS, "bins": BINS, "mistakes": MISTAKES}


def task_scores(accuracy: float, **details: object) -> TaskScores:
    metrics = {"accuracy": accuracy, "macro_f1": accuracy - 0.1, "calibration_error": 0.143}
    return TaskScores(metrics=metrics, main_metric="accuracy", details=details)


CONTENTS = FinetuneContents(
    task="classify",
    base="small-bert",
    scores={"train": task_scores(0.95), "dev": task_scores(0.85, **DETAILS), "test": task_scores(0.8)},
    verdict="overfits: accuracy is 0.950 on train and 0.850 on dev",
    data={"train": {"file": "train.tsv", "sha256": "ab" * 32, "examples": 1_234}},
    recipe='task = "classify"\nbatch_size = 32\n',
    machine={"processor": "A Fine Processor", "cores": 2},
    coverage=WindowCoverage(
        window_rule=WindowRule(128, 32),
        lengths=np.array([5, 12, 12, 200]),
        num_sequences=5,
        num_long=1,
        num_truncated=0,
    ),
    explanations=('<div class="explanation"><p>because of <b>bad</b></p></div>',),
    warnings=("3 dev texts are also in train",),
)
BARE = FinetuneContents(
    task="answer", base="small-bert", scores={"dev": TaskScores(metrics={"f1": 0.5}, main_metric="f1")}, verdict="fits"
)


def step_record(number: int, loss: float = 1.0) -> StepRecord:
    return StepRecord(
        step=number,
        phase="finetune",
        losses={"class": loss},
        learning_rate=3e-5,
        seconds=60.0 * number,
        num_tokens=100 * number,
        grad_norm=1.0,
    )


def dev_record(number: int, accuracy: float, calibration_error: float = 0.2) -> ScoreRecord:
    return ScoreRecord(number, "dev", {"macro_f1": 0.3, "accuracy": accuracy, "calibration_error": calibration_error})


RECORDS = (
    step_record(1),
    dev_record(10, 0.5),
    step_record(20),
    dev_record(20, 0.9, 0.231),
    step_record(30),
    dev_record(30, 0.9),
)


def run_with(folder: Path, *records: RunRecord) -> Path:
    with Records.open(folder, None) as run_records:
        for record in records:
            run_records.add(record)
    return folder


def text_of(folder: Path, contents: FinetuneContents = CONTENTS, records: tuple[RunRecord, ...] = RECORDS) -> str:
    return write_finetune_report(run_with(folder, *records), contents).read_text(encoding="utf-8")


def page_of(folder: Path, contents: FinetuneContents = CONTENTS, records: tuple[RunRecord, ...] = RECORDS) -> Outline:
    return outline(text_of(folder, contents, records))


def test_the_page_begins_with_the_verdict_and_the_main_metric_of_each_split(tmp_path):
    run = tmp_path / "spam"
    words = page_of(run).words
    assert write_finetune_report(run, CONTENTS) == run / "report.html"
    state = "classify on small-bert, 30 steps in 30 min, best on dev: step 20"
    assert f"Fine-tuning run spam {state}" in words
    assert "best on dev: step 20 Overfits: accuracy is 0.950 on train and 0.850 on dev accuracy on train 0.950" in words
    assert "accuracy on dev 0.850 accuracy on test 0.800" in words


def test_the_table_has_all_metrics_of_all_splits(tmp_path):
    contents = replace(
        CONTENTS, scores={**CONTENTS.scores, "test": TaskScores(metrics={"accuracy": 0.8}, main_metric="accuracy")}
    )
    words = page_of(tmp_path, contents).words
    assert "train dev test accuracy 0.950 0.850 0.800 macro f1 0.850 0.750 – calibration error 0.143 0.143 –" in words


def test_every_dev_metric_has_a_curve_with_the_best_step_marked(tmp_path):
    text = text_of(tmp_path)
    captions = re.findall(r"<figcaption>([^<]*) <small>", text)
    assert captions[:4] == ["Training loss: class", "Accuracy", "Macro f1", "Calibration error"]
    # Steps 20 and 30 are equally good, and the first is saved: at 20 / 30 of the width.
    boundaries = re.findall(r'<span class="phase" style="left:([\d.]+)%">([^<]*)</span>', text)
    assert boundaries[:4] == [("66.67", "best on dev: step 20")] * 4
    # The axis of accuracies from 0.5 to 0.9 is 0 to 1: half-way up, and a tenth below the top.
    assert 'd="M333.3 200.0L666.7 40.0L1000.0 40.0"' in text


def test_a_run_without_dev_has_curves_without_a_best_step(tmp_path):
    contents = replace(BARE, scores={"train": TaskScores(metrics={"f1": 0.5}, main_metric="f1")})
    page = page_of(tmp_path, contents, (step_record(1), step_record(2)))
    assert "Training loss: class" in page.words
    assert "best" not in page.words


def test_the_confusion_matrix_is_shaded_by_the_ratio_of_each_row():
    part = confusion_part(task_scores(0.85, **DETAILS))
    assert "3 of 20 are misclassified." in part
    cells = re.findall(r'<td class="number (\w+)" style="--ratio:([\d.]+)">(\d+)</td>', part)
    assert cells == [("hit", "0.800", "8"), ("miss", "0.200", "2"), ("miss", "0.100", "1"), ("hit", "0.900", "9")]
    assert outline(part).words.endswith("true ↓ predicted → bad 好 bad 8 2 好 1 9")


def test_of_more_than_thirty_classes_the_most_confused_pairs_are_listed():
    counts = np.diag(np.full(31, 10))
    counts[4, 7], counts[30, 0], counts[2, 1] = 5, 10, 1
    part = outline(confusion_part(task_scores(0.9, confusion=counts, labels=tuple(f"c{n}" for n in range(31)))))
    # 10 of the 20 of class 30, 5 of the 15 of class 4, 1 of the 11 of class 2
    assert part.words.endswith("of the true class c30 c0 10 50.0 % c4 c7 5 33.3 % c2 c1 1 9.1 %")


def test_thirty_classes_still_have_a_matrix():
    part = confusion_part(
        task_scores(0.9, confusion=np.eye(30, dtype=np.int64), labels=tuple(f"c{n}" for n in range(30)))
    )
    assert part.count("<td") == 900


def test_each_class_has_precision_recall_f1_and_count():
    words = outline(classes_part(task_scores(0.85, **DETAILS))).words
    # bad: 8 of 9 found, 8 of 10 there, 2 * 8 / (9 + 10); 好: 9 of 11, 9 of 10, 2 * 9 / (11 + 10)
    assert words == "class precision recall F1 examples bad 0.889 0.800 0.842 10 好 0.818 0.900 0.857 10"


def test_entity_types_replace_the_tags_of_words():
    types = {"LOC": {"f1": 0.8, "precision": 0.7, "recall": 0.9, "num_entities": 1_668}}
    words = outline(classes_part(task_scores(0.85, **DETAILS, types=types))).words
    assert words == "type precision recall F1 entities LOC 0.700 0.900 0.800 1,668"


def test_each_label_of_a_multi_label_task_has_a_row():
    matches = (Matches(3, 4, 6), Matches(0, 0, 2))
    words = outline(classes_part(task_scores(0.5, labels=("angry", "glad"), matches=matches))).words
    # angry: 3 of 4 found, 3 of 6 there, 2 * 3 / (4 + 6); glad: never predicted
    assert words == "class precision recall F1 examples angry 0.750 0.500 0.600 6 glad 0.000 0.000 0.000 2"


def test_many_classes_are_listed_from_the_lowest_f1_on():
    counts = np.diag(np.full(31, 10))
    counts[30, 30], counts[30, 0] = 0, 10
    words = outline(classes_part(task_scores(0.9, confusion=counts, labels=tuple(f"c{n}" for n in range(31))))).words
    # c30 is never found; c0 is found 10 times in 20: precision 0.5, F1 2 * 10 / (20 + 10)
    assert words.startswith(
        "31 of 31, lowest F1 first class precision recall F1 examples c30 0.000 0.000 0.000 10 c0 0.500 1.000 0.667"
    )


def test_a_reliability_bar_shows_accuracy_with_a_mark_at_the_mean_confidence():
    part = calibration_part(task_scores(0.85, **DETAILS))
    assert "(ECE) 0.143" in part  # (|3.2 - 2| + |9.8 - 9|) / 14
    # Bar 12 of 15 spans 12.06 to 12.94 fifteenths; accuracy 0.5, confidence 0.8: 200 and 80 below the top of 400.
    assert (
        '<path class="bar" d="M804.0 400V200.0H862.7V400Z"><title>confidence 0.800, accuracy 0.500, 4 predictions'
        in part
    )
    assert '<path class="expected" d="M804.0 80.0H862.7"/>' in part
    assert '<path class="expected" d="M937.3 8.0H996.0"/>' in part  # confidence 0.98
    assert part.count('class="expected" d=') == 2  # empty bins have none
    assert outline(part).words.endswith(
        "confidence predictions mean confidence accuracy 0.80 to 0.87 4 0.800 0.500 0.93 to 1.00 10 0.980 0.900"
    )
    assert "nan" not in part


def test_the_calibration_error_before_temperature_scaling_is_that_of_the_best_step(tmp_path):
    words = page_of(tmp_path).words
    assert "Before temperature scaling on dev it was 0.231." in words


def test_a_split_other_than_dev_has_no_calibration_error_before_scaling(tmp_path):
    contents = replace(CONTENTS, scores={"test": task_scores(0.8, **DETAILS)})
    words = page_of(tmp_path, contents).words
    assert "Calibration test" in words
    assert "Before temperature scaling" not in words


def test_bins_without_a_calibration_error_are_not_drawn():
    assert calibration_part(TaskScores(metrics={"micro_f1": 0.5}, main_metric="micro_f1", details={"bins": BINS})) == ""


def test_details_of_test_are_collapsed_below_those_of_dev(tmp_path):
    contents = replace(CONTENTS, scores={"dev": task_scores(0.85, **DETAILS), "test": task_scores(0.8, **DETAILS)})
    page = page_of(tmp_path, contents)
    assert page.words.count("The same on test") == 3
    assert page.words.count("Not bad at all.") == 1  # showing the mistakes of test would spoil it as a test set


def test_mistakes_have_text_labels_and_confidence():
    words = outline(mistakes_part(task_scores(0.85, **DETAILS))).words
    assert words == (
        "Not bad at all. true 好 predicted bad confidence 98.0 % dev.tsv, line 7 "
        "这家酒店不错。 true 好 predicted bad confidence 75.0 % dev.tsv, line 9"
    )


def test_a_long_text_is_collapsed_and_complete():
    text = "".join(f"句子{n}。" for n in range(200))
    mistake = Mistake(confidence=0.9, texts=("Short?", text), expected="", predicted="bad", location="dev.json, line 1")
    part = mistakes_part(task_scores(0.5, mistakes=[mistake]))
    assert part.count("<details") == 1
    assert f'<p class="text" dir="auto">{text}</p>' in part
    assert f"all {len(text):,} characters" in part
    assert "true (empty)" in outline(part).words


def test_mistakes_after_the_tenth_are_collapsed():
    mistakes = [
        Mistake(confidence=0.9, texts=(f"text {n}",), expected="a", predicted="b", location=f"line {n}")
        for n in range(12)
    ]
    part = mistakes_part(task_scores(0.5, mistakes=mistakes))
    first, rest = part.split("<summary>2 more</summary>")
    assert first.count("<li") == 10
    assert outline(part).words.count("text ") == 12
    assert 'start="11"' in rest


def test_a_regression_mistake_has_an_absolute_error(tmp_path):
    mistake = Mistake(confidence=2.25, texts=("a", "b"), expected="5.0", predicted="2.75", location="dev.tsv, line 2")
    contents = replace(
        BARE,
        task="regress",
        scores={
            "dev": TaskScores(
                metrics={"pearson": 0.5},
                main_metric="pearson",
                details={"mistakes": [mistake]},
                confidence_label="absolute error",
            )
        },
    )
    words = page_of(tmp_path, contents).words
    assert "true 5.0 predicted 2.75 absolute error 2.25" in words
    assert "Highest absolute error first." in words
    assert "confidence" not in words


def test_coverage_states_the_number_of_truncated_tokens():
    sliding = WindowCoverage(
        window_rule=WindowRule(128, 32), lengths=np.array([5, 200]), num_sequences=3, num_long=1, num_truncated=0
    )
    assert sliding.describe() == (
        "2 training examples in 3 sequences of up to 128 tokens. 1 long example split into windows that overlap by 32 "
        "tokens. No token was truncated."
    )
    truncated = WindowCoverage(
        window_rule=WindowRule(128, 32, truncate=True),
        lengths=np.array([5, 128]),
        num_sequences=2,
        num_long=0,
        num_truncated=1_072,
    )
    assert truncated.describe().endswith("tokens. 1,072 tokens truncated.")


def test_coverage_is_counted_from_features():
    def sequence(length: int, unit: int = 0) -> InputSequence:
        values = np.zeros(length, dtype=np.int64)
        return InputSequence(values, values, (WindowSpan(0, length, 0),), unit=unit)

    all_features = [
        Features(sequences=(sequence(5),)),
        Features(sequences=(sequence(8), sequence(8), sequence(8))),  # three windows of one text
        Features(sequences=(sequence(4, 0), sequence(6, 1)), num_units=2),  # two choices, a sequence each
        Features(sequences=(sequence(8),), num_truncated=3),
    ]
    coverage = WindowCoverage.from_features(all_features, WindowRule(8, 2))
    assert coverage.lengths.tolist() == [5, 24, 10, 8]
    assert (coverage.num_sequences, coverage.num_long, coverage.num_truncated) == (7, 1, 3)
    # Of a document two sentences share a sequence of 8, and a long one spans two windows.
    parts = (
        Features(sequences=(sequence(8),), num_examples=2),
        Features(sequences=(sequence(8), sequence(4)), num_truncated=1),
    )
    sequences = tuple(one for part in parts for one in part.sequences)
    coverage = WindowCoverage.from_features(
        [Features(sequences=sequences, num_truncated=1, num_examples=3, parts=parts)], WindowRule(8, 2)
    )
    assert coverage.lengths.tolist() == [8, 8, 12]
    assert (coverage.num_sequences, coverage.num_long, coverage.num_truncated) == (3, 1, 1)


def test_the_length_histogram_has_bins_of_round_width(tmp_path):
    lengths = np.array([5, 12, 12, 39])
    contents = replace(
        CONTENTS,
        coverage=WindowCoverage(
            window_rule=WindowRule(32, 8), lengths=lengths, num_sequences=5, num_long=1, num_truncated=0
        ),
    )
    text = text_of(tmp_path, contents)
    assert length_edges(lengths).tolist() == [0, 2, 4, *range(6, 41, 2)]  # ticks are 10 apart
    assert "<title>12 to 13 tokens: 2 examples</title>" in text
    assert '<span class="phase" style="left:80.00%">max_length 32</span>' in text  # 32 of 40
    # The 95th percentile is at index 2.85 of 3: 12 + 0.85 * 27 = 34.95
    assert "median 12, 95th percentile 35, maximum 39." in text


def test_length_bins_are_powers_of_two_if_one_example_is_far_longer():
    assert length_edges(np.array([5, 6, 7, 1_000])).tolist() == [4, 8, 16, 32, 64, 128, 256, 512, 1_024]
    assert length_edges(np.array([5, 6, 7, 1_024])).tolist()[-2:] == [1_024, 2_048]


@settings(deadline=None)
@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=50))
def test_every_length_is_in_one_of_a_few_bins(lengths):
    edges = length_edges(np.array(lengths))
    assert edges[0] <= min(lengths)
    assert max(lengths) < edges[-1]
    assert (np.diff(edges) > 0).all()
    assert len(edges) <= 32


def test_bars_that_are_not_finite_are_omitted():
    labels = ("none", "zero", "two")
    part = draw_bars(
        BarChart(title="T", unit="u", edges=np.arange(4.0), heights=np.array([math.nan, 0.0, 2.0]), labels=labels)
    )
    assert re.findall("<title>([^<]*)", part) == ["zero", "two"]
    assert 'd="M686.7 400V0.0H980.0V400Z"' in part  # from 2.06 to 2.94 thirds, as high as the axis
    assert 'aria-label="T, u: two"' in part
    outline(part)


def test_explanations_are_inserted_as_html(tmp_path):
    assert '<div class="explanation"><p>because of <b>bad</b></p></div>' in text_of(tmp_path)


def test_the_page_has_data_machine_recipe_and_warnings(tmp_path):
    page = page_of(tmp_path)
    assert f"file sha256 examples train train.tsv {'ab' * 32} 1,234" in page.words
    assert "processor A Fine Processor cores 2" in page.words
    assert 'Recipe task = "classify" batch_size = 32' in page.words
    assert "Warnings 3 dev texts are also in train" in page.words


def test_a_part_without_data_is_omitted(tmp_path):
    page = page_of(tmp_path, BARE, ())
    headings = (
        "Scores",
        "Curves",
        "Confusion",
        "By class",
        "Calibration",
        "Worst mistakes",
        "Lengths",
        "Explained",
        "Recipe",
    )
    assert not any(heading in page.words for heading in headings)
    assert "f1 on dev 0.500" in page.words
    assert "metrics.jsonl has no steps: there are no curves." in page.words


def test_records_may_be_in_another_folder(tmp_path):
    restart = run_with(tmp_path / "restart-1", *RECORDS)
    path = write_finetune_report(tmp_path, CONTENTS, restart)
    assert path == tmp_path / "report.html"
    assert "best on dev: step 20" in path.read_text(encoding="utf-8")


def test_a_damaged_record_is_named(tmp_path):
    run = run_with(tmp_path, *RECORDS)
    with (run / "metrics.jsonl").open("a") as file:
        file.write("damaged\n")
    words = outline(write_finetune_report(run, CONTENTS).read_text(encoding="utf-8")).words
    assert "metrics.jsonl, line 7 is not a record" in words


def test_a_missing_run_folder_is_refused(tmp_path):
    with pytest.raises(FolderError, match=r"there is no run folder .*nowhere; check the path"):
        write_finetune_report(tmp_path / "nowhere", CONTENTS)


def test_text_is_escaped_everywhere(tmp_path):
    mistakes = [Mistake(confidence=0.9, texts=(EVIL, EVIL * 20), expected=EVIL, predicted=EVIL, location=EVIL)]
    metrics = {EVIL: 0.5, "calibration_error": 0.1}
    details = {**DETAILS, "labels": (EVIL, "好"), "mistakes": mistakes}
    types = {EVIL: {"f1": 0.8, "precision": 0.7, "recall": 0.9, "num_entities": 1}}
    contents = replace(
        CONTENTS,
        task=EVIL,
        base=EVIL,
        scores={
            "dev": TaskScores(metrics=metrics, main_metric=EVIL, details=details),
            "test": TaskScores(metrics=metrics, main_metric=EVIL, details={**details, "types": types}),
        },
        verdict=EVIL,
        data={EVIL: {"file": EVIL, "sha256": EVIL, "examples": 1}},
        recipe=EVIL,
        machine={EVIL: EVIL},
        warnings=(EVIL,),
        notes=(EVIL,),
    )
    records = (replace(step_record(1), phase=EVIL, losses={EVIL: 1.0}), ScoreRecord(1, "dev", dict(metrics)))
    page = page_of(tmp_path / EVIL.replace("/", ""), contents, records)
    assert page.words.count("alert(1)") > 20
    assert {"script", "img"}.isdisjoint(page.tags)
    assert not any(name.startswith("on") for name, _ in page.attributes)


def test_a_lone_surrogate_does_not_prevent_the_report(tmp_path):
    contents = replace(
        CONTENTS,
        scores={
            "dev": task_scores(
                0.5, mistakes=[Mistake(confidence=0.9, texts=("\ud800!",), expected="a", predicted="b", location="p")]
            )
        },
    )
    assert ">?!<" in text_of(tmp_path, contents)


def test_the_page_needs_nothing_from_outside_and_tables_can_be_reached_by_keyboard(tmp_path):
    text = text_of(tmp_path)
    page = outline(text)
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
    assert not any(name in ("src", "href") for name, _ in page.attributes)
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert text.count("<table") == text.count('tabindex="0" role="region" aria-label="') - 1  # and the recipe
