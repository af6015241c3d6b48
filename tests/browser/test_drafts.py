"""The page's number of steps that drafts have saved, by source."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from tests.browser_support import wait

pytestmark = [pytest.mark.browser, pytest.mark.slow]

_ASKED = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    engine = AsyncEngine.from_config(EngineConfig(kv_tokens=5000, speculative_algorithm="tree"))
    yield engine
    asyncio.run(engine.close())


def test_what_drafts_have_saved_is_shown_once_there_are_some(page, url):
    """As usage has it: the second answer is drafted from the first."""
    assert not page.locator(".of-drafts").is_visible()
    answers = [
        httpx.post(f"{url}/v1/completions", json=_ASKED, timeout=60).json()["usage"]
        for _ in range(2)
    ]
    drafts = [each["completion_tokens_details"]["drafts"].get("tree", {}) for each in answers]
    right = sum(each.get("accepted_tokens", 0) for each in drafts)
    of = sum(each.get("drafted_tokens", 0) for each in drafts)
    assert right > 20
    wait(page, f"document.getElementById('n-drafts').dataset.value === '{right}'")
    assert page.locator(".of-drafts").is_visible()
    assert page.locator("#n-drafts-of").text_content() == f"tree {right} of {of}"
