"""Spans of requests, for --otlp-endpoint. Never any text of a prompt or an answer."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from radixlm.core.errors import ConfigError
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput
from radixlm.server.config.server_config import ServerConfig

# Spans that wait to be sent; of more the oldest are dropped. They are sent by a thread.
MOST_WAITING = 4096
_MOST_AT_ONCE = 512
_SECONDS_BETWEEN, _SECONDS_TO_SEND, _SECONDS_TO_END = 1.0, 5.0, 3.0
# Of the endpoint's answer, which says little, and which nothing here looks at.
MOST_ANSWERED = 64 * 2**10
# Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp-request
_PATH = "/v1/traces"
_MODULES = (
    "opentelemetry.trace",
    "opentelemetry.trace.propagation.tracecontext",
    "opentelemetry.sdk.trace",
    "opentelemetry.sdk.trace.export",
    "opentelemetry.sdk.resources",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "requests",
)
Stream = Callable[[Sequence[GenerateRequest]], AsyncGenerator[RequestOutput, None]]


class _Libraries(NamedTuple):
    """OpenTelemetry's modules, in the order of _MODULES."""

    trace: Any
    propagation: Any
    sdk: Any
    export: Any
    resources: Any
    otlp: Any
    requests: Any


def _load() -> _Libraries:
    """Raises ConfigError where they are not installed."""
    try:
        return _Libraries(*map(importlib.import_module, _MODULES))
    except ImportError as error:
        raise ConfigError(
            f"--otlp-endpoint needs OpenTelemetry: pip install 'radixlm[otlp]' ({error})"
        ) from None


def _read_some(answer: Any, **_: Any) -> None:
    """Read a bounded part of an answer, before the exporter reads all of it, however long it is and
    whatever it unpacks to.

    The connection is used again where this was all.
    """
    left, until = MOST_ANSWERED, time.monotonic() + _SECONDS_TO_SEND
    while left > 0 and time.monotonic() < until and (piece := answer.raw.read1(left)):
        left -= len(piece)
    answer.close()


