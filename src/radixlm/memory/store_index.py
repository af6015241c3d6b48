"""The disk cache's index: which block lies in which slot, in an SQLite file that several processes
may use at once.

A block's key is a digest of its parent's key and its own tokens; a first block's parent is a digest
of the identity and the namespace. So a row that says what its key stands for is undamaged.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from radixlm.core.errors import ConfigError, DiskStoreError
from radixlm.core.keys import Key
from radixlm.core.moves import StoredPath
from radixlm.memory.store_files import slot_bytes
from radixlm.memory.store_identity import LAYOUT

FILE = "index.sqlite"
# Of the log of changes, rows that are kept for other processes.
LOG_ROWS = 4096
_KEY_BYTES = 32
_APPLICATION = 0x52584C4D
# Another process writes 16 blocks meanwhile.
WAIT_SECONDS = 30.0
_SCHEMA = """
CREATE TABLE identities (id INTEGER PRIMARY KEY, digest TEXT UNIQUE, facts TEXT,
  block_tokens INTEGER, block_bytes INTEGER, slots INTEGER);
CREATE TABLE blocks (identity INTEGER, key BLOB, parent BLOB, namespace BLOB, tokens BLOB,
  slot INTEGER, sum BLOB, born INTEGER, PRIMARY KEY (identity, key)) WITHOUT ROWID;
CREATE INDEX children ON blocks (identity, parent);
CREATE TABLE free (identity INTEGER, slot INTEGER, PRIMARY KEY (identity, slot)) WITHOUT ROWID;
CREATE TABLE log (number INTEGER PRIMARY KEY AUTOINCREMENT, writer BLOB, identity INTEGER,
  key BLOB, parent BLOB, namespace BLOB, tokens BLOB);
CREATE INDEX changes ON log (identity, key);
"""
_SUBTREE = """WITH RECURSIVE below (key) AS (VALUES (:key) UNION
  SELECT b.key FROM blocks b JOIN below ON b.parent = below.key WHERE b.identity = :identity)
