"""The disk cache's index: which block lies in which slot, in an SQLite file that several processes
may use at once.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from radixlm.core.errors import DamagedStoreError, DiskStoreError, FullStoreError
from radixlm.core.moves import StoredPath
from radixlm.memory.block_records import SUM_BYTES
from radixlm.memory.store_folder import FolderLock
from radixlm.memory.store_rows import (
    SLOTS,
    Identity,
    Lying,
    Room,
    Row,
    identity_of,
    is_sound,
    root_key,
)
from radixlm.memory.store_schema import (
    COMPANIONS,
    FILE,
    check_files,
    check_tables,
    is_empty,
    make_tables,
)

# Of the log of changes, what is kept for other processes.
LOG_ROWS, LOG_BYTES = 4096, 8 << 20
# The log says no longer namespaces: that such blocks are gone is found when they are read.
_LOGGED_NAMESPACE = 512
# What a row needs for itself, in the table and for a while in the log.
ROW_BYTES = 512
# A disk with as much room, beside the index once more, is not full.
SPARE_BYTES = 1 << 20
# Another process writes 16 blocks meanwhile.
WAIT_SECONDS = 30.0
# No query takes as long; the file may be made so that one has no end.
QUERY_SECONDS = 300.0
_INSTRUCTIONS = 1_000_000
# What SQLite says of the disk, of rights and of other processes, not of what is in the file.
_NO_DAMAGE = frozenset(
    {sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM}
    | {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
    | {sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_AUTH}
)
_SUBTREE = """WITH RECURSIVE below (key) AS (VALUES (:key) UNION
  SELECT b.key FROM blocks b JOIN below ON b.parent = below.key WHERE b.identity = :identity)
