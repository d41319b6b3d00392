"""The report of a pretraining run and its charts: scores on the page, extremes drawn, text escaped, gaps named."""

from __future__ import annotations

import json
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
from bertworks.records import HeldOutRecord, Records, RunRecord, SampleRecord, StepRecord
from bertworks.reports.curves import (
    Boundary,
    Chart,
    Curve,
    Reference,
    StepAxis,
    axis_for,
    downsample,
    draw_chart,
    format_tick,
    running_mean,
    smooth,
    tick_distance,
)
from bertworks.reports.page import format_duration, format_number
from bertworks.reports.pretrain import held_out_rows, read_pretrain_run, write_pretrain_report

RUN_INFO = {
    "uniform_loss": math.log(30_522),  # 10.3262
    "unigram_entropy": 7.21,
    "machine": {"cpu": "A Fine Processor", "cores": 2, "memory": 8 * 2**30, "torch": "2.13.0", "threads": 2},
    "corpus": {"documents": 48_213, "tokens": 31_400_221, "vocabulary": 30_522},
    "warnings": ["the corpus is small"],
    "started": "2026-01-02T03:04:05",
    "finished": "2026-01-02T05:04:05",
}


def step(number: int, loss: float, phase: str = "128", grad_norm: float = 1.0) -> StepRecord:
    return StepRecord(
        step=number,
        phase=phase,
        losses={"mlm": loss, "nsp": 0.5},
        learning_rate=1e-4,
        seconds=3_600.0 * number,
        num_tokens=1_000_000 * number,
        grad_norm=grad_norm,
    )


def held_out(number: int, loss: float) -> HeldOutRecord:
    return HeldOutRecord(
        step=number, phase="128", losses={"mlm": loss}, perplexity=12.34, accuracy=0.543, pair_accuracy=0.912
    )


