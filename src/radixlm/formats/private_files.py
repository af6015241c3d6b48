"""Files and folders for this user alone: what others must not read, or put in our way."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

_OTHERS = 0o077
# How the system refuses a link, and a pipe that nobody reads.
_REFUSALS = {
    errno.ELOOP: "it is a link; name the file itself",
    errno.ENXIO: "it is no regular file",
}


def check_private(path: Path, found: os.stat_result) -> None:
    """Raise ValueError, with what to do, for what belongs to another user or is open to others."""
    if found.st_uid != os.geteuid():
        raise ValueError(f"it belongs to user {found.st_uid}, not to you")
    if found.st_mode & _OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise ValueError(f"others may read or write it (mode {mode:04o}): chmod go= {path}")


def open_private(path: Path) -> BinaryIO:
    """Open a file to write at its end; it is made for this user alone.

    Never follows a link, waits for a reader, or changes what is refused. Raises OSError, and
    ValueError for what is no regular file, another user's, or open to others.
    """
    try:
        file = open(path, "ab", opener=_opened)  # noqa: SIM115 - a Path's has no opener
    except OSError as error:
        if error.errno in _REFUSALS:
            raise ValueError(_REFUSALS[error.errno]) from None
        raise
    try:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        check_private(path, found)
    except ValueError:
        file.close()
        raise
    return file


def open_database(path: Path | None, version: int, schema: str) -> sqlite3.Connection:
    """Open an SQLite file as `open_private` does, or one in memory, and make its tables where they
    are missing. It may be called from one thread after the other. Raises OSError, ValueError, and
    sqlite3.Error, too, for a file of another version.
    """
    if path is not None:
        open_private(path).close()  # SQLite gives its journal the same mode
    database = sqlite3.connect(path or ":memory:", check_same_thread=False)
    (found,) = database.execute("PRAGMA user_version").fetchone()
    if found not in (0, version):
        database.close()
        raise sqlite3.Error(f"written by another version of radixlm ({found}); move it")
    database.executescript(f"{schema}PRAGMA user_version = {version};")
    return database


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def replace_private(path: Path, content: bytes) -> None:
    """Put a file for this user alone in a path's place, in one moment: readers see all of the old
    one or of the new, also after a loss of power. Raises OSError.
    """
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}-")  # of mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(fresh).replace(path)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise


def make_private_folder(path: Path) -> None:
    """Make a folder for this user alone, unless it is there. Raises OSError, and ValueError for
    what is no folder, another user's, or open to others.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise ValueError("it is no folder; remove it") from None
        check_private(path, found)
