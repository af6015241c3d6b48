"""What is in host memory and on disk, in the page: colours of their own, a stripe, numbers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.browser_support import number, snapshot, tree, wait

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# How many points of the tree have a colour of the style sheet.
_POINTS = """(name) => {
  const wanted = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const canvas = document.getElementById("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) {
    const hex = [0, 1, 2].map((part) => data[at + part].toString(16).padStart(2, "0")).join("");
    found += `#${hex}` === wanted;
  }
  return found;
}"""


def points(page: Any) -> tuple[bool, bool]:
    """Whether something has the colour of what is on disk alone, and of what is there too."""
    page.wait_for_timeout(1200)  # the bars have come to rest
    return page.evaluate(_POINTS, "disk") > 200, page.evaluate(_POINTS, "on-disk") > 50


def test_what_is_on_disk_has_its_own_colours(page, url):
    for end in ("first", "second"):
        httpx.post(f"{url}/generate", json={"text": f"One beginning, a {end} end"}, timeout=30)
    shown = tree(url)
    wait(page, f"document.body.dataset.version === '{shown['version']}'")
    assert points(page) == (False, False)
    assert page.is_hidden("text=On disk")
    assert page.is_hidden("#legend .on-disk")
    for node in shown["nodes"]:
        if "second" in node["text"]:
            node |= {"state": "disk", "resident": 0, "slots": [], "on_disk": node["tokens"]}
        elif "first" in node["text"]:
            node["on_disk"] = node["tokens"]
    shown["totals"] |= {"disk": 64, "disk_capacity": 4_000}
    page.route("**/cache/events*", lambda route: route.fulfill(body=snapshot(shown)))
    page.reload()
    bars = len(shown["nodes"])  # those that are on disk are no ghosts
    wait(page, f"document.getElementById('canvas').dataset.bars === '{bars}'")
    assert points(page) == (True, True)
    assert number(page, "disk") == 64
    assert page.text_content("#n-disk-of") == "of 4,000 tokens"
    assert page.is_visible("#legend .on-disk")
    assert page.is_hidden("text=Host memory")
    assert page.is_hidden("#legend .host")


def test_what_is_in_host_memory_has_its_own_colour(page, url):
    """Where it is on disk as well it has the stripe."""
    for end in ("first", "second"):
        httpx.post(f"{url}/generate", json={"text": f"Another beginning, a {end} end"}, timeout=30)
    shown = tree(url)
    for node in shown["nodes"]:
        if "second" in node["text"]:
            node |= {"state": "host", "resident": 0, "slots": [], "on_host": node["tokens"]}
    shown["totals"] |= {"host": 32, "host_capacity": 4_000}
    page.route("**/cache/events*", lambda route: route.fulfill(body=snapshot(shown)))
    page.reload()
    wait(page, f"document.getElementById('canvas').dataset.bars === '{len(shown['nodes'])}'")
    page.wait_for_timeout(1200)
    assert page.evaluate(_POINTS, "host") > 200
    assert points(page) == (False, False)
    assert number(page, "host") == 32
    assert page.text_content("#n-host-of") == "of 4,000 tokens"
    assert page.is_visible("#legend .host")
    assert page.is_hidden("#legend .on-disk")