def run_with(
    folder: Path, *records: RunRecord, run_info: object = RUN_INFO, recipe: str = "[model]\nnum_hidden_layers = 4\n"
) -> Path:
    with Records.open(folder, None) as run_records:
        for record in records:
            run_records.add(record)
    (folder / "run.json").write_text(json.dumps(run_info), encoding="utf-8")
    (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
    return folder


def report_of(folder: Path) -> Outline:
    return outline(write_pretrain_report(folder).read_text(encoding="utf-8"))


def test_the_page_has_the_last_held_out_scores(tmp_path):
    run = run_with(tmp_path / "mini-en", step(1, 9.0), step(2, 2.5), held_out(1, 8.0), held_out(2, 2.513))
    assert write_pretrain_report(run) == run / "report.html"
    words = report_of(run).words
    assert "Pretraining run mini-en" in words
    assert "started 2026-01-02 03:04, finished 2026-01-02 05:04, step 2" in words
    assert "Held-out loss 2.513, MLM accuracy 54.3 %, NSP accuracy 91.2 %." in words
    assert "4.70 nats below the unigram entropy (7.21): the model uses context." in words  # 7.21 - 2.513
    for name, value in (
        ("held-out loss", "2.513"),
        ("perplexity", "12.3"),
        ("MLM accuracy", "54.3 %"),
        ("NSP accuracy", "91.2 %"),
        ("training time", "2 h 0 min"),
        ("tokens seen", "2 million"),
    ):
        assert f"{name} {value}" in words


def test_the_page_is_in_chinese_with_its_verdict_its_charts_and_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTWORKS_LANG", "zh")
    run = run_with(tmp_path / "mini-en", step(1, 9.0), held_out(1, 8.0), held_out(2, 2.513))
    page = write_pretrain_report(run).read_text(encoding="utf-8")
    assert "留出集损失 2.513，MLM 准确率 54.3 %，NSP 准确率 91.2 %。" in outline(page).words
    assert 'aria-label="准确率, 留出集，%: MLM 准确率从 54.3 到 54.3; NSP 准确率从 91.2 到 91.2"' in page
    assert "<title>第 2 步：2.513</title>" in page
    assert "samples.jsonl 中没有掩码填充样例。" in outline(page).words


def test_rows_of_held_out_scores_have_the_time_and_the_tokens_so_far(tmp_path):
    """Step n ends after n hours and n million tokens; the evaluation after step 0 is before the first one."""
    run = run_with(tmp_path, *(step(number, 9.0) for number in range(1, 5)), *(held_out(n, 8 - n) for n in (0, 2, 4)))
    titles, rows = held_out_rows(read_pretrain_run(run), 2)
    assert titles[:4] == ["step", "phase", "time", "tokens seen"]
    assert titles[4:] == ["MLM loss", "NSP loss", "perplexity", "MLM accuracy", "NSP accuracy"]
    assert rows == [
        ["0", "128", "0.0 s", "0", "8.000", "–", "12.3", "54.3 %", "91.2 %"],
        ["4", "128", "4 h 0 min", "4 million", "4.000", "–", "12.3", "54.3 %", "91.2 %"],
    ]


def test_the_page_has_baselines_recipe_machine_corpus_and_warnings(tmp_path):
    words = report_of(run_with(tmp_path, step(1, 9.0), held_out(1, 8.0))).words
    assert "uniform: ln V = 10.33" in words
    assert "unigram entropy: 7.21" in words
    assert "uniform: ln 2 = 0.69" in words
    assert "[model] num_hidden_layers = 4" in words
    assert "cpu A Fine Processor cores 2 memory 8.0 GiB torch 2.13.0 threads 2" in words
    assert "documents 48,213 tokens 31,400,221 vocabulary 30,522" in words
    assert "Warnings the corpus is small" in words
    assert "fill-mask samples" in words.split("Not in this report")[1]  # the only part without data


def test_a_phase_boundary_is_marked_in_every_chart(tmp_path):
    page = report_of(run_with(tmp_path, step(1, 9.0), step(2, 8.0), step(3, 7.0, phase="512"), held_out(3, 7.0)))
    # MLM loss, accuracy, NSP loss, learning rate, throughput, gradient norm
    assert page.tags.count("figure") == 6
    assert page.words.count("128 → 512") == 6


@pytest.mark.parametrize(("objective", "pair_task"), [("mlm-nsp", "NSP"), ("mlm-sop", "SOP"), ("unknown", "NSP")])
def test_the_objective_names_the_accuracy_on_pairs(tmp_path, objective, pair_task):
    run = run_with(tmp_path, step(1, 9.0), held_out(1, 8.0), recipe=f'objective = "{objective}"')
    words = report_of(run).words
    assert f"{pair_task} accuracy 91.2 %" in words
    assert f"{pair_task} loss nats" in words


def test_losses_that_are_not_finite_are_counted_and_leave_a_gap(tmp_path):
    losses = (5.0, math.nan, 4.0, 3.0, math.inf)
    run = run_with(tmp_path, *(step(n, loss) for n, loss in enumerate(losses, start=1)), held_out(5, 3.0))
    page = report_of(run)
    assert "2 of 5 recorded training losses are not finite" in page.words
    text = (run / "report.html").read_text(encoding="utf-8")
    path = re.search(r'class="training band" d="([^"]*)"/><path class="training dot" d="([^"]*)"', text)
    assert path is not None
    assert re.sub(r"[\d. ]", "", path[1]) == "ML"  # 4 and 3 are connected
    assert re.sub(r"[\d. ]", "", path[2]) == "Mh"  # 5 is a dot
    assert "nan" not in "".join(value or "" for name, value in page.attributes if name in ("d", "style"))


def test_a_run_of_one_step_has_a_report(tmp_path):
    page = report_of(run_with(tmp_path, step(1, 9.0)))
    assert "There is no held-out evaluation yet; the last training loss is 9.000." in page.words
    assert page.tags.count("figure") == 5  # all but accuracy


def test_the_report_of_an_empty_run_folder_names_all_missing_parts(tmp_path):
    words = report_of(tmp_path).words
    assert "There is no held-out evaluation yet." in words
    absent = words.split("Not in this report")[1]
    for what in (
        "no steps",
        "no held-out scores",
        "no fill-mask samples",
        "run.json is missing",
        "recipe.toml is missing",
    ):
        assert what in absent


def test_a_run_without_warnings_says_so(tmp_path):
    assert "No warnings." in report_of(run_with(tmp_path, step(1, 1.0), run_info={"warnings": []})).words


@pytest.mark.parametrize("content", ["{", "[1, 2]", '"text"'])
def test_a_damaged_run_json_is_named_and_the_rest_is_shown(tmp_path, content):
    run = run_with(tmp_path, step(1, 9.0), held_out(1, 8.0))
    (run / "run.json").write_text(content)
    words = report_of(run).words
    assert "Held-out loss 8.000" in words
    assert "run.json" in words.split("Not in this report")[1]


def test_baselines_that_are_not_numbers_are_omitted(tmp_path):
    run = run_with(tmp_path, step(1, 9.0), held_out(1, 8.0), run_info={"uniform_loss": "many", "unigram_entropy": None})
    assert "ln V" not in report_of(run).words


def test_a_damaged_line_is_named_and_the_lines_before_it_are_shown(tmp_path):
    run = run_with(tmp_path, step(1, 9.0), held_out(1, 8.0))
    with (run / "metrics.jsonl").open("a") as file:
        file.write("damaged\n")
    words = report_of(run).words
    assert "Held-out loss 8.000" in words
    assert "metrics.jsonl, line 3 is not a record" in words


def test_a_missing_run_folder_is_refused(tmp_path):
    with pytest.raises(FolderError, match=r"there is no run folder .*nowhere; check the path"):
        write_pretrain_report(tmp_path / "nowhere")


def test_text_from_files_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"
    run_info = {
        **RUN_INFO,
        "machine": {evil: evil, "list": [evil], "nested": {evil: evil}},
        "warnings": [evil],
        "started": evil,
        "finished": evil,
    }
    records = [
        replace(step(1, 1.0, phase=evil), losses={evil: 1.0, "nsp": 0.5}),
        replace(step(2, 1.0, phase=f"{evil}2"), losses={evil: 1.0, "nsp": 0.5}),
        replace(held_out(2, 1.0), phase=evil, losses={evil: 1.0}),
        SampleRecord(2, f"{evil} [MASK]", (((evil, 0.5),),)),
    ]
    plain = report_of(run_with(tmp_path / "plain", step(1, 1.0), held_out(2, 1.0)))
    page = report_of(run_with(tmp_path / evil.replace("/", ""), *records, run_info=run_info, recipe=evil))
    assert "script" in page.words
    assert set(page.tags) - set(plain.tags) <= {"table", "tr", "td", "th", "b", "u", "i"}  # of the samples
    assert {"script", "img"}.isdisjoint(page.tags)
    assert not any(name.startswith("on") for name, _ in page.attributes)


def test_the_page_needs_nothing_from_outside(tmp_path):
    run = run_with(tmp_path, step(1, 9.0), held_out(1, 8.0), SampleRecord(1, "a [MASK]", ((("b", 0.5),),)))
    page = report_of(run)
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
    assert not any(name in ("src", "href") for name, _ in page.attributes)
    text = (run / "report.html").read_text(encoding="utf-8")
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_samples_are_shown_by_step_with_bars_of_their_probabilities(tmp_path):
    text = "The [MASK] of [MASK]."
    early = SampleRecord(10, text, ((("the", 0.125),), (("of", 0.25),)))
    late = SampleRecord(20, text, ((("king", 0.5), ("##ing", 0.0625)), (("法", 0.75),)))
    run = run_with(tmp_path, early, late)
    words = report_of(run).words
    assert "The 1 of 2 . step 10 step 20 1 the 12.5 % king 50.0 % ##ing 6.2 % 2 of 25.0 % 法 75.0 %" in words
    assert "at 2 of 2 recorded steps; 1 of 1 texts" in words
    widths = re.findall(r"<u style=\"width:([\d.]+)%", (run / "report.html").read_text(encoding="utf-8"))
    assert widths == ["12.5", "50.0", "6.2", "25.0", "75.0"]


def test_of_many_samples_six_steps_are_shown_most_of_them_early(tmp_path):
    samples = [SampleRecord(100 * n, "[MASK]", (((f"p{n}", 0.5),),)) for n in range(1, 21)]
    words = report_of(run_with(tmp_path, *samples)).words
    # geometrically spaced in 20: 1, 1.8, 3.3, 6.0, 11.0, 20
    assert "step 100 step 200 step 300 step 600 step 1,100 step 2,000" in words
    assert "at 6 of 20 recorded steps" in words


def test_the_report_of_many_steps_is_small_and_keeps_spikes(tmp_path):
    records = [step(n, 5.0 + (n % 7) / 10, grad_norm=3_333.0 if n == 7_777 else 1.0) for n in range(1, 10_001)]
    run = run_with(tmp_path, *records)
    page = report_of(run)
    paths = [value or "" for name, value in page.attributes if name == "d"]
    assert max(path.count("L") for path in paths) < 2_000
    assert (run / "report.html").stat().st_size < 400_000
    assert "before clipping, logarithmic" in page.words  # 3,333 is more than a hundred times the median
    # On an axis from 1 to 10,000 the spike is at height log10(3333) / 4 = 0.8807: 400 * (1 - 0.8807) from the top.
    assert any("L777.7 47.7" in path for path in paths)


def test_downsampling_keeps_a_short_curve():
    assert downsample(np.array([3.0, 1.0, 2.0]), limit=3).tolist() == [0, 1, 2]


def test_downsampling_keeps_the_ends_and_the_extremes_of_each_interval():
    values = np.array([5.0, 1.0, 9.0, 4.0, 4.0, 4.0, 2.0, 3.0, 8.0, 7.0, 0.0, 6.0])
    # limit 6: two intervals of six, extremes at 1 and 2, at 10 and 8; and both ends
    assert downsample(values, limit=6).tolist() == [0, 1, 2, 8, 10, 11]


def test_downsampling_keeps_a_gap():
    values = np.array([1.0, 2.0, 3.0, 4.0, math.nan, math.nan, math.inf, math.nan, 5.0, 6.0, 7.0, 8.0])
    # limit 8: three intervals of four; the middle one keeps its first index
    assert downsample(values, limit=8).tolist() == [0, 3, 4, 8, 11]


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=300), st.integers(6, 50))
def test_downsampling_keeps_minimum_and_maximum(values, limit):
    array = np.array(values)
    indices = downsample(array, limit)
    assert len(indices) <= limit
    assert (np.diff(indices) > 0).all()
    finite = array[np.isfinite(array)]
    if len(finite):
        sample = array[indices][np.isfinite(array[indices])]
        assert (sample.min(), sample.max()) == (finite.min(), finite.max())


