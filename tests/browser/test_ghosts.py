"""The page's bars of what is evicted, but remembered: left out until they are asked for."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from scripts.browser import fire
from tests.browser_support import agrees, cached, snapshot, tree, wait
from tests.server_support import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# How many points of the tree have the colour of what was just evicted.
_RED = """() => {
  const canvas = document.getElementById("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let red = 0;
  for (let at = 0; at < data.length; at += 4) red += data[at + 3] && data[at] > data[at + 2] + 40;
  return red;
}"""


def send(url: str, text: str) -> None:
    httpx.post(f"{url}/generate", json={"text": text}, timeout=30)


def wait_for_bars(page: Any, count: int) -> None:
    wait(page, f"document.getElementById('canvas').dataset.bars === '{count}'")


def with_ghosts(page: Any, url: str, text: str) -> dict[str, Any]:
    """Let the page follow a tree in which the nodes that hold this text are ghosts."""
    told = tree(url)
    for node in told["nodes"]:
        if text in node["text"]:
            node |= {"state": "ghost", "resident": 0, "slots": []}
    page.route("**/cache/events*", lambda route: route.fulfill(body=snapshot(told)))
    page.reload()
    wait(page, "document.body.dataset.version !== undefined")
    return told


def test_ghosts_have_bars_only_when_they_are_asked_for(page, url):
    """The page remembers that they were; its numbers are of everything."""
    fire(page, "raw")
    told = agrees(page, url)
    whole, few = len(told["nodes"]), len(cached(told))
    assert few < whole / 2
    box = page.get_by_label("Ghosts")
    assert not box.is_checked()
    box.focus()
    page.keyboard.press("Space")
    wait_for_bars(page, whole)
    page.reload()
    wait_for_bars(page, whole)
    assert box.is_checked()
    page.keyboard.press("g")
    wait_for_bars(page, few)
    page.reload()
    wait_for_bars(page, few)


def test_an_eviction_is_seen_where_ghosts_have_no_bars(page, url):
    """Also where nothing is to move."""
    page.emulate_media(reduced_motion="reduce")
    page.click("[data-load=raw]")
    assert until(lambda: page.evaluate(_RED) > 1000)
    page.wait_for_selector("[data-load=raw] + p[data-state=done]")
    agrees(page, url)
    assert page.evaluate(_RED) == 0


def test_a_ghost_that_is_found_has_a_bar(page, url):
    """This once: it is not remembered as wanted."""
    send(url, "A lighthouse in the fog.")
    fire(page, "raw")
    told = agrees(page, url)
    [lost] = [node for node in told["nodes"] if "lighthouse" in node["text"]]
    assert lost["state"] == "ghost"
    page.fill("#query", "lighthouse")
    page.click("#found button")
    wait_for_bars(page, len(told["nodes"]))
    assert page.is_checked("#ghosts")
    assert page.get_attribute("#node", "data-id") == str(lost["id"])
    page.reload()
    wait_for_bars(page, len(cached(told)))
    assert not page.is_checked("#ghosts")


def test_what_is_opened_while_paused_has_ghosts_as_the_present_has(page, url):
    send(url, "One beginning, a first end")
    send(url, "One beginning, a second end")
    told = with_ghosts(page, url, "second")
    [above] = [node for node in told["nodes"] if node["text"].endswith("One beginning, a")]
    parts = sum(node["parent_id"] == above["id"] for node in told["nodes"])
    whole = len(told["nodes"])
    wait_for_bars(page, whole - 1)
    page.keyboard.press(" ")
    wait(page, "!document.getElementById('past').hidden")
    wait_for_bars(page, whole - 1)
    page.click(f"#table tbody tr:nth-child({_place(told, above)}) button")
    page.click("#node-open")
    wait_for_bars(page, parts)
    page.check("#ghosts")
    wait_for_bars(page, parts + 1)
    page.uncheck("#ghosts")
    wait_for_bars(page, parts)


def _place(told: dict[str, Any], node: dict[str, Any]) -> int:
    """In the table of the heaviest nodes."""
    order = sorted(told["nodes"], key=lambda other: (-other["tokens"], other["id"]))
    return 1 + order.index(node)


def test_what_is_opened_keeps_its_bar_as_a_ghost(page, url):
    send(url, "Opened, and then evicted")
    told = with_ghosts(page, url, "evicted")
    wait_for_bars(page, 0)
    assert page.is_visible("#empty")
    page.keyboard.press(" ")
    page.click("#table tbody button")
    page.click("#node-open")
    assert page.is_checked("#ghosts")
    page.uncheck("#ghosts")
    wait_for_bars(page, sum(node["tokens"] > 0 for node in told["nodes"]))
    page.click("#path button:first-child")
    wait_for_bars(page, 0)
