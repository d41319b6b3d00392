"""The page in a browser, with canned responses: what each tab sends and shows."""

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
from canned_server import Behavior, CannedServer
from page_browser import TIMEOUT, open_browser, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

RUNS = [
    canned_runs.summary("mini", "pretrain", "running", 1_400),
    canned_runs.summary("tiny", "pretrain", "finished", 2_000),
    canned_runs.summary("reviews", "finetune", "finished", 400),
]
ALL_TABS = [
    "fill-mask",
    "classes",
    "entities",
    "answers",
    "choices",
    "vectors",
    "input",
    "attention",
    "explain",
    "runs",
]


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
    shared_server.behavior = Behavior(runs=[dict(run) for run in RUNS])
    return shared_server


@pytest.fixture
def visit(browser: Browser, server: CannedServer) -> Iterator[Callable[..., Page]]:
    """Return a function that opens the page at a tab, in a new session."""
    with ExitStack() as stack:

        def open_tab(tab: str = "", **options: Any) -> Page:
            page = stack.enter_context(open_page(browser, **options))
            page.goto(f"{server.address}/#{tab}")
            page.wait_for_selector("[role=tab], .api-key, main button.submit")
            return page

        yield open_tab


def visible_panel(page: Page) -> Locator:
    return page.locator("[role=tabpanel]:visible")


def field(page: Page, label: str) -> Locator:
    """Return a field of the visible tab: hidden tabs have fields with the same labels."""
    return visible_panel(page).get_by_label(label, exact=True)


def submit(page: Page) -> Locator:
    """Submit the form of the visible tab and wait for the result; return the tab's panel."""
    visible_panel(page).locator("button.submit").last.click()
    visible_panel(page).locator(".request-info").last.wait_for()
    return visible_panel(page)


def tab_ids(page: Page) -> list[str]:
    return [str(tab.get_attribute("id")).removeprefix("tab-") for tab in page.get_by_role("tab").all()]


def last_request(server: CannedServer) -> tuple[str, Any]:
    return server.behavior.requests[-1]


def expect_text(locator: Locator, text: str | re.Pattern[str]) -> None:
    """Wait until the element has this text."""
    from playwright.sync_api import expect

    expect(locator).to_have_text(text, timeout=TIMEOUT)


def bar_rows(bars: Locator) -> list[tuple[str, str]]:
    return [
        (row.locator(".bar-name").inner_text(), row.locator(".bar-value").inner_text())
        for row in bars.locator("li").all()
    ]


def test_tabs_are_the_capabilities_of_the_models(visit, server):
    assert tab_ids(visit()) == ALL_TABS
    server.behavior.models = {"data": canned_answers.models()["data"][:1]}
    server.behavior.runs = []
    assert tab_ids(visit()) == ["fill-mask", "vectors", "input", "attention"]


def test_a_server_without_models_and_runs_shows_how_to_start_one(visit, server):
    server.behavior = Behavior(models={"data": []})
    assert "bertworks serve" in visit().locator("main").inner_text()


def test_every_mask_has_its_candidates_and_sequences_fill_all_masks(visit):
    page = visit("fill-mask")
    field(page, "Text").fill("She opened the [MASK] and saw the [MASK].")
    panel = submit(page)
    assert bar_rows(panel.locator(".bars").nth(0))[0] == ("capital", "83.0%")
    assert bar_rows(panel.locator(".bars").nth(1))[4] == ("##side", "2.0%")
    # 0.83 * 0.41 of the canned candidates
    first_sequence = panel.locator(".ranked-list li").first
    expect_text(first_sequence, re.compile("34.0%.*She opened the capital and saw the garden"))
    assert panel.locator(".ranked-list mark").all_inner_texts()[:2] == ["capital", "garden"]


def test_a_continuation_token_is_highlighted_at_its_position(visit):
    page = visit()
    parts = page.evaluate(
        """async () => {
            const { filledText } = await import("/page/masks.js");
            const sequence = { tokens: ["##ing", "dog"], text: "playing with the dog." };
            return filledText("play [MASK] with the [MASK].", sequence).map((part) => part.textContent ?? part);
        }"""
    )
    assert parts == ["play", "ing", " with the ", "dog", "."]


def test_the_mask_button_inserts_a_mask_at_the_cursor(visit, server):
    page = visit("fill-mask")
    text = field(page, "Text")
    text.fill("The  sat.")
    text.evaluate("(field) => field.setSelectionRange(4, 4)")
    page.get_by_role("button", name="+ [MASK]").click()
    submit(page)
    assert last_request(server) == ("/v1/models/small-bert/fill-mask", {"text": "The [MASK] sat.", "top_k": 5})