SELECT key, parent, namespace, tokens, slot FROM blocks
WHERE identity = :identity AND key IN below"""


class Identity(NamedTuple):
    """A row of `identities`; slots: that its file has, used or not."""

    id: int
    digest: str
    facts: str
    block_tokens: int
    block_bytes: int
    slots: int


class Row(NamedTuple):
    """Where a block lies, and what it has to say."""

    parent: bytes
    namespace: bytes
    tokens: bytes
    slot: int
    sum: bytes


class StoreIndex:
    """The file of a folder. One thread at a time. All methods raise DiskStoreError."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError for a file of another layout, or that is not ours."""
        self.path = folder / FILE
        self.writer = secrets.token_bytes(8)
        with self._errors():
            if not self.path.exists():  # SQLite gives its journal the same mode
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._base = sqlite3.connect(
                self.path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            with self._errors():
                self._prepare()
                self._version = self._number("PRAGMA data_version")
                self._seen = self._number("SELECT coalesce(max(number), 0) FROM log")
        except BaseException:
            self._base.close()
            raise

    def _prepare(self) -> None:
        for pragma in ("mmap_size=0", "synchronous=FULL", "cell_size_check=ON", "trusted_schema=0"):
            self._base.execute(f"PRAGMA {pragma}").fetchall()
        self._base.execute("PRAGMA journal_mode=TRUNCATE").fetchall()
        with self._transaction():
            if not self._number("SELECT count(*) FROM sqlite_schema"):
                for statement in _SCHEMA.split(";"):
                    self._base.execute(statement)
                self._base.execute(f"PRAGMA application_id={_APPLICATION}")
                self._base.execute(f"PRAGMA user_version={LAYOUT}")
        if self._number("PRAGMA application_id") != _APPLICATION:
            raise ConfigError(f"{self.path} is no index of a disk cache; name another folder")
        layout = self._number("PRAGMA user_version")
        if layout != LAYOUT:
            raise ConfigError(
                f"{self.path} has layout {layout}, and this version reads layout {LAYOUT}: "
                "name another folder"
            )
        if self._base.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("its pages contradict each other")

    def close(self) -> None:
        self._base.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All or nothing, on disk at the end; other processes wait with their writes."""
        with self._errors(), self._transaction():
            yield

    def identities(self) -> list[Identity]:
        rows = self._all(
            "SELECT id, digest, facts, block_tokens, block_bytes, slots FROM identities ORDER BY id"
        )
        return [_identity(row, self.path) for row in rows]

    def enrol(self, digest: str, facts: str, block_tokens: int, block_bytes: int) -> Identity:
        """The identity of this digest, new or known."""
        with self.writing():
            self._base.execute(
                "INSERT INTO identities (digest, facts, block_tokens, block_bytes, slots) "
                "VALUES (?, ?, ?, ?, 0) ON CONFLICT DO NOTHING",
                (digest, facts, block_tokens, block_bytes),
            )
        found = next(each for each in self.identities() if each.digest == digest)
        if (found.block_tokens, found.block_bytes) != (block_tokens, block_bytes):
            raise DiskStoreError(f"{self.path} is damaged: {digest} has blocks of another size")
        return found

    def used_bytes(self) -> int:
        """Of all files of blocks."""
        return sum(each.slots * slot_bytes(each.block_bytes) for each in self.identities())

    def count(self, identity: Identity) -> int:
        return self._number("SELECT count(*) FROM blocks WHERE identity = ?", identity.id)

    def row(self, identity: Identity, key: bytes) -> Row | None:
        fields = "SELECT parent, namespace, tokens, slot, sum"
        rows = self._all(f"{fields} FROM blocks WHERE identity = ? AND key = ?", identity.id, key)
        return Row(*rows[0]) if rows else None

    def keys(self, identity: Identity, *, leaves: bool = False) -> list[bytes]:
        """Of all blocks, or of those that no other goes on from; the oldest first."""
        only = (
            "AND NOT EXISTS (SELECT 1 FROM blocks c WHERE c.identity = b.identity "
            "AND c.parent = b.key)"
        )
        rows = self._all(
            f"SELECT key FROM blocks b WHERE identity = ? {only if leaves else ''} ORDER BY born",  # noqa: S608
            identity.id,
        )
        return [key for (key,) in rows if isinstance(key, bytes)]

    def add(self, identity: Identity, key: bytes, row: Row) -> None:
        """Within `writing`."""
        number = self._log(identity, key, row.parent, row.namespace, row.tokens)
        self._base.execute(
            "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (identity.id, key, *row, number),
        )
        self._base.execute("DELETE FROM log WHERE number <= ?", (number - LOG_ROWS,))

    def take_slot(self, identity: Identity, most_bytes: int) -> int | None:
        """A free one, or one at the file's end; None where that would make all files longer than
        most_bytes. Within `writing`.
        """
        free = self._all("SELECT slot FROM free WHERE identity = ? LIMIT 1", identity.id)
        for (slot,) in free:
            self._base.execute(
                "DELETE FROM free WHERE identity = ? AND slot = ?", (identity.id, slot)
            )
            if isinstance(slot, int) and 0 <= slot * slot_bytes(identity.block_bytes) < most_bytes:
                return slot
        if self.used_bytes() + slot_bytes(identity.block_bytes) > most_bytes:
            return None
        sql = "UPDATE identities SET slots = slots + 1 WHERE id = ? RETURNING slots - 1"
        return self._number(sql, identity.id)

    def drop(self, identity: Identity, key: bytes) -> int:
        """Delete a block and all that go on from it; how many. Within `writing`."""
        rows = self._base.execute(_SUBTREE, {"identity": identity.id, "key": key}).fetchall()
        for below, parent, namespace, tokens, slot in rows:
            self._base.execute(
                "DELETE FROM blocks WHERE identity = ? AND key = ?", (identity.id, below)
            )
            if isinstance(slot, int):
                self._base.execute("INSERT OR IGNORE INTO free VALUES (?, ?)", (identity.id, slot))
            self._log(identity, below, parent, namespace, tokens)
        return len(rows)

    def forget(self, identity: Identity) -> None:
        """Delete an identity with all its blocks. Within `writing`."""
        for table in ("blocks", "free", "log"):
            self._base.execute(f"DELETE FROM {table} WHERE identity = ?", (identity.id,))  # noqa: S608
        self._base.execute("DELETE FROM identities WHERE id = ?", (identity.id,))

    def compact(self, identity: Identity, slots: Sequence[tuple[bytes, int]]) -> None:
        """These blocks lie in other slots now, and the file has no free one. Within `writing`."""
        self._base.executemany(
            "UPDATE blocks SET slot = ? WHERE identity = ? AND key = ?",
            [(slot, identity.id, key) for key, slot in slots],
        )
        count = self.count(identity)
        self._base.execute("DELETE FROM free WHERE identity = ?", (identity.id,))
        self._base.execute("UPDATE identities SET slots = ? WHERE id = ?", (count, identity.id))

    def shrink(self) -> None:
        """Give what is free in the index's file back."""
        with self._errors():
            self._base.execute("VACUUM")

    def path_of(self, identity: Identity, key: bytes, *, logged: bool = False) -> StoredPath | None:
        """The path of a block that is stored; logged: or was lately. None where it is not whole."""
        where = "WHERE identity = ?1 AND key = ?2"
        sql = f"SELECT parent, namespace, tokens FROM blocks {where}"  # noqa: S608
        if logged:
            sql += f" UNION SELECT parent, namespace, tokens FROM log {where}"  # noqa: S608
        parts: list[bytes] = []
        root = b""
        while rows := self._all(sql, identity.id, key):
            parent, namespace, tokens = rows[0]
            if not is_sound(identity, key, parent, namespace, tokens):
                return None
            parts.append(tokens)
            key, root = parent, namespace
        if not parts or key != root_key(identity, root):
            return None
        tokens_of = np.frombuffer(b"".join(reversed(parts)), dtype=np.int32)
        return StoredPath(root, tokens_of)

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

    def _log(self, identity: Identity, key: bytes, *row: object) -> int:
        sql = "INSERT INTO log VALUES (NULL, ?, ?, ?, ?, ?, ?) RETURNING number"
        return self._number(sql, self.writer, identity.id, key, *row)

    def _all(self, sql: str, *values: object) -> list[Any]:
        with self._errors(), closing(self._base.execute(sql, values)) as cursor:
            return cursor.fetchall()

    def _number(self, sql: str, *values: object) -> int:
        value = self._all(sql, *values)[0][0]
        if not isinstance(value, int):
            raise DiskStoreError(f"{self.path} is damaged: {value!r:.80} is no number")
        return value

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._base.execute("COMMIT")
        except BaseException:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, OverflowError) as error:
            broken = isinstance(error, sqlite3.DatabaseError)
            advice = broken and not isinstance(error, sqlite3.OperationalError)
            text = f" (it is damaged: delete the folder {self.path.parent})" if advice else ""
            raise DiskStoreError(f"the disk cache's {self.path}: {error}{text}") from None


