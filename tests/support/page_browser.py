"""A real browser for tests of the page: Debian's Chromium, driven by Playwright; a test is skipped without."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
# A machine whose cores are busy with other things may take long for little.
PATIENCE = 120_000


@contextmanager
def a_browser() -> Iterator[Browser]:
    """Yield a browser. Not to be kept longer than a module: no other event loop can run in this thread meanwhile."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="the page was not tried in a browser: pip install playwright"
    )
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"the page was not tried in a browser: there is no {CHROMIUM}; apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def a_page(browser: Browser, locale: str = "en-US", scheme: str = "light", width: int = 1100) -> Iterator[Page]:
    """Yield a page of a visitor of its own; what the page itself does wrong fails the test."""
    context = browser.new_context(locale=locale, color_scheme=scheme, viewport={"width": width, "height": 800})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if is_wrong(said.type, said.text) else None)
    try:
        yield page
    finally:
        context.close()
    assert wrong == []


def is_wrong(kind: str, text: str) -> bool:
    """A status that the page handles is logged by the browser as well; everything else is the page's own mistake."""
    return kind == "error" and not text.startswith("Failed to load resource")
