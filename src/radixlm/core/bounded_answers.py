"""Answers of other HTTP servers, of bounded size: who answers may be broken, or another one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx

_EVENTS = "text/event-stream"


class AnswerTooLongError(httpx.HTTPError):
    """A server says more than it may, or in a way that unpacks to any size."""


class BoundedAnswers:
    """An HTTP client's bound. most: bytes of an answer; of a stream of events, of each line."""

    def __init__(self, most: int) -> None:
        self.most = most

    @property
    def hooks(self) -> dict[str, list[Any]]:
        """The hooks for `event_hooks` of httpx.Client."""
        return {"request": [_plain], "response": [self._bound]}

    @property
    def async_hooks(self) -> dict[str, list[Any]]:
        """The same for httpx.AsyncClient."""

        async def plain(request: httpx.Request) -> None:
            _plain(request)

        async def bound(answer: httpx.Response) -> None:
            self._bound(answer)

        return {"request": [plain], "response": [bound]}

    def _bound(self, answer: httpx.Response) -> None:
        coding = answer.headers.get("content-encoding", "identity").strip().lower()
        kind = answer.headers.get("content-type", "").strip().lower()
        if coding != "identity":
            raise AnswerTooLongError(f"{coding} was not asked for")
        end = b"\n" if kind.startswith(_EVENTS) else None
        answer.stream = _BoundedBytes(answer.stream, self.most, end)


def _plain(request: httpx.Request) -> None:
    request.headers["accept-encoding"] = "identity"


class _BoundedBytes(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream of which at most `most` bytes come until `end`; without one, in all."""

    def __init__(self, stream: Any, most: int, end: bytes | None) -> None:
        self._stream, self._most, self._end = stream, most, end
        self._since = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            yield self._counted(chunk)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield self._counted(chunk)

    def _counted(self, chunk: bytes) -> bytes:
        ended = -1 if self._end is None else chunk.rfind(self._end)
        self._since = len(chunk) - ended - 1 if ended >= 0 else self._since + len(chunk)
        if self._since > self._most:
            raise AnswerTooLongError(f"more than {self._most:,} bytes at once")
        return chunk

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()
