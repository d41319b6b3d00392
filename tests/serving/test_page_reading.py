"""The page's languages, themes, keyboard navigation, accessibility, narrow screens and Content-Security-Policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import canned_runs
import pytest
from canned_server import PAGE, Behavior, CannedServer
from page_browser import open_browser, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

TABS = ["fill-mask", "classes", "entities", "answers", "choices", "vectors", "input", "attention", "explain"]
# Controls without an accessible name, and duplicate ids.
ACCESSIBILITY_ERRORS = """() => {
    const name = (node) => node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.[0]?.textContent;
    const nodes = [...document.querySelectorAll("button, input, textarea, select, [tabindex='0']")];
    const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
    const duplicates = ids.filter((id, index) => ids.indexOf(id) !== index);
    return [...nodes.filter((node) => !name(node)).map((node) => node.outerHTML), ...duplicates];
}"""
# Texts whose contrast with the composited background, as WCAG defines it, is below 4.5.
LOW_CONTRAST = """() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const composite = (colors) => {
        canvas.clearRect(0, 0, 1, 1);
        for (const color of colors) {
            canvas.fillStyle = color;
            canvas.fillRect(0, 0, 1, 1);
        }
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const luminance = (colors) => {
        const [red, green, blue] = composite(colors).slice(0, 3).map((channel) => channel / 255)
            .map((channel) => (channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const backgrounds = (node) => {
        const color = getComputedStyle(node).backgroundColor;
        const isOpaque = composite([color])[3] === 255 || !node.parentElement;
        return isOpaque ? [color] : [...backgrounds(node.parentElement), color];
    };
    const failures = [];
    for (const node of document.querySelectorAll("body *:not(svg *)")) {
        const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!hasText || !node.checkVisibility()) continue;
        const background = backgrounds(node);
        const [text, behind] = [luminance([...background, getComputedStyle(node).color]), luminance(background)];
        const contrast = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
        if (contrast < 4.5) failures.push([node.className, node.textContent.trim().slice(0, 30), contrast]);
    }
    return failures;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def shared_server() -> Iterator[CannedServer]:
    server = CannedServer()
    yield server
    server.close()


@pytest.fixture
def server(shared_server: CannedServer) -> CannedServer:
    shared_server.behavior = Behavior(runs=[canned_runs.summary("mini", "pretrain", "finished", 400)])
    return shared_server


@pytest.fixture
def visit(browser: Browser, server: CannedServer) -> Iterator[Callable[..., Page]]:
    with ExitStack() as stack:

        def open_tab(tab: str = "", **options: Any) -> Page:
            page = stack.enter_context(open_page(browser, **options))
            page.goto(f"{server.address}/#{tab}")
            page.wait_for_selector("[role=tab]")
            return page

        yield open_tab


def field(page: Page, label: str) -> Locator:
    """Return a field of the visible tab."""
    return page.locator("[role=tabpanel]:visible").get_by_label(label, exact=True)


def run_every_tab(page: Page) -> None:
    """Run the first example of every tab."""
    for tab in TABS:
        page.locator(f"#tab-{tab}").click()
        panel = page.locator(f"#panel-{tab}")
        panel.locator(".chip").first.click()
        panel.locator(".request-info").wait_for()
    page.locator("#panel-attention .token-text").wait_for(state="attached")
    page.locator("#tab-runs").click()
    page.locator("#panel-runs .chart").first.wait_for()


def for_each_tab(page: Page, check: Callable[[str], None]) -> None:
    for tab in [*TABS, "runs"]:
        page.locator(f"#tab-{tab}").click()
        check(tab)


def test_the_language_is_that_of_the_browser_and_can_be_changed(visit):
    page = visit("fill-mask", locale="zh-CN")
    assert page.locator("html").get_attribute("lang") == "zh-Hans"
    assert page.get_by_role("tab").all_inner_texts()[:3] == ["掩码预测", "文本分类", "实体识别"]
    text = field(page, "文本")
    assert "北京" in text.input_value()
    page.get_by_role("button", name="English").click()
    assert page.get_by_role("tab").all_inner_texts()[:3] == ["Fill-mask", "Classification", "Entities"]
    assert "Paris" in field(page, "Text").input_value()
    page.reload()
    page.wait_for_selector("[role=tab]")
    assert page.locator("html").get_attribute("lang") == "en"


def test_changing_the_language_keeps_the_input_and_the_result(visit):
    page = visit("entities")
    field(page, "Text").fill("Anna Weber left Munich.")
    page.get_by_role("button", name="Find entities").click()
    page.get_by_text("2 entities").wait_for()
    page.get_by_role("button", name="中文").click()
    page.get_by_text("识别出 2 个实体").wait_for()
    assert field(page, "文本").input_value() == "Anna Weber left Munich."


def test_both_languages_have_the_same_messages_with_the_same_placeholders_and_two_examples_per_tab(visit):
    result = visit().evaluate(
        """async () => {
            const [{ ENGLISH }, { CHINESE }, { EXAMPLES }] = await Promise.all(
                ["english", "chinese", "examples"].map((name) => import(`/page/${name}.js`)));
            const placeholders = (message) => (message.match(/\\{\\w+\\}/g) ?? []).sort().join();
            const keys = [...new Set([...Object.keys(ENGLISH), ...Object.keys(CHINESE)])];
            const match = (a, b) => a && b && placeholders(a) === placeholders(b);
            const mismatched = keys.filter((key) => !match(ENGLISH[key], CHINESE[key]));
            const incomplete = Object.entries(EXAMPLES)
                .filter(([, { en, zh }]) => en.length !== 2 || zh.length !== 2)
                .map(([name]) => name);
            return { mismatched, incomplete, count: keys.length };
        }"""
    )
    assert result["mismatched"] == []
    assert result["incomplete"] == []
    assert result["count"] > 200


def test_the_theme_is_that_of_the_system_until_one_is_selected(visit):
    page = visit(scheme="dark")
    color = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(color) == "rgb(21, 21, 20)"
    page.get_by_role("button", name="System theme").click()
    assert page.evaluate(color) == "rgb(250, 249, 246)"
    page.get_by_role("button", name="Light theme").click()
    assert page.evaluate(color) == "rgb(21, 21, 20)"
    page.reload()
    page.get_by_role("button", name="Dark theme").wait_for()


def test_arrow_keys_move_between_tabs_which_are_one_tab_stop(visit):
    page = visit("fill-mask")
    page.locator("#tab-fill-mask").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("[aria-selected=true]").inner_text() == "Classification"
    assert page.locator("#panel-classes").is_visible()
    assert not page.locator("#panel-fill-mask").is_visible()
    page.keyboard.press("End")
    assert page.locator("[aria-selected=true]").inner_text() == "Runs"
    page.keyboard.press("Home")
    page.wait_for_url("**/#fill-mask")
    assert page.locator("[role=tab][tabindex='0']").count() == 1
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"


def test_enter_submits_a_short_text_unless_an_input_method_editor_is_open(visit, server):
    page = visit("fill-mask")
    text = field(page, "Text")
    num_requests = len(server.behavior.requests)
    text.evaluate(
        """(field) => field.dispatchEvent(
            new KeyboardEvent("keydown", { key: "Enter", isComposing: true, bubbles: true }))"""
    )
    page.wait_for_timeout(100)
    assert len(server.behavior.requests) == num_requests
    text.press("Enter")
    page.locator("#panel-fill-mask .request-info").wait_for()
    assert len(server.behavior.requests) == num_requests + 1


def test_enter_adds_a_line_to_a_passage_and_ctrl_enter_submits(visit):
    page = visit("answers")
    passage = field(page, "Passage")
    passage.fill("One.")
    passage.press("End")
    passage.press("Enter")
    assert passage.input_value() == "One.\n"
    passage.press("Control+Enter")
    page.locator("#panel-answers .request-info").wait_for()


def test_controls_have_names_and_texts_have_contrast_in_light_and_dark(visit):
    page = visit()
    run_every_tab(page)
    assert page.evaluate(ACCESSIBILITY_ERRORS) == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # colors change at once
        failures: list[Any] = []
        for_each_tab(page, lambda tab, failures=failures: failures.extend(page.evaluate(LOW_CONTRAST)))
        assert failures == [], scheme


def test_nothing_is_wider_than_a_narrow_screen(visit):
    page = visit(width=360, locale="zh-CN")
    run_every_tab(page)
    too_wide: list[tuple[str, int]] = []

    def check(tab: str) -> None:
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 360:
            too_wide.append((tab, width))

    for_each_tab(page, check)
    assert too_wide == []


def test_the_page_violates_no_content_security_policy_and_loads_nothing_from_other_origins(visit, server):
    page = visit()
    violations: list[str] = []
    urls: list[str] = []
    page.expose_function("onViolation", lambda directive: violations.append(directive))
    page.add_init_script("addEventListener('securitypolicyviolation', (event) => onViolation(event.violatedDirective))")
    page.on("request", lambda request: urls.append(request.url))
    page.reload()
    page.wait_for_selector("[role=tab]")
    run_every_tab(page)
    assert violations == []
    assert [url for url in urls if not url.startswith(server.address)] == []
    assert any(url.endswith("/page/attention.js") for url in urls)


def test_scripts_begin_with_a_comment_and_are_short():
    scripts = sorted(PAGE.glob("*.js"))
    assert scripts
    for path in scripts:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("// "), path.name
        assert len(lines) <= 400, path.name
        assert max(map(len, lines)) <= 120 or path.name in ("english.js", "chinese.js", "examples.js"), path.name
    assert "http://" not in (PAGE / "page.css").read_text(encoding="utf-8")
