"""/cache/explain: of every route's body what that route would learn, without running it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from radixlm.assembly import AsyncEngine
from tests.server_support import Client, refused

Body = dict[str, Any]

SYSTEM = "It is {}. You are a helper."
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
RESPONSE, MESSAGES, GENERATE = "/v1/responses", "/v1/messages", "/generate"
TOOL = {"type": "object", "properties": {"city": {"type": "string"}}}


def user(text: str) -> Body:
    return {"role": "user", "content": text}


def body_of(route: str, day: str) -> Body:
    """A body that only this route takes as it is, but for a chat's."""
    system = SYSTEM.format(day)
    match route:
        case "/v1/chat/completions":
            return {
                "messages": [{"role": "system", "content": system}, user("Hi")],
                "max_tokens": 2,
            }
        case "/v1/completions":
            return {"prompt": [system, "Hi"], "max_tokens": 2, "echo": True}
        case "/v1/responses":
            form = {"format": {"type": "text"}}
            return {"instructions": system, "input": "Hi", "text": form, "max_output_tokens": 2}
        case "/v1/messages":
            return {
                "system": [
                    {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
                ],
                "messages": [user("Hi"), user("there")],
                "tools": [{"name": "weather", "input_schema": TOOL}],
                "max_tokens": 2,
            }
    return {"text": [system, "Hi"], "sampling_params": {"max_new_tokens": 2}}


ROUTES = (CHAT, COMPLETION, RESPONSE, MESSAGES, GENERATE)


def explained(client: Client, **body: Any) -> list[Body]:
    answer = client.post("/cache/explain", **body)
    assert answer.status_code == 200, answer.text
    reports: list[Body] = answer.json()["reports"]
    return reports


def learnt(client: Client, route: str, body: Body) -> list[Body]:
    """What the route itself tells, when it runs the body."""
    answer = client.post(route, **body, cache_report=True)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    if route == GENERATE:
        return [each["meta_info"]["cache_report"] for each in told]
    report = told["cache_report"]
    return report if isinstance(report, list) else [report]


@pytest.mark.parametrize("route", ROUTES)
def test_as_the_request_would_learn_it(engine: AsyncEngine, route: str) -> None:
    client = Client(engine)
    assert client.post(route, **body_of(route, "Monday")).status_code == 200
    body = body_of(route, "Tuesday")
    before = asyncio.run(engine.snapshot())
    told = explained(client, **body, route=route)
    if route != MESSAGES:  # the only one that has to say so
        assert explained(client, **body) == told
    assert asyncio.run(engine.snapshot()) == before
    assert "is [Monday.|Tuesday.] You" in told[0]["divergence"]["context"]
    assert told == learnt(client, route, body)


def test_a_response_that_is_continued(engine: AsyncEngine) -> None:
    client = Client(engine)
    first = client.post(RESPONSE, input="Hi", max_output_tokens=4).json()["id"]
    body = {"previous_response_id": first, "input": "And?", "max_output_tokens": 2}
    told = explained(client, **body)
    assert told[0]["cached_tokens"]["device"] > 10
    assert told == learnt(client, RESPONSE, body)
    error = refused(client.post("/cache/explain", previous_response_id="resp_none"), 404)
    assert error["param"] == "previous_response_id"


def test_messages_that_name_no_route_are_a_chat(engine: AsyncEngine) -> None:
    """They may be of both, and are two prompts then: /v1/messages makes one turn of these."""
    client = Client(engine)
    body = {"messages": [user("Hi"), user("there")], "max_tokens": 2}
    [chat], [other] = explained(client, **body), explained(client, **body, route=MESSAGES)
    assert chat == explained(client, **body, route=CHAT)[0]
    assert chat["prompt_tokens"] > other["prompt_tokens"]


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"model": None}, "the body holds no prompt: give one of messages, prompt, input, ", None),
        (
            {"messages": [user("Hi")], "prompt": "x"},
            "messages and prompt are fields of different routes: give one of them, or name ",
            "prompt",
        ),
        ({"input": "Hi", "text": "Hi"}, "input and text are fields of different routes", "text"),
        ({"text": {"format": {"type": "text"}}}, "the body holds no prompt", None),
        ({"prompt": "x", "route": "/tokenize"}, "route is one of /v1/chat/completions, ", "route"),
        ({"prompt": "x", "route": 3}, "route is one of ", "route"),
        ({"prompt": "x", "route": GENERATE}, "prompt is not a field of this request", "prompt"),
        (
            body_of(MESSAGES, "Monday"),
            "it was read as a body of /v1/chat/completions: if it is another's, name that in ",
            None,
        ),
        ({"messages": [user("Hi")], "route": MESSAGES}, "max_tokens: Field required", "max_tokens"),
        ({"input": [], "route": RESPONSE}, "input is empty", "input"),
        ({"text": "a", "sampling_params": {"n": 0}}, "sampling_params.n: ", "sampling_params.n"),
    ],
)
def test_what_is_no_body_of_a_route(
    engine: AsyncEngine, body: Body, message: str, param: str | None
) -> None:
    error = refused(Client(engine).post("/cache/explain", **body))
    assert message in error["message"]
    assert param in (None, error["param"])


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        (CHAT, {"messages": [user("a b " * 1500)]}, "messages"),
        (COMPLETION, {"prompt": "a b " * 1500}, "prompt"),
        (COMPLETION, {"prompt": [1, 10**6]}, "prompt"),
        (RESPONSE, {"input": "a b " * 1500}, "input"),
        (MESSAGES, {"messages": [user("a b " * 1500)], "max_tokens": 2}, "messages"),
        (GENERATE, {"text": "a b " * 1500}, "text"),
        (GENERATE, {"input_ids": [[1], [1, 10**6]]}, "input_ids"),
    ],
)
def test_what_the_route_refuses_is_refused(
    engine: AsyncEngine, route: str, body: Body, param: str
) -> None:
    client = Client(engine)
    error = refused(client.post("/cache/explain", **body, route=route))
    assert error["param"] == param
    answer = refused(client.post(route, **body))["message"]
    # Anthropic's clients look for words of their own; the route that explains has one shape.
    words = re.findall(r"\d+", answer) if route == MESSAGES else [answer]
    assert all(word in error["message"] for word in words)


def test_token_ids_and_lists(engine: AsyncEngine) -> None:
    client = Client(engine)
    told = explained(client, prompt=[[1, 2], [3, 4]])
    assert [report["index"] for report in told] == [0, 1]
    assert explained(client, input_ids=[[1, 2], [3, 4]]) == told