def test_classes_are_sorted_by_probability(visit, server):
    panel = submit(visit("classes"))
    assert bar_rows(panel.locator(".bars")) == [("positive", "97.1%"), ("negative", "2.9%")]
    expect_text(panel.locator(".status"), "positive (97.1%)")
    assert last_request(server)[0] == "/v1/models/reviews/predict"


def test_a_text_that_the_vocabulary_hardly_reads_shows_a_warning_beside_the_result(visit):
    page = visit("classes")
    panel = submit(page)
    expect_text(panel.locator(".warning"), "")
    field(page, "Text").fill("скучный фильм")
    submit(page)
    expect_text(
        panel.locator(".warning"), re.compile(r"75\.0% of the tokens are unknown to the model \(скучный фильм\)")
    )
    expect_text(panel.locator(".request-info"), re.compile("6 unknown tokens"))
    page.get_by_role("button", name="中文").click()
    expect_text(panel.locator(".warning"), re.compile("模型不认识 75.0% 的词元（скучный фильм）"))
    field(page, "文本").fill("A gripping film.")
    submit(page)
    expect_text(panel.locator(".warning"), "")


def test_a_pair_model_has_two_text_fields(visit, server):
    page = visit("classes")
    field(page, "Model").select_option("inference")
    field(page, "Second text").fill("Somebody sleeps.")
    submit(page)
    first = "A man is playing a guitar on stage."
    assert last_request(server)[1] == {"inputs": [{"sentence1": first, "sentence2": "Somebody sleeps."}]}


def test_predicted_labels_are_ticked_and_a_regression_shows_its_value(visit):
    page = visit("classes")
    field(page, "Model").select_option("topics")
    panel = submit(page)
    expect_text(panel.locator(".status"), "Predicted classes: arts, business")
    assert [name for name, _ in bar_rows(panel.locator(".bars"))] == ["arts ✓", "business ✓", "science", "sport"]
    field(page, "Model").select_option("similarity")
    expect_text(submit(page).locator(".big-number"), "4.318")


def test_entities_are_highlighted_even_after_characters_outside_the_bmp(visit):
    page = visit("entities")
    field(page, "Text").fill("😀𠀀 Marie Curie came to Stockholm.")
    panel = submit(page)
    assert panel.locator("mark").all_inner_texts() == ["Marie Curie PER", "Stockholm LOC"]
    assert panel.locator(".quote").inner_text() == "😀𠀀 Marie Curie PER came to Stockholm LOC."
    panel.get_by_text("Show as table").click()
    assert panel.locator("tbody tr").first.inner_text() == "Marie Curie\tPER\t97.0%\t3–14"


def test_the_answer_is_highlighted_and_hovering_over_a_candidate_highlights_that(visit):
    panel = submit(visit("answers"))
    expect_text(panel.locator(".status"), "“27 May 1937” (72.0%)")
    expect_text(panel.locator(".passage mark"), "27 May 1937")
    panel.locator(".bars li").nth(1).focus()
    expect_text(panel.locator(".passage mark"), "January 1933")
    panel.locator(".bars li").nth(1).blur()
    expect_text(panel.locator(".passage mark"), "27 May 1937")


def test_a_passage_without_an_answer_has_no_highlight(visit):
    page = visit("answers")
    page.get_by_role("button", name="Not in there").click()
    expect_text(visible_panel(page).locator(".status"), "The passage does not contain an answer.")
    assert visible_panel(page).locator(".passage mark").count() == 0


def test_choices_can_be_added_and_removed_and_are_ranked(visit, server):
    page = visit("choices")
    page.get_by_role("button", name="Remove this choice").first.click()
    page.get_by_role("button", name="+ choice").click()
    field(page, "Choice").last.fill("the sun rose.")
    panel = submit(page)
    choices = ["the umbrella said hello.", "the moon was made of stone.", "the sun rose."]
    assert last_request(server)[1]["inputs"][0]["choices"] == choices
    assert bar_rows(panel.locator(".bars"))[0] == ("the umbrella said hello.", "90.0%")


def test_sentences_are_plotted_and_sorted_by_similarity(visit, server):
    page = visit("vectors")
    field(page, "Sentences, one per line").fill("one\n\n two \nthree")
    field(page, "Query").fill("four")
    panel = submit(page)
    body = last_request(server)[1]
    assert body == {"model": "small-bert", "inputs": ["one", "two", "three"], "query": "four"}
    # the canned similarities are 0.61, 0.26 and 0.68
    assert panel.locator(".ranked-list .quote").all_inner_texts() == ["three", "one", "two"]
    points = panel.locator(".point")
    assert points.count() == 3
    points.first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "two (0.26)"


