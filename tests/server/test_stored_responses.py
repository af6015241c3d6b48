"""Responses that are continued, fetched, deleted and cancelled, and whose they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from radixlm.core.errors import ConfigError
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.responses.response_store import ResponseStore
from radixlm.server.serve import stored_responses
from tests import chat_templates
from tests.server_support import (
    CHATML,
    NAME,
    Client,
    fake_engine,
    idle_and_whole,
    live,
    refused,
    until,
)

TOOLS: Any = [{"type": "function", "name": "get_weather", "parameters": None, "strict": None}]
CALL = 'Hm.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'


@contextlib.contextmanager
def served(flags: dict[str, Any] | None = None, **engine_flags: Any) -> Iterator[openai.OpenAI]:
    engine, _ = fake_engine(**engine_flags)
    with (
        live(engine, **(flags or {})) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="first", max_retries=0) as client,
    ):
        yield client
        assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


@pytest.mark.slow
def test_a_conversation_goes_on_from_its_last_response():
    with served(script="hello the<think>") as client:
        first = client.responses.create(model=NAME, input="hello")
        assert first.status == "completed"
        assert first.output_text == "hello the<think>"
        second = client.responses.create(
            model=NAME, input="and?", previous_response_id=first.id, store=True
        )
        assert second.previous_response_id == first.id
        third = client.responses.create(
            model=NAME, input=[{"role": "user", "content": "or?"}], previous_response_id=second.id
        )
        chat = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "and?"},
            {"role": "assistant", "content": second.output_text},
            {"role": "user", "content": "or?"},
        ]
        whole = client.responses.create(model=NAME, input=chat)
        assert whole.usage.input_tokens == third.usage.input_tokens
        assert whole.usage.input_tokens_details.cached_tokens == third.usage.input_tokens - 1


def tokens_of(response: openai.types.responses.Response) -> int:
    return response.usage.input_tokens + response.usage.output_tokens


@pytest.mark.parametrize(
    ("template", "script"), [(CHATML, "hello"), (chat_templates.HERMES, CALL)], ids=["text", "call"]
)
def test_what_was_computed_is_not_computed_again(template, script):
    """All but the last token, which was sampled and not computed: the template writes the same."""
    with served(template=template, script=script) as client:
        last = client.responses.create(model=NAME, input="hello", tools=TOOLS)
        for _ in range(3):
            calls = [item for item in last.output if item.type == "function_call"]
            given: Any = [
                {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
                for call in calls
            ]
            following = client.responses.create(
                model=NAME,
                input=given or "and?",
                tools=TOOLS,
                previous_response_id=last.id,
            )
            cached = following.usage.input_tokens_details.cached_tokens
            assert cached == tokens_of(last) - 1
            last = following


def test_sampled_tokens_are_kept_as_they_were():
    """The tokenizer would write `hello` as one token, the model wrote it as five."""
    engine, _ = fake_engine(script=[*"hello"])
    client = Client(engine)
    assert len(engine.tokenizer.encode("hello")) < len("hello")
    first = client.post("/v1/responses", input="a").json()
    assert first["output"][0]["content"][0]["text"] == "hello"
    second = client.post("/v1/responses", input="b", previous_response_id=first["id"]).json()
    usage = [each["usage"] for each in (first, second)]
    computed = usage[0]["input_tokens"] + usage[0]["output_tokens"] - 1
    assert usage[1]["input_tokens_details"]["cached_tokens"] == computed
    asyncio.run(engine.close())


def test_instructions_are_of_one_response_only():
    with served(script="hello") as client:
        first = client.responses.create(model=NAME, input="a", instructions="Be kind." * 5)
        second = client.responses.create(model=NAME, input="b", previous_response_id=first.id)
        assert second.instructions is None
        assert second.usage.input_tokens < first.usage.input_tokens
        alone = client.responses.create(
            model=NAME,
            input=[
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "hello"},
                {"role": "user", "content": "b"},
            ],
        )
        assert alone.usage.input_tokens == second.usage.input_tokens


def test_a_stored_response_is_fetched_and_deleted(fake):
    made = fake.post("/v1/responses", input="a", max_output_tokens=2).json()
    path = f"/v1/responses/{made['id']}"
    assert fake.get(path).json() == made
    assert refused(fake.get(f"{path}?stream=true"))["param"] == "stream"
    later = fake.post(
        "/v1/responses", input="b", previous_response_id=made["id"], max_output_tokens=2
    ).json()
    gone = {"id": made["id"], "object": "response", "deleted": True}
    assert fake.request("DELETE", path).json() == gone
    for method, place in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items")):
        assert refused(fake.request(method, place), 404)["param"] == "response_id"
    assert refused(fake.request("POST", f"{path}/cancel"), 404)["code"] == "not_found"
    error = refused(fake.post("/v1/responses", input="b", previous_response_id=made["id"]), 404)
    assert error["param"] == "previous_response_id"
    # What continues it still knows what was said.
    again = fake.post(
        "/v1/responses", input="c", previous_response_id=later["id"], max_output_tokens=1
    ).json()
    assert again["usage"]["input_tokens"] > later["usage"]["input_tokens"]


def test_what_is_not_to_be_stored_is_not(fake):
    for stream in (False, True):
        body = {"input": "a", "max_output_tokens": 2, "store": False, "stream": stream}
        answer = fake.post("/v1/responses", **body)
        made = answer.json()["id"] if not stream else answer.text.partition('"id":"')[2][:37]
        assert made.startswith("resp_")
        refused(fake.get(f"/v1/responses/{made}"), 404)


@pytest.mark.slow
def test_a_stream_is_stored_when_it_says_so():
    with served(script="hello") as client:
        with client.responses.stream(model=NAME, input="a") as stream:
            for event in stream:
                if event.type == "response.completed":
                    assert client.responses.retrieve(event.response.id).output_text == "hello"
            final = stream.get_final_response()
        assert final.output_text == "hello"
        items = client.responses.input_items.list(final.id)
        assert [item.type for item in items] == ["message"]
        client.responses.delete(final.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(final.id)


@pytest.mark.slow
def test_a_response_is_its_key_s_own():
    with served({"api_key": ("first", "second")}) as mine:
        other = mine.with_options(api_key="second")
        made = mine.responses.create(model=NAME, input="a", max_output_tokens=2)
        for use in (
            lambda: other.responses.retrieve(made.id),
            lambda: other.responses.delete(made.id),
            lambda: other.responses.cancel(made.id),
            lambda: other.responses.input_items.list(made.id),
            lambda: other.responses.create(model=NAME, input="b", previous_response_id=made.id),
        ):
            with pytest.raises(openai.NotFoundError) as mistake:
                use()
            with pytest.raises(openai.NotFoundError) as unknown:
                mine.responses.retrieve("resp_0")
            assert mistake.value.message.replace(made.id, "resp_0") == unknown.value.message
        assert mine.responses.retrieve(made.id).id == made.id


def test_a_response_is_made_in_the_background():
    with served(seconds=0.01) as client:
        made = client.responses.create(model=NAME, input="a", max_output_tokens=5, background=True)
        assert made.status == "queued"
        assert made.background
        assert until(lambda: client.responses.retrieve(made.id).status == "incomplete")
        ended = client.responses.retrieve(made.id)
        assert len(ended.output_text) == 5
        assert client.responses.cancel(made.id).status == "incomplete"
        later = client.responses.create(
            model=NAME, input="b", previous_response_id=made.id, max_output_tokens=1
        )
        assert later.usage.input_tokens_details.cached_tokens == tokens_of(ended) - 1


@pytest.mark.slow
def test_a_response_in_the_background_is_cancelled():
    with served(seconds=0.01) as client:
        made = client.responses.create(
            model=NAME, input="a", max_output_tokens=1500, background=True
        )
        assert until(lambda: client.responses.retrieve(made.id).status == "in_progress")
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model=NAME, input="b", previous_response_id=made.id)
        cancelled = client.responses.cancel(made.id)
        assert cancelled.status == "cancelled"
        assert client.responses.retrieve(made.id).status == "cancelled"
        doomed = client.responses.create(
            model=NAME, input="a", max_output_tokens=1500, background=True
        )
        client.responses.delete(doomed.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(doomed.id)
        waited = client.responses.create(model=NAME, input="a", max_output_tokens=1)
        with pytest.raises(openai.BadRequestError):
            client.responses.cancel(waited.id)


@pytest.mark.slow
def test_a_response_in_the_background_fails_as_others_do():
    engine, runner = fake_engine(seconds=0.01)
    with (
        live(engine, request_timeout=1.0) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client,
    ):
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model=NAME, input="a", temperature=-1, background=True)
        slow = client.responses.create(model=NAME, input="a", background=True)
        assert until(lambda: client.responses.retrieve(slow.id).status == "failed")
        assert "--request-timeout" in client.responses.retrieve(slow.id).error.message
        made = client.responses.create(model=NAME, input="a", background=True)
        assert until(lambda: client.responses.retrieve(made.id).status == "in_progress")
        runner.broken = True
        assert until(lambda: client.responses.retrieve(made.id).status == "failed")
        assert client.responses.retrieve(made.id).error.code == "server_error"
    asyncio.run(engine.close())


def test_a_file_keeps_responses_for_the_next_server(tmp_path: Path):
    settings = ServerConfig(response_store=str(tmp_path / "responses.db"))
    engine, _ = fake_engine(script="hello", seconds=0.01)
    with stored_responses(settings) as keeper:
        client = Client(engine, responses=keeper)
        made = client.post("/v1/responses", input="a").json()
        # Its loop ends before it does.
        lost = client.post("/v1/responses", input="a", background=True).json()
    assert (tmp_path / "responses.db").stat().st_mode & 0o777 == 0o600
    with stored_responses(settings) as keeper:
        client = Client(engine, responses=keeper)
        assert client.get(f"/v1/responses/{made['id']}").json() == made
        status = client.get(f"/v1/responses/{lost['id']}").json()["status"]
        assert status in ("cancelled", "failed")
        later = client.post("/v1/responses", input="b", previous_response_id=made["id"]).json()
        cached = later["usage"]["input_tokens_details"]["cached_tokens"]
        usage = made["usage"]
        assert cached == usage["input_tokens"] + usage["output_tokens"] - 1
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def test_a_file_that_is_no_store_is_refused(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("Not a database, and longer than the head of one would be. " * 9)
    for place in (path, tmp_path, tmp_path / "nowhere" / "x.db"):
        with pytest.raises(ConfigError, match="--response-store"):
            ResponseStore.from_config(ServerConfig(response_store=str(place)))


@pytest.mark.parametrize(
    ("flag", "value"),
    [("max_stored_responses", 0), ("max_stored_bytes", True), ("response_ttl", 0)],
)
def test_wrong_flags_are_named(flag, value):
    with pytest.raises(ConfigError, match="--" + flag.replace("_", "-")):
        ServerConfig(**{flag: value})


def test_a_response_that_is_too_large_says_that_it_is_not_stored():
    engine, _ = fake_engine()
    client = Client(engine, max_stored_bytes=3000)
    small = client.post("/v1/responses", input="a", max_output_tokens=1).json()
    large = client.post("/v1/responses", input="a" * 1500, max_output_tokens=1).json()
    assert (small["store"], large["store"]) == (True, False)
    assert client.get(f"/v1/responses/{large['id']}").status_code == 404
    notes = {str(place): "b" * 500 for place in range(6)}
    error = refused(client.post("/v1/responses", input="a", background=True, metadata=notes))
    assert (error["param"], "--max-stored-bytes" in error["message"]) == ("background", True)
    asyncio.run(engine.close())


def test_what_is_stored_is_sent_as_it_is(fake):
    """Not read and written once more, which would take spaces away."""
    made = fake.post("/v1/responses", input="a", max_output_tokens=1)
    text = fake.get(f"/v1/responses/{made.json()['id']}").text
    assert json.loads(text) == made.json()
    assert text == json.dumps(made.json(), ensure_ascii=False)


def test_a_response_in_the_background_fails_in_its_own_words():
    form = {"type": "json_schema", "name": "a", "schema": {"type": "nonsense"}}
    fields: Any = {"input": "a", "text": {"format": form}}
    with served() as client:
        with pytest.raises(openai.BadRequestError) as told:
            client.responses.create(model=NAME, **fields)
        made = client.responses.create(model=NAME, background=True, **fields)
        assert until(lambda: client.responses.retrieve(made.id).status == "failed")
        failure = client.responses.retrieve(made.id).error
        assert failure.code == "invalid_prompt"
        assert failure.message == told.value.body["message"]


def test_a_client_that_leaves_leaves_no_response():
    engine, _ = fake_engine(seconds=0.01)
    with live(engine) as url:
        body = {"input": "hi", "max_output_tokens": 1000, "stream": True}
        with httpx.stream("POST", f"{url}/v1/responses", json=body) as answer:
            first = next(line for line in answer.iter_lines() if line.startswith("data: "))
        name = first.partition('"id":"')[2].partition('"')[0]
        assert until(lambda: idle_and_whole(engine))
        assert httpx.get(f"{url}/v1/responses/{name}").status_code == 404
    asyncio.run(engine.close())


def test_thoughts_between_calls_are_of_their_turn(fake):
    """Both calls may be answered: they are one message's."""

    def call(name: str) -> dict[str, str]:
        return {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}

    def thought(text: str) -> dict[str, Any]:
        content = [{"type": "reasoning_text", "text": text}]
        return {"type": "reasoning", "summary": [], "content": content}

    results = [
        {"type": "function_call_output", "call_id": name, "output": "12"} for name in ("a", "b")
    ]
    items = [thought("Hm."), call("a"), thought("And?"), call("b"), *results]
    answer = fake.post("/v1/responses", input=items, max_output_tokens=2)
    assert answer.status_code == 200, answer.text
