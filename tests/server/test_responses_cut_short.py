"""/v1/responses: streams that do not come to their end."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from openai.types.responses import ResponseStreamEvent

from tests.published import strictly
from tests.server_support import fake_engine, idle_and_whole, live, until


def assert_numbered(lines: list[str]) -> None:
    """No number is missing, the last event's neither."""
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))


def test_a_client_that_leaves_holds_nothing():
    engine, _ = fake_engine(seconds=0.01)
    with live(engine) as url:
        body = {"input": "hi", "max_output_tokens": 1000, "stream": True}
        with httpx.stream("POST", f"{url}/v1/responses", json=body) as answer:
            lines = answer.iter_lines()
            while "output_text.delta" not in next(lines):
                pass
        assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def test_a_stream_that_breaks_says_so():
    engine, runner = fake_engine(seconds=0.01)
    with live(engine) as url:
        body = {"input": "hi", "max_output_tokens": 1000, "stream": True}
        with httpx.stream("POST", f"{url}/v1/responses", json=body) as answer:
            lines = []
            for line in answer.iter_lines():
                lines.append(line)
                runner.broken |= "output_text.delta" in line
    assert_numbered(lines)
    *_, last = [line for line in lines if line]
    event = strictly(ResponseStreamEvent, last.removeprefix("data: "))
    assert event.type == "response.failed"
    assert event.response.status == "failed"
    assert event.response.output[0].status == "incomplete"
    assert json.loads(last.removeprefix("data: "))["response"]["store"] is False
    asyncio.run(engine.close())


@pytest.mark.slow
def test_a_request_that_takes_too_long_ends_its_stream():
    engine, _ = fake_engine(seconds=0.02)
    with live(engine, request_timeout=0.5) as url:
        body = {"input": "hi", "max_output_tokens": 1000, "stream": True}
        text = httpx.post(f"{url}/v1/responses", json=body).text
    assert_numbered(text.splitlines())
    last = text.rstrip("\n").rpartition("\n")[2]
    event = strictly(ResponseStreamEvent, last.removeprefix("data: "))
    assert "--request-timeout" in event.response.error.message
    asyncio.run(engine.close())