def test_semantic_search_is_shown_only_if_a_corpus_is_served(visit, server):
    assert visit("vectors").get_by_text("Semantic search").count() == 0
    server.behavior.has_search = True
    page = visit("vectors")
    field(page, "Search query").fill("read lines")
    page.get_by_role("button", name="Search", exact=True).click()
    expect_text(visible_panel(page).locator(".status").first, "2 passages, most similar first")
    assert last_request(server) == ("/v1/search", {"query": "read lines", "top_k": 10})


def test_the_input_tab_shows_tokens_segments_and_summed_embeddings(visit, server):
    page = visit("input")
    page.get_by_role("button", name="A pair").click()
    panel = visible_panel(page)
    expect_text(panel.locator(".status"), "13 tokens")
    assert last_request(server)[1] == {"text": "My dog is cute.", "pair": "He likes playing.", "embeddings": True}
    assert panel.locator("text.token").all_text_contents()[:3] == ["[CLS]", "my", "dog"]
    assert "".join(panel.locator("text[class^='tiny segment']").all_text_contents()) == "AAAAAAABBBBBB"
    assert panel.locator("path.cell").count() > 4
    assert panel.locator("text.operator").all_text_contents() == ["+"] * 26 + ["="] * 13
    panel.get_by_text("Show as table").click()
    assert panel.locator("tbody tr").nth(9).inner_text() == "9\tplayi\t434\tB\tplayi\t1.25\t1.25\t1.25\t1.25"


def test_the_input_tab_shows_whatever_embeddings_an_encoder_sums(visit, server):
    page = visit("input")

    def without_segments(route: Any) -> None:
        response = canned_answers.tokenize(route.request.post_data_json)
        for name in ("embedding_norms", "embedding_values"):
            del response[name]["token_type"]
        route.fulfill(json=response)

    page.route("**/tokenize", without_segments)
    panel = submit(page)
    labels = panel.locator(".row-labels span").all_inner_texts()
    assert labels == ["position", "token", "id", "segment", "token", "position", "sum"]
    assert set(panel.locator("text.operator").all_text_contents()) == {"+", "="}


def test_a_head_is_selected_in_the_model_view_and_a_token_shows_its_weights(visit, server):
    page = visit("attention")
    panel = submit(page)
    assert panel.locator("button.head").count() == 6 * 12
    page.get_by_role("button", name=re.compile("^Layer 2, head 4:")).click()
    expect_text(panel.locator(".head-view h3"), "Layer 2, head 4")
    path, body = last_request(server)
    assert path.endswith("/attention")
    assert (body["layer"], body["head"], body["top_k"]) == (1, 3, 2_000)
    # layer 1, head 3 of the canned model attends to the previous token
    description = panel.locator(".token-description")
    panel.locator(".token-chip").nth(2).focus()
    expect_text(description, re.compile("^animal attends to: the [0-9.]+%"))
    page.keyboard.press("ArrowRight")
    expect_text(description, re.compile("^didn attends to: animal"))
    page.get_by_role("button", name="Attended by").click()
    panel.locator(".token-chip").nth(2).focus()
    expect_text(description, re.compile("^animal is attended by: didn"))


def test_attention_of_512_tokens_fits_a_narrow_screen(visit):
    page = visit("attention", width=360)
    field(page, "Text").fill(" ".join(f"w{number}" for number in range(600)))
    panel = submit(page)
    scroller = panel.locator(".token-scroller")
    scroller.wait_for()
    assert panel.locator(".token-chip").count() == 512
    # the 200 largest weights at first; the slider shows more
    assert panel.locator(".attention-lines path").count() == 200
    page.mouse.move(0, 0)  # over a token it would show only the weights of that token
    field(page, "Largest weights").fill("700")
    assert panel.locator(".attention-lines path").count() == 700
    assert scroller.evaluate("(box) => box.scrollHeight > box.clientHeight && box.scrollWidth <= box.clientWidth")
    assert fits_window(page)


def test_words_are_colored_by_their_attribution(visit, server):
    page = visit("explain")
    field(page, "Target").fill("negative")
    panel = submit(page)
    assert last_request(server)[1]["target"] == "negative"
    word = panel.locator(".attribution.positive").filter(has_text="gripping")
    assert word.evaluate("(word) => word.style.getPropertyValue('--ratio')") == "1.000"
    assert "film" in panel.locator(".attribution.negative").all_inner_texts()
    panel.get_by_text("Show as table").click()
    assert panel.locator("tbody tr").first.inner_text() == "gripping\t+1.40\ttext 1"


