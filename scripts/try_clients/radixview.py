"""RadixView, a page of SGLang's cache: it follows the KV events, and asks for their texts."""

from __future__ import annotations

import time
from typing import Any

import httpx

from radixlm.testing.ports import free_port
from scripts.try_clients.environments import python_of
from scripts.try_clients.place import Place
from scripts.try_clients.server import KEY

_PATIENCE = 30


def use_radixview(place: Place) -> str:
    port = free_port()
    page = f"http://127.0.0.1:{port}"
    command = str(python_of("radixview").with_name("radixview"))
    flags = ["--server", place.url, "--api-key", KEY, "--view-port", str(port)]
    with place.beside([command, *flags], page):
        place.drive(None, "openai_turns", "chat")
        found = _search(page, "capital")
    assert found, "the page does not find a word that was asked"
    return "turns by the openai package while its page follows; it finds their text"


def _search(page: str, text: str) -> Any:
    """The nodes that the page finds, once there are some; none after a while."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        found = httpx.get(f"{page}/api/search", params={"q": text}, timeout=10).json()["ids"]
        if found:
            return found
        time.sleep(0.2)
    return []
