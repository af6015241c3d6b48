"""How fluent the live tree is: `python -m benchmarks.ui`. A headless Chromium shows a made-up tree
of 10,000 nodes that changes 50 times a second; counted are the frames that the page draws, and the
time from asking for the page to the first bars on it. All of it runs on the machine's cores:
server, browser, and its drawing without a GPU. It ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.made_up_tree import MadeUpTree, made_up_server
from benchmarks.served import served_here
from scripts.browser import HEIGHT, WIDTH, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_SETTLE_MS = 3_000
# Counts frames by what each begins with, and notes when the first bar was drawn.
_COUNT = """
window.frames_ = []; window.first_ = null;
const { clearRect, fillRect } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.clearRect = function (...place) {
  if (this.canvas.id === "canvas") window.frames_.push(performance.now());
  return clearRect.apply(this, place);
};
CanvasRenderingContext2D.prototype.fillRect = function (...place) {
  if (window.first_ === null && this.canvas.id === "canvas") {
    window.first_ = performance.now();
    CanvasRenderingContext2D.prototype.fillRect = fillRect;
  }
  return fillRect.apply(this, place);
};
"""


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--events", type=float, default=50.0, help="a second")
    parser.add_argument("--changed", type=int, default=20, help="nodes that go and come at once")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    tree = MadeUpTree(options.nodes)
    app = made_up_server(tree, options.events, options.changed)
    with served_here(app) as url, chromium() as browser:
        rows = [_round(browser, url, options.seconds) for _ in range(options.rounds)]
    for row in rows:
        print(
            f"{row['frames_per_second']:5.1f} frames a second, slowest tenth from "
            f"{row['slow_frame_ms']:.0f} ms; first picture after {row['first_picture_ms']:.0f} ms"
        )
    told = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    size = {"nodes": options.nodes, "events_per_second": options.events, "cores": os.cpu_count()}
    print(json.dumps({"benchmark": "ui", **size, **told}))


def _round(browser: Browser, url: str, seconds: float) -> dict[str, float]:
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    page.add_init_script(_COUNT)
    page.goto(f"{url}/ui")
    first = _first_picture(page)
    page.wait_for_timeout(_SETTLE_MS)
    page.evaluate("window.frames_ = []")
    page.wait_for_timeout(1000 * seconds)
    frames = page.evaluate("window.frames_")
    page.close()
    gaps = [after - before for before, after in pairwise(frames)]
    return {
        "frames_per_second": 1000 * len(gaps) / sum(gaps),
        "slow_frame_ms": statistics.quantiles(gaps, n=10)[-1],
        "first_picture_ms": first,
    }


def _first_picture(page: Page) -> float:
    while (first := page.evaluate("window.first_")) is None:
        page.wait_for_timeout(50)
    return float(first)


if __name__ == "__main__":
    main()
