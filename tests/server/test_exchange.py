"""Request ids on every answer, the access log, /ping."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import httpx
import pytest

from radixlm.core.misses import MissReason, MissReport
from radixlm.core.request import RequestOutput
from radixlm.server.http.envelope import Exchange, log_access
from radixlm.server.http.logs import JsonFormatter
from radixlm.server.insight.usage import UsageMeter
from tests.server_support import Client, events, fake_engine, live

PRIVATE = "my very private words"
FRESH = re.compile(r"[0-9a-f]{32}")


@pytest.fixture
def lines(caplog):
    """The access log's lines so far."""
    with caplog.at_level(logging.INFO, "radixlm.access"):
        yield lambda: [r for r in caplog.records if r.name == "radixlm.access"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/ping", 200),
        ("GET", "/metrics", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/nowhere", 404),
        ("DELETE", "/health", 405),
        ("POST", "/v1/completions", 400),
        ("POST", "/v1/chat/completions", 400),
    ],
)
def test_the_request_id_comes_back_on_every_route(fake, method, path, status):
    answer = fake.request(method, path, headers={"X-Request-Id": "abc 1/2"})
    assert answer.status_code == status
    assert answer.headers.get_list("x-request-id") == ["abc 1/2"]
    fresh = [fake.request(method, path).headers["x-request-id"] for _ in range(2)]
    assert fresh[0] != fresh[1]
    assert all(FRESH.fullmatch(name) for name in fresh)


def test_the_request_id_comes_back_on_answers_and_streams(fake):
    for stream in (False, True):
        body = {"prompt": "a", "max_tokens": 1, "stream": stream}
        options = {"json": body, "headers": {"x-request-id": "it"}}
        answer = fake.request("POST", "/v1/completions", **options)
        assert answer.status_code == 200
        assert answer.headers["x-request-id"] == "it"


def test_the_request_id_comes_back_on_401_and_500(fake, monkeypatch):
    headers = {"x-request-id": "it"}
    locked = Client(fake.engine, api_key=("k",))
    answer = locked.request("GET", "/v1/models", headers=headers)
    assert (answer.status_code, answer.headers["x-request-id"]) == (401, "it")

    def broken(*_args, **_options):
        raise KeyError("secret")

    monkeypatch.setattr(fake.engine.tokenizer, "encode", broken)
    answer = fake.request("POST", "/v1/completions", json={"prompt": "a"}, headers=headers)
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "it")


