"""`cache_hint`, `cache_ttl` and /cache/hint: what clients say of what comes after a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixlm.assembly import AsyncEngine
from radixlm.core.request import Hint
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.insight.recorder import recording
from radixlm.sim.calls import Problems
from radixlm.sim.sources import TraceSource
from tests.server_support import Client, refused

SAID: tuple[tuple[dict[str, Any], Hint], ...] = (
    ({}, Hint.NONE),
    ({"cache_hint": "tool_running"}, Hint.TOOL_RUNNING),
    ({"cache_hint": "session_end", "cache_ttl": 9}, Hint.SESSION_END),
    ({"cache_hint": "subagent_done"}, Hint.SUBAGENT_DONE),
    ({"cache_ttl": 60}, Hint.SHORT_LIVED),
    ({"cache_ttl": 3600}, Hint.LONG_LIVED),
)


def test_what_is_said_reaches_the_engine_and_the_trace(engine: AsyncEngine, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    marked = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a b c", "cache_control": {"type": "ephemeral"}}],
        }
    ]
    with recording(ServerConfig(record_trace=str(path))) as made:
        client = Client(engine, recorder=made)
        for fields, _ in SAID:
            client.complete("hello", max_tokens=2, ignore_eos=True, **fields)
        client.post("/v1/chat/completions", messages=marked, max_tokens=2, ignore_eos=True)
    problems = Problems()
    sessions = list(TraceSource(str(path)).open(problems))
    assert not problems.count
    assert [session.calls[0].hint for session in sessions] == [
        *(hint for _, hint in SAID),
        Hint.MARKED,
    ]


@pytest.mark.parametrize(
    ("field", "value"), [("cache_hint", "marked"), ("cache_hint", 3), ("cache_ttl", 0)]
)
def test_other_hints_are_refused(engine: AsyncEngine, field: str, value: object) -> None:
    answer = Client(engine).post("/v1/completions", prompt="hello", **{field: value})
    assert field in refused(answer)["message"]


def test_a_hint_may_come_later_for_any_route_s_prompt(engine: AsyncEngine) -> None:
    client = Client(engine)
    prompt = "a hint that comes after the answer"
    client.complete(prompt, max_tokens=2)
    tokens = engine.tokenizer.encode(prompt).size
    answer = client.post("/cache/hint", prompt=prompt, cache_hint="session_end")
    assert answer.json() == {"cached_tokens": [tokens]}
    messages = [{"role": "user", "content": "never asked"}]
    later = client.post("/cache/hint", messages=messages, cache_ttl=60)
    assert later.json()["cached_tokens"][0] < 30
    assert "cache_hint" in refused(client.post("/cache/hint", prompt=prompt))["message"]
