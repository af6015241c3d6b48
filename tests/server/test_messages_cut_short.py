"""/v1/messages: streams that do not come to their end."""

from __future__ import annotations

import asyncio

import anthropic
import httpx
import pytest
from anthropic.types.shared import ErrorResponse

from tests.messages_support import USER, served
from tests.published import strictly
from tests.server_support import (
    NAME,
    fake_engine,
    live,
)


def test_a_client_that_leaves_holds_nothing():
    with (
        served(seconds=0.01) as client,
        client.messages.stream(model=NAME, max_tokens=1000, messages=[USER]) as stream,
    ):
        next(iter(stream.text_stream))


def test_a_stream_that_breaks_says_so():
    engine, runner = fake_engine(seconds=0.01)
    with (
        live(engine) as url,
        anthropic.Anthropic(base_url=url, api_key="-", max_retries=0) as client,
        client.messages.stream(model=NAME, max_tokens=1000, messages=[USER]) as stream,
    ):
        next(iter(stream.text_stream))
        runner.broken = True
        with pytest.raises(anthropic.APIStatusError, match="fuse"):
            stream.until_done()
    asyncio.run(engine.close())


@pytest.mark.slow
def test_a_request_that_takes_too_long_ends_its_stream():
    engine, _ = fake_engine(seconds=0.02)
    with live(engine, request_timeout=2) as url:
        body = {"messages": [USER], "max_tokens": 1000, "stream": True}
        text = httpx.post(f"{url}/v1/messages", json=body).text
    *_, name, data = text.rstrip("\n").split("\n")
    assert name == "event: error"
    error = strictly(ErrorResponse, data.removeprefix("data: ")).error
    assert error.type == "timeout_error"
    asyncio.run(engine.close())