@pytest.mark.parametrize(
    ("wish", "taken"),
    [
        (b"x" * 128, True),
        (b"~!#$ \"'", True),
        (b"x" * 129, False),
        (b"", False),
        (b"   ", False),
        (b"tab\there", False),
        (b"a\r\nset-cookie: b", False),
        (b"a\x00b", False),
        ("ümlaut".encode(), False),
        (b"del\x7f", False),
    ],
)
def test_only_printable_ids_are_taken(fake, wish, taken):
    sent = []

    async def receive():
        return {"type": "http.request"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/ping", "query_string": b""}
    asyncio.run(fake.app({**scope, "headers": [(b"x-request-id", wish)]}, receive, send))
    [back] = [value for name, value in sent[0]["headers"] if name == b"x-request-id"]
    assert (back == wish) == taken
    assert taken or FRESH.fullmatch(back.decode())


def test_two_requests_may_have_the_same_id():
    engine, _ = fake_engine(seconds=0.01)
    client = Client(engine)

    async def both() -> list[httpx.Response]:
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            options = {"json": {"prompt": "a"}, "headers": {"x-request-id": "same"}}
            return await asyncio.gather(*(http.post("/v1/completions", **options) for _ in "ab"))

    assert [answer.status_code for answer in asyncio.run(both())] == [200, 200]
    asyncio.run(engine.close())


def test_the_line_says_where_each_prompt_went_and_why(lines):
    meter = UsageMeter(1)
    for choice, replica in enumerate(("abc", "def")):
        miss = MissReport(3, 2, MissReason.DIVERGED, 2, replica=replica, routed_because="the only")
        output = RequestOutput("1", token_ids=(7,), prompt_tokens=3, cached_tokens=2, miss=miss)
        meter.add(choice, output)
    exchange = Exchange({"method": "POST", "path": "/x", "headers": []}, None, 0.0)
    exchange.usage = meter.counts
    log_access(exchange, 0.5)
    [record] = lines()
    assert record.fields["routed"] == ["abc: the only", "def: the only"]
    assert "answer 2; replica abc: the only; replica def: the only; 0.5" in record.getMessage()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_a_request_is_one_line_without_its_text(fake, lines, stream, chat):
    fake.request("POST", "/flush_cache")
    send = fake.chat if chat else fake.complete
    for _ in range(2):
        answer = send(PRIVATE, max_tokens=5, stream=stream, n=2)
        assert answer.status_code == 200
    _, first, second = lines()
    for record, answer_id in ((second, answer.headers["x-request-id"]),):
        assert record.levelno == logging.INFO
        assert record.fields["request_id"] == answer_id
    path = "/v1/chat/completions" if chat else "/v1/completions"
    assert list(first.fields) == [
        *["request_id", "method", "path", "status"],
        *["prompt_tokens", "cached_tokens", "output_tokens", "seconds"],
    ]
    assert (first.fields["method"], first.fields["path"]) == ("POST", path)
    assert (first.fields["status"], first.fields["output_tokens"]) == (200, 10)
    prompt_tokens = first.fields["prompt_tokens"]
    assert prompt_tokens >= len(PRIVATE)
    assert first.fields["cached_tokens"] == 0
    assert second.fields["cached_tokens"] == prompt_tokens - 1
    line = first.getMessage()
    assert line.startswith(f"POST {path} 200; prompt {prompt_tokens} tokens, 0 cached; answer 10; ")
    assert re.search(r"; \d+\.\d{3} s, id [0-9a-f]{32}$", line)
    for word in PRIVATE.split():
        assert word not in first.getMessage()


def test_other_routes_and_errors_are_logged_without_tokens(fake, lines):
    fake.get("/ping")
    fake.complete(temperature=-1)
    Client(fake.engine, api_key=("k",)).get("/v1/models")
    found = [(record.fields["path"], record.fields["status"]) for record in lines()]
    assert found == [("/ping", 200), ("/v1/completions", 400), ("/v1/models", 401)]
    assert not any("prompt_tokens" in record.fields for record in lines())


def test_a_stream_is_logged_once_at_its_end(lines):
    engine, _ = fake_engine(seconds=0.02)
    seen = []
    with live(engine) as url:
        body = {"prompt": "a", "max_tokens": 10, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body) as answer:
            for _ in answer.iter_lines():
                seen.append(len(lines()))
    assert set(seen[:-4]) == {0}
    [record] = lines()
    assert record.fields["output_tokens"] == 10
    assert record.fields["seconds"] >= 0.2
    asyncio.run(engine.close())


def test_a_line_can_not_be_forged(fake, lines):
    path = "/x%0Aradixlm.access%20status=200/" + "y" * 500
    fake.request("GET", path, headers={"x-request-id": 'a" status=1'})
    [record] = lines()
    text = record.getMessage()
    assert "\n" not in text
    assert text.endswith(r' id "a\" status=1"')
    assert text.startswith(r'GET "/x\nradixlm.access status=200/y')
    assert len(text) < 400


def test_json_lines_can_be_read(fake, lines):
    fake.complete("a", max_tokens=1)
    [record] = lines()
    line = JsonFormatter().format(record)
    assert "\n" not in line
    read = json.loads(line)
    assert read["level"] == "INFO"
    assert read["logger"] == "radixlm.access"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", read["time"])
    assert (read["status"], read["prompt_tokens"], read["output_tokens"]) == (200, 1, 1)
    assert "message" not in read


def test_other_records_are_json_too():
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "went %s", ("wrong",), info)
    read = json.loads(JsonFormatter().format(record))
    assert read["message"] == "went wrong"
    assert "ValueError: two\nlines" in read["exception"]


def test_the_access_log_can_be_left_out(fake, lines):
    Client(fake.engine, disable_access_log=True).get("/ping")
    assert lines() == []


def test_probes_that_find_all_well_are_not_logged(lines):
    engine, runner = fake_engine()
    for client in (Client(engine), Client(engine, root_path="/llm")):
        assert client.get("/health").status_code == 200
    assert lines() == []
    Client(engine, log_health=True).get("/health")
    runner.broken = True
    Client(engine).complete()
    Client(engine).get("/health")
    found = [(record.fields["path"], record.fields["status"]) for record in lines()]
    assert found == [("/health", 200), ("/v1/completions", 503), ("/health", 503)]
    asyncio.run(engine.close())


def test_ping_answers_when_the_engine_is_dead():
    engine, runner = fake_engine()
    client = Client(engine)
    runner.broken = True
    assert client.complete().status_code == 503
    assert client.get("/health").status_code == 503
    assert client.get("/ping").json() == {"status": "ok"}
    assert client.request("HEAD", "/ping").status_code == 200
    asyncio.run(engine.close())


def test_chunks_still_end_with_done(fake):
    # A busy machine may send several tokens in one.
    assert 1 <= len(events(fake.complete("a", max_tokens=3, stream=True))) <= 3


@pytest.mark.parametrize("stream", [False, True])
def test_native_requests_are_logged_with_their_tokens(fake, lines, stream):
    body = {"text": [PRIVATE, "b"], "sampling_params": {"max_new_tokens": 3, "n": 2}}
    assert fake.request("POST", "/generate", json={**body, "stream": stream}).status_code == 200
    [record] = lines()
    assert record.fields["output_tokens"] == 12
    assert record.fields["prompt_tokens"] == len(PRIVATE) + 1
