"""The page for everybody: languages, light and dark, keyboard, screen readers, narrow screens, content policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import canned_runs
import pytest
from canned_server import PAGE, CannedServer, Plan
from page_browser import a_browser, a_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

TABS = ["blanks", "classes", "entities", "answers", "choices", "vectors", "input", "attention", "why"]
# What every control must have, and every id be: said to a screen reader, and the only one.
NAMELESS = """() => {
    const name = (node) => node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.[0]?.textContent;
    const nodes = [...document.querySelectorAll("button, input, textarea, select, [tabindex='0']")];
    const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
    const twice = ids.filter((id, place) => ids.indexOf(id) !== place);
    return [...nodes.filter((node) => !name(node)).map((node) => node.outerHTML), ...twice];
}"""
# The contrast of every text with what lies behind it, one layer painted over the other, as WCAG counts it.
FAINT = """() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const painted = (colours) => {
        canvas.clearRect(0, 0, 1, 1);
        for (const colour of colours) {
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
        }
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = (colours) => {
        const [red, green, blue] = painted(colours).slice(0, 3).map((part) => part / 255)
            .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const layers = (node) => {
        const colour = getComputedStyle(node).backgroundColor;
        const isWhole = painted([colour])[3] === 255 || !node.parentElement;
        return isWhole ? [colour] : [...layers(node.parentElement), colour];
    };
    const found = [];
    for (const node of document.querySelectorAll("body *:not(svg *)")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!own || !node.checkVisibility()) continue;
        const behind = layers(node);
        const [one, other] = [light([...behind, getComputedStyle(node).color]), light(behind)];
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (contrast < 4.5) found.push([node.className, node.textContent.trim().slice(0, 30), contrast]);
    }
    return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as one:
        yield one


@pytest.fixture(scope="module")
def only_server() -> Iterator[CannedServer]:
    server = CannedServer()
    yield server
    server.close()


@pytest.fixture
def server(only_server: CannedServer) -> CannedServer:
    only_server.plan = Plan(runs=[canned_runs.summary("mini", "pretrain", "finished", 400)])
    return only_server


@pytest.fixture
def visit(browser: Browser, server: CannedServer) -> Iterator[Callable[..., Page]]:
    with ExitStack() as stack:

        def open_at(tab: str = "", **options: Any) -> Page:
            page = stack.enter_context(a_page(browser, **options))
            page.goto(f"{server.address}/#{tab}")
            page.wait_for_selector("[role=tab]")
            return page

        yield open_at


def field(page: Page, label: str) -> Locator:
    """Return the field of the tab that is shown."""
    return page.locator("[role=tabpanel]:visible").get_by_label(label, exact=True)


def show_all(page: Page) -> None:
    """Ask the first example of every tab."""
    for tab in TABS:
        page.locator(f"#tab-{tab}").click()
        panel = page.locator(f"#panel-{tab}")
        panel.locator(".chip").first.click()
        panel.locator(".facts").wait_for()
    page.locator("#panel-attention .linked").wait_for(state="attached")
    page.locator("#tab-runs").click()
    page.locator("#panel-runs .chart").first.wait_for()


def open_each(page: Page, look: Callable[[str], None]) -> None:
    for tab in [*TABS, "runs"]:
        page.locator(f"#tab-{tab}").click()
        look(tab)


def test_the_language_is_the_readers_and_can_be_changed(visit):
    page = visit("blanks", locale="zh-CN")
    assert page.locator("html").get_attribute("lang") == "zh-Hans"
    assert page.get_by_role("tab").all_inner_texts()[:3] == ["填空", "分类", "实体"]
    text = field(page, "文本")
    assert "北京" in text.input_value()
    page.get_by_role("button", name="English").click()
    assert page.get_by_role("tab").all_inner_texts()[:3] == ["Blanks", "Classes", "Entities"]
    assert "Paris" in field(page, "Text").input_value()
    page.reload()
    page.wait_for_selector("[role=tab]")
    assert page.locator("html").get_attribute("lang") == "en"


def test_changing_the_language_keeps_what_was_written_and_answered(visit):
    page = visit("entities")
    field(page, "Text").fill("Anna Weber left Munich.")
    page.get_by_role("button", name="Find").click()
    page.get_by_text("2 names were found").wait_for()
    page.get_by_role("button", name="中文").click()
    page.get_by_text("找到 2 个名称").wait_for()
    assert field(page, "文本").input_value() == "Anna Weber left Munich."


def test_both_languages_have_the_same_words_with_the_same_places_and_two_examples_a_tab(visit):
    found = visit().evaluate(
        """async () => {
            const [{ ENGLISH }, { CHINESE }, { EXAMPLES }] = await Promise.all(
                ["english", "chinese", "examples"].map((name) => import(`/page/${name}.js`)));
            const places = (words) => (words.match(/\\{\\w+\\}/g) ?? []).sort().join();
            const names = [...new Set([...Object.keys(ENGLISH), ...Object.keys(CHINESE)])];
            const same = (one, other) => one && other && places(one) === places(other);
            const odd = names.filter((name) => !same(ENGLISH[name], CHINESE[name]));
            const few = Object.entries(EXAMPLES).filter(([, { en, zh }]) => en.length !== 2 || zh.length !== 2);
            return { odd, few: few.map(([name]) => name), count: names.length };
        }"""
    )
    assert found["odd"] == []
    assert found["few"] == []
    assert found["count"] > 200


def test_light_and_dark_follow_the_machine_until_one_is_chosen(visit):
    page = visit(scheme="dark")
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(colour) == "rgb(21, 21, 20)"
    page.get_by_role("button", name="Light or dark as this machine has it").click()
    assert page.evaluate(colour) == "rgb(250, 249, 246)"
    page.get_by_role("button", name="Light", exact=True).click()
    assert page.evaluate(colour) == "rgb(21, 21, 20)"
    page.reload()
    page.get_by_role("button", name="Dark").wait_for()


def test_tabs_go_with_arrow_keys_and_there_is_one_stop_for_all(visit):
    page = visit("blanks")
    page.locator("#tab-blanks").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("[aria-selected=true]").inner_text() == "Classes"
    assert page.locator("#panel-classes").is_visible()
    assert not page.locator("#panel-blanks").is_visible()
    page.keyboard.press("End")
    assert page.locator("[aria-selected=true]").inner_text() == "Runs"
    page.keyboard.press("Home")
    page.wait_for_url("**/#blanks")
    assert page.locator("[role=tab][tabindex='0']").count() == 1
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"


def test_enter_sends_a_short_text_but_not_while_an_input_method_is_open(visit, server):
    page = visit("blanks")
    text = field(page, "Text")
    before = len(server.plan.word_indices)
    text.evaluate(
        """(field) => field.dispatchEvent(
            new KeyboardEvent("keydown", { key: "Enter", isComposing: true, bubbles: true }))"""
    )
    page.wait_for_timeout(100)
    assert len(server.plan.word_indices) == before
    text.press("Enter")
    page.locator("#panel-blanks .facts").wait_for()
    assert len(server.plan.word_indices) == before + 1


def test_in_a_passage_enter_starts_a_line_and_with_ctrl_it_sends(visit):
    page = visit("answers")
    passage = field(page, "Passage")
    passage.fill("One.")
    passage.press("End")
    passage.press("Enter")
    assert passage.input_value() == "One.\n"
    passage.press("Control+Enter")
    page.locator("#panel-answers .facts").wait_for()


def test_everything_has_a_name_and_can_be_read_in_light_and_dark(visit):
    page = visit()
    show_all(page)
    assert page.evaluate(NAMELESS) == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # colours change at once
        faint: list[Any] = []
        open_each(page, lambda tab, faint=faint: faint.extend(page.evaluate(FAINT)))
        assert faint == [], scheme


def test_nothing_is_wider_than_a_narrow_screen(visit):
    page = visit(width=360, locale="zh-CN")
    show_all(page)
    wide: list[tuple[str, int]] = []

    def look(tab: str) -> None:
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 360:
            wide.append((tab, width))

    open_each(page, look)
    assert wide == []


def test_the_page_keeps_to_its_policy_and_asks_no_other_server(visit, server):
    page = visit()
    broken: list[str] = []
    asked: list[str] = []
    page.expose_function("tellBroken", lambda directive: broken.append(directive))
    page.add_init_script("addEventListener('securitypolicyviolation', (event) => tellBroken(event.violatedDirective))")
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.wait_for_selector("[role=tab]")
    show_all(page)
    assert broken == []
    assert [url for url in asked if not url.startswith(server.address)] == []
    assert any(url.endswith("/page/attention.js") for url in asked)


def test_files_of_the_page_say_first_what_they_are_and_stay_small():
    scripts = sorted(PAGE.glob("*.js"))
    assert scripts
    for path in scripts:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("// "), path.name
        assert len(lines) <= 400, path.name
        assert max(map(len, lines)) <= 120 or path.name in ("english.js", "chinese.js", "examples.js"), path.name
    assert "http://" not in (PAGE / "page.css").read_text(encoding="utf-8")
