"""The page in a real browser, against canned answers: what each tab sends, shows and tells."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import canned_answers
import canned_runs
import pytest
from canned_server import CannedServer, Plan
from page_browser import PATIENCE, a_browser, a_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

RUNS = [
    canned_runs.pooled("mini", "pretrain", "running", 1_400),
    canned_runs.pooled("tiny", "pretrain", "finished", 2_000),
    canned_runs.pooled("reviews", "finetune", "finished", 400),
]
ALL_TABS = ["blanks", "classes", "entities", "answers", "choices", "vectors", "input", "attention", "why", "runs"]


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
    only_server.plan = Plan(runs=[dict(run) for run in RUNS])
    return only_server


@pytest.fixture
def visit(browser: Browser, server: CannedServer) -> Iterator[Callable[..., Page]]:
    """Return a function that opens the page at a tab, as a visitor of its own."""
    with ExitStack() as stack:

        def open_at(tab: str = "", **options: Any) -> Page:
            page = stack.enter_context(a_page(browser, **options))
            page.goto(f"{server.address}/#{tab}")
            page.wait_for_selector("[role=tab], .key, main button.send")
            return page

        yield open_at


def panel(page: Page) -> Locator:
    return page.locator("[role=tabpanel]:visible")


def field(page: Page, label: str) -> Locator:
    """Return the field of the tab that is shown: tabs that are not shown have fields of the same names."""
    return panel(page).get_by_label(label, exact=True)


def send(page: Page) -> Locator:
    """Press the button of the tab that is shown and wait for the result; return the tab's panel."""
    panel(page).locator("button.send").last_hidden_state.click()
    panel(page).locator(".facts").last_hidden_state.wait_for()
    return panel(page)


def tab_names(page: Page) -> list[str]:
    return [str(one.get_attribute("id")).removeprefix("tab-") for one in page.get_by_role("tab").all()]


def last_asked(server: CannedServer) -> tuple[str, Any]:
    return server.plan.asked[-1]


def told(locator: Locator, text: str | re.Pattern[str]) -> None:
    """Wait until the element says this."""
    from playwright.sync_api import expect

    expect(locator).to_have_text(text, timeout=PATIENCE)


def rows_of(bars: Locator) -> list[tuple[str, str]]:
    return [
        (row.locator(".bar-name").inner_text(), row.locator(".bar-share").inner_text())
        for row in bars.locator("li").all()
    ]


def test_tabs_are_what_the_models_can_do(visit, server):
    assert tab_names(visit()) == ALL_TABS
    server.plan.models = {"models": canned_answers.models()["models"][:1]}
    server.plan.runs = []
    assert tab_names(visit()) == ["blanks", "vectors", "input", "attention"]


def test_a_server_without_anything_says_how_to_start_one(visit, server):
    server.plan = Plan(models={"models": []})
    assert "bertworks serve" in visit().locator("main").inner_text()


def test_every_blank_has_its_candidates_and_all_are_filled_together(visit):
    page = visit("blanks")
    field(page, "Text").fill("She opened the [MASK] and saw the [MASK].")
    found = send(page)
    assert rows_of(found.locator(".bars").nth(0))[0] == ("capital", "83.0%")
    assert rows_of(found.locator(".bars").nth(1))[4] == ("##side", "2.0%")
    # 0.83 * 0.41 of the canned candidates
    told(found.locator(".fillings li").first, re.compile("34.0%.*She opened the capital and saw the garden"))
    assert found.locator(".fillings mark").all_inner_texts()[:2] == ["capital", "garden"]


def test_a_piece_that_continues_a_word_is_marked_where_it_stands(visit):
    page = visit()
    parts = page.evaluate(
        """async () => {
            const { filledText } = await import("/page/blanks.js");
            const filling = { pieces: ["##ing", "dog"], text: "playing with the dog." };
            return filledText("play [MASK] with the [MASK].", filling).map((part) => part.textContent ?? part);
        }"""
    )
    assert parts == ["play", "ing", " with the ", "dog", "."]