def test_a_running_mean_ignores_values_that_are_not_finite():
    means = running_mean(np.array([1.0, 2.0, math.nan, 4.0, 9.0]), width=3)
    # (1+2)/2, (1+2)/2, (2+4)/2, (4+9)/2, (4+9)/2
    assert means.tolist() == [1.5, 1.5, 3.0, 6.5, 6.5]
    assert math.isnan(running_mean(np.array([math.inf]), width=3)[0])


def test_smoothing_does_not_cross_phase_boundaries():
    values = np.concatenate([np.full(100, 1.0), np.full(50, 5.0)])
    assert smooth(np.arange(1.0, 151.0), values, [101]).tolist() == values.tolist()


def test_smoothing_keeps_gaps():
    values = np.array([2.0] * 10 + [math.nan] + [2.0] * 10)
    assert np.flatnonzero(np.isnan(smooth(np.arange(21.0), values, []))).tolist() == [10]


def test_the_smoothing_window_is_a_fiftieth_of_all_records_or_five():
    spike = np.zeros(500)
    spike[250] = 11.0
    assert np.flatnonzero(smooth(np.arange(500.0), spike, [])).tolist() == list(range(245, 256))
    spike = np.zeros(20)
    spike[10] = 5.0
    assert smooth(np.arange(20.0), spike, []).tolist() == [0.0] * 8 + [1.0] * 5 + [0.0] * 7


