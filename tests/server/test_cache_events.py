"""GET /cache/events over real sockets: what is seen is what is there; slow viewers harm none."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from radixlm.assembly import AsyncEngine
from radixlm.core.reports import MAX_WAITING
from radixlm.engine import watching
from radixlm.engine.client import MAX_VIEWERS
from radixlm.engine.mailbox import Viewer
from tests.server_support import live, until


class Seen:
    """The tree as a viewer knows it, from events alone."""

    def __init__(self) -> None:
        self.nodes: dict[int, dict[str, Any]] = {}
        self.version = self.seq = self.snapshots = self.dropped = 0
        self.happened: list[str] = []

    def take(self, name: str, data: dict[str, Any]) -> None:
        assert data["seq"] == self.seq + 1
        self.seq += 1
        if name == "snapshot":
            self.snapshots += 1
            self.nodes = {}
            self.dropped = data["dropped"]
        if name in ("snapshot", "tree"):
            for gone in data.get("removed", ()):
                del self.nodes[gone]
            self.nodes |= {node["id"]: node for node in data["nodes"]}
            self.version = data["version"]
        if name == "requests":
            self.happened += [event["type"] for event in data["events"]]


def told(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def complete(url: str, prompt: str, max_tokens: int = 2) -> None:
    body = {"prompt": prompt, "max_tokens": max_tokens}
    assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200


def follow_until(events: Iterator[tuple[str, dict[str, Any]]], seen: Seen, version: int) -> None:
    for name, data in events:
        seen.take(name, data)
        if seen.version >= version:
            return


def test_a_snapshot_and_its_changes_are_the_tree(engine):
    with live(engine) as url:
        complete(url, "shared beginning, one end")
        with httpx.stream("GET", f"{url}/cache/events", timeout=60) as answer:
            events = told(answer.iter_lines())
            seen = Seen()
            seen.take(*next(events))
            assert seen.snapshots == 1
            for number in range(20):
                complete(url, f"shared beginning, {number} {'x' * 400}")
            httpx.post(f"{url}/flush_cache")
            complete(url, "shared beginning, after")
            tree = httpx.get(f"{url}/cache/tree").json()
            follow_until(events, seen, tree["version"])
            while seen.happened.count("finished") < 21:
                seen.take(*next(events))
    assert seen.nodes == {node["id"]: node for node in tree["nodes"]}
    assert seen.happened.count("arrived") == seen.happened.count("finished") == 21


@pytest.fixture
def viewers(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> list[Viewer]:
    """Those that began to watch the engine, in order."""
    made: list[Viewer] = []
    watch = engine.watch

    def noted(*args: Any, **options: Any) -> Viewer:
        made.append(watch(*args, **options))
        return made[-1]

    monkeypatch.setattr(engine, "watch", noted)
    return made


def test_a_slow_viewer_is_dropped_and_sees_it_afresh(engine, viewers):
    """It holds up nobody, and in the end knows what all know."""
    with live(engine) as url, httpx.stream("GET", f"{url}/cache/events", timeout=60) as answer:
        events = told(answer.iter_lines())
        seen = Seen()
        seen.take(*next(events))
        [viewer] = viewers
        viewer.max_waiting = 0
        complete(url, "while it does not read")
        assert until(lambda: viewer.dropped)
        viewer.max_waiting = MAX_WAITING
        complete(url, "and after")
        tree = httpx.get(f"{url}/cache/tree").json()
        follow_until(events, seen, tree["version"])
    assert seen.snapshots > 1
    assert seen.dropped > 0
    assert seen.nodes == {node["id"]: node for node in tree["nodes"]}


@contextlib.contextmanager
def unread(url: str) -> Iterator[socket.socket]:
    """A viewer's connection with little room on its way, from which nothing is read."""
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.settimeout(30)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        connection.connect((host, int(port)))
        connection.sendall(b"GET /cache/events HTTP/1.1\r\nHost: x\r\n\r\n")
        yield connection


@pytest.mark.slow
def test_a_viewer_that_reads_too_late_has_lost_events_and_sees_all_afresh(
    engine, viewers, monkeypatch
):
    """Only the connection is small: what it does not take waits, and then is dropped."""
    monkeypatch.setattr(watching, "SECONDS_BETWEEN_CHANGES", 0.0)
    monkeypatch.setattr(watching, "SECONDS_PER_ITEM", 0.0)
    with live(engine) as url, unread(url) as connection:
        assert until(lambda: viewers)
        for number in range(400):
            prompts = [f"{number} {place} {'z' * 20}" for place in range(30)]
            body = {"prompt": prompts, "max_tokens": 1}
            assert httpx.post(f"{url}/v1/completions", json=body, timeout=30).status_code == 200
            if viewers[0].dropped:
                break
        complete(url, "and after")
        tree = httpx.get(f"{url}/cache/tree").json()
        seen = Seen()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        # Each event is a chunk of its own, so those of the transfer are lines of their own, too.
        lines = map(str.rstrip, connection.makefile(encoding="utf-8"))
        follow_until(told(lines), seen, tree["version"])
    assert seen.snapshots == 2
    assert seen.dropped > MAX_WAITING
    assert seen.nodes == {node["id"]: node for node in tree["nodes"]}


@pytest.mark.slow
def test_a_viewer_that_never_reads_does_not_hold_up_requests(engine):
    with live(engine) as url, contextlib.ExitStack() as open_:
        host, port = url.removeprefix("http://").split(":")
        for _ in range(3):
            connection = open_.enter_context(socket.create_connection((host, int(port))))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.sendall(b"GET /cache/events HTTP/1.1\r\nHost: x\r\n\r\n")
        for number in range(40):
            complete(url, f"{number} {'y' * 300}", max_tokens=4)
        assert httpx.get(f"{url}/cache/tree").status_code == 200


def test_more_viewers_than_may_watch_are_refused(engine):
    with live(engine) as url, contextlib.ExitStack() as open_:
        for _ in range(MAX_VIEWERS):
            answer = open_.enter_context(httpx.stream("GET", f"{url}/cache/events"))
            assert answer.status_code == 200
        assert httpx.get(f"{url}/cache/events").status_code == 429
        open_.close()
        assert until(lambda: _may_watch(url))


def _may_watch(url: str) -> bool:
    with httpx.stream("GET", f"{url}/cache/events") as answer:
        return answer.status_code == 200