def test_the_mask_button_puts_a_blank_at_the_cursor(visit, server):
    page = visit("blanks")
    text = field(page, "Text")
    text.fill("The  sat.")
    text.evaluate("(field) => field.setSelectionRange(4, 4)")
    page.get_by_role("button", name="+ [MASK]").click()
    send(page)
    assert last_asked(server) == ("/v1/models/small-bert/fill", {"text": "The [MASK] sat.", "top": 5})


def test_classes_stand_in_the_order_of_their_probability(visit, server):
    found = send(visit("classes"))
    assert rows_of(found.locator(".bars")) == [("positive", "97.1%"), ("negative", "2.9%")]
    told(found.locator(".status"), "positive (97.1%)")
    assert last_asked(server)[0] == "/v1/models/reviews/predict"


def test_a_model_of_pairs_is_asked_with_two_texts(visit, server):
    page = visit("classes")
    field(page, "Model").select_option("inference")
    field(page, "Second text").fill("Somebody sleeps.")
    send(page)
    first = "A man is playing a guitar on stage."
    assert last_asked(server)[1] == {"inputs": [{"sentence1": first, "sentence2": "Somebody sleeps."}]}


def test_several_classes_are_ticked_and_a_score_is_a_number(visit):
    page = visit("classes")
    field(page, "Model").select_option("topics")
    found = send(page)
    told(found.locator(".status"), "These apply: arts, business")
    assert [name for name, _ in rows_of(found.locator(".bars"))] == ["arts ✓", "business ✓", "science", "sport"]
    field(page, "Model").select_option("likeness")
    told(send(page).locator(".big-number"), "4.318")


def test_names_are_marked_where_they_stand_even_behind_wide_characters(visit):
    page = visit("entities")
    field(page, "Text").fill("😀𠀀 Marie Curie came to Stockholm.")
    found = send(page)
    assert found.locator("mark").all_inner_texts() == ["Marie Curie PER", "Stockholm LOC"]
    assert found.locator(".reading").inner_text() == "😀𠀀 Marie Curie PER came to Stockholm LOC."
    found.get_by_text("As a table").click()
    assert found.locator("tbody tr").first.inner_text() == "Marie Curie\tPER\t97.0%\t3–14"


def test_an_answer_is_marked_and_pointing_at_another_marks_that(visit):
    found = send(visit("answers"))
    told(found.locator(".status"), "“27 May 1937” (72.0%)")
    told(found.locator(".passage mark"), "27 May 1937")
    found.locator(".bars li").nth(1).focus()
    told(found.locator(".passage mark"), "January 1933")
    found.locator(".bars li").nth(1).blur()
    told(found.locator(".passage mark"), "27 May 1937")


def test_a_passage_without_an_answer_is_said_to_have_none(visit):
    page = visit("answers")
    page.get_by_role("button", name="Not in there").click()
    told(panel(page).locator(".status"), "The passage does not answer this.")
    assert panel(page).locator(".passage mark").count() == 0


def test_endings_can_be_added_and_removed_and_are_ranked(visit, server):
    page = visit("choices")
    page.get_by_role("button", name="Remove this ending").first.click()
    page.get_by_role("button", name="+ an ending").click()
    field(page, "Ending").last_hidden_state.fill("the sun rose.")
    found = send(page)
    choices = ["the umbrella said hello.", "the moon was made of stone.", "the sun rose."]
    assert last_asked(server)[1]["inputs"][0]["choices"] == choices
    assert rows_of(found.locator(".bars"))[0] == ("the umbrella said hello.", "90.0%")


def test_sentences_lie_on_a_map_and_the_nearest_comes_first(visit, server):
    page = visit("vectors")
    field(page, "Sentences, one a line").fill("one\n\n two \nthree")
    field(page, "Nearest to").fill("four")
    found = send(page)
    body = last_asked(server)[1]
    assert body == {"model": "small-bert", "inputs": ["one", "two", "three"], "query": "four"}
    # the canned cosines are 0.61, 0.26 and 0.68
    assert found.locator(".fillings .reading").all_inner_texts() == ["three", "one", "two"]
    points = found.locator(".point")
    assert points.count() == 3
    points.first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "two (0.26)"