def root_key(identity: Identity, namespace: bytes) -> bytes:
    """What stands before a namespace's first blocks."""
    whole = bytes.fromhex(identity.digest) + namespace
    return hashlib.blake2b(whole, digest_size=_KEY_BYTES).digest()


def keys_of(identity: Identity, namespace: bytes, tokens: Key) -> list[bytes]:
    """What stands before the first block, then the key of each whole block."""
    keys, size = [root_key(identity, namespace)], 4 * identity.block_tokens
    view = np.ascontiguousarray(tokens, dtype=np.int32).data.cast("B")
    for start in range(0, view.nbytes - size + 1, size):
        keys.append(key_after(keys[-1], view[start : start + size]))
    return keys


def is_sound(
    identity: Identity, key: bytes, parent: object, namespace: object, tokens: object
) -> bool:
    """Whether a row is as it was written, so that its key is the digest of what it says."""
    return (
        isinstance(parent, bytes)
        and isinstance(namespace, bytes)
        and isinstance(tokens, bytes)
        and len(tokens) == 4 * identity.block_tokens
        and key == key_after(parent, tokens)
    )


def key_after(parent: bytes, tokens: bytes | memoryview) -> bytes:
    total = hashlib.blake2b(parent, digest_size=_KEY_BYTES)
    total.update(tokens)
    return total.digest()


def _identity(row: Any, path: Path) -> Identity:
    found = Identity(*row)
    numbers = (found.id, found.block_tokens, found.block_bytes, found.slots)
    if not (
        all(isinstance(each, int) and 0 <= each < 2**48 for each in numbers)
        and isinstance(found.digest, str)
        and isinstance(found.facts, str)
        and len(found.digest) == 2 * _KEY_BYTES
        and set(found.digest) <= set("0123456789abcdef")
        and min(found.block_tokens, found.block_bytes) > 0
    ):
        raise DiskStoreError(f"{path} is damaged: an identity is {row!r:.200}")
    return found
