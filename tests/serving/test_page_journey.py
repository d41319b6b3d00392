"""The page in a real browser against the real server: from a key to an answer in every tab."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from page_browser import a_browser, a_page
from running import started

from bertworks.inference.model import load

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = "a-key-for-the-journey"
TABS = ["blanks", "classes", "entities", "answers", "choices", "vectors", "input", "attention", "why"]


def write_run(folder: Path) -> None:
    """Write the record of a run as it stands in the middle of its work."""
    folder.mkdir()
    (folder / "recipe.toml").write_text("budget = '10m'\n")
    common = {"phase": "32", "losses": {"masked": 4.5, "pair": 0.6}}
    step = {"kind": "step", "step": 7, **common, "rate": 0.001, "seconds": 30.0, "pieces": 900, "grad_norm": 1.0}
    held_out = {"kind": "held_out", "step": 7, **common, "perplexity": 90.0, "accuracy": 0.25, "pair_accuracy": 0.5}
    sample = {"kind": "sample", "step": 7, "text": "the [MASK] sat.", "filled": [[["cat", 0.75], ["dog", 0.125]]]}
    (folder / "metrics.jsonl").write_text(f"{json.dumps(step)}\n{json.dumps(held_out)}\n")
    (folder / "samples.jsonl").write_text(f"{json.dumps(sample)}\n")


def show_every_tab(page: Page) -> None:
    for tab in TABS:
        page.locator(f"#tab-{tab}").click()
        panel = page.locator(f"#panel-{tab}")
        panel.locator(".chip").first.click()
        # An answer has a foot, a refusal a sentence.
        panel.locator(".facts, .error:not(:empty)").first.wait_for()
        assert panel.locator(".error").first.inner_text() == "", tab
        assert panel.locator(".status").inner_text(), tab


def test_the_page_shows_what_the_served_models_say(folders: dict[str, Path], tmp_path: Path):
    (tmp_path / "keys").write_text(f"{KEY}\n")
    write_run(tmp_path / "run")
    models = [f"{name}={folder}" for name, folder in folders.items()]
    options = ["--api-key-file", "keys", "--runs", "small=run"]
    with (
        a_browser() as browser,
        started(*models, *options, folder=tmp_path) as (_, address),
        a_page(browser) as page,
    ):
        page.goto(address)
        page.get_by_label("Key").fill(KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=tab]")
        show_every_tab(page)
        page.locator("#panel-attention .linked").wait_for(state="attached")

        page.locator("#tab-classes").click()
        text = page.locator("#panel-classes textarea").first.input_value()
        shown = dict(
            zip(
                page.locator("#panel-classes .bar-name").all_inner_texts(),
                page.locator("#panel-classes .bar-share").all_inner_texts(),
                strict=True,
            )
        )
        (prediction,) = load(folders["classify"]).predict([text])
        assert shown == {label: f"{share:.1%}" for label, share in prediction.probabilities.items()}

        page.locator("#tab-runs").click()
        page.locator("#panel-runs .chart").first.wait_for()
        # ten minutes less the thirty seconds that were spent
        page.get_by_text(re.compile("step 7 · 10 min left")).wait_for()
        assert page.locator("#panel-runs .samples mark").inner_text() == "cat"
