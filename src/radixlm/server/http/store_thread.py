"""Stores on disk, each on a thread of its own; and what is said where the disk is full."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar

from radixlm.server.http.http_errors import Refusal

P = ParamSpec("P")
T = TypeVar("T")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Closable(Protocol):
    """Takes time on the disk with each call; belongs to one thread at a time."""

    def close(self) -> None: ...


S = TypeVar("S", bound=Closable)


class DiskFullError(Refusal, status=507, code="disk_full"):
    """The server's disk has no room for what is to be kept; nothing of it is."""


@contextmanager
def room_on_disk() -> Iterator[None]:
    """Raise DiskFullError for what the system, or SQLite, raises about a full disk."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        if full or getattr(error, "errno", None) in _FULL:
            raise DiskFullError("the server's disk is full; try again when it has room") from None
        raise


class StoreThread(Generic[S]):
    """A store whose calls are made off the event loop, one after the other. name: the thread's."""

    def __init__(self, store: S, name: str) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, name)

    def close(self) -> None:
        """Close it; nothing may be asked of it afterwards."""
        self._thread.submit(self._store.close)
        self._thread.shutdown()

    async def call(
        self, method: Callable[Concatenate[S, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a method of the store, or a function of it. Raises what it raises; DiskFullError."""
        work = partial(method, self._store, *args, **kwargs)
        with room_on_disk():
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