def test_a_running_run_is_updated(visit, server):
    page = visit()
    page.clock.install()
    page.get_by_role("tab", name="Runs").click()
    progress = page.locator(".run").filter(has_text="mini").locator(".run-progress")
    page.clock.run_for(100)
    expect_text(progress, "step 1,400 · 5 min left")
    server.behavior.runs[0]["step"] = 1_800
    page.clock.run_for(5_000)
    expect_text(progress, "step 1,800 · 2 min left")
    # only new records are requested
    assert server.behavior.run_queries["mini"][:2] == [-1, 1_400]
    assert page.locator(".line-chart").first.locator("path.series.line").count() == 3


def test_selected_runs_are_compared(visit):
    from playwright.sync_api import expect

    page = visit("runs")
    loss_chart = page.locator(".line-chart").first
    expect_text(loss_chart.locator("figcaption"), "Loss")
    assert loss_chart.locator("path.series.line").count() == 3
    page.get_by_label("tiny").uncheck()
    page.get_by_label("reviews").uncheck()
    expect(page.locator(".line-chart").first.locator("path.series.line")).to_have_count(1)
    assert page.locator(".samples mark").all_inner_texts() == ["river", "length"]
    page.get_by_role("button", name="Time").click()
    expect_text(page.locator(".line-chart .tick").last, re.compile("min|s$"))


def test_a_run_history_skips_non_finite_values_and_is_cleared_when_the_run_resumes(visit):
    result = visit().evaluate(
        """async () => {
            const { RunHistory } = await import("/page/run-history.js");
            const step = (number, loss) => ({
                kind: "step", step: number, losses: { mlm: loss }, learning_rate: 0, seconds: 2 * number,
                num_tokens: number,
            });
            const heldOut = { kind: "held_out", step: 2, losses: { mlm: 5 }, accuracy: 0.25, pair_accuracy: null };
            const history = new RunHistory("mini");
            history.add({ step: 3, records: [step(1, 6), step(2, "nan"), heldOut, step(3, 4)] });
            const before = [history.trainingLoss("step").raw, history.heldOutLoss("seconds"), history.lastStep];
            const isContinued = history.add({ step: 1, records: [] });
            return [...before, isContinued, history.lastStep, [...history.metrics("step").keys()]];
        }"""
    )
    # the evaluation after step 2 has the time of step 2; after a resume all records are requested again
    assert result == [[[1, 6], [3, 4]], [[4, 5]], 3, False, -1, []]


def test_the_curl_command_repeats_the_request(visit, server):
    page = visit("fill-mask")
    field(page, "Text").fill('It\'s the [MASK] of "Paris" — $HOME 巴黎\\n.')
    panel = submit(page)
    panel.get_by_text("curl", exact=True).click()
    arguments = shlex.split(panel.locator("code").inner_text())
    path, body = last_request(server)
    assert arguments[:3] == ["curl", "-s", f"{server.address}{path}"]
    assert arguments[3:5] == ["-H", "Content-Type: application/json"]
    assert json.loads(arguments[arguments.index("-d") + 1]) == body


def test_errors_are_shown_below_the_form(visit, server):
    page = visit("fill-mask")
    server.behavior.errors["/fill-mask"] = (422, "the text has no [MASK]", {})
    page.get_by_role("button", name="Predict", exact=True).click()
    error = visible_panel(page).get_by_role("alert")
    expect_text(error, "The text has no [MASK].")
    server.behavior.errors["/fill-mask"] = (429, "the queue is full", {"Retry-After": "7"})
    page.get_by_role("button", name="Predict", exact=True).click()
    expect_text(error, "The server is busy. Try again in 7 seconds.")
    server.behavior.errors.clear()
    submit(page)
    expect_text(error, "")
    page.route("**/fill-mask", lambda route: route.abort())
    page.get_by_role("button", name="Predict", exact=True).click()
    expect_text(error, re.compile("^The server does not respond"))


def test_an_empty_field_is_not_submitted(visit, server):
    page = visit("entities")
    field(page, "Text").fill("  ")
    num_requests = len(server.behavior.requests)
    page.get_by_role("button", name="Find entities").click()
    expect_text(visible_panel(page).get_by_role("alert"), "This field is empty.")
    assert len(server.behavior.requests) == num_requests
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"


