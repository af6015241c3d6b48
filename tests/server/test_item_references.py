"""/v1/responses: items by reference, as the AI SDK sends answers from the second turn on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from radixlm.server.responses import responses_routes as routes
from radixlm.server.responses.response_store import TurnStore
from tests.server_support import Client, fake_engine, refused

USER = {"role": "user", "content": "hello"}
MORE = {"role": "user", "content": "and?"}


@contextlib.contextmanager
def client_of(**flags: Any) -> Iterator[Client]:
    engine, _ = fake_engine(script="hello the")
    yield Client(engine, **flags)
    asyncio.run(engine.close())


def respond(client: Client, items: list[Any], key: str = "one", **fields: Any) -> Any:
    headers = {"authorization": f"Bearer {key}"}
    body = {"input": items, **fields}
    return client.request("POST", "/v1/responses", json=body, headers=headers)


def reference(item: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": item["id"]}


def test_it_is_the_item():
    with client_of() as client:
        first = respond(client, [USER]).json()
        [said] = first["output"]
        respond(client, [USER, said, MORE])
        second = respond(client, [USER, reference(said), MORE]).json()
        usage = second["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] == usage["input_tokens"] - 1
        # It is stored with the item itself, so the first response may go.
        path = f"/v1/responses/{second['id']}/input_items?order=asc"
        headers = {"authorization": "Bearer one"}
        listed = client.request("GET", path, headers=headers).json()["data"]
        assert listed[1]["content"] == said["content"]
        again = respond(client, [reference(listed[0]), reference(listed[1]), MORE]).json()
        assert again["usage"]["input_tokens"] == usage["input_tokens"]


def test_explaining_takes_it_too():
    with client_of() as client:
        [said] = respond(client, [USER]).json()["output"]
        items = [USER, reference(said), MORE]
        headers = {"authorization": "Bearer one"}
        body = {"input": items}
        answer = client.request("POST", "/cache/explain", json=body, headers=headers)
        assert answer.status_code == 200, answer.text


def test_so_does_counting():
    with client_of() as client:
        [said] = respond(client, [USER]).json()["output"]
        headers = {"authorization": "Bearer one"}
        path = "/v1/responses/input_tokens"
        counts = [
            client.request("POST", path, json={"input": [USER, item, MORE]}, headers=headers).json()
            for item in (said, reference(said))
        ]
        assert counts[0] == counts[1]
        gone = {"input": [USER, {"type": "item_reference", "id": "msg_x"}]}
        refused(client.request("POST", path, json=gone, headers=headers), 404)


def test_a_later_response_that_goes_takes_no_item_of_an_earlier_one_with_it():
    with client_of() as client:
        first = respond(client, [USER]).json()
        [said] = first["output"]
        second = respond(client, [USER, reference(said), MORE]).json()
        headers = {"authorization": "Bearer one"}
        client.request("DELETE", f"/v1/responses/{second['id']}", headers=headers)
        assert respond(client, [USER, reference(said), MORE]).status_code == 200
        client.request("DELETE", f"/v1/responses/{first['id']}", headers=headers)
        assert respond(client, [USER, reference(said), MORE]).status_code == 200


def test_each_turn_is_read_once_and_each_item_there_once(monkeypatch):
    """Else 30,000 references to an item of a megabyte are 30 GB of it, and as many readings."""
    read = []
    get = TurnStore.get
    monkeypatch.setattr(TurnStore, "get", lambda *args: read.append(args[2]) or get(*args))
    with client_of() as client:
        many = [{**USER, "id": f"msg_{place}"} for place in range(20)]
        respond(client, many)
        references = [reference(item) for item in many]
        read.clear()
        given = []
        monkeypatch.setattr(routes, "stored_items", lambda body: given.extend(body.input) or [])
        assert respond(client, references * 2).status_code == 200
        assert len(read) == 1
        assert len({id(item) for item in given}) == 20


@pytest.mark.parametrize("why", ["another's", "not stored", "deleted", "never was"])
def test_one_that_is_not_there_is_named(why):
    with client_of(api_key=("one", "two")) as client:
        first = respond(client, [USER], store=why != "not stored").json()
        [said] = first["output"]
        if why == "deleted":
            headers = {"authorization": "Bearer one"}
            client.request("DELETE", f"/v1/responses/{first['id']}", headers=headers)
        if why == "never was":
            said = {"id": "msg_x"}
        key = "two" if why == "another's" else "one"
        error = refused(respond(client, [USER, reference(said)], key), 404)
        assert error["param"] == "input[1].id"
        assert f"Item with id '{said['id']}' not found." in error["message"]
