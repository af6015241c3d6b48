"""Files and batches on disk: a folder with their content, and SQLite for what is said of them.

index.sqlite     files, batches: an owner's; a batch as the JSON that its route answers
file-...         a file's content; answers of a batch that runs are written where they will stay
upload-...       what is being uploaded; taken away at the next start, as is content of no file
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import sqlite3
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from radixlm.core.errors import ConfigError
from radixlm.formats.private_files import make_private_folder, open_database, open_private
from radixlm.server.http.store_thread import StoreThread

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    shown TEXT NOT NULL, purpose TEXT NOT NULL, expires REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    shown TEXT NOT NULL, ended REAL
);
CREATE INDEX IF NOT EXISTS files_of ON files (owner, number);
CREATE INDEX IF NOT EXISTS batches_of ON batches (owner, number);
"""
_OLD = """
SELECT owner, id FROM files WHERE expires < ? AND id NOT IN
    (SELECT json_extract(shown, '$.input_file_id') FROM batches WHERE ended IS NULL)
"""
# Of an owner's batches that have ended, the oldest go.
_TOO_MANY = """
DELETE FROM batches WHERE owner = :owner AND ended IS NOT NULL AND number <=
    (SELECT number FROM batches WHERE owner = :owner ORDER BY number DESC LIMIT 1 OFFSET :most)
"""
Json = dict[str, Any]
Table = Literal["files", "batches"]

LIFETIME = 30 * 86_400
MOST_FILES = 10_000
MOST_BATCHES = 10_000  # that an owner may look at
MOST_OPEN = 100  # batches of one owner that have not ended


@dataclass(frozen=True, slots=True)
class FileLimits:
    """file: most bytes of one that is uploaded. total: of all, with what is being written."""

    file: int
    total: int


@dataclass(frozen=True, slots=True)
class Owned:
    """A batch and whose it is."""

    owner: str
    shown: Json


