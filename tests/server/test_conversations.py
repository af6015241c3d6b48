"""/v1/conversations: their items, and the responses that are made in them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from radixlm.server.config.server_config import ServerConfig
from radixlm.server.responses.response_store import ResponseStore
from radixlm.server.serve import stored_responses
from tests import chat_templates
from tests.responses_support import CALL as WITH_TEXT
from tests.responses_support import TOOLS
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

CALL = WITH_TEXT.replace("I look.", "Hm.\n")
USER = {"role": "user", "content": "hello"}
PATH = "/v1/conversations"


@contextlib.contextmanager
def served(**engine_flags: Any) -> Iterator[openai.OpenAI]:
    engine, _ = fake_engine(**engine_flags)
    with (
        live(engine) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="first", max_retries=0) as client,
    ):
        yield client
        assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


@contextlib.contextmanager
def client_of(script: str = "hello the", **flags: Any) -> Iterator[Client]:
    engine, _ = fake_engine(script=script)
    yield Client(engine, **flags)
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def said_in(client: Client, conversation: str) -> list[str]:
    """The texts of a conversation, from the first on."""
    listed = client.get(f"{PATH}/{conversation}/items?order=asc&limit=100").json()["data"]
    return [part["text"] for item in listed for part in item["content"]]


def begun(client: Client, *texts: str) -> str:
    items = [{"role": "user", "content": text} for text in texts]
    return client.post(PATH, items=items).json()["id"]


def test_openai_s_client_keeps_one():
    with served() as client:
        made = client.conversations.create(metadata={"topic": "demo"}, items=[USER])
        assert made.object == "conversation"
        assert client.conversations.retrieve(made.id) == made
        changed = client.conversations.update(made.id, metadata={"topic": "other"})
        assert changed.metadata == {"topic": "other"}
        assert client.conversations.retrieve(made.id) == changed
        items = client.conversations.items
        added = items.create(
            made.id, items=[{"role": "assistant", "content": str(n)} for n in range(5)]
        )
        assert [item.role for item in added.data] == ["assistant"] * 5
        assert (added.first_id, added.last_id) == (added.data[0].id, added.data[-1].id)
        newest = [item.content[0].text for item in items.list(made.id, limit=2)]
        assert newest == ["4", "3", "2", "1", "0", "hello"]
        oldest = items.list(made.id, order="asc", limit=2, after=added.data[0].id)
        assert [item.content[0].text for item in oldest.data] == ["1", "2"]
        assert oldest.has_more
        one = items.retrieve(added.data[2].id, conversation_id=made.id)
        assert one == added.data[2]
        assert items.delete(one.id, conversation_id=made.id).id == made.id
        with pytest.raises(openai.NotFoundError):
            items.retrieve(one.id, conversation_id=made.id)
        assert len(list(items.list(made.id))) == 5
        gone = client.conversations.delete(made.id)
        assert gone.object == "conversation.deleted"
        assert gone.deleted
        with pytest.raises(openai.NotFoundError):
            client.conversations.retrieve(made.id)


@pytest.mark.parametrize(
    ("template", "script"), [(CHATML, "hello"), (chat_templates.HERMES, CALL)], ids=["text", "call"]
)
def test_what_was_computed_is_not_computed_again(template, script):
    """As with previous_response_id: all but the last token, which was sampled and not computed."""
    with served(template=template, script=script) as client:
        made = client.conversations.create()
        tools: Any = TOOLS
        given: Any = "hello"
        computed = 0
        for turn in range(4):
            response = client.responses.create(
                model=NAME, input=given, tools=tools, conversation=made.id
            )
            assert response.conversation is not None
            assert response.conversation.id == made.id
            usage = response.usage
            if turn:
                assert usage.input_tokens_details.cached_tokens == computed
            computed = usage.input_tokens + usage.output_tokens - 1
            calls = [item for item in response.output if item.type == "function_call"]
            given = [
                {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
                for call in calls
            ] or "and?"


def test_thoughts_are_read_again():
    script = "<think>Hm.</think>hello"
    with served(template=chat_templates.HERMES, script=script) as client:
        made = client.conversations.create()
        first = client.responses.create(model=NAME, input="hello", conversation=made.id)
        kinds = [item.type for item in client.conversations.items.list(made.id, order="asc")]
        assert kinds == ["message", *[item.type for item in first.output]]


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"store": False}])
def test_what_was_said_is_added_when_it_ends(fields):
    with client_of() as client:
        made = begun(client, "one")
        named = {"id": made} if fields else made
        answer = client.post("/v1/responses", input="two", conversation=named, **fields)
        assert answer.status_code == 200
        assert said_in(client, made) == ["one", "two", "hello the"]
        whole = client.post("/v1/responses", conversation=made, max_output_tokens=1).json()
        chat = [
            {"role": "user", "content": "one"},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": "hello the"},
        ]
        counted = client.post("/v1/responses/input_tokens", input=chat).json()["input_tokens"]
        assert whole["usage"]["input_tokens"] == counted
        assert len(said_in(client, made)) == 4  # one that was cut off counts, too


def test_one_that_is_cancelled_adds_nothing():
    engine, _ = fake_engine(seconds=0.02)
    with live(engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
        made = client.conversations.create()
        response = client.responses.create(
            model=NAME, input="hi", conversation=made.id, background=True
        )
        assert client.responses.cancel(response.id).status == "cancelled"
        assert not list(client.conversations.items.list(made.id))
    asyncio.run(engine.close())


@pytest.mark.parametrize("fields", [{"stream": True}, {"background": True}])
def test_one_answer_is_made_in_it_at_a_time(fields: dict[str, Any]):
    engine, _ = fake_engine(seconds=0.02)
    with (
        live(engine) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client,
    ):
        made = client.conversations.create()
        asked = {"model": NAME, "input": "hi", "conversation": made.id}
        running = client.responses.create(**asked, **fields, max_output_tokens=200)
        with pytest.raises(openai.BadRequestError) as refusal:
            client.responses.create(**asked)
        assert (refusal.value.code, refusal.value.param) == ("conversation_locked", "conversation")
        client.responses.input_tokens.count(**asked)  # which reads it alone
        if "stream" in fields:
            running.close()
        else:
            client.responses.cancel(running.id)

        def goes_on() -> bool:
            with contextlib.suppress(openai.BadRequestError):
                return bool(client.responses.create(**asked, max_output_tokens=1))
            return False

        assert until(goes_on)
    asyncio.run(engine.close())


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_the_next_may_follow_at_once(fields: dict[str, Any]):
    with served(script="hello the") as client:
        asked = {"model": NAME, "input": "hi", "conversation": client.conversations.create().id}
        for _ in range(5):
            answer = client.responses.create(**asked, **fields)
            if fields:
                assert any(event.type == "response.completed" for event in answer)
        for wrong in ({"top_p": 3}, {"previous_response_id": "resp_1"}, {"model": "other"}):
            with pytest.raises(openai.APIStatusError):
                client.responses.create(**{**asked, **wrong})
        client.responses.create(**asked)


def test_one_that_goes_meanwhile_ends_no_answer():
    engine, _ = fake_engine(seconds=0.02)
    with live(engine) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client:
        made = client.conversations.create()
        with client.responses.create(
            model=NAME, input="hi", conversation=made.id, stream=True, max_output_tokens=20
        ) as stream:
            begins = next(iter(stream))
            assert begins.response.conversation.id == made.id
            client.conversations.delete(made.id)
            *_, last = stream
        assert last.type == "response.incomplete"
        assert last.response.conversation is None
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model=NAME, input="hi", conversation=made.id)
    asyncio.run(engine.close())


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"items": "hello"}, "items"),
        ("", {"items": [{"type": "web_search_call"}]}, "items[0]"),
        ("", {"metadata": {"a": "b" * 513}}, "metadata.a"),
        ("", {"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ("/ID", {}, "metadata"),
        ("/ID/items", {}, "items"),
        ("/ID/items", {"items": []}, "items"),
        ("", {"items": [USER] * 21}, "items"),
        ("/ID/items", {"items": [USER] * 21}, "items"),
        ("/ID/items?include=nothing", {"items": [USER]}, "include[0]"),
    ],
)
def test_what_is_wrong_is_named(path, body, param):
    with client_of() as client:
        made = begun(client)
        answer = client.post(f"{PATH}{path.replace('ID', made)}", **body)
        assert refused(answer)["param"] == param


@pytest.mark.parametrize(
    "query", ["after=msg_1", "limit=0", "limit=101", "order=up", "include=nothing"]
)
def test_so_is_what_is_wrong_in_a_query(query):
    with client_of() as client:
        error = refused(client.get(f"{PATH}/{begun(client)}/items?{query}"))
        assert error["param"].startswith(query.partition("=")[0])


def test_what_it_refers_to_and_is_not_stored_is_named():
    with client_of() as client:
        missing = {"type": "item_reference", "id": "msg_1"}
        assert refused(client.post(PATH, items=[USER, missing]), 404)["param"] == "items[1].id"


def test_its_items_can_be_referred_to_until_they_go():
    with client_of() as client:
        made = begun(client, "one")
        [item] = client.get(f"{PATH}/{made}/items").json()["data"]
        reference = {"type": "item_reference", "id": item["id"]}
        other = client.post(PATH, items=[reference]).json()["id"]
        assert said_in(client, other) == ["one"]
        client.post(f"{PATH}/{other}/items", items=[reference])
        ids = [each["id"] for each in client.get(f"{PATH}/{other}/items").json()["data"]]
        assert len(set(ids)) == 2  # one that is taken is made anew
        assert client.post("/v1/responses", input=[reference]).status_code == 200


def test_conversations_and_responses_are_two_things():
    with client_of() as client:
        made = begun(client, "one")
        refused(client.get(f"/v1/responses/{made}"), 404)
        refused(client.request("DELETE", f"/v1/responses/{made}"), 404)
        refused(client.post("/v1/responses", input="x", previous_response_id=made), 404)
        response = client.post("/v1/responses", input="two", conversation=made).json()
        refused(client.get(f"{PATH}/{response['id']}"), 404)
        refused(client.request("DELETE", f"{PATH}/{response['id']}"), 404)
        refused(client.post("/v1/responses", input="x", conversation=response["id"]), 404)
        # It has no parent: what was said before it is in its conversation alone.
        error = refused(
            client.post("/v1/responses", input="x", previous_response_id=response["id"])
        )
        assert made in error["message"]


def test_a_conversation_is_its_key_s_own():
    with client_of(api_key=("one", "two")) as client:

        def ask(key: str, method: str, path: str, **body: Any) -> Any:
            headers = {"authorization": f"Bearer {key}"}
            return client.request(method, path, headers=headers, json=body)

        made = ask("one", "POST", PATH, items=[USER]).json()["id"]
        [item] = ask("one", "GET", f"{PATH}/{made}/items").json()["data"]
        for method, path, body in (
            ("GET", "", {}),
            ("POST", "", {"metadata": {}}),
            ("DELETE", "", {}),
            ("GET", "/items", {}),
            ("POST", "/items", {"items": [USER]}),
            ("GET", f"/items/{item['id']}", {}),
            ("DELETE", f"/items/{item['id']}", {}),
        ):
            refused(ask("two", method, f"{PATH}/{made}{path}", **body), 404)
        refused(ask("two", "POST", "/v1/responses", input="x", conversation=made), 404)
        reference = {"type": "item_reference", "id": item["id"]}
        refused(ask("two", "POST", "/v1/responses", input=[reference]), 404)
        assert ask("one", "GET", f"{PATH}/{made}/items").json()["data"] == [item]


def test_a_file_keeps_it_for_the_next_server(tmp_path: Path):
    settings = ServerConfig(response_store=str(tmp_path / "responses.db"))
    made = ""
    for turn in range(2):
        engine, _ = fake_engine(script="hello the")
        with stored_responses(settings) as store:
            client = Client(engine, responses=store)
            made = made or begun(client, "one")
            client.post("/v1/responses", input=f"turn {turn}", conversation=made)
            if turn:
                said = ["one", "turn 0", "hello the", "turn 1", "hello the"]
                assert said_in(client, made) == said
        asyncio.run(engine.close())


def test_what_is_too_large_is_refused_and_ends_no_answer():
    with client_of(max_stored_bytes=2_000) as client:
        made = begun(client, "one")
        long = [{"role": "user", "content": "a" * 1_500}]
        refused(client.post(PATH, items=[*long, *long]))
        refused(client.post(f"{PATH}/{made}/items", items=[*long, *long]))
        asked = {"input": long, "conversation": made, "store": False}
        answer = client.post("/v1/responses", **asked).json()
        assert answer["status"] == "completed"
        assert answer["conversation"] is None
        assert said_in(client, made) == ["one"]


def test_those_that_are_used_stay_longest():
    with client_of(max_stored_responses=3) as client:
        first, second, third = (begun(client, name) for name in "abc")
        client.post(f"{PATH}/{first}/items", items=[USER])
        fourth = begun(client, "d")
        refused(client.get(f"{PATH}/{second}"), 404)
        for kept in (first, third, fourth):
            assert client.get(f"{PATH}/{kept}").status_code == 200


def test_what_goes_leaves_no_bytes():
    """Else items that nobody can reach would take the room of those that are kept."""
    config = ServerConfig(max_stored_bytes=4_000)
    store = ResponseStore.from_config(config)
    with client_of(responses=store) as client:
        for _ in range(5):
            made = begun(client, "a" * 700)
            for _ in range(20):
                path = f"{PATH}/{made}/items"
                added = client.post(path, items=[USER]).json()["first_id"]
                assert client.request("DELETE", f"{path}/{added}").status_code == 200
            client.post(f"{PATH}/{made}", metadata={"a": "b"})
            client.post(f"{PATH}/{made}", metadata={})
        kept = begun(client, "last")
        assert said_in(client, kept) == ["last"]
        assert client.get(f"{PATH}/{made}").status_code == 200
    store.close()


def test_one_that_is_not_used_is_kept_for_so_long_alone(monkeypatch: pytest.MonkeyPatch):
    now = [1_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    with client_of(response_ttl=100.0) as client:
        made, other = begun(client, "one"), begun(client, "two")
        now[0] += 60
        client.post(f"{PATH}/{made}/items", items=[USER])
        now[0] += 60
        assert client.get(f"{PATH}/{made}").status_code == 200
        refused(client.get(f"{PATH}/{other}"), 404)
