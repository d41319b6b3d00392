"""Results of members over seeds: mean and standard deviation by hand, seeds that lack a task, and the table."""

import math

import pytest

from bertworks.commands.compare.member import JobResult, Point, Score
from bertworks.commands.compare.recipe import CompareRecipe, MemberRecipe, TaskRecipe
from bertworks.commands.compare.results import collect_member_results, member_results_to_json
from bertworks.metrics.seeds import SeedStatistics
from bertworks.reports.compare import CompareContents, markdown_of, rows_of, score_plot, write_compare_report

COMPARISON = CompareRecipe(
    members=(MemberRecipe(name="one", recipe="tiny"), MemberRecipe(name="two", recipe="mini")),
    tasks=(TaskRecipe(task="classify", name="A"), TaskRecipe(task="tag", name="B")),
)
POINTS = [
    Point(
        budget_ratio=1.0,
        steps=100,
        num_tokens=51_000,
        seconds=60.0,
        flops=2e12,
        num_parameters=1_250_000,
        loss_part="mlm",
        held_out_loss=loss,
    )
    for loss in (4.0, 5.0)
]
OTHER_POINT = Point(
    budget_ratio=1.0,
    steps=100,
    num_tokens=51_000,
    seconds=120.0,
    flops=4e12,
    num_parameters=2_500_000,
    loss_part="causal",
    held_out_loss=3.5,
)


def make_scores(member: str, seed: int, point: Point, **values: float) -> list[Score]:
    return [
        Score(member=member, seed=seed, point=point, task=task, metric="accuracy", value=value)
        for task, value in values.items()
    ]


def job_results() -> list[JobResult]:
    first = JobResult(
        title="one, seed 0", points=[("one", 0, POINTS[0])], scores=make_scores("one", 0, POINTS[0], A=0.8, B=0.5)
    )
    second = JobResult(
        title="one, seed 1", points=[("one", 1, POINTS[1])], scores=make_scores("one", 1, POINTS[1], A=0.9, B=0.7)
    )
    third = JobResult(
        title="two, seed 0", points=[("two", 0, OTHER_POINT)], scores=make_scores("two", 0, OTHER_POINT, A=0.6)
    )
    return [first, second, third]


def test_mean_and_standard_deviation():
    one, two = collect_member_results(COMPARISON, job_results())
    assert one.scores["A"].mean == pytest.approx(0.85)
    assert one.scores["A"].std == pytest.approx(0.1 / math.sqrt(2))  # of two values: their difference / sqrt(2)
    assert one.mean_score.values == pytest.approx((0.65, 0.8))
    assert (one.held_out_loss.mean, one.minutes.mean, one.flops.mean) == (4.5, 1.0, 2e12)
    assert two.scores["A"].values == (0.6,)
    assert math.isnan(two.scores["A"].std)
    assert two.scores["B"].values == two.mean_score.values == ()  # a task is missing, so there is no mean over tasks


def test_statistics_are_formatted():
    assert SeedStatistics.from_values([0.8, 0.9]).format(1, 100) == "85.0 ± 7.1"
    assert SeedStatistics.from_values([4.0]).format(2) == "4.00"
    assert SeedStatistics.from_values([]).format(1) == "–"


def contents(failures: tuple[str, ...] = ()) -> CompareContents:
    return CompareContents(
        title="Comparison x",
        results=collect_member_results(COMPARISON, job_results()),
        tasks=["A", "B"],
        failures=failures,
    )


def test_table_rows():
    rows = rows_of(contents())
    assert rows[0] == [
        "one", "1.25 million", "100", "51,000", "2.00e+12", "1.0 ± 0.0", "4.50 ± 0.71 (mlm)",
        "85.0 ± 7.1", "60.0 ± 14.1", "72.5 ± 10.6", "2",
    ]  # fmt: skip
    assert rows[1][-5:] == ["3.50 (causal)", "60.0", "–", "–", "1"]
    lines = markdown_of(contents(("two, seed 0, B: it broke",))).splitlines()
    assert lines[0].startswith(
        "| member | parameters | steps | tokens | FLOPs | minutes | held-out loss | A (accuracy) |"
    )
    assert lines[1].count("|") == lines[0].count("|") == lines[2].count("|")
    assert lines[-1] == "- two, seed 0, B: it broke"


def test_json_has_null_for_nan():
    results = member_results_to_json(collect_member_results(COMPARISON, job_results()))
    assert results[1]["scores"]["A"] == {"mean": 0.6, "std": None, "values": [0.6]}
    assert results[1]["mean_score"]["mean"] is None


def test_page_names_the_best_member_and_the_failures(tmp_path):
    page = write_compare_report(tmp_path, contents(("two, seed 0, B: <it> broke",))).read_text(encoding="utf-8")
    assert "one scores 72.5 ± 10.6." in page
    assert "&lt;it&gt; broke" in page
    assert page.count("<svg") == 3  # the mean, and each task
    empty = write_compare_report(tmp_path, CompareContents(title="x", results=[], tasks=["A"])).read_text(
        encoding="utf-8"
    )
    assert "There are no results yet." in empty


def test_member_without_a_score_is_not_in_the_chart():
    assert ">one<" in score_plot(contents())
    assert ">two<" not in score_plot(contents())
    assert ">two<" in score_plot(contents(), "A")