class FileTable:
    """All calls take time on the disk: call them from one thread at a time, by `FileStore.call`.

    Raises ConfigError for a folder that another server uses, or that others may read.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self.folder, self._now = folder, now
        try:
            make_private_folder(folder)
            self._lock = open_private(folder / "lock")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._db = open_database(folder / "index.sqlite", _VERSION, _SCHEMA)
        except BlockingIOError:
            raise ConfigError(f"--file-storage-path {folder}: another server uses it") from None
        except (OSError, ValueError, sqlite3.Error) as error:
            raise ConfigError(f"--file-storage-path {folder}: {error}") from None
        self._drop_strays()

    def _drop_strays(self) -> None:
        """Take away uploads that were cut short, and content of no file: a server that was killed
        may have left it.
        """
        known = {name for (name,) in self._db.execute("SELECT id FROM files")}
        known.update(*(results_of(owned.shown) for owned in self.open_batches()))
        for path in (*self.folder.glob("upload-*"), *self.folder.glob("file-*")):
            if path.name not in known:
                path.unlink()

    def close(self) -> None:
        self._db.close()
        self._lock.close()

    def used(self) -> int:
        """Bytes of all content, of what is being written, too."""
        used = 0
        for path in self.folder.glob("*-*"):
            with contextlib.suppress(FileNotFoundError):  # it gets its place, or goes, meanwhile
                used += path.stat().st_size
        return used

    def count(self) -> int:
        """How many files there are, without those that are too old, which go, unless a batch reads
        them.
        """
        for owner, file_id in self._db.execute(_OLD, (self._now(),)).fetchall():
            self.delete_file(owner, file_id)
        with self._db:
            self._db.execute("DELETE FROM batches WHERE ended < ?", (self._now() - LIFETIME,))
        (count,) = self._db.execute("SELECT COUNT(*) FROM files").fetchone()
        return int(count)

    def put_files(self, owner: str, files: list[Json], batch: Json | None = None) -> None:
        """Keep files whose content is in its place, and the batch that made them, in one moment."""
        with self._db:
            for shown in files:
                expires = shown["expires_at"]
                values = (shown["id"], owner, json.dumps(shown), shown["purpose"], expires)
                self._db.execute(
                    "INSERT OR IGNORE INTO files (id, owner, shown, purpose, expires) "
                    "VALUES (?, ?, ?, ?, ?)",
                    values,
                )
            if batch is not None:
                self._put_batch(owner, batch)

    def put_batch(self, owner: str, batch: Json) -> None:
        with self._db:
            self._put_batch(owner, batch)

    def _put_batch(self, owner: str, batch: Json) -> None:
        ended = self._now() if is_ended(batch) else None
        self._db.execute(
            "INSERT INTO batches (id, owner, shown, ended) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET shown = excluded.shown, ended = excluded.ended",
            (batch["id"], owner, json.dumps(batch), ended),
        )
        self._db.execute(_TOO_MANY, {"owner": owner, "most": MOST_BATCHES})

    def get(self, table: Table, owner: str, wanted: str) -> Json | None:
        """An owner's file or batch; None for another's, or one that never was or is gone."""
        sql = f"SELECT shown FROM {table} WHERE id = ? AND owner = ?"  # noqa: S608 - our own names
        row = self._db.execute(sql, (wanted, owner)).fetchone()
        shown: Json | None = None if row is None else json.loads(row[0])
        old = shown is not None and (shown["expires_at"] or 0) < self._now()
        return None if table == "files" and old else shown

    def page(
        self,
        table: Table,
        owner: str,
        after: str | None,
        limit: int,
        *,
        ascending: bool = False,
        purpose: str | None = None,
    ) -> list[Json] | None:
        """An owner's, the newest first; None where `after` is not one of them."""
        where, values = "owner = ?", list[object]([owner])
        if after is not None:
            sql = f"SELECT number FROM {table} WHERE id = ? AND owner = ?"  # noqa: S608
            row = self._db.execute(sql, (after, owner)).fetchone()
            if row is None:
                return None
            where += f" AND number {'>' if ascending else '<'} ?"
            values.append(row[0])
        if purpose is not None:
            where += " AND purpose = ?"
            values.append(purpose)
        if table == "files":
            where += " AND expires >= ?"
            values.append(self._now())
        order = "ASC" if ascending else "DESC"
        sql = f"SELECT shown FROM {table} WHERE {where} ORDER BY number {order} LIMIT ?"  # noqa: S608
        return [json.loads(shown) for (shown,) in self._db.execute(sql, (*values, limit))]

    def open_batches(self) -> list[Owned]:
        """Batches that have not ended, the oldest first."""
        sql = "SELECT owner, shown FROM batches WHERE ended IS NULL ORDER BY number"
        return [Owned(owner, json.loads(shown)) for owner, shown in self._db.execute(sql)]

    def delete_file(self, owner: str, file_id: str) -> None:
        """Forget an owner's file and its content."""
        with self._db:
            self._db.execute("DELETE FROM files WHERE id = ? AND owner = ?", (file_id, owner))
        self.content(file_id).unlink(missing_ok=True)

    def content(self, file_id: str) -> Path:
        """The place of a file's content."""
        return self.folder / file_id


def results_of(batch: Json) -> tuple[str, str]:
    """The files of a batch's answers and errors."""
    name = batch["id"].removeprefix("batch_")
    return f"file-{name}o", f"file-{name}e"


def is_ended(batch: Json) -> bool:
    return batch["status"] in ("completed", "failed", "expired", "cancelled")


class FileStore(StoreThread[FileTable]):
    """A table of files, on its own thread, and their limits."""

    def __init__(self, table: FileTable, limits: FileLimits) -> None:
        super().__init__(table, "radixlm-files")
        self.table, self.limits = table, limits


def file_object(
    file_id: str, size: int, name: str, purpose: str, created: float, lifetime: int = LIFETIME
) -> Json:
    """A file as OpenAI shapes it."""
    return {
        "id": file_id,
        "object": "file",
        "bytes": size,
        "created_at": int(created),
        "expires_at": int(created) + lifetime,
        "filename": name,
        "purpose": purpose,
        "status": "processed",
        "status_details": None,
    }


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"
