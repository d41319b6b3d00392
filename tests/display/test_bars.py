"""Bars of probabilities: names are escaped, widths follow the values, and long tables are cut with a count."""

from bertworks.display.bars import bars_html, table_html


def test_a_row_has_its_name_bar_and_value():
    html = bars_html("<spam>", [("ham & co", 0.25)])
    assert "<b>&lt;spam&gt;</b>" in html
    assert "ham &amp; co" in html
    assert "width: 2.50em" in html
    assert ">0.250</td>" in html


def test_more_rows_than_fit_are_counted():
    html = bars_html("", [(str(index), 0.01) for index in range(100)])
    assert html.count("<tr>") == 20
    assert "and 80 more" in html


def test_cells_of_a_table_are_escaped():
    html = table_html([("<s>", "a"), (0, 5)])
    assert html.count("<tr>") == 2
    assert ">&lt;s&gt;</td>" in html
    assert ">5</td>" in html
