"""Scatter plots with error bars: positions worked out by hand, valid SVG for any names, axes."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from bertworks.reports.scatter import Dot, Scatter, Series, draw_scatter

NAMESPACE = "{http://www.w3.org/2000/svg}"


def draw(*series: Series) -> ElementTree.Element:
    return ElementTree.fromstring(draw_scatter(Scatter("Score", "FLOPs", "accuracy", series)))


def texts(svg: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in svg.iter(f"{NAMESPACE}text")]


def points(svg: ElementTree.Element) -> dict[str, tuple[float, float]]:
    """Return the positions of the points by their tooltips."""
    positions = {}
    for path in svg.iter(f"{NAMESPACE}path"):
        title = path.find(f"{NAMESPACE}title")
        if title is not None:
            x, y = path.attrib["d"][1:].split("m")[0].split()
            positions[title.text or ""] = (float(x), float(y))
    return positions


def test_larger_values_are_higher_and_further_right():
    positions = points(draw(Series("low", (Dot(1e12, 60.0),)), Series("high", (Dot(2e12, 80.0),))))
    (x1, y1), (x2, y2) = positions["low: 60"], positions["high: 80"]
    assert x1 < x2
    assert y1 > y2  # y grows downwards


def test_an_error_bar_extends_one_deviation_up_and_down():
    svg = draw(Series("a", (Dot(1.0, 50.0, 10.0), Dot(2.0, 70.0))))
    positions = points(svg)
    (_, middle), (_, above) = positions["a: 50 ± 10"], positions["a: 70"]
    bars = [p.attrib["d"] for p in svg.iter(f"{NAMESPACE}path") if "h10M" in p.attrib["d"]]
    assert len(bars) == 1  # the second has no deviation
    top = float(bars[0][1:].split("h10")[0].split()[1])
    assert middle - top == pytest.approx((middle - above) / 2, abs=0.2)  # 10 of the difference of 20


def test_a_line_connects_the_points_of_a_series():
    svg = draw(Series("a", (Dot(1.0, 1.0), Dot(2.0, 2.0), Dot(3.0, 3.0))))
    lines = [path for path in svg.iter(f"{NAMESPACE}path") if "L" in path.attrib["d"]]
    assert [path.attrib["d"].count("L") for path in lines] == [2]


def test_styles_are_inline_so_that_the_css_of_a_page_does_not_apply():
    for path in draw(Series("a", (Dot(1.0, 1.0, 0.1), Dot(2.0, 2.0)))).iter(f"{NAMESPACE}path"):
        assert "stroke:" in path.attrib["style"]
        assert not {"fill", "stroke"} & set(path.attrib)


def test_a_wide_range_has_a_logarithmic_axis():
    assert "FLOPs, logarithmic" in texts(draw(Series("a", (Dot(1e10, 1.0), Dot(1e12, 2.0)))))
    assert "FLOPs" in texts(draw(Series("a", (Dot(1e10, 1.0), Dot(2e10, 2.0)))))


def test_names_are_escaped_and_wrapped():
    names = [f"<member & {number}, with quite a long name>" for number in range(6)]
    labels = texts(draw(*(Series(name, (Dot(float(index), index),)) for index, name in enumerate(names))))
    assert [label for label in labels if label in names] == names


def test_one_point_or_none_can_be_drawn():
    assert "a: 1" in points(draw(Series("a", (Dot(1.0, 1.0),))))
    assert all(
        math.isfinite(value) for point in points(draw(Series("a", (Dot(0.0, 0.0),)))).values() for value in point
    )
    assert "no results yet" in texts(draw())
