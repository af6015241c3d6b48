"""`--otlp-endpoint`: spans of requests, as a collector receives them."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from radixlm.core.errors import ConfigError
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.tracing import MOST_WAITING, Tracing, traced
from tests.otlp_collector import MOST_SAID, Collector, attributes
from tests.server_support import NAME, Client

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVER = Span.SpanKind.SPAN_KIND_SERVER


@contextmanager
def collected(engine: Any) -> Iterator[tuple[Client, Collector]]:
    """A client whose spans have all come at the end of the block."""
    collector = Collector()
    try:
        with traced(ServerConfig(otlp_endpoint=collector.url)) as tracing:
            yield Client(engine, tracing=tracing), collector
    finally:
        collector.close()


def test_a_request_is_one_trace_from_the_server_to_the_engine(engine):
    with collected(engine) as (client, collector):
        prompt = "the same beginning of two prompts"
        client.complete(prompt, max_tokens=3, ignore_eos=True)
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
        body = {"prompt": prompt, "max_tokens": 5, "ignore_eos": True, "temperature": 0.5}
        answer = client.request("POST", "/v1/completions", json=body, headers=headers)
    usage = answer.json()["usage"]
    assert {each["service.name"] for each in collector.resources} == {"radixlm"}
    first, second = collector.spans["POST /v1/completions"]
    assert first.trace_id != second.trace_id
    assert (second.trace_id.hex(), second.parent_span_id.hex()) == (TRACE, PARENT)
    assert second.kind == SERVER
    assert attributes(second)["http.response.status_code"] == 200
    assert attributes(second)["radixlm.request_id"] == "mine"

    _, own = collector.spans["engine"]
    assert (own.trace_id, own.parent_span_id) == (second.trace_id, second.span_id)
    found = attributes(own)
    assert found["gen_ai.request.model"] == NAME
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.request.id"] == answer.json()["id"] + "-0"
    assert (found["gen_ai.request.max_tokens"], found["gen_ai.request.temperature"]) == (5, 0.5)
    assert found["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert found["gen_ai.usage.cache_read.input_tokens"] == cached > 0
    assert found["gen_ai.usage.output_tokens"] == found["gen_ai.usage.completion_tokens"] == 5
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    assert found["radixlm.cache.ended_because"] == "last_token"
    times = [found[f"gen_ai.latency.{name}"] for name in ("time_in_queue", "time_to_first_token")]
    assert 0 <= times[0] <= times[1] <= found["gen_ai.latency.e2e"]

    phases = [collector.spans[name][1] for name in ("queue", "prefill", "decode")]
    assert {each.parent_span_id for each in phases} == {own.span_id}
    edges = [(each.start_time_unix_nano, each.end_time_unix_nano) for each in phases]
    assert edges[0][0] == own.start_time_unix_nano
    assert edges[0][1] == edges[1][0]
    assert edges[1][1] == edges[2][0]
    assert edges[2][1] == own.end_time_unix_nano
    spans = [span for each in collector.spans.values() for span in each]
    assert not any(prompt in str(span) for span in spans)


def test_choices_of_a_streamed_chat_and_what_is_refused(engine):
    with collected(engine) as (client, collector):
        client.chat("a question", max_tokens=2, n=2, stream=True)
        assert client.complete("x" * 9_000, max_tokens=1).status_code == 400
        client.get("/health")
    *chats, failed = collector.spans["engine"]
    operations = [attributes(each)["gen_ai.operation.name"] for each in chats]
    assert operations == ["chat", "chat"]
    assert failed.status.code == Status.StatusCode.STATUS_CODE_ERROR
    assert attributes(failed)["error.type"] == "RequestTooLargeError"
    assert attributes(failed)["gen_ai.response.finish_reasons"] == ["error"]
    [refused] = collector.spans["POST /v1/completions"]
    assert attributes(refused)["http.response.status_code"] == 400
    [chat] = collector.spans["POST /v1/chat/completions"]
    assert {each.parent_span_id for each in chats} == {chat.span_id}
    assert not [name for name in collector.spans if "GET" in name or "health" in name]


def test_what_a_client_does_not_sample_is_not_sent(engine):
    with collected(engine) as (client, collector):
        unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        body = {"prompt": "x", "max_tokens": 1}
        answer = client.request("POST", "/v1/completions", json=body, headers=unsampled)
        assert answer.status_code == 200
    assert not collector.spans


@pytest.mark.parametrize("listens", [False, True], ids=["nobody listens", "it never answers"])
def test_serving_does_not_wait_for_the_endpoint(engine, listens):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        if listens:
            deaf.listen()
        tracing = Tracing(f"http://127.0.0.1:{deaf.getsockname()[1]}")
        client = Client(engine, tracing=tracing)
        for _ in range(3):
            assert client.complete("x", max_tokens=1).status_code == 200
        for _ in range(MOST_WAITING + 600):
            tracing.start("one more", {}, {}).end()
        assert client.complete("x", max_tokens=1).status_code == 200
        begun = time.monotonic()
        tracing.close()
        assert time.monotonic() - begun < 60, "it has a limit"


def test_of_an_endless_answer_little_is_read():
    collector = Collector(endless=True)
    tracing = Tracing(collector.url)
    tracing.start("one", {}, {}).end()
    tracing.close()
    collector.close()
    assert "one" in collector.spans
    assert collector.said < MOST_SAID, "the client took all that there was"


def test_a_connection_to_the_endpoint_is_kept():
    collector = Collector()
    tracing = Tracing(collector.url)
    for _ in range(600):  # more than go at once
        tracing.start("one", {}, {}).end()
    tracing.close()
    collector.close()
    assert (len(collector.spans["one"]), collector.connections) == (600, 1)


def test_a_replica_goes_on_with_the_trace(engine):
    """The ingress gives a request the span that it is part of; a replica puts its own below it."""
    collector = Collector()
    ingress, replica = Tracing(collector.url), Tracing(collector.url, instance="replica-7")
    above = ingress.start("llm_request", {}, {})
    assert ingress.trace_of(above)["traceparent"].startswith("00-")
    below = replica.start("engine", ingress.trace_of(above), {})
    below.end()
    above.end()
    ingress.close()
    replica.close()
    collector.close()
    [above], [below] = collector.spans["llm_request"], collector.spans["engine"]
    assert (below.trace_id, below.parent_span_id) == (above.trace_id, above.span_id)
    assert "replica-7" in [each.get("service.instance.id") for each in collector.resources]


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'radixlm\[otlp\]'"):
        Tracing("http://127.0.0.1:4318")


def test_a_wrong_address_is_refused():
    with pytest.raises(ConfigError, match="--otlp-endpoint"):
        ServerConfig(otlp_endpoint="127.0.0.1:4318")
