"""What receives OpenTelemetry's spans over HTTP, and reads them."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

ANSWER = b'{"partialSuccess": {}}'
MOST_SAID = 64 * 2**20


class Collector:
    """Receives OTLP over HTTP. spans: by name, those of one name in the order they came.

    endless: answers do not end until the client goes. said: bytes of these.
    """

    def __init__(self, *, endless: bool = False) -> None:
        self.connections = self.said = 0
        self.spans: dict[str, list[Span]] = {}
        self.resources: list[dict[str, Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # connections are kept

            def setup(self) -> None:
                super().setup()
                collector.connections += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", str(2**40 if endless else len(ANSWER)))
                self.end_headers()
                self.wfile.write(ANSWER)
                while endless and collector.said < MOST_SAID:
                    try:
                        collector.said += self.wfile.write(bytes(2**16))
                    except OSError:
                        return

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            self.resources.append(attributes(group.resource))
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.spans.setdefault(span.name, []).append(span)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def attributes(of: Any) -> dict[str, Any]:
    found = {}
    for pair in of.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        if kind == "array_value":
            value = [each.string_value for each in value.values]
        found[pair.key] = value
    return found