def test_an_axis_holds_all_values_on_round_ticks():
    axis = axis_for(np.array([2.3, 10.4]))
    assert axis.ticks == (0, 2, 4, 6, 8, 10, 12)
    assert axis.height(3.0) == 0.25
    assert axis_for(np.array([9.0, 10.0])).low > 8  # a narrow range does not start at zero


def test_an_axis_of_one_value_is_centered():
    assert axis_for(np.array([4.0])).height(4.0) == 0.5
    assert axis_for(np.array([0.0])).height(0.0) == 0.0


def test_an_axis_is_logarithmic_when_a_spike_would_flatten_the_rest():
    axis = axis_for(np.array([1.0, 1.0, 1.0, 1_000.0]))
    assert (axis.scale, axis.ticks) == ("logarithmic", (1.0, 10.0, 100.0, 1_000.0))
    assert axis.height(10.0) == pytest.approx(1 / 3)


@pytest.mark.parametrize(("span", "distance"), [(6, 1), (7, 2), (12, 2), (13, 5), (30, 5), (31, 10), (1e-4, 2e-5)])
def test_ticks_are_one_two_or_five_apart(span, distance):
    assert tick_distance(span) == pytest.approx(distance)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.1 + 0.2, "0.3"),
        (2.5, "2.5"),
        (7_500, "7.5k"),
        (1_500_000, "1.5M"),
        (2e-5, "2e-5"),
        (-40_000, "-40k"),
    ],
)
def test_tick_labels_are_short(value, text):
    assert format_tick(value) == text