SELECT key, parent, namespace, tokens, slot FROM blocks
WHERE identity = :identity AND key IN below"""


class StoreIndex:
    """The file of a folder. One thread at a time. All methods raise DiskStoreError."""

    def __init__(self, folder: Path, lock: FolderLock | None = None) -> None:
        """lock: the folder's, which is its own from now on. Raises DamagedStoreError where the file
        is not an index, and as `FolderLock`.
        """
        self.path = folder / FILE
        self.writer = secrets.token_bytes(8)
        self._deadline = math.inf
        with ExitStack() as opened:
            if lock is None:
                lock = FolderLock(folder)
                opened.callback(lock.close)
            self._lock = lock
            with self._errors():
                self._base = self._connected()
            opened.callback(self._base.close)
            with self._errors():
                self._prepare()
            self._version = self._number("PRAGMA data_version")
            self._seen = self._number("SELECT coalesce(max(number), 0) FROM log")
            self.identities()
            opened.pop_all()

    def _connected(self) -> sqlite3.Connection:
        if os.path.lexists(self.path):
            check_files(self.path)
        else:  # SQLite gives its journal the same mode
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        base = sqlite3.connect(
            self.path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        base.set_progress_handler(lambda: time.monotonic() > self._deadline, _INSTRUCTIONS)
        return base

    def _prepare(self) -> None:
        for pragma in ("mmap_size=0", "synchronous=FULL", "cell_size_check=ON", "trusted_schema=0"):
            self._base.execute(f"PRAGMA {pragma}").fetchall()
        self._base.execute("PRAGMA journal_mode=TRUNCATE").fetchall()
        with self._transaction():
            if is_empty(self._base):
                make_tables(self._base)
        check_tables(self._base, self.path)
        [found] = self._base.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise DamagedStoreError(f"{self.path}: {found:.200}")
        for each in (self.path, self.path.with_name(COMPANIONS[0])):
            with suppress(FileNotFoundError):
                each.chmod(0o600)  # those of a copied folder may be open to others

    def close(self) -> None:
        self.leave()
        self._lock.close()

    def leave(self) -> None:
        """Close all but the folder's lock."""
        self._base.close()

    @contextmanager
    def writing(self, undo: Callable[[], None] = lambda: None) -> Iterator[None]:
        """All or nothing, on disk at the end; other processes wait with their writes, and after an
        error for `undo`.
        """
        with self._errors(), self._transaction(undo):
            yield

    def identities(self) -> list[Identity]:
        rows = self._all(
            "SELECT id, digest, facts, block_tokens, block_bytes, slots FROM identities ORDER BY id"
        )
        return [identity_of(row, self.path) for row in rows]

    def enrol(self, digest: str, facts: str, block_tokens: int, block_bytes: int) -> Identity:
        """The identity of this digest, new or known."""
        self._all(
            "INSERT INTO identities (digest, facts, block_tokens, block_bytes, slots) "
            "VALUES (?, ?, ?, ?, 0) ON CONFLICT DO NOTHING",
            digest,
            facts,
            block_tokens,
            block_bytes,
        )
        found = next(each for each in self.identities() if each.digest == digest)
        if (found.block_tokens, found.block_bytes) != (block_tokens, block_bytes):
            raise DamagedStoreError(f"{self.path} is damaged: {digest} has blocks of another size")
        return found

    def used_bytes(self) -> int:
        """The bytes of all files of blocks."""
        return sum(each.slots * each.slot_bytes for each in self.identities())

    def own_bytes(self) -> int:
        """The bytes of the index's file."""
        return self._number("PRAGMA page_count") * self._number("PRAGMA page_size")

    def count(self, identity: Identity) -> int:
        return self._number("SELECT count(*) FROM blocks WHERE identity = ?", identity.id)

    def row(self, identity: Identity, key: bytes) -> Row | None:
        fields = "SELECT parent, namespace, tokens, slot, sum"
        rows = self._all(f"{fields} FROM blocks WHERE identity = ? AND key = ?", identity.id, key)
        return Row(*rows[0]) if rows else None

    def keys(self, identity: Identity, *, leaves: bool = False) -> list[bytes]:
        """The keys of all blocks, or of those that no other goes on from; the oldest first."""
        only = (
            "AND NOT EXISTS (SELECT 1 FROM blocks c WHERE c.identity = b.identity "
            "AND c.parent = b.key)"
        )
        rows = self._all(
            f"SELECT key FROM blocks b WHERE identity = ? {only if leaves else ''} ORDER BY born",  # noqa: S608
            identity.id,
        )
        return [key for (key,) in rows if isinstance(key, bytes)]

    def lying(self, identity: Identity) -> list[Lying]:
        """The slots of all blocks, those that were stored first first."""
        rows = self._all(
            "SELECT key, parent, slot, born FROM blocks WHERE identity = ? ORDER BY born",
            identity.id,
        )
        return [Lying(*row) for row in rows if row[2] in SLOTS]

    def add(self, identity: Identity, key: bytes, row: Row) -> int:
        """Returns a number that is higher than those of the blocks before. Within `writing`."""
        number = self._log(identity, key)
        self._insert(identity, key, row, number)
        return number

    def replace(self, identity: Identity, key: bytes, row: Row) -> int:
        """Replace a block's row: more of it is stored now. Returns as `add`. Within `writing`."""
        number = self._log(identity, key)
        sql = "UPDATE blocks SET sum = ?, born = ? WHERE identity = ? AND key = ?"
        self._base.execute(sql, (row.sum, number, identity.id, key))
        return number

    def restore(self, identity: Identity, blocks: Iterable[tuple[bytes, Row, int]]) -> None:
        """Add blocks with their numbers, which later ones exceed. Within `writing`."""
        last = 0
        for key, row, number in blocks:
            self._insert(identity, key, row, number)
            last = max(last, number)
        if last > self._number("SELECT coalesce(max(number), 0) FROM log"):
            self._base.execute(
                "INSERT INTO log (number, writer, identity, key) VALUES (?, ?, ?, ?)",
                (last, self.writer, identity.id, b""),
            )
            self._seen = last

    def _insert(self, identity: Identity, key: bytes, row: Row, number: int) -> None:
        sql = "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        self._base.execute(sql, (identity.id, key, *row, number))

    def set_slots(self, identity: Identity, slots: int, free: Iterable[int]) -> None:
        """How many slots the file has, and which of them hold nothing. Within `writing`."""
        self._base.execute("DELETE FROM free WHERE identity = ?", (identity.id,))
        pairs = ((identity.id, slot) for slot in free)
        self._base.executemany("INSERT INTO free VALUES (?, ?)", pairs)
        self._base.execute("UPDATE identities SET slots = ? WHERE id = ?", (slots, identity.id))

    def take_slot(self, identity: Identity, room: Room, row_bytes: int) -> int | None:
        """A free one, or one at the file's end; None where there is no room for a block, or for a
        row of this size. Within `writing`.
        """
        used, own, size = self.used_bytes(), self.own_bytes(), identity.slot_bytes
        spare = self._number("PRAGMA freelist_count") * self._number("PRAGMA page_size")
        growth = max(0, row_bytes - spare)
        if growth and used + own + growth > room.together:
            return None
        # Those behind a limit that was lowered stay free until they are cut off.
        free = "SELECT slot FROM free WHERE identity = ? AND slot < ? LIMIT 1"
        for (slot,) in self._all(free, identity.id, max(0, -(-room.blocks // size))):
            self._base.execute(
                "DELETE FROM free WHERE identity = ? AND slot = ?", (identity.id, slot)
            )
            if slot in SLOTS:
                return int(slot)
        if used + size > room.blocks or used + size + own + growth > room.together:
            return None
        sql = "UPDATE identities SET slots = slots + 1 WHERE id = ? RETURNING slots - 1"
        return self._number(sql, identity.id)

    def drop(self, identity: Identity, key: bytes) -> list[int | None]:
        """Delete a block and all that go on from it; in which slots they lay, None where a damaged
        row does not say. Within `writing`.
        """
        rows = self._base.execute(_SUBTREE, {"identity": identity.id, "key": key}).fetchall()
        for below, parent, namespace, tokens, slot in rows:
            self._base.execute(
                "DELETE FROM blocks WHERE identity = ? AND key = ?", (identity.id, below)
            )
            if slot in SLOTS:
                self._base.execute("INSERT OR IGNORE INTO free VALUES (?, ?)", (identity.id, slot))
            short = isinstance(namespace, bytes) and len(namespace) <= _LOGGED_NAMESPACE
            said = namespace if short else b""
            self._log(identity, below, parent, said, tokens)
        return [slot if slot in SLOTS else None for *_, slot in rows]

    def forget(self, identity: Identity) -> None:
        """Delete an identity with all its blocks. Within `writing`."""
        for table in ("blocks", "free", "log"):
            self._base.execute(f"DELETE FROM {table} WHERE identity = ?", (identity.id,))  # noqa: S608
        self._base.execute("DELETE FROM identities WHERE id = ?", (identity.id,))

    def move(self, identity: Identity, slots: Sequence[tuple[bytes, int]]) -> None:
        """Note that these blocks lie in other slots now. Within `writing`."""
        self._base.executemany(
            "UPDATE blocks SET slot = ? WHERE identity = ? AND key = ?",
            [(slot, identity.id, key) for key, slot in slots],
        )

    @contextmanager
    def sparing(self) -> Iterator[None]:
        """Inside, changes need no room on the disk where it has none and no other process uses the
        folder: who is killed then leaves a damaged index, which is repaired.
        """
        with self._errors():
            free = shutil.disk_usage(self.path.parent).free
        if free > self.own_bytes() + SPARE_BYTES or not self._lock.alone():
            yield
            return
        self._all("PRAGMA journal_mode=MEMORY")
        try:
            self._all("DELETE FROM log")  # no other process reads it, and it makes room
            yield
        finally:
            self._all("PRAGMA journal_mode=TRUNCATE")
            self._lock.share()

    def shrink(self) -> None:
        """Give what is free in the index's file back."""
        with self._errors():
            self._base.execute("VACUUM")

    def path_of(self, identity: Identity, key: bytes, *, logged: bool = False) -> StoredPath | None:
        """The path of a block that is stored; logged: or was lately. None where it is not whole."""
        where = "WHERE identity = ?1 AND key = ?2"
        sql = f"SELECT parent, namespace, tokens, length(sum) FROM blocks {where}"  # noqa: S608
        if logged:
            sql += (
                f" UNION SELECT parent, namespace, tokens, 0 FROM log {where} AND tokens NOT NULL"  # noqa: S608
            )
        parts: list[bytes] = []
        windows, root = 0, b""
        while rows := self._all(sql, identity.id, key):
            parent, namespace, tokens, sums = rows[0]
            if not is_sound(identity, key, parent, namespace, tokens):
                return None
            parts.append(tokens)
            windows = windows << 1 | (sums == 2 * SUM_BYTES)
            key, root = parent, namespace
        if not parts or key != root_key(identity, root):
            return None
        tokens_of = np.frombuffer(b"".join(reversed(parts)), dtype=np.int32)
        return StoredPath(root, tokens_of, windows)

    def changes(self, identity: Identity) -> list[bytes] | None:
        """Keys of blocks that others added or deleted since the last call; None where there were
        more than are logged. Cheap where there are none.
        """
        version = self._number("PRAGMA data_version")
        if version == self._version:
            return []
        self._version = version
        before, bounds = self._seen, "SELECT coalesce(min(number), 0), coalesce(max(number), 0)"
        first, self._seen = self._all(f"{bounds} FROM log")[0]
        if first > before + 1:
            return None
        rows = self._all(
            "SELECT DISTINCT key FROM log WHERE number > ? AND number <= ? AND identity = ? "
            "AND writer != ?",
            before,
            self._seen,
            identity.id,
            self.writer,
        )
        return [key for (key,) in rows if isinstance(key, bytes)]

    def _log(
        self,
        identity: Identity,
        key: bytes,
        parent: object = None,
        namespace: object = None,
        tokens: object = None,
    ) -> int:
        """Others look up what is stored; what is not has to be said."""
        sql = "INSERT INTO log VALUES (NULL, ?, ?, ?, ?, ?, ?) RETURNING number"
        number = self._number(sql, self.writer, identity.id, key, parent, namespace, tokens)
        widest = 4 * identity.block_tokens + _LOGGED_NAMESPACE + ROW_BYTES
        oldest = number - max(1, min(LOG_ROWS, LOG_BYTES // widest))
        self._base.execute("DELETE FROM log WHERE number <= ?", (oldest,))
        return number

    def _all(self, sql: str, *values: object) -> list[Any]:
        with self._errors(), closing(self._base.execute(sql, values)) as cursor:
            return cursor.fetchall()

    def _number(self, sql: str, *values: object) -> int:
        value = self._all(sql, *values)[0][0]
        if not isinstance(value, int):
            raise DamagedStoreError(f"{self.path} is damaged: {value!r:.80} is no number")
        return value

    @contextmanager
    def _transaction(self, undo: Callable[[], None] = lambda: None) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._base.execute("COMMIT")
        except BaseException:
            if self._base.in_transaction:
                undo()
                self._base.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        self._deadline = time.monotonic() + QUERY_SECONDS
        try:
            yield
        except (sqlite3.Error, OSError, OverflowError) as error:
            text = f"the disk cache's {self.path}: {error}"
            if not isinstance(error, sqlite3.DatabaseError):
                raise DiskStoreError(text) from None
            # An error of Python's own, as of text that is no text, has no code.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
            if code & 0xFF == sqlite3.SQLITE_FULL:
                raise FullStoreError(text) from None
            if code & 0xFF in _NO_DAMAGE:
                raise DiskStoreError(text) from None
            raise DamagedStoreError(f"{text} (it is damaged)") from None
