"""The store of turns: what continues what, whose it is, and what makes room."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from contextlib import ExitStack
from typing import Any

import pytest

from radixlm.core.errors import ConfigError
from radixlm.server.responses import conversation_store as conversations
from radixlm.server.responses.response_store import ResponseStore, StoreLimits, Turn, TurnStore

DAY = 86_400.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The databases of stores, the latest one last."""
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*args: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*args, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    return made


def store_of(clock: Clock, turns: int = 100, size: int = 10**6, seconds: float = DAY) -> TurnStore:
    return TurnStore(None, StoreLimits(turns, size, seconds), clock)


def turn(name: str, clock: Clock, parent: str | None = None, **more: object) -> Turn:
    values = {"owner": "me", "ended": True, "response": f'{{"of":"{name}"}}', "input": "[]"}
    return Turn(**{"id": name, "parent": parent, "created": clock(), **values, **more})


def rows(opened: list[sqlite3.Connection]) -> int:
    return opened[-1].execute("SELECT COUNT(*) FROM turns").fetchone()[0]


def test_other_metadata_ends_nothing_that_is_worked_on(clock):
    store = store_of(clock, size=3_000)
    said = json.dumps([{"id": "msg_1", "text": "x" * 1_000}])
    assert store.put(turn("made", clock, ended=False, input=said), {"made"})
    shown = {"id": "conv_1", "metadata": {}}
    assert conversations.create(store, "me", shown, [], {"made"})
    conversations.update(store, "me", shown | {"metadata": {"a": "b" * 2_000}}, {"made"})
    assert store.get("me", "made") is not None


def test_a_file_that_others_may_read_is_refused(tmp_path, clock):
    path = tmp_path / "responses.db"
    path.touch(0o644)
    with pytest.raises(ConfigError, match=r"--response-store .*: others may read or write it"):
        TurnStore(path, StoreLimits(1, 1, 1), clock)


def test_a_turn_comes_back_as_it_was(clock):
    store = store_of(clock)
    put = turn("a", clock)
    assert store.put(put)
    assert store.get("me", "a") == put
    assert store.get("you", "a") is None
    assert store.get("me", "b") is None
    assert store.put(turn("a", clock, response="{}"))
    assert store.get("me", "a").response == "{}"


def test_a_conversation_comes_from_its_beginning(clock):
    store = store_of(clock)
    for name, parent in (("a", None), ("b", "a"), ("c", "b"), ("x", "a")):
        assert store.put(turn(name, clock, parent))
    assert [each.id for each in store.conversation("me", "c")] == ["a", "b", "c"]
    assert [each.id for each in store.conversation("me", "x")] == ["a", "x"]
    assert store.conversation("you", "c") == []


def test_what_is_deleted_stays_for_what_continues_it(clock, opened):
    store = store_of(clock)
    for name, parent in (("a", None), ("b", "a"), ("c", "b"), ("x", "a")):
        store.put(turn(name, clock, parent))
    assert store.delete("me", "a")
    assert not store.delete("me", "a")
    assert not store.delete("you", "b")
    assert store.delete("me", "b")
    assert [each.id for each in store.conversation("me", "c")] == ["a", "b", "c"]
    assert rows(opened) == 4
    assert store.delete("me", "c")
    assert rows(opened) == 2
    assert store.delete("me", "x")
    assert rows(opened) == 0


def test_nothing_continues_what_is_gone(clock, opened):
    store = store_of(clock)
    store.put(turn("a", clock))
    store.delete("me", "a")
    assert not store.put(turn("b", clock, "a"))
    assert rows(opened) == 0


def test_the_oldest_make_room(clock, opened):
    store = store_of(clock, turns=2)
    for name in "abc":
        store.put(turn(name, clock))
    assert [store.get("me", name) is not None for name in "abc"] == [False, True, True]
    size = turn("a", clock).size
    store = store_of(clock, size=2 * size)
    for name in "abc":
        store.put(turn(name, clock))
    assert [store.get("me", name) is not None for name in "abc"] == [False, True, True]
    assert not store.put(turn("d", clock, input="[" + " " * 2 * size + "]"))
    assert rows(opened) == 2


def test_the_rows_of_items_count(clock):
    """Small items take more room in the table that finds them than in the turn."""
    items = json.dumps([{"id": f"item{place}"} for place in range(100)])
    size = turn("a", clock, input=items).size
    store = store_of(clock, size=5 * size)
    assert store.put(turn("a", clock, input=items))
    assert store.put(turn("b", clock, input=items))
    assert store.get("me", "a") is None
    assert not store_of(clock, size=size).put(turn("a", clock, input=items))


def test_what_has_not_ended_stays(clock, opened):
    store = store_of(clock, turns=1)
    store.put(turn("a", clock, ended=False))
    store.put(turn("b", clock), {"a"})
    assert store.get("me", "a") is not None
    store.put(turn("a", clock))
    assert rows(opened) == 1


