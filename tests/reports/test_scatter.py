"""Pictures of points with error bars: what stands where, by hand; valid SVG whatever the names; axes."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from bertworks.reports.scatter import Dot, Scatter, Series, draw_scatter

NAMESPACE = "{http://www.w3.org/2000/svg}"


def drawn(*series: Series) -> ElementTree.Element:
    return ElementTree.fromstring(draw_scatter(Scatter("Quality", "FLOPs", "accuracy", series)))


def words(picture: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in picture.iter(f"{NAMESPACE}text")]


def marks(picture: ElementTree.Element) -> dict[str, tuple[float, float]]:
    """Return where the points are, by what they tell."""
    found = {}
    for path in picture.iter(f"{NAMESPACE}path"):
        title = path.find(f"{NAMESPACE}title")
        if title is not None:
            x, y = path.attrib["d"][1:].split("m")[0].split()
            found[title.text or ""] = (float(x), float(y))
    return found


def test_higher_is_higher_and_more_is_further_right():
    places = marks(drawn(Series("low", (Dot(1e12, 60.0),)), Series("high", (Dot(2e12, 80.0),))))
    (x1, y1), (x2, y2) = places["low: 60"], places["high: 80"]
    assert x1 < x2
    assert y1 > y2  # counted from the top


def test_a_bar_reaches_one_deviation_up_and_down():
    picture = drawn(Series("a", (Dot(1.0, 50.0, 10.0), Dot(2.0, 70.0))))
    places = marks(picture)
    (_, middle), (_, above) = places["a: 50 ± 10"], places["a: 70"]
    bars = [p.attrib["d"] for p in picture.iter(f"{NAMESPACE}path") if "h10M" in p.attrib["d"]]
    assert len(bars) == 1  # of the second the deviation is not known
    top = float(bars[0][1:].split("h10")[0].split()[1])
    assert middle - top == pytest.approx((middle - above) / 2, abs=0.2)  # ten of the twenty between the two


def test_points_of_one_series_are_joined():
    picture = drawn(Series("a", (Dot(1.0, 1.0), Dot(2.0, 2.0), Dot(3.0, 3.0))))
    lines = [path for path in picture.iter(f"{NAMESPACE}path") if "L" in path.attrib["d"]]
    assert [path.attrib["d"].count("L") for path in lines] == [2]


def test_looks_stand_where_a_page_cannot_change_them():
    for path in drawn(Series("a", (Dot(1.0, 1.0, 0.1), Dot(2.0, 2.0)))).iter(f"{NAMESPACE}path"):
        assert "stroke:" in path.attrib["style"]
        assert not {"fill", "stroke"} & set(path.attrib)


def test_a_wide_range_is_logarithmic_and_says_so():
    assert "FLOPs, logarithmic" in words(drawn(Series("a", (Dot(1e10, 1.0), Dot(1e12, 2.0)))))
    assert "FLOPs" in words(drawn(Series("a", (Dot(1e10, 1.0), Dot(2e10, 2.0)))))


def test_names_are_escaped_and_wrapped():
    names = [f"<member & {number}, with quite a long name>" for number in range(6)]
    told = words(drawn(*(Series(name, (Dot(float(number), number),)) for number, name in enumerate(names))))
    assert [name for name in told if name in names] == names


def test_one_point_and_none_can_be_drawn():
    assert "a: 1" in marks(drawn(Series("a", (Dot(1.0, 1.0),))))
    assert all(
        math.isfinite(value) for place in marks(drawn(Series("a", (Dot(0.0, 0.0),)))).values() for value in place
    )
    assert "nothing is measured yet" in words(drawn())
