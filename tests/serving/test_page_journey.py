"""The page in a browser with a real server: from the API key to a result in every tab."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from page_browser import open_browser, open_page
from running import start_serve_process

from bertworks.inference.model import load

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = "a-key-for-the-journey"
TABS = ["fill-mask", "classes", "entities", "answers", "choices", "vectors", "input", "attention", "explain"]


def write_run(folder: Path) -> None:
    """Write the records of a run in progress."""
    folder.mkdir()
    (folder / "recipe.toml").write_text("budget = '10m'\n")
    shared = {"step": 7, "phase": "32", "losses": {"mlm": 4.5, "nsp": 0.6}}
    totals = {"learning_rate": 0.001, "seconds": 30.0, "num_tokens": 900, "grad_norm": 1.0}
    step = {"kind": "step", **shared, **totals}
    held_out = {"kind": "held_out", **shared, "perplexity": 90.0, "accuracy": 0.25, "pair_accuracy": 0.5}
    predictions = [[["cat", 0.75], ["dog", 0.125]]]
    sample = {"kind": "sample", "step": 7, "text": "the [MASK] sat.", "predictions": predictions}
    (folder / "metrics.jsonl").write_text(f"{json.dumps(step)}\n{json.dumps(held_out)}\n")
    (folder / "samples.jsonl").write_text(f"{json.dumps(sample)}\n")


def run_every_tab(page: Page) -> None:
    """Run the first example of every tab."""
    for tab in TABS:
        page.locator(f"#tab-{tab}").click()
        panel = page.locator(f"#panel-{tab}")
        panel.locator(".chip").first.click()
        panel.locator(".request-info, .error:not(:empty)").first.wait_for()
        assert panel.locator(".error").first.inner_text() == "", tab
        assert panel.locator(".status").inner_text(), tab


def test_the_page_shows_the_predictions_of_the_served_models(folders: dict[str, Path], tmp_path: Path):
    (tmp_path / "keys").write_text(f"{KEY}\n")
    write_run(tmp_path / "run")
    models = [f"{name}={folder}" for name, folder in folders.items()]
    options = ["--api-key-file", "keys", "--runs", "small=run"]
    with (
        open_browser() as browser,
        start_serve_process(*models, *options, "--precision", "fp32", folder=tmp_path) as (_, address),
        open_page(browser) as page,
    ):
        page.goto(address)
        page.get_by_label("API key").fill(KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=tab]")
        run_every_tab(page)
        page.locator("#panel-attention .token-text").wait_for(state="attached")

        page.locator("#tab-classes").click()
        text = page.locator("#panel-classes textarea").first.input_value()
        shown = dict(
            zip(
                page.locator("#panel-classes .bar-name").all_inner_texts(),
                page.locator("#panel-classes .bar-value").all_inner_texts(),
                strict=True,
            )
        )
        (prediction,) = load(folders["classify"]).predict([text])
        assert shown == {label: f"{probability:.1%}" for label, probability in prediction.probabilities.items()}

        page.locator("#tab-runs").click()
        page.locator("#panel-runs .chart").first.wait_for()
        # ten minutes minus thirty seconds
        page.get_by_text(re.compile("step 7 · 10 min left")).wait_for()
        assert page.locator("#panel-runs .samples mark").inner_text() == "cat"
