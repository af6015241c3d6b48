"""/openapi.json says what the server does."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from radixlm.server.app import API_ROUTES
from tests.server_support import NAME, Client, fake_engine, refused

METHODS = {"get", "head", "post", "put", "delete", "patch", "options", "trace"}
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "hello"},
    "/v1/embeddings": {"input": "hello"},
    "/v1/score": {"text_1": "hello", "text_2": "there"},
    "/score": {"queries": "hello", "documents": ["there"]},
    "/v1/rerank": {"query": "hello", "documents": ["there"]},
    "/rerank": {"query": "hello", "documents": ["there"]},
    "/v2/rerank": {"query": "hello", "documents": [{"text": "there"}]},
    "/v1/responses": {"input": "hello", "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "hello"},
    "/v1/conversations": {"items": [{"role": "user", "content": "hi"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/api/chat": {"messages": [{"role": "user", "content": "hi"}]},
    "/api/generate": {"prompt": "hello"},
    "/api/embed": {"input": "hello"},
    "/api/embeddings": {"prompt": "hello"},
    "/api/show": {},
    "/generate": {"text": "hello", "sampling_params": {"max_new_tokens": 2}},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1]},
    "/abort_request": {"rid": "mine"},
    "/cache/explain": {"prompt": "hello"},
    "/cache/hint": {"prompt": "hello", "cache_hint": "session_end"},
}
# Each route's own schema; these have one for each route whose body they take.
SCHEMAS = {path: [body] for path, body in BODIES.items()} | {
    about: [
        {**BODIES[path], **hint, "route": path}
        for path in (
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/v1/messages",
            "/generate",
        )
    ]
    for about, hint in (("/cache/explain", {}), ("/cache/hint", {"cache_hint": "session_end"}))
}
QUICK = {"/v1/responses"}
# They need an adapter's folder.
OF_ADAPTERS = {"/load_lora_adapter", "/unload_lora_adapter"}
# They need a conversation.
OF_CONVERSATIONS = {
    "/v1/conversations/{conversation_id}",
    "/v1/conversations/{conversation_id}/items",
}
# They need a classifier's head.
OF_CLASSIFIERS = {"/classify", "/v1/classify"}
# They need a file that was uploaded.
OF_FILES = {"/v1/files", "/v1/batches"}


@pytest.fixture(scope="module")
def document(fake: Client) -> dict[str, Any]:
    return fake.get("/openapi.json").json()


def values(node: Any, key: str) -> Iterator[Any]:
    """Everything under `key`, however deep."""
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        for child in node.values():
            yield from values(child, key)
    elif isinstance(node, list):
        for child in node:
            yield from values(child, key)


def test_every_route_is_told(document):
    told = {
        (path, method.upper())
        for path, item in document["paths"].items()
        for method in METHODS & item.keys()
    }
    assert told == {(route.path_format, method) for route in API_ROUTES for method in route.methods}
    names = list(values(document["paths"], "operationId"))
    assert len(set(names)) == len(names) == len(told)


def test_a_path_allows_what_is_told(fake, document):
    told = {path: METHODS & item.keys() for path, item in document["paths"].items()}
    for path, methods in {**told, "/openapi.json": {"get", "head"}}.items():
        answer = fake.request("OPTIONS", path)
        refused(answer, 405)
        assert set(answer.headers["allow"].lower().split(", ")) == methods, path


def test_every_reference_leads_somewhere(document):
    references = [each for each in values(document, "$ref") if isinstance(each, str)]
    assert len(references) > 50
    for reference in references:
        place = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


def test_every_pattern_is_one_and_each_field_in_one(document):
    for patterns in values(document["components"], "patternProperties"):
        for pattern in patterns:
            re.compile(pattern)
        names = "|".join(each[2:-2] for each in patterns).split("|")  # ^(a|b)$
        assert len(names) == len(set(names))


def test_the_examples_are_answered(fake, document):
    tried = 0
    for path in (
        document["paths"].keys() - OF_ADAPTERS - OF_FILES - OF_CONVERSATIONS - OF_CLASSIFIERS
    ):
        item = document["paths"][path]
        for method in ("post", "put"):
            for media in values(item.get(method, {}).get("requestBody", {}), "application/json"):
                answer = fake.request(method.upper(), path, json=media["example"])
                assert answer.status_code == 200, (path, answer.text)
                tried += 1
    assert tried == len(BODIES) + 1  # /generate has two methods


def test_bodies_without_a_schema_are_none(document):
    bodies = {path for path, item in document["paths"].items() if list(values(item, "requestBody"))}
    assert bodies == BODIES.keys() | OF_ADAPTERS | OF_FILES | OF_CONVERSATIONS | OF_CLASSIFIERS


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"],
)
def test_streams_are_told_as_such(document, path):
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    assert content.keys() == {"application/json", "text/event-stream"}


def ranges(document: dict[str, Any], schema: str) -> dict[str, dict[str, Any]]:
    """Of each numeric field, its range."""
    return {
        name: part
        for name, field in document["components"]["schemas"][schema]["properties"].items()
        for part in field.get("anyOf", [field])
        if part.get("type") in ("integer", "number") and "maximum" in part
    }


@pytest.mark.parametrize(
    ("schema", "path"),
    [("ChatBody", "/v1/chat/completions"), ("CompletionBody", "/v1/completions")],
)
def test_ranges_are_those_that_are_checked(fake, document, schema, path):
    found = ranges(document, schema)
    assert {"n", "temperature", "top_p", "seed", "max_tokens", "min_tokens"} <= found.keys()
    for name, allowed in found.items():
        low = allowed.get("minimum", allowed.get("exclusiveMinimum"))
        beyond = [allowed["maximum"] + 1, low - 1]
        beyond += [low] if "exclusiveMinimum" in allowed else []
        for value in beyond:
            extra = {"logprobs": True} if name == "top_logprobs" else {}
            error = refused(fake.post(path, **{**BODIES[path], **extra, name: value}))
            assert error["param"] == name


def test_ranges_behind_the_question_mark_are_those_that_are_checked(fake, document):
    tried = set()
    for path, needed in (("/cache/tree", {}), ("/cache/search", {"q": "a"})):
        for told in document["paths"][path]["get"]["parameters"]:
            name = told["name"]
            for part in told["schema"].get("anyOf", [told["schema"]]):
                if part["type"] == "integer":
                    low, high = part["minimum"], part["maximum"]
                    for value in (low, high):  # there may be no such node
                        answer = fake.request("GET", path, params={**needed, name: value})
                        assert answer.status_code in (200, 404), answer.text
                    for value in (low - 1, high + 1):
                        answer = fake.request("GET", path, params={**needed, name: value})
                        assert refused(answer)["param"] == name
                    tried.add(name)
    assert tried == {"depth", "min_tokens", "node", "max_nodes", "limit"}


@pytest.mark.parametrize(
    "path",
    [path if path in QUICK else pytest.param(path, marks=pytest.mark.slow) for path in SCHEMAS],
)
def test_what_the_schema_leaves_out_is_refused(fake, document, path):
    references = values(document["paths"][path]["post"]["requestBody"], "$ref")
    for reference, body in zip(references, SCHEMAS[path], strict=True):
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
        assert schema["additionalProperties"] is True
        assert fake.post(path, **body, nonsense=1).status_code == 200
        taken = {
            name: field.get("enum", ["anything"])
            for pattern, field in schema["patternProperties"].items()
            for name in pattern.strip("^$()").split("|")
        }
        for place in range(max(map(len, taken.values()))):
            fields = {name: its[place % len(its)] for name, its in taken.items()}
            assert fake.post(path, **body, **fields).status_code == 200
        for name, its in taken.items():
            if its != ["anything"]:
                refused(fake.post(path, **body, **{name: "anything"}))


@pytest.mark.slow
def test_strict_fields_are_told(document):
    engine, _ = fake_engine()
    strict = Client(engine, strict_fields=True)
    told = strict.get("/openapi.json").json()["components"]["schemas"]
    assert "x-strict" not in json.dumps([document, told])
    assert "thinking_blocks" in str(document["components"]["schemas"]["ChatMessage"])
    assert "thinking_blocks" not in str(told["ChatMessage"])
    assert told["ChatBody"]["additionalProperties"] is False
    for pattern, field in told["ChatBody"]["patternProperties"].items():
        name = pattern.strip("^$()").split("|")[0]
        for value in [*field.get("enum", ["anything"]), False]:
            status = 200 if value in field.get("enum", [value]) else 400
            answer = strict.chat(**{name: value}, max_tokens=1)
            assert answer.status_code == status, (name, value)
    asyncio.run(engine.close())


@pytest.mark.parametrize("fields", [{"stream_interval": 1.0}, {"store": False}])
def test_what_json_holds_for_the_same_is_the_same(fake, fields):
    assert fake.complete(**fields).status_code == 200


@pytest.mark.parametrize("fields", [{"use_beam_search": 0}, {"stream_interval": True}])
def test_what_json_tells_apart_is_told_apart(fake, fields):
    assert refused(fake.complete(**fields))["param"] == next(iter(fields))


@pytest.mark.parametrize("token", ["1_0", " 1", "+1", "١", "9" * 5000, ""])
def test_only_digits_are_token_ids(fake, token):
    assert refused(fake.complete(logit_bias={token: 1}))["param"] == "logit_bias"


def test_the_model_is_this_servers(document):
    model = document["components"]["schemas"]["ChatBody"]["properties"]["model"]
    assert model["enum"] == [NAME, None]


@pytest.mark.slow
def test_tokens_and_lengths_are_the_models(fake, document):
    schemas = document["components"]["schemas"]
    vocab_size, context = fake.engine.info.vocab_size, fake.engine.info.context_length
    prompts = schemas["CompletionBody"]["properties"]["prompt"]
    assert {*values(prompts, "maximum")} == {vocab_size - 1}
    for ask in (fake.complete, lambda prompt: fake.post("/cache/explain", prompt=prompt)):
        assert ask([vocab_size - 1]).status_code == 200
        assert refused(ask([vocab_size]))["param"] == "prompt"
    for schema, name in (("ChatBody", "max_completion_tokens"), ("NativeParams", "max_new_tokens")):
        assert min(values(schemas[schema]["properties"][name], "maximum")) > context
    # Nothing is answered there, so there is room for any answer.
    wishes = {"max_tokens": context, "stop_token_ids": [vocab_size]}
    assert fake.post("/cache/explain", prompt=[1], **wishes).status_code == 200
    explained = schemas["ExplainCompletion"]["properties"]
    assert min(values(explained["max_tokens"], "maximum")) > context
    assert min(values(explained["stop_token_ids"], "maximum")) > vocab_size


@pytest.mark.parametrize(("path", "field"), [("/generate", "text"), ("/v1/completions", "prompt")])
def test_another_model_is_a_404_and_told_as_one(fake, document, path, field):
    refused(fake.post(path, model="other", **{field: "a"}), 404)
    assert "404" in document["paths"][path]["post"]["responses"]


@pytest.mark.slow
def test_keys_and_limits_are_told_where_they_are_set(document):
    assert "security" not in document
    assert not {"401", "504"} & {*document["paths"]["/v1/models"]["get"]["responses"]}
    engine, _ = fake_engine()
    client = Client(
        engine, api_key=("secret",), request_timeout=9, body_timeout=0, header_timeout=0
    )
    refused(client.get("/openapi.json"), 401)
    allowed = {"Authorization": "Bearer secret"}
    told = client.request("GET", "/openapi.json", headers=allowed).json()
    ((scheme, scopes),) = told["security"][0].items()
    assert not scopes
    assert told["components"]["securitySchemes"][scheme] == {"type": "http", "scheme": "bearer"}
    answers = told["paths"]["/v1/completions"]["post"]["responses"]
    assert {"400", "401", "404", "413", "429", "503", "504"} <= answers.keys()
    assert "408" not in answers
    assert "x-request-id" in answers["413"]["headers"]
    assert "Retry-After" in answers["429"]["headers"]
    assert "WWW-Authenticate" in answers["401"]["headers"]
    health = told["paths"]["/health"]["get"]
    assert health["security"] == []
    assert "401" not in health["responses"]
    asyncio.run(engine.close())


def test_what_a_connection_is_refused_for_is_told_of_every_route(document):
    for item in document["paths"].values():
        for operation in item.values():
            for status in ("408", "431"):  # before there is a request that could have an id
                assert operation["responses"][status]["headers"] == {}


def test_fields_without_effect_are_told_where_they_are_taken(fake, document):
    schemas = document["components"]["schemas"]
    taken = {
        name
        for name, schema in schemas.items()
        for pattern, field in schema.get("patternProperties", {}).items()
        if re.search(pattern, "user") and not field
    }
    assert taken == {
        *("ChatBody", "CompletionBody", "EmbeddingsBody"),
        *("ScoreBody", "RerankBody", "ClassifyBody"),
        *("ExplainChat", "ExplainCompletion"),
    }


def test_no_answer_may_be_wanted_of_a_prompt_only(fake, document):
    schemas = document["components"]["schemas"]
    least = {
        name: list(values(schemas[name]["properties"]["max_tokens"], "minimum"))
        for name in ("ChatBody", "CompletionBody")
    }
    assert least == {"ChatBody": [1], "CompletionBody": [0]}
    assert fake.complete(max_tokens=0).status_code == 200
    assert refused(fake.chat(max_tokens=0))["param"] == "max_tokens"


@pytest.mark.slow
def test_a_path_in_front_is_told():
    engine, _ = fake_engine()
    app = Client(engine).app

    async def ask() -> dict[str, Any]:
        transport = httpx.ASGITransport(app, root_path="/llm")
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.get("/llm/openapi.json")).json()

    assert asyncio.run(ask())["servers"] == [{"url": "/llm"}]
    asyncio.run(engine.close())
