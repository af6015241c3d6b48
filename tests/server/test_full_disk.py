"""What is said, and what is left, where the disk has no room."""

from __future__ import annotations

import errno
import resource
import sqlite3
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from radixlm.server.batches import file_store
from radixlm.server.batches.file_store import FileTable
from radixlm.server.responses import response_store
from tests.server_support import refused, running, until

LINE = b'{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 2}}\n'
LONG = {f"{n}": "x" * 500 for n in range(16)}


@pytest.fixture
def databases(monkeypatch) -> list[sqlite3.Connection]:
    """Those that are opened."""
    found: list[sqlite3.Connection] = []
    for module in (file_store, response_store):

        def opened(*given: Any, open_database: Any = module.open_database) -> sqlite3.Connection:
            found.append(open_database(*given))
            return found[-1]

        monkeypatch.setattr(module, "open_database", opened)
    return found


@pytest.fixture
def client(monkeypatch, tmp_path, databases) -> Iterator[httpx.Client]:
    with (
        running(monkeypatch, file_storage_path=str(tmp_path / "files")) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client


def upload(client: httpx.Client, content: bytes = LINE) -> httpx.Response:
    files, data = {"file": ("in.jsonl", content)}, {"purpose": "batch"}
    return client.post("/v1/files", files=files, data=data)


def begin(client: httpx.Client, file_id: str, **more: Any) -> httpx.Response:
    body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    return client.post("/v1/batches", json=body | more)


def fill(databases: list[sqlite3.Connection]) -> None:
    """Let no database grow any more."""
    for each in databases:
        each.execute("PRAGMA max_page_count = 1")


def test_an_upload_leaves_nothing(client, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        answer = upload(client, b" " * 3_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused(answer, 507)["code"] == "disk_full"
    assert list((tmp_path / "files").glob("*-*")) == []
    assert upload(client).status_code == 200


def test_a_file_that_can_not_be_noted_leaves_nothing(client, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(FileTable, "put_files", full)
        refused(upload(client), 507)
    assert list((tmp_path / "files").glob("*-*")) == []


def test_a_batch_that_can_not_be_kept_holds_no_file(client, databases):
    file_id = upload(client).json()["id"]
    fill(databases)
    assert refused(begin(client, file_id, metadata=LONG), 507)["code"] == "disk_full"
    assert client.delete(f"/v1/files/{file_id}").status_code == 200


def test_a_batch_ends_when_there_is_room_to_say_so(client, monkeypatch):
    monkeypatch.setattr("radixlm.server.batches.keeper.PAUSE_SECONDS", 0.01)
    put_files, tried = FileTable.put_files, []

    def full(self: FileTable, owner: str, files: list[Any], batch: Any = None) -> None:
        tried.append(batch)
        if batch is not None and len(tried) < 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        put_files(self, owner, files, batch)

    file_id = upload(client).json()["id"]
    monkeypatch.setattr(FileTable, "put_files", full)
    place = f"/v1/batches/{begin(client, file_id).json()['id']}"
    assert until(lambda: client.get(place).json()["status"] == "completed")
    assert len(tried) == 5


def test_a_conversation_says_so_and_the_next_is_kept(client, databases):
    item = {"role": "user", "content": "x" * 3_000}
    fill(databases)
    answer = client.post("/v1/conversations", json={"metadata": LONG, "items": [item]})
    assert refused(answer, 507)["code"] == "disk_full"
    for each in databases:
        each.execute("PRAGMA max_page_count = 1000000")
    assert client.post("/v1/conversations", json={"items": [item]}).status_code == 200


def test_a_connection_that_ends_says_so(client, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("nobody expected this")

    with monkeypatch.context() as patched:
        patched.setattr(FileTable, "page", broken)
        answer = client.get("/v1/files")
    assert (answer.status_code, answer.headers["connection"]) == (500, "close")
    assert client.get("/v1/files").status_code == 200
