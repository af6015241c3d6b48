"""What the page shows, beside what the cache says."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.server_support import until


def tree(url: str, **query: Any) -> dict[str, Any]:
    return httpx.get(f"{url}/cache/tree", params=query, timeout=30).json()


def number(page: Any, name: str) -> int:
    return int(page.get_attribute(f"#n-{name}", "data-value"))


def wait(page: Any, condition: str) -> None:
    """Until an expression holds; Playwright's own way to wait needs what the policy forbids."""
    assert until(lambda: page.evaluate(condition), 30), condition


def cached(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes that are no ghosts."""
    return [node for node in told["nodes"] if node["state"] != "ghost"]


def agrees(page: Any, url: str) -> dict[str, Any]:
    """Wait until the page shows the newest version; every number of it is the cache's."""
    told = tree(url)
    wait(page, f"document.body.dataset.version === '{told['version']}'")
    wait(page, "document.getElementById('n-running').dataset.value === '0'")
    page.wait_for_timeout(1200)  # the table follows each second
    totals = told["totals"]
    assert number(page, "nodes") == totals["nodes"]
    assert number(page, "pool") == totals["capacity"] - totals["free"]
    assert int(page.get_attribute("#canvas", "data-bars")) == len(cached(told))
    heaviest = sorted((node["tokens"] for node in told["nodes"]), reverse=True)[:20]
    cells = page.locator("#table tbody td:nth-child(2)").all_text_contents()
    assert [int(cell.replace(",", "")) for cell in cells] == [size for size in heaviest if size]
    return told


def snapshot(told: dict[str, Any]) -> str:
    """A stream's beginning, which tells of this tree."""
    return f"event: snapshot\ndata: {json.dumps({**told, 'seq': 1, 'dropped': 0})}\n\n"
