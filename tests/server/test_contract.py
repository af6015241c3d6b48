"""Cases that schemathesis makes from /openapi.json; scripts/clients.py sends ten thousand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from radixlm.server.batches.file_store import FileLimits, FileStore, FileTable
from radixlm.server.batches.keeper import BatchKeeper
from tests.server_support import NAME, Client, fake_engine, idle_and_whole, until

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

CASES = 12
SHORT: dict[str, dict[str, Any]] = {
    "completions": {"max_tokens": 3, "n": 2},
    "messages": {"max_tokens": 3},
    "responses": {"max_output_tokens": 3},
    "generate": {"sampling_params": {"max_new_tokens": 3, "n": 2}},
    "/api/chat": {"options": {"num_predict": 3}},
    "/api/generate": {"options": {"num_predict": 3}},
}
VARIED = (
    "GET /v1/files",
    "POST /v1/batches",
    "GET /v1/batches",
    "POST /v1/conversations/{conversation_id}/items",
    "GET /v1/conversations/{conversation_id}/items",
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "POST /v1/conversations",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/embeddings",
    "POST /v1/score",
    "POST /v1/rerank",
    "POST /v1/classify",
    "POST /score",
    "POST /rerank",
    "POST /v2/rerank",
    "POST /classify",
    "POST /api/chat",
    "POST /api/generate",
    "POST /api/embed",
    "POST /api/embeddings",
    "POST /api/show",
    "POST /generate",
    "PUT /generate",
    "POST /tokenize",
    "POST /detokenize",
    "POST /abort_request",
    "POST /cache/explain",
    "POST /cache/hint",
    "POST /load_lora_adapter",
    "POST /unload_lora_adapter",
)
# For each of these it takes a while to make cases; the shape of their answers is seen below.
LONG = {
    "POST /v1/chat/completions",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "POST /v1/conversations",
    "POST /v1/conversations/{conversation_id}/items",
    "POST /api/chat",
    "POST /api/generate",
    "POST /api/embeddings",
    "POST /api/show",
    "POST /cache/explain",
    "POST /cache/hint",
    "POST /load_lora_adapter",
    "POST /unload_lora_adapter",
    "POST /tokenize",
    "POST /detokenize",
    "PUT /generate",
    "POST /score",
    "POST /rerank",
    "POST /v2/rerank",
    "POST /classify",
}


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """By method and path. Short requests only, since many of the cases are valid."""
    engine, _ = fake_engine(context_length=100)
    folder = tmp_path_factory.mktemp("files") / "files"
    store = FileStore(FileTable(folder), FileLimits(10_000, 100_000))
    app = Client(engine, batches=BatchKeeper(store)).app
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    found = [result.ok() for result in schema.get_all_operations()]
    yield {operation.label: operation for operation in found}
    store.close()
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


@pytest.mark.parametrize(
    "label",
    [pytest.param(label, marks=pytest.mark.slow) if label in LONG else label for label in VARIED],
)
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_answers_are_as_told(operations, label, mode):
    operation = operations[label]
    modes = schemathesis.GenerationMode

    @given(case=operation.as_strategy(generation_mode=modes(mode)))
    @settings(
        max_examples=CASES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        # What two fields must be to each other no schema can say.
        case.call_and_validate(excluded_checks=[checks.positive_data_acceptance])

    check()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("label", "fields"),
    [
        (
            "POST /v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 2},
        ),
        ("POST /v1/completions", {"prompt": ["a", "b"], "logprobs": 2, "echo": True}),
        (
            "POST /v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "hi"}],
                "return_token_ids": True,
                "service_tier": "auto",
            },
        ),
        ("POST /v1/completions", {"prompt": "a", "return_token_ids": True}),
        ("POST /v1/completions", {"prompt": ["a", "b"], "best_of": 2, "service_tier": "default"}),
        (
            "POST /v1/responses",
            {"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        ),
        ("POST /generate", {"text": "a", "return_logprob": True, "logprob_start_len": 0}),
        (
            "POST /v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        ),
        ("POST /api/chat", {"messages": [{"role": "user", "content": "hi"}], "format": "json"}),
        ("POST /api/generate", {"prompt": "hi", "raw": True}),
        ("POST /generate", {"text": ["a", "b"], "return_logprob": True, "top_logprobs_num": 2}),
    ],
)
def test_whole_answers_and_streams_are_as_told(operations, label, fields, stream):
    path = label.removeprefix("POST ")
    fields = fields | (SHORT.get(path) or SHORT[path.rpartition("/")[2]])
    if "completions" in label and stream:
        fields |= {"stream_options": {"include_usage": True}}
    case = operations[label].Case(body={**fields, "stream": stream}, media_type="application/json")
    assert case.call_and_validate().status_code == 200


def test_what_takes_no_body_is_as_told(operations):
    asked = [operation for label, operation in operations.items() if label not in VARIED]
    # These need an id or a query, or never end.
    apart = (
        "{response_id}",
        "{conversation_id}",
        "{node_id}",
        "/cache/search",
        "/cache/events",
        "/v1/files",
        "/v1/batches",
    )
    asked = [op for op in asked if not any(part in op.label for part in apart)]
    assert len(asked) == 37
    for operation in asked:
        place = {"name": NAME} if "{name}" in operation.label else {}
        assert operation.Case(path_parameters=place).call_and_validate().status_code == 200


def test_what_is_stored_is_as_told(operations):
    body = {"input": "hi", "max_output_tokens": 3, "instructions": "Be kind."}
    made = operations["POST /v1/responses"].Case(body=body, media_type="application/json")
    place = {"response_id": made.call_and_validate().json()["id"]}
    for label, status in (
        ("GET /v1/responses/{response_id}", 200),
        ("GET /v1/responses/{response_id}/input_items", 200),
        ("POST /v1/responses/{response_id}/cancel", 400),
        ("DELETE /v1/responses/{response_id}", 200),
        ("GET /v1/responses/{response_id}", 404),
    ):
        assert (
            operations[label].Case(path_parameters=place).call_and_validate().status_code == status
        )


def test_a_conversation_is_as_told(operations):
    def ask(label: str, status: int = 200, **options: Any) -> Any:
        body = {"media_type": "application/json"} if "body" in options else {}
        answer = operations[label].Case(**options, **body).call_and_validate()
        assert answer.status_code == status
        return answer.json()

    items = [{"role": "user", "content": "hi"}]
    place = {"conversation_id": ask("POST /v1/conversations", body={"items": items})["id"]}
    whole, one = "/v1/conversations/{conversation_id}", "/items/{item_id}"
    ask(f"GET {whole}", path_parameters=place)
    ask(f"POST {whole}", path_parameters=place, body={"metadata": {"a": "b"}})
    added = ask(f"POST {whole}/items", path_parameters=place, body={"items": items})
    ask(f"GET {whole}/items", path_parameters=place, query={"limit": 1, "order": "asc"})
    ask(f"GET {whole}/items", 400, path_parameters=place, query={"after": "none"})
    named = {**place, "item_id": added["first_id"]}
    ask(f"GET {whole}{one}", path_parameters=named)
    ask(f"DELETE {whole}{one}", path_parameters=named)
    ask(f"GET {whole}{one}", 404, path_parameters=named)
    ask(f"DELETE {whole}", path_parameters=place)
    ask(f"GET {whole}", 404, path_parameters=place)


def test_files_and_batches_are_as_told(operations):
    def ask(label: str, status: int = 200, **options: Any) -> Any:
        answer = operations[label].Case(**options).call_and_validate()
        assert answer.status_code == status
        return answer

    line = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 1}}
    form = {"file": json.dumps(line), "purpose": "batch"}
    file = ask("POST /v1/files", body=form, media_type="multipart/form-data").json()
    ask("POST /v1/files", 400, body={"file": "a"}, media_type="multipart/form-data")
    asked = {"input_file_id": file["id"], "endpoint": "/v1/completions"}
    asked |= {"completion_window": "24h"}
    made = ask("POST /v1/batches", body=asked, media_type="application/json").json()
    place = {"path_parameters": {"batch_id": made["id"]}}
    ask("GET /v1/batches/{batch_id}", **place)
    ask("POST /v1/batches/{batch_id}/cancel", **place)
    place = {"path_parameters": {"file_id": file["id"]}}
    ask("GET /v1/files/{file_id}", **place)
    assert ask("GET /v1/files/{file_id}/content", **place).text == form["file"]
    ask("GET /v1/files", query={"limit": 1, "order": "asc"})
    ask("GET /v1/files", 400, query={"after": "file-none"})
    ask("GET /v1/batches", query={"limit": 1})
    ask("DELETE /v1/files/{file_id}", **place)
    ask("GET /v1/files/{file_id}", 404, **place)


def test_a_node_is_as_told(operations):
    body = {"prompt": "hello", "max_tokens": 3}
    operations["POST /v1/completions"].Case(
        body=body, media_type="application/json"
    ).call_and_validate()
    tree = operations["GET /cache/tree"].Case().call_and_validate().json()
    place = {"node_id": str(tree["nodes"][-1]["id"])}
    told = operations["GET /cache/node/{node_id}"].Case(path_parameters=place).call_and_validate()
    assert told.json()["path"]
    found = operations["GET /cache/search"].Case(query={"q": "hel"}).call_and_validate()
    assert found.json()["matches"]
