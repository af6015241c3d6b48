"""One HTTP connection, as uvicorn handles it, with limits on how long it waits for its client.

What the application waits for, it limits itself (--body-timeout). Outside of it is what comes
before a request reaches it, and what still comes after it has answered:

    connected ── head ──> request: the application ──> answered ── rest of the body ──> next request
    └── --header-timeout ──┘                           └── --header-timeout ────────┘   (keep-alive)
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from radixlm.core.errors import InvalidRequestError
from radixlm.server.error_shapes import openai_error
from radixlm.server.errors import HeaderTimeoutError, HeaderTooLongError, error_response

MAX_HEADER_BYTES = 64 * 1024


class Connection(HttpToolsProtocol):
    """Ends a connection whose client takes too long, or sends headers without end."""

    header_timeout = 0.0
    _timer: asyncio.TimerHandle | None = None
    _in_head = False
    _in_body = False
    _head_bytes = 0
    _beside_body = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._beside_body += len(data)
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEADER_BYTES:
                self._refuse(
                    HeaderTooLongError(f"the headers are longer than {MAX_HEADER_BYTES} bytes")
                )
        elif self._in_body and self._beside_body > MAX_HEADER_BYTES:
            self._refuse(
                HeaderTooLongError(f"more than {MAX_HEADER_BYTES} bytes came beside the body")
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        # One that comes while another is answered waits for it, and its time with it.
        if self.cycle is None or self.cycle.response_complete:
            self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Fields behind a body would join those of its head, as many as a client cares to send.
        if not self._in_body:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._beside_body = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._beside_body = False, True, 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        waits = self.cycle.response_complete and not self.transport.is_closing()
        if waits and (self._in_head or self._in_body):
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequestError(msg))

    def _start_timer(self) -> None:
        if self._timer is None and self.header_timeout:
            self._timer = self.loop.call_later(self.header_timeout, self._time_is_over)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_over(self) -> None:
        if self._in_head:
            seconds = f"--header-timeout {self.header_timeout:g} s"
            self._refuse(HeaderTimeoutError(f"the request's headers took longer than {seconds}"))
        elif not self.transport.is_closing():
            self.transport.close()  # nothing was asked, or it was answered

    def _refuse(self, error: InvalidRequestError) -> None:
        """Answer without the application, unless it has begun to, and end the connection."""
        if self.transport.is_closing():
            return
        if self._in_body and self.cycle.response_started:
            self.transport.close()
            return
        response = error_response(error, openai_error)
        status = HTTPStatus(response.status_code)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), b"connection: close"]
        lines += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body))
        self.transport.close()


def connection_with(header_timeout: float) -> type[Connection]:
    """Connections with this limit, in seconds; 0 is none. Uvicorn makes them from their class."""
    return type("Connection", (Connection,), {"header_timeout": header_timeout})
