"""Routes that clients probe for, counting a response's tokens, and pages of other origins."""

from __future__ import annotations

import asyncio
import re

import pytest

from radixlm.core.errors import ConfigError
from radixlm.server.app import API_ROUTES
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.routes import ABSENT, INSTEAD
from tests.server_support import Client, fake_engine, refused

ORIGIN = {"Origin": "https://example.org"}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", [path for path in ABSENT if not path.startswith("/api/")])
def test_what_is_not_there_says_so(fake, path, method):
    if method == "GET" and path.startswith("/v1/responses/"):
        return  # the name of a stored response
    for place in (path, f"{path}/more"):
        if place.startswith("/v1/responses/") and place != path:
            continue
        error = refused(fake.request(method, place, json={}), 404)
        assert "not supported by this server" in error["message"]
        assert place in error["message"]
        assert error.get("code", "unsupported_route") == "unsupported_route"


@pytest.mark.parametrize("path", ["/v1/nothing", "/props", "/v1/embeddingsx", "/v1/chat"])
def test_what_nobody_knows_is_no_route(fake, path):
    error = refused(fake.post(path), 404)
    assert error["code"] == "unknown_url"
    assert error["message"].startswith(f"Invalid URL (POST {path})")


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("pull", "; use `radixlm pull NAME`, then `radixlm serve NAME`"),
        ("create", "; use `radixlm pull NAME`, then `radixlm serve NAME`"),
        ("push", ""),
        ("delete", ""),
        ("blobs/sha256:0", ""),
    ],
)
def test_ollama_s_clients_read_errors_their_way(fake, path, advice):
    answer = fake.request("POST", f"/api/{path}", json={})
    assert answer.status_code == 404
    text = f"Other models while it runs are not supported by this server: no POST /api/{path}"
    assert answer.json() == {"error": text + advice}


def test_so_do_they_what_nobody_knows(fake):
    error = fake.request("POST", "/api/nothing", json={}).json()["error"]
    assert error.startswith("Invalid URL (POST /api/nothing)")


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("/completion", "POST /v1/completions"),
        ("/completions", "POST /v1/completions"),
        ("/chat/completions", "POST /v1/chat/completions"),
        ("/v1/v1/messages", "POST /v1/messages"),
        ("/models", "GET /v1/models"),
        ("/v1/tokenize", "POST /tokenize"),
        ("/v1/health", "GET /health"),
        ("/apply-template", "POST /tokenize, which takes messages"),
        ("/props", "GET /server_info and GET /model_info"),
        ("/slots", "GET /v1/loads for what runs, GET /cache/tree for what is cached"),
    ],
)
def test_a_route_of_another_server_is_answered_with_ours(fake, path, ours):
    error = refused(fake.post(path), 404)
    message = error["message"]
    assert message == f"Invalid URL (POST {path}): there is no such route; use {ours}"


def test_every_route_that_is_named_is_there():
    named = {each for text in INSTEAD.values() for each in re.findall(r"[A-Z]+ /[\w./]+", text)}
    there = {f"{method} {route.path}" for route in API_ROUTES for method in route.methods}
    there.add("GET /openapi.json")
    assert named
    assert named <= there


@pytest.mark.parametrize(
    ("method", "path", "methods"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("GET", "/generate", "POST, PUT"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("GET", "/v1/messages", "POST"),
    ],
)
def test_a_wrong_method_is_answered_with_the_right_ones(fake, method, path, methods):
    answer = fake.request(method, path)
    error = refused(answer, 405)
    assert answer.headers["allow"] == methods
    words = methods.replace(", HEAD", "").replace(", ", " or ")
    assert error["message"] == f"{method} {path} is not possible; use {words}"
    assert error.get("code", "method_not_supported") == "method_not_supported"


def test_a_path_below_a_root_is_found():
    engine, _ = fake_engine()
    client = Client(engine, root_path="/llm")
    assert refused(client.post("/v1/moderations"), 404)["code"] == "unsupported_route"
    assert "use POST /v1/completions" in refused(client.post("/completions"), 404)["message"]
    asyncio.run(engine.close())


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "hello there"},
        {"input": "hi", "instructions": "Be kind.", "text": {"format": {"type": "json_object"}}},
        {
            "input": "hi",
            "tools": [{"type": "function", "name": "f"}],
            "reasoning": {"effort": "low"},
        },
    ],
)
def test_input_tokens_are_those_of_the_response(fake, fields):
    made = fake.post("/v1/responses", **fields, max_output_tokens=1).json()
    told = fake.post("/v1/responses/input_tokens", **fields)
    count = {"object": "response.input_tokens", "input_tokens": made["usage"]["input_tokens"]}
    assert told.json() == count
    again = {"input": "and?", "previous_response_id": made["id"]}
    more = fake.post("/v1/responses/input_tokens", **again).json()["input_tokens"]
    made = fake.post("/v1/responses", **again, max_output_tokens=1).json()
    assert more == made["usage"]["input_tokens"] > 0


def test_input_tokens_of_nothing_are_refused(fake):
    assert refused(fake.post("/v1/responses/input_tokens"))["param"] == "input"
    assert refused(fake.post("/v1/responses/input_tokens", input="a", model="x"), 404)
    gone = {"input": "a", "previous_response_id": "resp_gone"}
    assert refused(fake.post("/v1/responses/input_tokens", **gone), 404)


def test_a_page_of_another_origin_may_ask_where_it_is_named():
    engine, _ = fake_engine()
    client = Client(engine, cors_origin=("https://example.org",), api_key=("k",))
    asked = {**ORIGIN, "Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "authorization,content-type"
    allowed = client.request("OPTIONS", "/v1/chat/completions", headers=asked)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
    refusal = client.request("GET", "/v1/models", headers=ORIGIN)  # without a key
    assert refusal.status_code == 401
    assert refusal.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    other = client.request("GET", "/v1/models", headers={"Origin": "https://example.com"})
    assert "access-control-allow-origin" not in other.headers
    plain = Client(engine).request("GET", "/v1/models", headers=ORIGIN)
    assert "access-control-allow-origin" not in plain.headers
    everybody = Client(engine, cors_origin=("*",)).request("GET", "/v1/models", headers=ORIGIN)
    assert everybody.headers["access-control-allow-origin"] == "*"
    asyncio.run(engine.close())


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "ftp://a", ""])
def test_an_origin_is_a_scheme_and_a_host(origin):
    with pytest.raises(ConfigError, match="--cors-origin"):
        ServerConfig(cors_origin=(origin,))