def test_the_step_axis_starts_at_zero_unless_the_steps_start_far_from_it():
    assert (StepAxis.from_steps([10, 1_000]).first_step, StepAxis.from_steps([10, 1_000]).last_step) == (0, 1_000)
    assert StepAxis.from_steps([900, 1_000]).first_step == 900
    assert (StepAxis.from_steps([0]).first_step, StepAxis.from_steps([0]).last_step) == (0, 1)
    assert (StepAxis.from_steps([5]).first_step, StepAxis.from_steps([5]).last_step) == (0, 5)


def test_a_curve_is_drawn_at_its_values():
    curve = Curve(
        name="loss",
        css_class="training",
        shape="line",
        steps=np.array([0.0, 5.0, 10.0]),
        values=np.array([0.0, 2.0, 4.0]),
    )
    page = draw_chart(
        Chart(title="Loss", unit="nats", curves=(curve,), references=(Reference(3.0, "level", "above"),)),
        StepAxis(0, 10, (Boundary(5, "b"),)),
    )
    # ticks 0 to 4: value 0 is at the bottom (400), 2 in the middle (200), 4 at the top (0)
    assert 'd="M0.0 400.0L500.0 200.0L1000.0 0.0"' in page
    assert '<path class="reference" d="M0 100.0H1000"/>' in page
    assert '<path class="boundary" d="M500.0 0V400"/>' in page
    assert '<span class="level above" style="top:25.00%">level</span>' in page
    assert '<span class="x" style="left:50.00%">' not in page  # ticks are at 0, 2, 4, …
    assert '<span class="x" style="left:40.00%">4</span>' in page


def test_a_chart_without_finite_values_says_so():
    curve = Curve(name="loss", css_class="training", shape="line", steps=np.array([1.0]), values=np.array([math.nan]))
    assert "no finite values" in draw_chart(Chart(title="Loss", unit="nats", curves=(curve,)), StepAxis(0, 1))


@settings(deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=30))
def test_any_values_can_be_drawn(values):
    steps = np.arange(1.0, len(values) + 1)
    page = draw_chart(
        Chart(
            title="Loss",
            unit="nats",
            curves=(Curve(name="c", css_class="training", shape="dots", steps=steps, values=np.array(values)),),
        ),
        StepAxis(0, len(values)),
    )
    outline(page)
    coordinates = re.findall(r' (?:d|style)="([^"]*)"', page)
    assert bool(coordinates) == bool(np.isfinite(values).any())
    assert not any("nan" in text or "inf" in text for text in coordinates)


@pytest.mark.parametrize(
    ("value", "text"),
    [(12.34, "12.3"), (4_560.4, "4,560"), (48_200_000, "48.2 million"), (3.3e9, "3.3 billion"), (math.inf, "inf")],
)
def test_large_numbers_are_abbreviated(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.26, "4.3 s"), (42, "42 s"), (420, "7 min"), (7_500, "2 h 5 min"), (3_599, "1 h 0 min"), (273_600, "3 d 4 h")],
)
def test_durations_have_two_units_at_most(seconds, text):
    assert format_duration(seconds) == text
