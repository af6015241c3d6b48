"""Responses that were made, in SQLite, so that they can be fetched and continued; and, in the same
file under the same limits, conversations.

    turns   a response and its input; `parent` is the response that it continued
            alive   can be fetched and continued
            dead    deleted, or made room for; kept for as long as a turn continues it
            or a conversation: it is alive, has no input, and no turn continues it
    items   which turns have the item of an id, for its owner
    said    the items of conversations, in their order; see conversation_store

A turn holds only what is its own, so what is said takes space once however long it gets.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from radixlm.core.errors import ConfigError
from radixlm.formats.private_files import open_database
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.http_errors import ConversationLockedError
from radixlm.server.http.store_thread import StoreThread

_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS turns (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    parent TEXT,
    created REAL NOT NULL,
    alive INTEGER NOT NULL DEFAULT 1,
    ended INTEGER NOT NULL,
    size INTEGER NOT NULL,
    response TEXT NOT NULL,
    input TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_parent ON turns (parent) WHERE parent IS NOT NULL;
CREATE INDEX IF NOT EXISTS by_age ON turns (alive, number);
CREATE INDEX IF NOT EXISTS by_size ON turns (size);
CREATE INDEX IF NOT EXISTS by_owner ON turns (owner, alive, ended, size, id, number);
"""
# A file of before has no such tables; its items are found when they are stored again.
_ITEMS = """
CREATE TABLE IF NOT EXISTS items (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    turn TEXT NOT NULL,
    PRIMARY KEY (owner, id, turn)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_turn ON items (turn);
CREATE TRIGGER IF NOT EXISTS gone AFTER DELETE ON turns BEGIN
    DELETE FROM items WHERE turn = OLD.id;
END;
CREATE TABLE IF NOT EXISTS said (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation TEXT NOT NULL,
    id TEXT NOT NULL,
    item TEXT NOT NULL,
    UNIQUE (conversation, id)
);
CREATE INDEX IF NOT EXISTS said_in ON said (conversation, number);
CREATE INDEX IF NOT EXISTS said_by_id ON said (id);
CREATE TRIGGER IF NOT EXISTS unsaid AFTER DELETE ON turns BEGIN
    DELETE FROM said WHERE conversation = OLD.id;
END;
"""
_COLUMNS = "id, owner, parent, created, ended, response, input"  # in the order of Turn's fields
_ITEMS_OF = """
SELECT :owner AS owner, json_extract(value, '$.id') AS item, :id AS turn FROM json_each(:input)
UNION ALL SELECT :owner, json_extract(value, '$.id'), :id FROM json_each(:response, '$.output')
"""
_NOTE_ITEMS = f"INSERT OR IGNORE INTO items {_ITEMS_OF}"
# Each stands in the table, and in the index by turns.
_SIZE_OF_ITEMS = f"""
SELECT COALESCE(SUM(2 * (20 + LENGTH(owner) + LENGTH(CAST(item AS BLOB)) + LENGTH(turn))), 0)
FROM ({_ITEMS_OF})
"""  # noqa: S608 - our own text
# The latest turn of each item, with the item's id.
_LATEST = """
SELECT turns.id, items.id, MAX(turns.number) AS newest
FROM items JOIN turns ON turns.id = items.turn
WHERE items.owner = ? AND items.id IN (SELECT value FROM json_each(?)) AND alive AND created >= ?
GROUP BY items.id ORDER BY newest
"""
_SAID = """
SELECT said.id, item FROM said JOIN turns ON turns.id = conversation
WHERE owner = ? AND said.id IN (SELECT value FROM json_each(?)) AND alive AND created >= ?
"""
# What the ids of conversations begin with, and those of no turn.
CONVERSATION = "conv"
# Can make room. Takes the names of the others that have not ended, as JSON.
_IDLE = "(alive AND (ended OR id NOT IN (SELECT value FROM json_each(?))))"


@dataclass(frozen=True, slots=True)
class Turn:
    """One stored response.

    owner: a digest of the API key that made it. created: in seconds since 1970.
    response, input: as JSON.
    """

    id: str
    owner: str
    parent: str | None
    created: float
    ended: bool
    response: str
    input: str

    @property
    def size(self) -> int:
        """Bytes, about, without the rows of its items."""
        return 200 + len(self.response.encode()) + len(self.input.encode())


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """turns: how many can be fetched. size: bytes of all. seconds: how old one gets."""

    turns: int
    size: int
    seconds: float