class Tracing:
    """Spans of one process: of each POST, and of each request that the engine runs for it.

    A trace that the client's `traceparent` names goes on, unless it says that it is not sampled.
    Nothing waits for the endpoint. Raises ConfigError where OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str, *, instance: str = "") -> None:
        """endpoint: http(s)://HOST:PORT, with a path where it is not /v1/traces. instance: the
        replica's name, where there are several.
        """
        self._libraries = otel = _load()
        described = {"service.name": "radixlm", "service.version": version("radixlm")}
        if instance:
            described["service.instance.id"] = instance
        url = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _PATH
        session = otel.requests.Session()
        session.hooks["response"].append(_read_some)
        self._provider = otel.sdk.TracerProvider(
            resource=otel.resources.Resource.create(described), shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            otel.export.BatchSpanProcessor(
                otel.otlp.OTLPSpanExporter(url, timeout=_SECONDS_TO_SEND, session=session),
                max_queue_size=MOST_WAITING,
                schedule_delay_millis=1e3 * _SECONDS_BETWEEN,
                max_export_batch_size=_MOST_AT_ONCE,
            )
        )
        self._tracer = self._provider.get_tracer("radixlm")
        self._names = otel.propagation.TraceContextTextMapPropagator()

    def close(self) -> None:
        """Send what waits; an endpoint that does not answer is not waited for."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_SECONDS_TO_END)

    @contextmanager
    def of_http(
        self, scope: Scope, request_id: str, status: Callable[[], int | None]
    ) -> Iterator[None]:
        """A POST, until its last byte is sent; of other requests none. status: how it is answered,
        asked at the end.
        """
        if scope["method"] != "POST":
            yield
            return
        with self._tracer.start_as_current_span(
            "POST",
            context=self._names.extract(Headers(scope=scope)),
            kind=self._libraries.trace.SpanKind.SERVER,
            attributes={
                "http.request.method": "POST",
                "url.path": scope["path"],
                "radixlm.request_id": request_id,
            },
        ) as span:
            try:
                yield
            finally:
                if (path := getattr(scope.get("route"), "path", None)) is not None:
                    span.update_name(f"POST {path}")
                    span.set_attribute("http.route", path)
                if (code := status()) is not None:
                    span.set_attribute("http.response.status_code", code)
                    if code >= 500:  # a 400 is the client's error, says OpenTelemetry
                        self.fail(span, str(code))

    async def stream(
        self,
        stream: Stream,
        requests: Sequence[GenerateRequest],
        *,
        model: str,
        operation: str,
        phases: bool,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of a stream, with a span for each request, which goes with it to a replica.

        operation: one of OpenTelemetry's. phases: whether it is the engine itself, with spans of
        waiting, prefill and decoding.
        """
        asked = {"gen_ai.request.model": model, "gen_ai.operation.name": operation}
        spans = {each.request_id: _RequestSpan(self, each, asked, phases) for each in requests}
        named = [replace(each, trace=spans[each.request_id].trace) for each in requests]
        failed: Exception | None = None
        try:
            async with aclosing(stream(named)) as outputs:
                async for output in outputs:
                    spans[output.request_id].take(output)
                    yield output
        except Exception as error:
            failed = error
            raise
        finally:
            for span in spans.values():
                span.end(failed)

    def start(
        self,
        name: str,
        trace: Mapping[str, str],
        attributes: Mapping[str, Any],
        begun: int | None = None,
    ) -> Any:
        """A span below that which `trace` names; below the current one where it names none. begun:
        nanoseconds since 1970; None is now.
        """
        context = self._names.extract(trace) if trace else None
        return self._tracer.start_span(name, context, attributes=attributes, start_time=begun)

    def phase(self, name: str, above: Any, begun: int, ended: int) -> None:
        """A span of what is over. begun, ended: nanoseconds since 1970."""
        context = self._libraries.trace.set_span_in_context(above)
        self._tracer.start_span(name, context, start_time=begun).end(ended)

    def trace_of(self, span: Any) -> Mapping[str, str]:
        """The headers that name a span to others, by W3C."""
        headers: dict[str, str] = {}
        self._names.inject(headers, self._libraries.trace.set_span_in_context(span))
        return headers

    def fail(self, span: Any, kind: str, text: str = "") -> None:
        trace = self._libraries.trace
        span.set_attribute("error.type", kind)
        span.set_status(trace.Status(trace.StatusCode.ERROR, text))


# Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/; gen_ai.latency.*,
# gen_ai.request.id and prompt_tokens, completion_tokens: vllm/tracing of vLLM, and SGLang's.
_PREFILL, _DECODE = "gen_ai.latency.time_in_model_prefill", "gen_ai.latency.time_in_model_decode"


class _RequestSpan:
    """One request that an engine runs. trace: names it to a replica."""

    def __init__(
        self, tracing: Tracing, request: GenerateRequest, asked: Mapping[str, str], phases: bool
    ) -> None:
        self._tracing, self._phases = tracing, phases
        self._begun, self._first, self._ended = time.time_ns(), 0, False
        self._tokens = 0
        self._queued: float | None = None
        params = request.params
        found = {
            **asked,
            "gen_ai.provider.name": "radixlm",
            "gen_ai.request.id": request.request_id,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.seed": params.seed,
        }
        known = {name: value for name, value in found.items() if value is not None}
        name = "engine" if phases else "llm_request"
        self._span = tracing.start(name, request.trace, known, self._begun)
        self.trace = tracing.trace_of(self._span)

    def take(self, output: RequestOutput) -> None:
        """An output has come; with the last one the span ends."""
        if output.queued is not None:
            self._queued = output.queued
        if output.token_ids and not self._first:
            self._first = time.time_ns()
        self._tokens += len(output.token_ids)
        if output.miss is not None and self._span.is_recording():
            self._span.set_attribute("radixlm.cache.ended_because", str(output.miss.reason))
            if output.miss.replica:
                self._span.set_attribute("radixlm.replica", output.miss.replica)
                self._span.set_attribute("radixlm.routed_because", output.miss.routed_because)
        if output.finished:
            prompt, cached = output.prompt_tokens, output.cached_tokens
            self._span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": prompt,
                    "gen_ai.usage.prompt_tokens": prompt,
                    "gen_ai.usage.cache_read.input_tokens": cached,
                    "gen_ai.usage.output_tokens": self._tokens,
                    "gen_ai.usage.completion_tokens": self._tokens,
                }
            )
            self._end(output.finish_reason or FinishReason.STOP)

    def end(self, error: Exception | None) -> None:
        """End it, whatever became of it: nobody wants it any more, unless it has ended before."""
        if not self._ended:
            if error is not None:
                self._tracing.fail(self._span, type(error).__name__, str(error))
            self._end(FinishReason.ABORT if error is None else FinishReason.ERROR)

    def _end(self, reason: FinishReason) -> None:
        self._ended = True
        span, begun, now = self._span, self._begun, time.time_ns()
        span.set_attribute("gen_ai.response.finish_reasons", [str(reason)])
        span.set_attribute("gen_ai.latency.e2e", (now - begun) / 1e9)
        admitted = begun if self._queued is None else begun + int(1e9 * self._queued)
        if self._queued is not None:
            span.set_attribute("gen_ai.latency.time_in_queue", self._queued)
        first = self._first
        if first:
            admitted = min(admitted, first)
            span.set_attribute("gen_ai.latency.time_to_first_token", (first - begun) / 1e9)
            span.set_attribute(_PREFILL, (first - admitted) / 1e9)
            span.set_attribute(_DECODE, (now - first) / 1e9)
        if self._phases and span.is_recording():
            self._tracing.phase("queue", span, begun, admitted if first else now)
            if first:
                self._tracing.phase("prefill", span, admitted, first)
                self._tracing.phase("decode", span, first, now)
        span.end(now)


@contextmanager
def traced(settings: ServerConfig) -> Iterator[Tracing | None]:
    """The tracer that --otlp-endpoint asks for, closed at the end. Raises ConfigError."""
    if settings.otlp_endpoint is None:
        yield None
        return
    tracing = Tracing(settings.otlp_endpoint)
    try:
        yield tracing
    finally:
        tracing.close()
