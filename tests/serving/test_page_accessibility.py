"""axe-core finds no violation on the page with all results, in both languages and themes, nor on a report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import canned_runs
import numpy as np
import pytest
from canned_server import Behavior, CannedServer
from page_browser import open_browser, open_page

from bertworks.reports.curves import Chart, Curve, StepAxis, draw_chart
from bertworks.reports.page import collapsible, fact_card, page_of, recipe_part, table, tiles, warnings_card

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TABS = ["fill-mask", "classes", "entities", "answers", "choices", "vectors", "input", "attention", "explain"]
OPTIONS = {"resultTypes": ["violations"]}
COLORS = """() => ["--page", "--card", "--edge", "--ink", "--second", "--faint"].map((name) => {
    const probe = document.createElement("i");
    document.body.append(probe);
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
})"""
# How each curve is drawn, besides its color: dash, marker, marker in the legend.
LINES = """() => [...document.querySelectorAll("path.dots")].map((line) => {
    const [legend, { strokeDasharray, strokeLinecap }] = [`.legend i.${line.classList[0]}`, getComputedStyle(line)];
    const { borderRadius } = getComputedStyle(document.querySelector(legend));
    return [strokeDasharray, strokeLinecap, borderRadius];
})"""
OPEN_DETAILS = "(panel) => panel.querySelectorAll('details').forEach((details) => (details.open = true))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[CannedServer]:
    server = CannedServer()
    runs = [("mini", "pretrain", "running"), ("reviews", "finetune", "finished")]
    server.behavior = Behavior(runs=[canned_runs.summary(name, kind, state, 400) for name, kind, state in runs])
    yield server
    server.close()


def violations_of(page: Page) -> list[tuple[str, str]]:
    """Return the rules that are violated, and the first node of each."""
    axe: Any = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-core was not run: pip install axe-playwright-python"
    )
    response = axe.Axe().run(page, options=OPTIONS).response
    return [(violation["id"], violation["nodes"][0]["html"][:200]) for violation in response["violations"]]


@pytest.mark.parametrize(
    ("locale", "scheme", "width"), [("en-US", "light", 1100), ("zh-CN", "dark", 1100), ("zh-CN", "light", 360)]
)
def test_the_page_has_no_violation(browser: Browser, server: CannedServer, locale: str, scheme: str, width: int):
    with open_page(browser, locale=locale, scheme=scheme, width=width) as page:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        page.goto(server.address)
        page.wait_for_selector("[role=tab]")
        found = {}
        for tab in TABS:
            page.locator(f"#tab-{tab}").click()
            page.locator(f"#panel-{tab} .chip").first.click()
            page.locator(f"#panel-{tab} .request-info").first.wait_for()
            if tab == "attention":
                page.locator("#panel-attention .token-text").wait_for(state="attached")
            page.locator(f"#panel-{tab}").evaluate(OPEN_DETAILS)
            found[tab] = violations_of(page)
        page.locator("#tab-runs").click()
        page.locator("#panel-runs .chart").first.wait_for()
        found["runs"] = violations_of(page)
        assert [(tab, violations) for tab, violations in found.items() if violations] == []


def accuracy_chart() -> str:
    """Return a chart of two curves, as in a report on pretraining."""
    steps = np.array([0.0, 10.0, 20.0])
    curves = (
        Curve(name="MLM accuracy", css_class="held-out", shape="dots", steps=steps, values=steps + 10),
        Curve(name="NSP accuracy", css_class="pairs", shape="dots", steps=steps, values=steps + 50),
    )
    return draw_chart(Chart(title="Accuracy", unit="%", curves=curves), StepAxis(0.0, 20.0))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_has_no_violation_and_the_colors_of_the_page(
    browser: Browser, server: CannedServer, scheme: str, tmp_path: Path
):
    parts = [
        tiles([("accuracy", "91.5 %"), ("examples", "1,200")]),
        warnings_card(["the dev set is small"]),
        fact_card("Machine", {"num_cores": 2}),
        table("Scores", ["split", "accuracy"], [["dev", "0.915"]], 1),
        collapsible("More", "<p>text</p>"),
        recipe_part("epochs = 3"),
        accuracy_chart(),
    ]
    (tmp_path / "report.html").write_text(page_of("Fine-tuning", "finished", "It works.", parts), encoding="utf-8")
    with open_page(browser, scheme=scheme) as page:
        page.goto(f"file://{tmp_path}/report.html")
        assert violations_of(page) == []
        tokens, pairs = page.evaluate(LINES)
        assert all(token_style != pair_style for token_style, pair_style in zip(tokens, pairs, strict=True))
        report_colors = page.evaluate(COLORS)
        page.goto(server.address)
        assert page.evaluate(COLORS) == report_colors