def test_search_over_the_corpus_is_there_only_when_it_is_served(visit, server):
    assert visit("vectors").get_by_text("Search the corpus").count() == 0
    server.plan.has_search = True
    page = visit("vectors")
    field(page, "Look for").fill("read lines")
    page.get_by_role("button", name="Search").click()
    told(panel(page).locator(".status").first, "2 passages, the nearest first")
    assert last_asked(server) == ("/v1/search", {"query": "read lines", "top": 10})


def test_the_input_shows_pieces_segments_and_the_sum(visit, server):
    page = visit("input")
    page.get_by_role("button", name="A pair").click()
    found = panel(page)
    told(found.locator(".status"), "13 pieces")
    assert last_asked(server)[1] == {"text": "My dog is cute.", "pair": "He likes playing.", "embeddings": True}
    assert found.locator("text.piece").all_text_contents()[:3] == ["[CLS]", "my", "dog"]
    assert "".join(found.locator("text[class^='tiny segment']").all_text_contents()) == "AAAAAAABBBBBB"
    assert found.locator("path.cell").count() > 4
    found.get_by_text("As a table").click()
    assert found.locator("tbody tr").nth(9).inner_text() == "9\tplayi\t434\tB\tplayi\t1.25\t1.25\t1.25\t1.25"


def test_a_head_is_chosen_from_the_grid_and_a_piece_tells_its_links(visit, server):
    page = visit("attention")
    found = send(page)
    assert found.locator("button.head").count() == 6 * 12
    page.get_by_role("button", name=re.compile("^Layer 2, head 4:")).click()
    told(found.locator(".head-view h3"), "Layer 2, head 4")
    path, body = last_asked(server)
    assert path.endswith("/attention")
    assert (body["layer"], body["head"], body["strongest"]) == (1, 3, 2_000)
    # layer 1, head 3 of the canned model reads the piece before
    found.locator(".piece-chip").nth(2).focus()
    told(found.locator(".told"), re.compile("^animal reads: the [0-9.]+%"))
    page.keyboard.press("ArrowRight")
    told(found.locator(".told"), re.compile("^didn reads: animal"))
    page.get_by_role("button", name="Who reads it").click()
    found.locator(".piece-chip").nth(2).focus()
    told(found.locator(".told"), re.compile("^animal is read by: didn"))


def test_attention_can_be_read_at_512_pieces(visit):
    page = visit("attention", width=360)
    field(page, "Text").fill(" ".join(f"w{number}" for number in range(600)))
    found = send(page)
    text = found.locator(".linked-scroller")
    text.wait_for()
    assert found.locator(".piece-chip").count() == 512
    # 200 links of the strongest at first; the slider shows more
    assert found.locator(".links path").count() == 200
    field(page, "Strongest links").fill("700")
    assert found.locator(".links path").count() == 700
    assert text.evaluate("(box) => box.scrollHeight > box.clientHeight && box.scrollWidth <= box.clientWidth")
    assert is_inside(page)


def test_words_are_coloured_by_what_they_speak_for(visit, server):
    page = visit("why")
    field(page, "Instead of its answer").fill("negative")
    found = send(page)
    assert last_asked(server)[1]["target"] == "negative"
    strong = found.locator(".weight.for").filter(has_text="gripping")
    assert strong.evaluate("(word) => word.style.getPropertyValue('--share')") == "1.000"
    assert "film" in found.locator(".weight.against").all_inner_texts()
    found.get_by_text("As a table").click()
    assert found.locator("tbody tr").first.inner_text() == "gripping\t+1.40\ttext 1"


def test_a_run_is_followed_while_it_goes_on(visit, server):
    page = visit()
    page.clock.install()
    page.get_by_role("tab", name="Runs").click()
    mini = page.locator(".run").filter(has_text="mini")
    page.clock.run_for(100)
    told(mini.locator(".run-facts"), "step 1,400 · 5 min left")
    server.plan.runs[0]["step"] = 1_800
    page.clock.run_for(5_000)
    told(mini.locator(".run-facts"), "step 1,800 · 2 min left")
    # only what is new was asked for
    assert server.plan.afters["mini"][:2] == [-1, 1_400]
    assert page.locator(".curves").first.locator("path.curve.line").count() == 3


