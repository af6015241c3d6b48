"""What clients ask to be kept of their prompts, on each of the three routes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixlm.assembly import AsyncEngine
from tests.chat_templates import HERMES
from tests.server_support import Client, fake_engine, refused, until

LONG = "You are a careful helper. " * 12
TOOL: dict[str, Any] = {
    "name": "look_up",
    "description": "Finds a word.",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}},
}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@pytest.fixture
def client() -> Client:
    engine, _ = fake_engine(template=HERMES)
    return Client(engine)


def pinned(engine: AsyncEngine) -> int:
    return engine.stats().kv_pinned


def settled(engine: AsyncEngine) -> bool:
    """Nothing runs, and no slot is lost: what is locked is what pins hold."""

    def holds() -> bool:
        stats = engine.stats()
        idle = not stats.running and not stats.waiting and stats.kv_locked == stats.kv_pinned
        return idle and not stats.kv_private and not stats.leaks

    return until(holds)


def tokens(client: Client, content: str) -> int:
    return client.engine.tokenizer.encode(content).size


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def chat(client: Client, system: Any, content: Any = "Hi.", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": content}]
    answer = client.post(CHAT, messages=messages, max_tokens=3, **fields)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def message(client: Client, system: Any = None, content: Any = "Hi.", **fields: Any) -> Any:
    more = {} if system is None else {"system": system}
    messages = fields.pop("messages", [{"role": "user", "content": content}])
    answer = client.post(MESSAGES, messages=messages, max_tokens=3, **more, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]


def marked(ttl: str | None = None) -> dict[str, Any]:
    return {"cache_control": {"type": "ephemeral"} | ({} if ttl is None else {"ttl": ttl})}


def here(**more: Any) -> dict[str, Any]:
    return {"prompt_cache_breakpoint": {"mode": "explicit", **more}}


class TestChat:
    def test_a_marked_part_is_pinned_to_its_end(self, client: Client) -> None:
        usage = chat(client, [text(LONG, **here())])
        assert pinned(client.engine) == tokens(client, f"<|start|>system\n{LONG}")
        assert usage["prompt_tokens_details"]["cache_write_tokens"] == usage["prompt_tokens"]
        again = chat(client, [text(LONG, **here())])
        details = again["prompt_tokens_details"]
        assert details["cached_tokens"] == usage["prompt_tokens"] - 1
        assert details["cache_write_tokens"] == 1
        assert settled(client.engine)

    def test_the_whole_prompt_where_a_lifetime_is_asked_for(self, client: Client) -> None:
        usage = chat(client, LONG, prompt_cache_options={"ttl": "30m"})
        assert pinned(client.engine) == usage["prompt_tokens"]

    @pytest.mark.parametrize(
        "options", [None, {}, {"mode": "implicit"}, {"mode": "explicit", "ttl": "30m"}]
    )
    def test_nothing_where_none_is(self, client: Client, options: Any) -> None:
        chat(client, LONG, prompt_cache_options=options, prompt_cache_retention="24h")
        assert pinned(client.engine) == 0

    def test_the_latest_four_count(self, client: Client) -> None:
        parts = [text(f"part {place}", **here()) for place in range(9)]
        explicit = {"mode": "explicit"}
        for part in parts:  # text before the last four is not kept by a mark of its own
            part["text"] += "x" * 50
        usage = chat(client, "s", parts, prompt_cache_options=explicit)
        assert 0 < pinned(client.engine) < usage["prompt_tokens"]
        assert settled(client.engine)

    def test_a_key_routes_and_does_not_divide(self, client: Client) -> None:
        chat(client, LONG, prompt_cache_key="one")
        usage = chat(client, LONG, prompt_cache_key="two")
        assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"prompt_cache_options": {"ttl": "5m"}}, "prompt_cache_options.ttl"),
            ({"prompt_cache_options": {"mode": "off"}}, "prompt_cache_options.mode"),
            ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
            ({"prompt_cache_options": "24h"}, "prompt_cache_options"),
            ({"prompt_cache_retention": "1y"}, "prompt_cache_retention"),
        ],
    )
    @pytest.mark.parametrize("path", [CHAT, RESPONSES])
    def test_unknown_values(
        self, client: Client, path: str, fields: dict[str, Any], param: str
    ) -> None:
        body = (
            {"input": "Hi."}
            if path == RESPONSES
            else {"messages": [{"role": "user", "content": "Hi."}]}
        )
        assert refused(client.post(path, **body, **fields))["param"] == param

    def test_an_unknown_mark(self, client: Client) -> None:
        error = refused(client.chat([text("Hi.", prompt_cache_breakpoint={"mode": "implicit"})]))
        assert error["param"] == "messages[0].content[0].prompt_cache_breakpoint.mode"


class TestResponses:
    def test_a_marked_part_for_so_long(self, client: Client) -> None:
        part = {"type": "input_text", "text": LONG, **here(ttl="12h")}
        body = {"input": [{"role": "user", "content": [part]}], "max_output_tokens": 3}
        usage = client.post(RESPONSES, **body).json()["usage"]
        kept = pinned(client.engine)
        assert tokens(client, f"<|start|>user\n{LONG}") == kept < usage["input_tokens"]
        assert usage["input_tokens_details"] == {
            "cached_tokens": 0,
            "cache_write_tokens": usage["input_tokens"],
            "cache_write_tokens_details": {"ttl_30m_tokens": 0, "ttl_12h_tokens": kept},
        }
        again = client.post(RESPONSES, **body).json()["usage"]["input_tokens_details"]
        assert again["cached_tokens"] == usage["input_tokens"] - 1
        assert again["cache_write_tokens_details"] == {"ttl_30m_tokens": 0, "ttl_12h_tokens": 0}
        assert settled(client.engine)


class TestMessages:
    def test_written_then_read(self, client: Client) -> None:
        usage = message(client, [text(LONG, **marked())])
        kept = pinned(client.engine)
        assert kept == tokens(client, f"<|start|>system\n{LONG}")
        assert usage["cache_creation_input_tokens"] == kept
        assert usage["cache_creation"] == {
            "ephemeral_5m_input_tokens": kept,
            "ephemeral_1h_input_tokens": 0,
        }
        total = usage["input_tokens"] + kept
        again = message(client, [text(LONG, **marked())])
        assert again["cache_read_input_tokens"] == total - 1
        assert (again["input_tokens"], again["cache_creation_input_tokens"]) == (1, 0)
        assert settled(client.engine)

    def test_each_part_for_its_time(self, client: Client) -> None:
        usage = message(client, [text(LONG, **marked("1h"))], [text("Hello there", **marked())])
        creation = usage["cache_creation"]
        long = tokens(client, f"<|start|>system\n{LONG}")
        assert creation["ephemeral_1h_input_tokens"] == long
        assert 0 < creation["ephemeral_5m_input_tokens"] < 60
        assert sum(creation.values()) == pinned(client.engine)

    def test_the_last_block_by_itself(self, client: Client) -> None:
        usage = message(client, LONG, "Hello there", **marked())
        kept = usage["cache_creation_input_tokens"]
        assert kept == pinned(client.engine) > tokens(client, LONG)

    def test_tools(self, client: Client) -> None:
        usage = message(client, "Be brief.", tools=[{**TOOL, **marked()}])
        assert 100 < usage["cache_creation_input_tokens"] == pinned(client.engine)

    def test_calls_and_results(self, client: Client) -> None:
        call = {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"word": "radix"}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "a root"}
        kept = []
        for marks in ({}, marked()), (marked(), {}):
            messages = [
                {"role": "user", "content": "Hi."},
                {"role": "assistant", "content": [{**call, **marks[1]}]},
                {"role": "user", "content": [{**result, **marks[0]}]},
            ]
            message(client, messages=messages, tools=[TOOL])
            kept.append(pinned(client.engine))
        assert 0 < kept[0] < kept[1]

    @pytest.mark.parametrize(
        ("fields", "word"),
        [
            ({"cache_control": {"type": "persistent"}}, "cache_control.type"),
            ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl"),
            ({"system": [text("", **marked())]}, "empty text blocks"),
            ({"system": [text("s", **marked())] * 5}, "5 places, at most 4"),
            ({"system": [text("s", **marked())] * 4, **marked()}, "5 places, at most 4"),
            ({"system": [text("s", **marked()), text("t", **marked("1h"))]}, "'1h' must not come"),
        ],
    )
    def test_what_is_refused(self, client: Client, fields: dict[str, Any], word: str) -> None:
        body = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 3, **fields}
        error = refused(client.post(MESSAGES, **body))
        assert error["type"] == "invalid_request_error"
        assert word in error["message"]
        assert settled(client.engine)
        assert pinned(client.engine) == 0

    def test_thoughts_can_not_be_marked(self, client: Client) -> None:
        thought = {"type": "thinking", "thinking": "hm", "signature": "s", **marked()}
        messages = [
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": [thought, text("Yes.")]},
            {"role": "user", "content": "So?"},
        ]
        error = refused(client.post(MESSAGES, messages=messages, max_tokens=3))
        assert "cache_control" in error["message"]


def test_over_the_budget_the_request_is_answered_and_nothing_is_kept() -> None:
    """The pool has 4000 slots, half of them may be pinned."""
    engine, _ = fake_engine(template=HERMES)
    client = Client(engine)
    message(client, [text("a" * 1200, **marked())])
    first = pinned(engine)
    usage = message(client, [text("b" * 1200, **marked())])
    assert pinned(engine) == first  # the oldest yielded
    written = usage["cache_creation_input_tokens"]
    assert written + usage["cache_read_input_tokens"] == first
    assert settled(engine)


@pytest.mark.parametrize("isolated", [False, True])
def test_several_keys_and_their_pins(isolated: bool) -> None:
    """With --isolate-by-key each writes its own; what is read was never another's."""
    engine, _ = fake_engine(template=HERMES)
    client = Client(engine, api_key=("one", "two"), isolate_by_key=isolated)
    body = {
        "system": [text(LONG, **marked())],
        "messages": [{"role": "user", "content": "Hi."}],
        "max_tokens": 3,
        "stream": True,
    }

    def usage(key: str) -> dict[str, int]:
        headers = {"Authorization": f"Bearer {key}"}
        answer = client.request("POST", MESSAGES, json=body, headers=headers)
        start = next(line for line in answer.text.split("\n") if '"message_start"' in line[5:])
        told: dict[str, int] = json.loads(start.removeprefix("data: "))["message"]["usage"]
        return told

    first, other, again = usage("one"), usage("two"), usage("one")
    kept = first["cache_creation_input_tokens"]
    assert kept == tokens(client, f"<|start|>system\n{LONG}")
    assert other["cache_creation_input_tokens"] == (kept if isolated else 0)
    assert (other["cache_read_input_tokens"] > kept) is not isolated
    assert again["cache_creation_input_tokens"] == 0
    assert again["cache_read_input_tokens"] > kept
    assert pinned(engine) == (2 * kept if isolated else kept)
    assert settled(engine)