class TurnStore:
    """All calls take time on the disk: call them off the event loop, from one thread at a time.

    path: a file, which only its owner may read, or None for memory. now: seconds since 1970.
    db: for conversations, too.
    Raises ConfigError for a file that is no such store, or that others may read.
    """

    def __init__(self, path: Path | None, limits: StoreLimits, now: Callable[[], float]) -> None:
        self.limits = limits
        self.now = now
        try:
            self.db = open_database(path, _VERSION, _SCHEMA + _ITEMS)
        except (OSError, ValueError, sqlite3.Error) as error:
            raise ConfigError(f"--response-store {path}: {error}") from None

    def close(self) -> None:
        """Close it; nothing may be called afterwards."""
        self.db.close()

    def put(self, turn: Turn, worked_on: Collection[str] = ()) -> bool:
        """Keep a turn, in place of the one with its id if there is one, and make room for it.

        worked_on: the ids of those that have not ended and will. This one is taken for such.
        False when it is larger than all that is kept may be, or what it continues is gone.
        """
        values = asdict(turn)
        (of_items,) = self.db.execute(_SIZE_OF_ITEMS, values).fetchone()
        values["size"] = turn.size + of_items
        continued = self.db.execute("SELECT 1 FROM turns WHERE id = ?", (turn.parent,)).fetchone()
        if values["size"] > self.limits.size or (turn.parent is not None and not continued):
            return False
        names = ", ".join(values)
        places = ", ".join(f":{name}" for name in values)
        fresh = ", ".join(f"{name} = excluded.{name}" for name in values)
        with self.db:
            self.db.execute(
                f"INSERT INTO turns ({names}) VALUES ({places}) "  # noqa: S608 - our own names
                f"ON CONFLICT (id) DO UPDATE SET {fresh}",
                values,
            )
            self.db.execute(_NOTE_ITEMS, values)
            self.make_room({*worked_on, turn.id})
        return True

    def get(self, owner: str, turn_id: str) -> Turn | None:
        """An owner's turn; None for one that is another's, deleted, too old, or never was."""
        return None if turn_id.startswith(f"{CONVERSATION}_") else self.kept(owner, turn_id)

    def kept(self, owner: str, turn_id: str) -> Turn | None:
        """The same, of conversations too."""
        shown = "id = ? AND owner = ? AND alive AND created >= ?"
        return self._found(shown, turn_id, owner, self._oldest())

    def items(self, owner: str, item_ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """Items by their ids, of conversations and of the turns that `get` finds: of their input or
        their answer.

        Each is taken from the latest turn that has it, and each turn is read once.
        """
        wanted_of = (owner, json.dumps([*item_ids]), self._oldest())
        latest = self.db.execute(_LATEST, wanted_of)
        said = self.db.execute(_SAID, wanted_of)
        found: dict[str, dict[str, Any]] = {name: json.loads(item) for name, item in said}
        for turn_id, group in groupby(latest.fetchall(), itemgetter(0)):
            wanted = {item_id for _, item_id, _ in group}
            if (turn := self.get(owner, turn_id)) is not None:
                items = json.loads(turn.input) + json.loads(turn.response)["output"]
                found |= {item["id"]: item for item in items if item["id"] in wanted}
        return found

    def conversation(self, owner: str, turn_id: str) -> list[Turn]:
        """A turn and those that it continues, from the first on; none where `get` finds none."""
        found: list[Turn] = []
        turn = self.get(owner, turn_id)
        while turn is not None:
            found.append(turn)
            turn = self._found("id = ?", turn.parent)
        if found and found[-1].parent is not None:
            raise LookupError(f"the stored response {found[-1].parent} is missing")
        return found[::-1]

    def delete(self, owner: str, turn_id: str) -> bool:
        """Whether there was such a turn, or conversation."""
        if self.kept(owner, turn_id) is None:
            return False
        with self.db:
            self._bury(turn_id)
        return True

    def fail_open(self, failed: Callable[[str], str]) -> None:
        """Let `failed` rewrite the responses of turns that have not ended: nobody works on them."""
        left = self.db.execute("SELECT response, id FROM turns WHERE NOT ended").fetchall()
        end = "UPDATE turns SET ended = 1, response = ? WHERE id = ?"
        with self.db:
            self.db.executemany(end, [(failed(response), turn_id) for response, turn_id in left])

    def _found(self, where: str, *values: object) -> Turn | None:
        sql = f"SELECT {_COLUMNS} FROM turns WHERE {where}"  # noqa: S608
        row = self.db.execute(sql, values).fetchone()
        return None if row is None else Turn(*row)

    def _oldest(self) -> float:
        return self.now() - self.limits.seconds

    def make_room(self, worked_on: Collection[str]) -> None:
        """Bury what is too old, and then the oldest until the rest is within the limits.

        Each time the oldest of the owner that has the most, so that nobody takes others' place.
        What is worked on stays until it has ended, since it would come back then.
        """
        names = json.dumps(list(worked_on))
        old = f"SELECT id FROM turns WHERE {_IDLE} AND created < ? ORDER BY number"  # noqa: S608
        for (turn_id,) in self.db.execute(old, (names, self._oldest())).fetchall():
            self._bury(turn_id)
        self._keep_within("alive", self.limits.turns, names)
        self._keep_within("size", self.limits.size, names)

    def _keep_within(self, column: str, most: int, names: str) -> None:
        """Bury until the column's sum is within a limit. Sums and orders are asked for once: to ask
        for each that goes would take time in proportion to all turns, and hold up all keys.
        """
        (total,) = self.db.execute(f"SELECT COALESCE(SUM({column}), 0) FROM turns").fetchone()  # noqa: S608
        if total <= most:
            return
        sums = f"SELECT -SUM({column}), MIN(number), owner FROM turns GROUP BY owner"  # noqa: S608
        owners = self.db.execute(sums).fetchall()
        heapify(owners)
        idle: dict[str, Iterator[tuple[str]]] = {}
        while total > most and owners:
            minus, first, owner = owners[0]
            if owner not in idle:
                of_owner = f"SELECT id FROM turns WHERE {_IDLE} AND owner = ? ORDER BY number"  # noqa: S608
                idle[owner] = iter(self.db.execute(of_owner, (names, owner)).fetchall())
            oldest = next(idle[owner], None)
            if oldest is None:
                heappop(owners)
                continue
            freed = self._bury(oldest[0])
            less = 1 if column == "alive" else freed
            total -= less
            heapreplace(owners, (minus + less, first, owner))

    def _bury(self, turn_id: str | None) -> int:
        """Let a turn be dead, and take away it and those before it that nothing continues. Returns
        the bytes of what went.
        """
        self.db.execute("UPDATE turns SET alive = 0 WHERE id = ?", (turn_id,))
        freed = 0
        while turn_id is not None:
            gone = self.db.execute(
                "DELETE FROM turns WHERE id = :id AND NOT alive "
                "AND NOT EXISTS (SELECT 1 FROM turns AS later WHERE later.parent = :id) "
                "RETURNING parent, size",
                {"id": turn_id},
            ).fetchone()
            turn_id, size = gone if gone is not None else (None, 0)
            freed += size
        return freed


class ResponseStore(StoreThread[TurnStore]):
    """Stored turns, on their own thread, and the tasks of responses made in the background."""

    def __init__(self, turns: TurnStore) -> None:
        super().__init__(turns, "radixlm-responses")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._held: set[tuple[str, str]] = set()

    @classmethod
    def from_config(cls, config: ServerConfig) -> ResponseStore:
        """Raises ConfigError for a file that is no store."""
        limits = StoreLimits(
            config.max_stored_responses, config.max_stored_bytes, config.response_ttl
        )
        path = None if config.response_store is None else Path(config.response_store)
        return cls(TurnStore(path, limits, time.time))

    def fail_open(self, failed: Callable[[str], str]) -> None:
        """Fail open turns as TurnStore.fail_open does: a server that begins works on none that an
        earlier one left.
        """
        self._thread.submit(self._store.fail_open, failed).result()

    async def put(self, turn: Turn) -> bool:
        return await self.call(TurnStore.put, turn, self.worked_on)

    @property
    def worked_on(self) -> frozenset[str]:
        """The ids of what is made in the background now."""
        return frozenset(self._tasks)

    def hold(self, owner: str, conversation: str | None) -> ExitStack:
        """Let no other response be made in an owner's conversation until that is closed. Raises
        ConversationLockedError.
        """
        held = ExitStack()
        if conversation is not None:
            if (owner, conversation) in self._held:
                raise ConversationLockedError(
                    "Another process is currently operating on this conversation. Please retry in "
                    "a few seconds.",
                    param="conversation",
                )
            self._held.add((owner, conversation))
            held.callback(self._held.remove, (owner, conversation))
        return held

    def start(self, turn_id: str, work: Coroutine[Any, Any, None], held: ExitStack) -> None:
        """Run `work`, which makes this response, also when its client has gone. held: closed when
        it has ended.
        """
        task = asyncio.create_task(work)
        self._tasks[turn_id] = task

        def end(_: asyncio.Task[None]) -> None:
            self._tasks.pop(turn_id, None)
            held.close()

        task.add_done_callback(end)

    async def stop(self, turn_id: str) -> None:
        """Cancel the work on a response and wait until it has ended, if there is any.

        Once only: another time would cancel what the work does about it.
        """
        task = self._tasks.get(turn_id)
        if task is not None:
            if not task.cancelling():
                task.cancel()
            await asyncio.wait([task])
