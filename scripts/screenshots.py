"""Pictures of the live tree: `python -m scripts.screenshots` writes docs/img/ui-*.png.

It serves the demo model with a small pool, presses the page's own buttons in a headless Chromium,
and takes a picture of what comes of each.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import radixlm
from radixlm.testing.deployed import serving
from radixlm.testing.hybrids import HYBRIDS
from radixlm.testing.reference import make_checkpoint
from scripts.browser import chromium, fire, opened
from scripts.try_clients.server import KEY, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = Path(__file__).parent.parent / "docs" / "img"
# So small that "raw" evicts, and large enough for "agents".
_FLAGS = ("--kv-tokens", "6000")
_DISK = ("--disk-write-policy", "all", "--disk-block-tokens", "32")
# So few that a tree of thoughts needs more.
_STATES = ("--max-mamba-cache-size", "12", "--max-running-requests", "4")
_SETTLE_MS = 2_500
_MIDST = "Number(document.getElementById('n-running').dataset.value) >= 3"


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the pictures go")
    folder: Path = parser.parse_args().folder
    with chromium() as browser:
        for theme, ending in (("light", ""), ("dark", "-dark")):
            for taken in (_take_the_tree, _take_a_miss):
                with _page(browser, theme) as page:
                    taken(page, folder, ending)
            with (
                tempfile.TemporaryDirectory() as disk,
                _page(browser, theme, "--disk-cache", disk, *_DISK) as page,
            ):
                _take_the_disk(page, folder, ending)
        _take_the_replicas(browser, folder)
        _take_the_states(browser, folder)


@contextmanager
def _page(browser: Browser, theme: str, *flags: str) -> Iterator[Page]:
    """Over a server of its own: advice is of the last 15 minutes."""
    with (
        tempfile.TemporaryDirectory() as work,
        served(Path(work), "screenshots", (*_FLAGS, *flags)) as server,
        closing(opened(browser, server.url, theme, key=KEY)) as page,
    ):
        yield page


def _take_the_tree(page: Page, folder: Path, ending: str) -> None:
    _take(page, folder / f"ui-empty{ending}.png")
    page.click("[data-load=agents]")
    while not page.evaluate(_MIDST):
        page.wait_for_timeout(20)
    page.wait_for_timeout(200)
    page.screenshot(path=folder / f"ui-running{ending}.png")
    page.wait_for_selector("[data-load=agents] + p[data-state=done]")
    _take(page, folder / f"ui-agents{ending}.png")
    fire(page, "tree")
    page.click("[data-load=raw]")
    while not page.evaluate("Number(document.getElementById('n-evicted').dataset.value) > 2000"):
        page.wait_for_timeout(20)
    page.screenshot(path=folder / f"ui-evicting{ending}.png")
    page.wait_for_selector("[data-load=raw] + p[data-state=done]")
    _take(page, folder / f"ui-raw{ending}.png")


def _take_a_miss(page: Page, folder: Path, ending: str) -> None:
    fire(page, "clock")
    page.wait_for_selector("#advice-list li:has-text('a date or time')")
    page.locator("#advice").scroll_into_view_if_needed()
    _take(page, folder / f"ui-diverged{ending}.png")


def _take_the_disk(page: Page, folder: Path, ending: str) -> None:
    for load in ("agents", "tree", "raw", "chat"):
        fire(page, load)
    _take(page, folder / f"ui-disk{ending}.png")


def _take_the_replicas(browser: Browser, folder: Path) -> None:
    with (
        serving("deploy", "--replicas", "2", *_FLAGS) as two,
        closing(opened(browser, str(two.client.base_url))) as page,
    ):
        for load in ("agents", "chat", "tree"):
            fire(page, load)
        page.locator("#replicas").scroll_into_view_if_needed()
        _take(page, folder / "ui-replicas.png")


def _take_the_states(browser: Browser, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as model:
        demo = Path(radixlm.__file__).parent / "demo_model"
        fields = {**HYBRIDS["qwen3_5_text"], "vocab_size": 2048, "max_position_embeddings": 4096}
        make_checkpoint(Path(model), "qwen3_5_text", **fields, eos_token_id=2)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(demo / name, model)
        with _page(browser, "light", "--model-path", model, *_STATES) as page:
            for load in ("agents", "tree"):
                fire(page, load)
            page.wait_for_selector("#advice-list li:has-text('--max-mamba-cache-size')")
            page.mouse.move(60, 300)  # what the checkpoint after the agents' system prompt takes
            _take(page, folder / "ui-states.png")


def _take(page: Page, path: Path) -> None:
    page.wait_for_timeout(_SETTLE_MS)
    page.screenshot(path=path)


if __name__ == "__main__":
    main()
