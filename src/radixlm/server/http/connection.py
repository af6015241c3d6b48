"""The head of a request and what it may say. Whatever another server could read in another way is
refused, before anything is done for it: a proxy in front would let pass what it never saw.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from http import HTTPStatus

import httptools
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from radixlm.core.errors import InvalidRequestError
from radixlm.server.http.http_errors import (
    HeaderTimeoutError,
    HeaderTooLongError,
    error_response,
    openai_error,
)

_logger = logging.getLogger("radixlm.server")

MAX_HEADER_BYTES = 64 * 1024
MAX_FIELDS = 1000
_BETWEEN = len(": \r\n")

_TOO_LONG = f"the headers are longer than {MAX_HEADER_BYTES} bytes"
_BESIDE_BODY = f"more than {MAX_HEADER_BYTES} bytes came beside the body"

Fields = Sequence[tuple[bytes, bytes]]


def check_head(method: bytes, target: bytes, version: str, fields: Fields) -> None:
    """fields: names in lower case. Raises InvalidRequestError, or HTTPException with a status."""
    if version not in ("1.0", "1.1"):
        raise HTTPException(505, f"HTTP/{version} is not spoken here; use HTTP/1.1")
    if method == b"CONNECT":
        raise HTTPException(
            405, "CONNECT is for proxies, and this is none", {"Allow": "GET, HEAD, POST, DELETE"}
        )
    if len(target) > MAX_HEADER_BYTES:
        raise HTTPException(414, f"the request's target is longer than {MAX_HEADER_BYTES} bytes")
    if len(target) + sum(len(name + value) + _BETWEEN for name, value in fields) > MAX_HEADER_BYTES:
        raise HeaderTooLongError(_TOO_LONG)
    if len(fields) > MAX_FIELDS:
        raise HeaderTooLongError(f"there are more than {MAX_FIELDS} header fields")
    codings = [value.strip().lower() for name, value in fields if name == b"transfer-encoding"]
    if codings and version == "1.0":
        raise InvalidRequestError("Transfer-Encoding is not part of HTTP/1.0")
    if codings and codings != [b"chunked"]:
        raise InvalidRequestError("the only Transfer-Encoding that is read is chunked, once")
    if sum(name == b"host" for name, _ in fields) > 1:
        raise InvalidRequestError("a request has one Host")


def origin_form(target: bytes) -> bytes:
    """The target with a path, which `http://host?query` has not."""
    if target.startswith((b"/", b"*")):
        return target
    url = httptools.parse_url(target)
    if url.path is not None:
        return target
    return b"/" + (b"" if url.query is None else b"?" + url.query)


class Connection(HttpToolsProtocol):
    """Ends a connection whose client takes too long, or sends what is no request, or no end of it.

    An offer to upgrade is not taken: the request is read as one without it. The parser would leave
    its body unread, and take that for the next request.
    """

    header_timeout = 0.0
    _timer: asyncio.TimerHandle | None = None
    _in_head = False
    _in_body = False
    _useless_bytes = 0  # since the last head, or the last piece of a body, was whole
    _without_upgrade = b""
    _refusal: Exception | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._unset_keepalive_if_required()
        self._useless_bytes += len(data)
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError as error:
            self._refuse(_reason(error))
            return
        if self._useless_bytes > MAX_HEADER_BYTES and (self._in_head or self._in_body):
            self._refuse(HeaderTooLongError(_TOO_LONG if self._in_head else _BESIDE_BODY))
        elif not (self._in_head or self._in_body or self._is_answering()):
            self._start_timer()  # line ends are no request, nor may they hold a connection

    def _parse(self, data: memoryview) -> None:
        """Raises httptools.HttpParserError."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                head, self._without_upgrade = self._without_upgrade, b""
                self.parser.feed_data(head)
            else:
                return

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        # One that comes while another is answered waits for it, and its time with it.
        if not self._is_answering():
            self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Fields after a body would join those of its head, as many as a client cares to send.
        if not self._in_body:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._useless_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        head = (self.parser.get_method(), self.url, version, self.headers)
        check_head(*head)
        if self.parser.should_upgrade():
            lines = [b"%s %s HTTP/%s" % (head[0], self.url, version.encode())]
            lines += [b"%s: %s" % field for field in self.headers if field[0] != b"upgrade"]
            self._without_upgrade = b"\r\n".join(lines) + b"\r\n\r\n"
            return
        self.url = origin_form(self.url)
        if version == "1.0":
            self.expect_100_continue = False
        self._in_head, self._in_body, self._useless_bytes = False, True, 0
        self._stop_timer()
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    def on_message_complete(self) -> None:
        if self._without_upgrade:
            return
        self._in_body, self._useless_bytes = False, 0
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._refusal is not None:
            self._refuse(self._refusal)
        if (self._in_head or self._in_body) and not self._is_answering():
            self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is None and self.header_timeout and not self.transport.is_closing():
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

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: Exception) -> None:
        """Answer without the application, and end the connection: at once if it is about the body
        that is read, else after the answers that are under way.
        """
        if self.transport.is_closing():
            return
        if self._in_body and (self.pipeline or self.cycle.response_started):
            self.transport.close()
        elif not self._in_body and self._is_answering():
            self._refusal = error
        else:
            response = error_response(error, openai_error)
            status = HTTPStatus(response.status_code)
            lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode(), b"connection: close"]
            lines += [name + b": " + value for name, value in response.raw_headers]
            self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body))
            self.transport.close()


def _without_chunks(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """The application for a request of HTTP/1.0, which has no chunks: a body of unknown length ends
    with its connection. Uvicorn would send chunks, and else wants to know the length.
    """
    bounded = True

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def forward(message: Message) -> None:
            nonlocal bounded
            if message["type"] == "http.response.start":
                bounded = any(name.lower() == b"content-length" for name, _ in message["headers"])
                cycle.chunked_encoding = None if bounded else False
            elif not bounded:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, forward)

    return answer


def _reason(error: httptools.HttpParserError) -> Exception:
    """The error that a callback raised, else that the parser could not read what came."""
    refusal = error.__context__
    if isinstance(refusal, InvalidRequestError | HTTPException):
        return refusal
    if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(
        refusal, httptools.HttpParserError
    ):
        _logger.error("a request's head could not be read", exc_info=error)
    return InvalidRequestError("what came can not be read as an HTTP request")


def connection_with(header_timeout: float) -> type[Connection]:
    """Connections with this limit, in seconds; 0 is none. Uvicorn makes them from their class."""
    return type("Connection", (Connection,), {"header_timeout": header_timeout})
