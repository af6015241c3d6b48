"""What a server streams, read by RuntimeEndpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from radixlm.core.errors import BackendError
from radixlm.lang import runtime_endpoint
from radixlm.lang.ir import Params
from radixlm.lang.runtime_endpoint import EndpointSession, RuntimeEndpoint
from radixlm.lang.transcript import habit_of
from tests.long_answers import long_answer

EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
TEXT = "a\u2028b\x85c\u2029d 你"


async def events() -> AsyncIterator[bytes]:
    lines = b""
    for length in range(1, len(TEXT) + 1):
        told = {"text": TEXT[:length], "meta_info": {}}
        lines += f"data: {json.dumps(told, ensure_ascii=False)}\n\n".encode()
    lines += b"data: [DONE]\n\n"
    for begin in range(0, len(lines), 7):
        yield lines[begin : begin + 7]


def test_a_server_that_says_too_much_is_given_up(monkeypatch):
    monkeypatch.setattr(runtime_endpoint, "MOST_BYTES", 1_000)
    with long_answer(2_000) as url, pytest.raises(BackendError, match="more than 1,000 bytes"):
        RuntimeEndpoint(url)


def test_only_a_line_break_ends_a_line():
    """SGLang's server sends U+2028 and U+0085 as they are."""

    async def read() -> list[str]:
        transport = httpx.MockTransport(
            lambda _: httpx.Response(200, headers=EVENTS, content=events())
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            session = EndpointSession(client, habit_of(""), shares_in_flight=False)
            answer = session.answer(session.begin(), Params(), stream=True)
            return [piece.text async for piece in answer]

    assert asyncio.run(read()) == list(TEXT)
