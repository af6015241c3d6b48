"""One engine, server and browser for each file; for each test a page over an empty cache."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from scripts.browser import NoBrowserError, chromium, opened
from tests.server_support import live


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    engine = AsyncEngine.from_config(EngineConfig(kv_tokens=5000))
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def url(engine: AsyncEngine) -> Iterator[str]:
    with live(engine, "demo") as url:
        yield url


@pytest.fixture(scope="module")
def browser(url: str) -> Iterator[Any]:
    try:
        with chromium() as found:
            yield found
    except NoBrowserError as error:
        pytest.skip(str(error))


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """The page over an empty cache. Nothing on it may fail."""
    httpx.post(f"{url}/flush_cache", timeout=30)
    page = opened(browser, url)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    yield page
    page.close()
    assert complaints == []