def test_runs_are_compared_by_checkbox(visit):
    page = visit("runs")
    loss = page.locator(".curves").first
    told(loss.locator("figcaption"), "Loss")
    assert loss.locator("path.curve.line").count() == 3
    page.get_by_label("tiny").uncheck()
    page.get_by_label("reviews").uncheck()
    from playwright.sync_api import expect

    expect(page.locator(".curves").first.locator("path.curve.line")).to_have_count(1)
    assert page.locator(".samples mark").all_inner_texts() == ["river", "length"]
    page.get_by_role("button", name="Time").click()
    told(page.locator(".curves .tick").last_hidden_state, re.compile("min|s$"))


def test_the_history_of_a_run_leaves_out_what_is_not_finite_and_starts_anew_when_set_back(visit):
    found = visit().evaluate(
        """async () => {
            const { History } = await import("/page/history.js");
            const step = (number, loss) => ({
                kind: "step", step: number, losses: { masked: loss }, rate: 0, seconds: 2 * number, pieces: number,
            });
            const held = { kind: "held_out", step: 2, losses: { masked: 5 }, accuracy: 0.25, pair_accuracy: null };
            const history = new History("one");
            history.take({ step: 3, records: [step(1, 6), step(2, "nan"), held, step(3, 4)] });
            const before = [history.trainingLoss("step").raw, history.heldOutLoss("seconds"), history.after];
            const isKept = history.take({ step: 1, records: [] });
            return [...before, isKept, history.after, [...history.figures("step").keys()]];
        }"""
    )
    # the measurement after step 2 has the time of step 2; after the set-back everything is asked for again
    assert found == [[[1, 6], [3, 4]], [[4, 5]], 3, False, -1, []]


def test_the_command_repeats_the_request(visit, server):
    page = visit("blanks")
    field(page, "Text").fill('It\'s the [MASK] of "Paris" — $HOME 巴黎\\n.')
    found = send(page)
    found.get_by_text("curl", exact=True).click()
    words = shlex.split(found.locator("code").inner_text())
    path, body = last_asked(server)
    assert words[:3] == ["curl", "-s", f"{server.address}{path}"]
    assert words[3:5] == ["-H", "Content-Type: application/json"]
    assert json.loads(words[words.index("-d") + 1]) == body


def test_what_the_server_refuses_is_a_sentence_near_the_button(visit, server):
    page = visit("blanks")
    server.plan.refusals["/fill"] = (422, "there is no blank in the text; write [MASK]", {})
    page.get_by_role("button", name="Fill", exact=True).click()
    error = panel(page).get_by_role("alert")
    told(error, "There is no blank in the text; write [MASK].")
    server.plan.refusals["/fill"] = (429, "too many requests wait", {"Retry-After": "7"})
    page.get_by_role("button", name="Fill", exact=True).click()
    told(error, "The server is busy. Try again in 7 seconds.")
    server.plan.refusals.clear()
    send(page)
    told(error, "")
    page.route("**/fill", lambda route: route.abort())
    page.get_by_role("button", name="Fill", exact=True).click()
    told(error, re.compile("^The server does not answer"))


def test_an_empty_field_is_not_sent(visit, server):
    page = visit("entities")
    field(page, "Text").fill("  ")
    before = len(server.plan.word_indices)
    page.get_by_role("button", name="Find").click()
    told(panel(page).get_by_role("alert"), "Write something here first.")
    assert len(server.plan.word_indices) == before
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"


def test_a_key_is_asked_for_and_kept_for_the_session_only(visit, server):
    server.plan.key = "sesame-0123456789"
    page = visit("blanks")
    page.get_by_label("Key").fill("wrong")
    page.keyboard.press("Enter")
    told(page.locator(".key").get_by_role("alert"), "The server did not take that key.")
    page.get_by_label("Key").fill(server.plan.key)
    page.get_by_role("button", name="Use it").click()
    found = send(page)
    found.get_by_text("curl", exact=True).click()
    command = found.locator("code").inner_text()
    assert "Bearer $BERTWORKS_KEY" in command
    assert server.plan.key not in page.content()
    assert page.evaluate("Object.values(localStorage)").count(server.plan.key) == 0
    assert page.evaluate("Object.values(sessionStorage)") == [server.plan.key]


def is_inside(page: Page) -> bool:
    """Whether nothing is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
