"""Six scripted causes of a miss on the demo model, each with its reason, place and advice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from tests.server_support import Client

SYSTEM = "You are a helper in a shop for bicycles. You answer in one short sentence."


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    made = AsyncEngine.from_config(EngineConfig(kv_tokens=1_000))
    yield made
    asyncio.run(made.close())


def said(*messages: str, system: str = SYSTEM) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(messages)
    turns = [{"role": role, "content": text} for role, text in zip(roles, messages, strict=False)]
    return [{"role": "system", "content": system}, *turns]


def chat(client: Client, messages: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 1, "temperature": 0, "cache_report": True}
    answer = client.post("/v1/chat/completions", **body, **fields)
    assert answer.status_code == 200, answer.text
    report: dict[str, Any] = answer.json()["cache_report"]
    return report


def complete(client: Client, prompt: str) -> dict[str, Any]:
    answer = client.complete(prompt, max_tokens=1, temperature=0, cache_report=True)
    assert answer.status_code == 200, answer.text
    report: dict[str, Any] = answer.json()["cache_report"]
    return report


def advised(client: Client, cause: str) -> dict[str, Any]:
    """The entry of one cause; shown with pytest -s."""
    entries = client.get("/cache/advice").json()["advice"]
    [entry] = [each for each in entries if each["cause"] == cause]
    print(f"\n/cache/advice   {entry['text']}")
    assert isinstance(entry, dict)
    return entry


def told(report: dict[str, Any]) -> None:
    print(f"\ncache_report    {report['text']}\n                advice: {report['advice']}")


def test_a_date_in_the_system_prompt(client: Client) -> None:
    for day in (19, 20, 21):
        system = f"Today is 2026-11-{day} 14:05. {SYSTEM}"
        report = chat(client, said("Do you have bells?", system=system))
    told(report)
    parted = report["divergence"]
    assert (report["reason"], report["cause"]) == ("diverged", "date_time")
    assert (parted["message_index"], parted["role"]) == (0, "system")
    assert (parted["cached"], parted["requested"]) == ("2026-11-20", "2026-11-21")
    assert "day is [2026-11-20|2026-11-21] 14:05" in parted["context"]
    assert report["advice"] == "move it to the end of the system prompt"
    entry = advised(client, "date_time")
    assert (entry["requests"], entry["message_index"], entry["role"]) == (2, 0, "system")
    assert entry["text"].startswith("2 requests diverge at message 0 (system), token")
    assert "a date or time changes per request" in entry["text"]
    assert entry["text"].endswith("move it to the end of the system prompt.")


def tool(name: str, what: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"id": {"type": "integer"}}}
    function = {"name": name, "description": what, "parameters": parameters}
    return {"type": "function", "function": function}


def test_reordered_tools(client: Client) -> None:
    tools = [tool("find_bicycle", "Finds a bicycle."), tool("price_of", "Tells a price.")]
    chat(client, said("Do you have bells?"), tools=tools)
    report = chat(client, said("Do you have bells?"), tools=tools[::-1])
    told(report)
    assert (report["reason"], report["cause"]) == ("diverged", "reordered")
    assert (report["divergence"]["message_index"], report["divergence"]["role"]) == (None, "tools")
    assert "same order" in report["advice"]
    assert advised(client, "reordered")["requests"] == 1


def test_edited_history(client: Client) -> None:
    answer = "Yes, we have bells of brass and of steel."
    chat(client, said("Do you have bells?", answer, "And lamps?"))
    edited = answer.replace("brass", "gold")
    report = chat(client, said("Do you have bells?", edited, "And lamps?", "Yes.", "How much?"))
    told(report)
    parted = report["divergence"]
    assert (report["reason"], report["cause"]) == ("diverged", "edited_history")
    assert (parted["message_index"], parted["role"]) == (2, "assistant")
    assert (parted["cached"], parted["requested"]) == ("brass", "gold")
    assert advised(client, "edited_history")["message_index"] == 2


def test_evicted(client: Client) -> None:
    first = said("Do you have bells? " + "Please look everywhere. " * 20)
    chat(client, first)
    for shop in range(12):
        complete(client, f"{shop} " + f"This is the story of shop {shop} and its bells. " * 10)
    report = chat(client, first)
    told(report)
    assert (report["reason"], report["cause"]) == ("evicted", "evicted")
    assert "divergence" not in report
    assert report["evicted_seconds_ago"] >= 0
    assert "--kv-tokens" in report["advice"]
    assert advised(client, "evicted")["tokens"] == report["evicted_tokens"] == 194


def test_white_space_re_tokenized(client: Client) -> None:
    complete(client, "The bell of the bicycle is made of ")
    report = complete(client, "The bell of the bicycle is made of brass and steel.")
    told(report)
    assert (report["reason"], report["cause"]) == ("diverged", "retokenized")
    assert report["divergence"]["retokenized"] is True
    assert "white space" in report["advice"]
    assert advised(client, "retokenized")["requests"] == 1


def test_first_seen(client: Client) -> None:
    report = chat(client, said("Do you have bells?"))
    told(report)
    assert (report["reason"], report["cause"]) == ("new", "first_seen")
    assert report["computed_tokens"] == report["prompt_tokens"]
    assert report["advice"] is None
    assert advised(client, "first_seen")["share"] == 1.0
    again = chat(client, said("Do you have bells?"))
    assert (again["reason"], again["cause"]) == ("last_token", "nothing_missed")
    more = chat(client, said("Do you have bells?", "Yes.", "And lamps?"))
    assert more["cause"] == "first_seen"
    known = more["cached_tokens"]["device"]
    assert f"from token {known} on nothing like it was cached before" in more["text"]