def test_what_nobody_works_on_makes_room(clock, opened):
    store = store_of(clock, turns=1, seconds=10)
    store.put(turn("a", clock, ended=False))
    store.put(turn("b", clock))
    assert store.get("me", "a") is None
    store.put(turn("c", clock, ended=False))
    clock.now += 11
    store.put(turn("d", clock))
    assert rows(opened) == 1


@pytest.mark.parametrize("limit", ["turns", "size"])
def test_who_has_the_most_makes_room(clock, limit):
    limits = {"turns": 4} if limit == "turns" else {"size": 4 * turn("a", clock).size + 9}
    store = store_of(clock, **limits)
    for name, owner in (("a", "me"), ("b", "you"), ("c", "you"), ("d", "you"), ("e", "you")):
        assert store.put(turn(name, clock, owner=owner))
    found = [store.get("me", "a"), *(store.get("you", name) for name in "bcde")]
    assert [each is not None for each in found] == [True, False, True, True, True]


def test_each_that_makes_room_costs_the_same(clock, opened):
    """So that a long one in place of many short ones does not hold up all keys' turns."""

    def work(short: int) -> int:
        """What SQLite does, in its own instructions, to put one in place of so and so many."""
        store = store_of(clock, turns=10_000, size=short * 300)
        for place in range(short):
            assert store.put(turn(str(place), clock))
        done = [0]
        opened[-1].set_progress_handler(lambda: done.__setitem__(0, done[0] + 1), 100)
        assert store.put(turn("long", clock, response=f'{{"of":"{"x" * short * 290}"}}'))
        assert rows(opened) < short // 10
        return done[0]

    assert work(800) < 3 * work(400)


def test_old_ones_go(clock, opened):
    store = store_of(clock, seconds=10)
    store.put(turn("a", clock))
    clock.now += 6
    store.put(turn("b", clock, "a"))
    clock.now += 6
    assert store.get("me", "a") is None
    assert [each.id for each in store.conversation("me", "b")] == ["a", "b"]
    store.put(turn("c", clock))
    clock.now += 6
    store.put(turn("d", clock))
    assert rows(opened) == 2


def test_what_nobody_works_on_is_failed(clock):
    store = store_of(clock)
    store.put(turn("a", clock, ended=False, response='"running"'))
    store.put(turn("b", clock, response='"done"'))
    store.fail_open(lambda response: f"[{response}]")
    assert store.get("me", "a").response == '["running"]'
    assert store.get("me", "a").ended
    assert store.get("me", "b").response == '"done"'


@pytest.mark.slow
def test_limits_hold_and_no_turn_is_lost_that_is_needed(clock, opened):
    """Random puts, deletions and time, compared with what a dictionary knows."""
    rng = random.Random(7)
    store = store_of(clock, turns=12, size=30 * turn("x", clock).size, seconds=50)
    parents: dict[str, str | None] = {}
    for step in range(600):
        clock.now += rng.random()
        alive = [name for name in parents if store.get("me", name) is not None]
        if alive and rng.random() < 0.2:
            assert store.delete("me", rng.choice(alive))
            continue
        parent = rng.choice(alive) if alive and rng.random() < 0.7 else None
        name = f"turn{step}"
        if store.put(turn(name, clock, parent)):
            parents[name] = parent
        alive = [name for name in parents if store.get("me", name) is not None]
        assert len(alive) <= 12
        size = opened[-1].execute("SELECT SUM(size) FROM turns").fetchone()[0]
        assert size <= 30 * turn("x", clock).size * 1.1
        needed = set()
        for each in alive:
            line = [found.id for found in store.conversation("me", each)]
            walked = []
            place: str | None = each
            while place is not None:
                walked.append(place)
                place = parents[place]
            assert line == walked[::-1]
            needed |= set(line)
        expired = rows(opened) - len(needed)
        assert expired <= len(parents)


def test_a_file_of_another_version_is_refused(tmp_path, clock):
    path = tmp_path / "store"
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 1")
    other.close()
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="another version of radixlm \\(1\\)"):
        TurnStore(path, StoreLimits(1, 1, 1.0), clock)


def test_work_is_cancelled_once():
    """What a response does once it is cancelled goes on, however often it is stopped."""
    store = ResponseStore(TurnStore(None, StoreLimits(9, 10**6, 60), time.time))
    done = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            done.append("stored")

    async def main() -> None:
        store.start("a", work(), ExitStack())
        await asyncio.sleep(0)
        first = asyncio.create_task(store.stop("a"))
        await asyncio.sleep(0)
        await asyncio.gather(first, store.stop("a"))

    asyncio.run(main())
    store.close()
    assert done == ["stored"]
