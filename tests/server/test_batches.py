"""Files and batches by the openai package, over real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from radixlm.scheduler import Scheduler
from radixlm.server.batches.asking import FEW, PRIORITY, Asking
from radixlm.server.batches.file_store import FileTable
from radixlm.server.batches.keeper import BatchKeeper
from tests.server_support import Client, fake_engine, refused, running, until

WORDS = [f"{'x' * 40} prefix {n % 3} question {n}" for n in range(12)]


def line(n: int, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    body = body or {"prompt": WORDS[n % len(WORDS)], "max_tokens": 4, "temperature": 0}
    return {"custom_id": f"r{n}", "method": "POST", "url": url, "body": body}


def as_file(*lines: dict[str, Any]) -> tuple[str, bytes]:
    return "in.jsonl", "".join(json.dumps(each) + "\n" for each in lines).encode()


@pytest.fixture
def url(monkeypatch, tmp_path) -> Iterator[str]:
    with running(monkeypatch, file_storage_path=str(tmp_path / "files")) as port:
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture
def client(url) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="a", max_retries=0) as client:
        yield client


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    final = ("completed", "failed", "cancelled", "expired")
    assert until(lambda: client.batches.retrieve(batch_id).status in final)
    return client.batches.retrieve(batch_id)


def run(client: openai.OpenAI, *lines: dict[str, Any], endpoint: str = "/v1/completions") -> Any:
    file = client.files.create(file=as_file(*lines), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"a": "b"}
    )
    assert batch.status == "validating"
    return ended(client, batch.id)


def records(client: openai.OpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    if file_id is None:
        return {}
    found = [json.loads(each) for each in client.files.content(file_id).text.splitlines()]
    assert len({each["id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


def test_each_line_is_answered_as_its_route_does(client):
    batch = run(client, *map(line, range(12)))
    assert (batch.status, batch.errors, batch.error_file_id) == ("completed", None, None)
    assert (batch.request_counts.total, batch.request_counts.completed) == (12, 12)
    assert batch.metadata == {"a": "b"}
    output = records(client, batch.output_file_id)
    assert output.keys() == {f"r{n}" for n in range(12)}
    for n in range(12):
        alone = client.completions.create(model="test-model", **line(n)["body"])
        response = output[f"r{n}"]["response"]
        assert response["status_code"] == 200
        assert response["body"]["choices"][0]["text"] == alone.choices[0].text
        assert output[f"r{n}"]["error"] is None
    file = client.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.bytes) == (
        "batch_output",
        len(client.files.content(file.id).content),
    )


def test_chats_and_responses(client):
    messages = [{"role": "user", "content": "hello"}]
    chat = line(0, "/v1/chat/completions", messages=messages, max_tokens=3)
    batch = run(client, chat, endpoint="/v1/chat/completions")
    body = records(client, batch.output_file_id)["r0"]["response"]["body"]
    assert body["usage"]["completion_tokens"] == 3
    response = line(0, "/v1/responses", input="hello", max_output_tokens=3)
    batch = run(client, response, endpoint="/v1/responses")
    body = records(client, batch.output_file_id)["r0"]["response"]["body"]
    assert client.responses.retrieve(body["id"]).usage.output_tokens == 3


def test_embeddings(client):
    batch = run(client, line(0, "/v1/embeddings", input="hello"), endpoint="/v1/embeddings")
    body = records(client, batch.output_file_id)["r0"]["response"]["body"]
    assert (
        body["data"]
        == client.embeddings.create(model="test-model", input="hello").to_dict()["data"]
    )


def test_what_is_refused_is_in_the_error_file(client):
    bad = [line(0, prompt="a", max_tokens=-1), line(1, prompt="a", stream=True)]
    batch = run(client, *bad, line(2))
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 2)
    assert records(client, batch.output_file_id).keys() == {"r2"}
    errors = records(client, batch.error_file_id)
    assert errors["r0"]["response"]["status_code"] == 400
    assert errors["r0"]["response"]["body"]["error"]["param"] == "max_tokens"
    assert errors["r1"]["response"]["body"]["error"]["param"] == "stream"


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"{", "invalid_json_line", 1),
        (b"\n\n[]", "invalid_json_line", 3),
        (json.dumps({"url": "/v1/completions", "body": {}}).encode(), "invalid_custom_id", 1),
        (json.dumps(line(0, "/v1/chat/completions", messages=[])).encode(), "invalid_url", 1),
        (json.dumps(line(0) | {"url": ["/v1/completions"]}).encode(), "invalid_url", 1),
        (json.dumps(line(0)).encode("utf-16"), "invalid_json_line", 1),
        (json.dumps(line(0) | {"method": "GET"}).encode(), "invalid_method", 1),
        (as_file(line(0), line(1), line(0))[1], "duplicate_custom_id", 3),
        (b"\n", "empty_file", 1),
    ],
)
def test_a_line_that_is_no_request_fails_the_batch(client, content, code, number):
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    batch = ended(client, batch.id)
    assert batch.status == "failed"
    [error] = batch.errors.data
    assert (error.code, error.line) == (code, number)
    assert f"line {number}" in error.message


def test_a_batch_is_cancelled(client):
    lines = [line(n, prompt=f"{n}", max_tokens=1500) for n in range(200)]
    file = client.files.create(file=as_file(*lines), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    assert until(lambda: client.batches.retrieve(batch.id).status == "in_progress")
    with pytest.raises(openai.BadRequestError, match="cancel that first"):
        client.files.delete(file.id)
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = ended(client, batch.id)
    assert batch.status == "cancelled"
    assert batch.cancelled_at is not None
    assert batch.request_counts.completed < 200
    assert len(records(client, batch.output_file_id)) == batch.request_counts.completed
    assert client.batches.cancel(batch.id).status == "cancelled"
    assert client.files.delete(file.id).deleted


def test_a_batch_that_ends_is_not_cancelled(client, monkeypatch):
    """It is shown as ended when its answers can be fetched, and not as anything else before."""
    kept, keepers = threading.Event(), []
    put_files, add = FileTable.put_files, BatchKeeper.add

    def slow(self, owner, files, batch=None):
        if batch is not None:
            kept.wait(30)
        put_files(self, owner, files, batch)

    def spy(self, owner, batch):
        keepers.append(self)
        return add(self, owner, batch)

    monkeypatch.setattr(FileTable, "put_files", slow)
    monkeypatch.setattr(BatchKeeper, "add", spy)
    file = client.files.create(file=as_file(line(0)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    [keeper] = keepers

    def shown(name: str) -> Any:
        return keeper.live({"id": batch.id, name: None})[name]

    assert until(lambda: shown("status") == "finalizing")
    assert shown("output_file_id") is None
    asyncio.run(keeper.cancel(batch.id))
    assert shown("status") == "finalizing"
    kept.set()
    done = ended(client, batch.id)
    assert (done.status, done.cancelling_at, done.cancelled_at) == ("completed", None, None)
    assert records(client, done.output_file_id).keys() == {"r0"}


def test_what_is_not_done_in_time_expires(client, monkeypatch):
    monkeypatch.setattr("radixlm.server.batches.batch_routes.WINDOW_SECONDS", 0)
    batch = run(client, line(0), line(1))
    assert (batch.status, batch.output_file_id) == ("expired", None)
    errors = records(client, batch.error_file_id)
    assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}
    assert errors.keys() == {"r0", "r1"}


def test_lists_have_pages(client):
    files = [client.files.create(file=as_file(line(n)), purpose="batch").id for n in range(3)]
    assert [each.id for each in client.files.list(limit=2)] == files[::-1]
    assert [each.id for each in client.files.list(limit=1, order="asc")] == files
    assert client.files.list(purpose="batch_output").data == []
    batches = [run(client, line(n)).id for n in range(3)]
    page = client.batches.list(limit=2)
    assert (page.has_more, [each.id for each in page.data]) == (True, batches[:0:-1])
    assert [each.id for each in client.batches.list(limit=2)] == batches[::-1]
    with pytest.raises(openai.BadRequestError, match="after"):
        client.files.list(after="file-none")


def test_files_of_others_are_not_seen(url, client):
    file = client.files.create(file=as_file(line(0)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    with openai.OpenAI(base_url=url, api_key="b", max_retries=0) as other:
        for ask in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError):
                ask(file.id)
        with pytest.raises(openai.NotFoundError):
            other.batches.retrieve(batch.id)
        with pytest.raises(openai.NotFoundError):
            other.batches.cancel(batch.id)
        with pytest.raises(openai.NotFoundError):
            other.batches.create(
                input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
            )
        assert other.files.list().data == other.batches.list().data == []


def test_uploads_that_are_wrong_leave_nothing(url, tmp_path):
    path = f"{url}/files"
    good = {"file": ("a", b"{}")}
    for sent in (
        {"files": good},
        {"files": good, "data": {"purpose": "vision"}},
        {"data": {"purpose": "batch"}, "files": {"other": b"a"}},
        {"files": good, "data": {"purpose": "batch", "a": "b" * 2000}},
        {"files": good, "data": {"purpose": "batch", "expires_after[seconds]": "1"}},
        {"json": {}},
        {"content": b"--b\r\n", "headers": {"content-type": "multipart/form-data; boundary=b"}},
        {"content": b"nothing", "headers": {"content-type": "multipart/form-data; boundary=b"}},
    ):
        assert httpx.post(path, **sent).status_code == 400, sent
    assert list((tmp_path / "files").glob("*-*")) == []


def test_limits_of_files(monkeypatch, tmp_path):
    flags = {"max_file_bytes": 3_000_000, "max_files_bytes": 5_000_000}
    with running(monkeypatch, **flags) as port:
        path = f"http://127.0.0.1:{port}/v1/files"

        def send(size: int) -> int:
            sent = {"files": {"file": ("a", b" " * size)}, "data": {"purpose": "batch"}}
            return httpx.post(path, **sent).status_code

        assert [send(3_000_001), send(6_000_000), send(3_000_000), send(2_900_000)] == [
            *(413, 413, 200, 413)
        ]


def test_a_batch_goes_on_after_a_restart(monkeypatch, tmp_path):
    folder = str(tmp_path / "files")
    lines = [line(n, prompt=f"{n % 7} {n}", max_tokens=200) for n in range(100)]
    with running(monkeypatch, file_storage_path=folder) as port:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="a")
        file = client.files.create(file=as_file(*lines), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        assert until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 3)
    time.sleep(0.05)
    with running(monkeypatch, file_storage_path=folder) as port:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="a")
        done = ended(client, batch.id)
        assert done.status == "completed"
        assert records(client, done.output_file_id).keys() == {f"r{n}" for n in range(100)}


class Kept:
    """Whom an application has lines asked."""

    asking: Asking

    def connect(self, asking: Asking) -> None:
        self.asking = asking


def test_few_lines_are_under_way_while_clients_ask():
    engine, _ = fake_engine(max_running_requests=100)
    kept = Kept()
    client = Client(engine, batches=kept)
    assert [kept.asking.room(1), kept.asking.room(3)] == [75, 25]
    client.complete("hello", max_tokens=1, priority=PRIORITY)
    assert kept.asking.room(1) == 75
    client.complete("hello", max_tokens=1)
    assert kept.asking.room(1) == FEW
    asyncio.run(engine.close())


def test_a_key_s_limit_is_for_its_clients_too():
    engine, _ = fake_engine(max_running_requests=100)
    kept = Kept()
    Client(engine, batches=kept, api_key=("a",), max_queued_requests_per_key=10)
    assert kept.asking.room(1) == 5
    asyncio.run(engine.close())


def test_a_line_that_there_is_never_room_for_is_refused(monkeypatch, tmp_path):
    flags = {"api_key": ("a",), "max_queued_requests_per_key": 4}
    with (
        running(monkeypatch, file_storage_path=str(tmp_path / "files"), **flags) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="a") as client,
    ):
        batch = run(client, line(0, prompt=["a"] * 8), line(1))
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
        [error] = records(client, batch.error_file_id).values()
    assert "--max-queued-requests-per-key 4" in error["response"]["body"]["error"]["message"]


def test_a_line_is_behind_whatever_it_says(client, monkeypatch):
    seen: list[int] = []
    add = Scheduler.add

    def spy(self, request, **more):
        seen.append(request.priority)
        return add(self, request, **more)

    monkeypatch.setattr(Scheduler, "add", spy)
    body = {"prompt": "a", "max_tokens": 1}
    batch = run(
        client, line(0, **body), line(1, **body, priority=7), line(2, **body, priority=2**30)
    )
    assert batch.request_counts.completed == 3
    assert sorted(seen) == [PRIORITY, PRIORITY + 7, -1]


def test_without_a_store_the_routes_refuse_by_name():
    engine, _ = fake_engine()
    client = Client(engine)
    for answer in (client.get("/v1/files"), client.get("/v1/batches/batch_a")):
        assert refused(answer, 404)["code"] == "unsupported_route"
    asyncio.run(engine.close())
