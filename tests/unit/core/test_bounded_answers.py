"""Of a server's answer no more is read than it may have."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from radixlm.core.bounded_answers import AnswerTooLongError, BoundedAnswers

EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
PIECE = b"x" * 40


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """given: how many have been taken of it."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces, self.given = pieces, 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.given += 1
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def read(pieces: Pieces, headers: dict[str, str]) -> bytes:
    """By both kinds of clients, of which an answer may have 100 bytes."""
    bound = BoundedAnswers(100)
    transport = httpx.MockTransport(
        lambda request: httpx.Response(
            200 if request.headers["accept-encoding"] == "identity" else 500,
            headers=headers,
            stream=pieces,
        )
    )

    async def again() -> bytes:
        hooks = bound.async_hooks
        async with httpx.AsyncClient(transport=transport, event_hooks=hooks) as client:
            answer = await client.get("http://test")
            return answer.raise_for_status().content

    try:
        with httpx.Client(transport=transport, event_hooks=bound.hooks) as client:
            whole = client.get("http://test").raise_for_status().content
    except AnswerTooLongError:
        pieces.given = 0
        asyncio.run(again())
        raise
    assert asyncio.run(again()) == whole
    return whole


def test_what_is_short_enough_comes_as_it_is() -> None:
    assert read(Pieces([PIECE, PIECE]), {}) == 2 * PIECE
    lines = [PIECE, PIECE + b"\nx"] * 9
    assert read(Pieces(lines), EVENTS) == b"".join(lines)


@pytest.mark.parametrize("headers", [{}, EVENTS], ids=["an answer", "a line of events"])
def test_what_is_too_long_is_not_read(headers: dict[str, str]) -> None:
    pieces = Pieces([PIECE] * 50)
    with pytest.raises(AnswerTooLongError, match="more than 100 bytes at once"):
        read(pieces, headers)
    assert pieces.given == 3


def test_what_was_packed_unasked_is_not_unpacked() -> None:
    packed = Pieces([gzip.compress(bytes(10**6), 9)])
    with pytest.raises(AnswerTooLongError, match="gzip was not asked for"):
        read(packed, {"content-encoding": "gzip"})
    assert not packed.given


def test_headers_are_the_same_in_any_case() -> None:
    lines = [PIECE + b"\n"] * 5
    assert read(Pieces(lines), {"content-type": "Text/Event-Stream"}) == b"".join(lines)
    assert read(Pieces([PIECE]), {"content-encoding": "Identity"}) == PIECE