def test_the_api_key_is_requested_and_stored_for_the_session_only(visit, server):
    server.behavior.key = "sesame-0123456789"
    page = visit("fill-mask")
    page.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    expect_text(page.locator(".api-key").get_by_role("alert"), "The server rejected this API key.")
    page.get_by_label("API key").fill(server.behavior.key)
    page.get_by_role("button", name="Use key").click()
    panel = submit(page)
    panel.get_by_text("curl", exact=True).click()
    command = panel.locator("code").inner_text()
    assert "Bearer $BERTWORKS_KEY" in command
    assert server.behavior.key not in page.content()
    assert page.evaluate("Object.values(localStorage)").count(server.behavior.key) == 0
    assert page.evaluate("Object.values(sessionStorage)") == [server.behavior.key]


def test_the_scores_of_a_run_differ_by_marker_and_dash_and_so_do_runs(visit):
    page = visit("runs")
    metrics = page.locator(".line-chart").nth(1)
    metrics.wait_for()
    entries = metrics.locator(".legend li")
    names = entries.all_inner_texts()
    assert names[0].startswith("mini, token accuracy")
    assert names[1].startswith("mini, sentence pair accuracy")
    styles = entries.locator("svg").evaluate_all(
        "(swatches) => swatches.map((swatch) => [...swatch.querySelectorAll('path')].map((path, index) =>"
        "index ? path.getAttribute('d') : getComputedStyle(path).strokeDasharray).join(' '))"
    )
    assert len(set(styles)) == len(styles) >= 4
    lines = page.locator(".line-chart").first.locator("path.series.line")
    dashes = lines.evaluate_all("(paths) => paths.map((path) => getComputedStyle(path).strokeDasharray)")
    assert len(set(dashes)) == 3


def test_the_loss_on_dev_is_in_the_chart_of_losses_and_is_no_percentage(visit):
    page = visit("runs")
    losses, metrics = (page.locator(".line-chart").nth(index).locator(".legend") for index in (0, 1))
    losses.wait_for()
    assert re.search(r"reviews, dev set\s*0\.\d", losses.inner_text())
    assert "loss" not in metrics.inner_text()


def test_metrics_and_labels_are_chinese_on_the_chinese_page(visit):
    page = visit("runs", locale="zh-CN")
    legend = page.locator(".line-chart").nth(1).locator(".legend")
    legend.wait_for()
    assert "reviews, 验证集 准确率" in legend.inner_text()
    assert "reviews, 验证集 校准误差" in legend.inner_text()
    page.locator("#tab-classes").click()
    assert [name for name, _ in bar_rows(submit(page).locator(".bars"))] == ["正面", "负面"]
    page.locator("#tab-explain").click()
    expect_text(submit(page).locator(".status"), "对 '正面' 的归因")
    page.locator("#tab-entities").click()
    assert submit(page).locator(".entity .type").first.inner_text() == "人名"


def test_a_sign_is_shown_while_an_answer_is_computed(visit):
    page = visit("classes")
    routes: list[Any] = []
    page.route("**/predict", lambda route: routes.append(route))
    visible_panel(page).locator("button.submit").click()
    expect_text(visible_panel(page).locator(".busy-sign"), "Computing …")
    assert visible_panel(page).locator(".tab-content").get_attribute("aria-busy") == "true"
    routes[0].continue_()
    visible_panel(page).locator(".request-info").wait_for()
    expect_text(visible_panel(page).locator(".busy-sign"), "")


def test_examples_have_the_language_of_the_model_and_the_picker_tells_what_a_model_is(visit, server):
    data = canned_answers.models()["data"]
    data[1] |= {"languages": ["zh"], "scores": {"accuracy": 0.9125}}
    data[2] |= {"languages": ["en", "zh"], "num_parameters": None}
    server.behavior.models = {"data": data}
    page = visit("classes")
    assert field(page, "Text").input_value().startswith("故事紧凑")
    facts = visible_panel(page).locator(".model-facts")
    expect_text(facts, "11.2M parameters · classification · Chinese · accuracy 0.913")
    options = visible_panel(page).locator("option").all_text_contents()
    assert options[1] == "inference · 4 layers of 256 · classification · English, Chinese"
    field(page, "Model").select_option("inference")
    assert field(page, "Text").input_value() == "A man is playing a guitar on stage."
    page.get_by_role("button", name="中文").click()
    expect_text(facts, "4 层，宽 256 · 文本分类 · 英文, 中文")


def fits_window(page: Page) -> bool:
    """Whether nothing is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
