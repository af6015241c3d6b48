"""A headless Chromium for tests, pictures and measurements of the page: Playwright drives it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# What distributions call it; without one, the one that `playwright install chromium` fetched.
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_WAIT_MS = 60_000

WIDTH, HEIGHT = 1440, 900


class NoBrowserError(Exception):
    """There is no Chromium to drive, and what to do about it."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser until the block ends. Raises NoBrowserError."""
    try:
        from playwright.sync_api import Error, sync_playwright  # noqa: PLC0415
    except ImportError:
        raise NoBrowserError("no Playwright: pip install playwright") from None
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, _NAMES)), None)
        try:
            # Chromium's own sandbox needs rights that containers do not give.
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Error as error:
            raise NoBrowserError(
                f"no Chromium: apt install chromium, or playwright install chromium ({error})"
            ) from None
        try:
            yield browser
        finally:
            browser.close()


def opened(browser: Browser, url: str, theme: str = "light", key: str | None = None) -> Page:
    """A new page on a server's live tree, once it follows. theme: light or dark."""
    dark = theme == "dark"
    page = browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark" if dark else "light"
    )
    page.set_default_timeout(_WAIT_MS)
    page.goto(f"{url}/ui")
    if key is not None:
        page.fill("#gate-key", key)
        page.press("#gate-key", "Enter")
    page.wait_for_selector("#link[data-state=live]")
    page.wait_for_selector("#loads button")
    return page


def fire(page: Page, load: str) -> str:
    """Press a sample load's button, wait for its end; what the page says then."""
    button = f"[data-load={load}]"
    page.click(button)
    told = page.wait_for_selector(f"{button} + p:is([data-state=done], [data-state=failed])")
    assert told is not None
    return told.text_content() or ""
