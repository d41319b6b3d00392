"""A browser for tests of the page: Debian's Chromium, driven by Playwright; tests are skipped without it."""

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
# Milliseconds: on a machine with busy cores everything may be slow.
TIMEOUT = 120_000


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Yield a browser. Close it at the end of a module: no other event loop can run in this thread meanwhile."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="the page was not tested in a browser: pip install playwright"
    )
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"the page was not tested in a browser: there is no {CHROMIUM}; apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Browser, locale: str = "en-US", scheme: str = "light", width: int = 1100) -> Iterator[Page]:
    """Yield a page with its own session; JavaScript errors fail the test."""
    context = browser.new_context(locale=locale, color_scheme=scheme, viewport={"width": width, "height": 800})
    context.set_default_timeout(TIMEOUT)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console", lambda message: errors.append(message.text) if is_page_error(message.type, message.text) else None
    )
    try:
        yield page
    finally:
        context.close()
    assert errors == []


def is_page_error(kind: str, text: str) -> bool:
    """Whether a console message is an error of the page: the browser also logs error statuses, which it handles."""
    return kind == "error" and not text.startswith("Failed to load resource")
