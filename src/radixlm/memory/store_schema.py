"""The form that a file must have before a row of it is read: an SQLite database with the tables of
a disk cache's index, and nothing else. A view in a table's place may have no end.
"""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from radixlm.core.errors import ConfigError, DamagedStoreError

FILE = "index.sqlite"
# What SQLite keeps beside it; but for the journal, only where another program has opened it.
COMPANIONS = (f"{FILE}-journal", f"{FILE}-wal", f"{FILE}-shm")
# Of the index, and of the records in the files of blocks.
LAYOUT = 2
_APPLICATION = 0x52584C4D
_TABLES = """
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
_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name LIMIT 100"


def check_files(path: Path) -> None:
    """Raises DamagedStoreError where SQLite would open what is no file, or read changes that we
    never write: we keep no log ahead of the index.
    """
    for name in (path.name, *COMPANIONS):
        place = path.with_name(name)
        try:
            mode = place.lstat().st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(mode):
            raise DamagedStoreError(f"{place} is not a regular file")
        if name in COMPANIONS[1:]:
            raise DamagedStoreError(f"{place} is not ours")
    with path.open("rb") as file:
        versions = file.read(20)[18:]
    if versions not in (b"", b"\1\1"):
        raise DamagedStoreError(f"{path} has versions {versions!r} of SQLite's format")


def make_tables(base: sqlite3.Connection) -> None:
    """Make the tables in an empty database, within a transaction."""
    for statement in _TABLES.split(";"):
        base.execute(statement)
    base.execute(f"PRAGMA application_id={_APPLICATION}")
    base.execute(f"PRAGMA user_version={LAYOUT}")


def is_empty(base: sqlite3.Connection) -> bool:
    return not _objects(base)


def check_tables(base: sqlite3.Connection, path: Path) -> None:
    """Raises DamagedStoreError; ConfigError where the folder holds no cache but another program's
    file; sqlite3.Error where none of that can be asked.
    """
    if _pragma(base, "application_id") != _APPLICATION:
        if not any(path.parent.glob("*.blocks")):
            raise ConfigError(f"{path} is no index of a disk cache; name another folder")
        raise DamagedStoreError(f"{path} is another program's")
    layout = _pragma(base, "user_version")
    if layout != LAYOUT:
        raise DamagedStoreError(
            f"{path} has layout {layout}, and this version reads layout {LAYOUT}"
        )
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as ours:
        make_tables(ours)
        expected = _objects(ours)
    for found in _objects(base):
        if found not in expected:
            raise DamagedStoreError(f"{path} has a {found[0]} {found[1]!r:.80} that is not ours")
        expected.remove(found)
    if expected:
        raise DamagedStoreError(f"{path} has no {expected[0][0]} {expected[0][1]!r}")


def _objects(base: sqlite3.Connection) -> list[tuple[str, str, str, str | None]]:
    with closing(base.execute(_OBJECTS)) as cursor:
        return cursor.fetchall()


def _pragma(base: sqlite3.Connection, name: str) -> object:
    with closing(base.execute(f"PRAGMA {name}")) as cursor:
        return cursor.fetchone()[0]
