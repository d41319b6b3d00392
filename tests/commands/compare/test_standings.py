"""Where members stand: means and deviations by hand, seeds that lack a task, and the table in Markdown."""

import math

import pytest

from bertworks.commands.compare.member import JobResult, Point, Score
from bertworks.commands.compare.recipe import CompareRecipe, MemberRecipe, TaskRecipe
from bertworks.commands.compare.standings import collect_member_results, member_results_to_json
from bertworks.metrics.seeds import SeedStatistics
from bertworks.reports.compare import CompareContents, markdown_of, picture_of, rows_of, write_compare_report

COMPARISON = CompareRecipe(
    (MemberRecipe("one", "tiny"), MemberRecipe("two", "mini")), (TaskRecipe("classify", "A"), TaskRecipe("tag", "B"))
)
POINTS = [Point(1.0, 100, 51_000, 60.0, 2e12, 1_250_000, "masked", loss) for loss in (4.0, 5.0)]
OTHER = Point(1.0, 100, 51_000, 120.0, 4e12, 2_500_000, "next", 3.5)


def scored(member: str, seed: int, point: Point, **values: float) -> list[Score]:
    return [Score(member, seed, point, task, "accuracy", value) for task, value in values.items()]


def found() -> list[JobResult]:
    first = JobResult("one, seed 0", [("one", 0, POINTS[0])], scored("one", 0, POINTS[0], A=0.8, B=0.5))
    second = JobResult("one, seed 1", [("one", 1, POINTS[1])], scored("one", 1, POINTS[1], A=0.9, B=0.7))
    third = JobResult("two, seed 0", [("two", 0, OTHER)], scored("two", 0, OTHER, A=0.6))
    return [first, second, third]


def test_means_and_deviations_by_hand():
    one, two = collect_member_results(COMPARISON, found())
    assert one.scores["A"].mean == pytest.approx(0.85)
    assert one.scores["A"].std == pytest.approx(0.1 / math.sqrt(2))  # of two values: their difference / sqrt 2
    assert one.mean_score.values == pytest.approx((0.65, 0.8))
    assert (one.held_out_loss.mean, one.minutes.mean, one.flops.mean) == (4.5, 1.0, 2e12)
    assert two.scores["A"].values == (0.6,)
    assert math.isnan(two.scores["A"].std)
    assert two.scores["B"].values == two.mean_score.values == ()  # a task lacks, so that there is no mean of tasks


def test_a_spread_in_words():
    assert SeedStatistics.from_values([0.8, 0.9]).format(1, 100) == "85.0 ± 7.1"
    assert SeedStatistics.from_values([4.0]).format(2) == "4.00"
    assert SeedStatistics.from_values([]).format(1) == "–"


def contents(failures: tuple[str, ...] = ()) -> CompareContents:
    return CompareContents("Comparison x", collect_member_results(COMPARISON, found()), ["A", "B"], failures)


def test_the_table_by_hand():
    rows = rows_of(contents())
    assert rows[0] == [
        "one", "1.25 million", "100", "51,000", "2.00e+12", "1.0 ± 0.0", "4.50 ± 0.71 (masked)",
        "85.0 ± 7.1", "60.0 ± 14.1", "72.5 ± 10.6", "2",
    ]  # fmt: skip
    assert rows[1][-5:] == ["3.50 (next)", "60.0", "–", "–", "1"]
    lines = markdown_of(contents(("two, seed 0, B: it broke",))).splitlines()
    assert lines[0].startswith(
        "| member | parameters | steps | pieces | FLOPs | minutes | held-out loss | A (accuracy) |"
    )
    assert lines[1].count("|") == lines[0].count("|") == lines[2].count("|")
    assert lines[-1] == "- two, seed 0, B: it broke"


def test_json_has_no_number_that_is_none():
    told = member_results_to_json(collect_member_results(COMPARISON, found()))
    assert told[1]["scores"]["A"] == {"mean": 0.6, "deviation": None, "values": [0.6]}
    assert told[1]["quality"]["mean"] is None


def test_the_page_names_who_is_ahead_and_what_failed(tmp_path):
    page = write_compare_report(tmp_path, contents(("two, seed 0, B: <it> broke",))).read_text(encoding="utf-8")
    assert "one came to 72.5 ± 10.6." in page
    assert "&lt;it&gt; broke" in page
    assert page.count("<svg") == 3  # the mean, and each task
    empty = write_compare_report(tmp_path, CompareContents("x", [], ["A"])).read_text(encoding="utf-8")
    assert "Nothing is measured yet." in empty


def test_a_member_without_a_score_is_not_in_the_picture():
    assert ">one<" in picture_of(contents())
    assert ">two<" not in picture_of(contents())
    assert ">two<" in picture_of(contents(), "A")
