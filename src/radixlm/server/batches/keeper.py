"""The batches of a server: one of each owner runs at a time; a later server goes on with them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from radixlm.batch.batch_run import PAUSE_SECONDS, answer_all, expire
from radixlm.batch.lines import LineError
from radixlm.batch.order import plan
from radixlm.batch.results import NoRoomError, Results
from radixlm.core.errors import EngineDeadError, QueueFullError, reason_of
from radixlm.server.batches.asking import Asking
from radixlm.server.batches.file_store import (
    MOST_OPEN,
    FileStore,
    FileTable,
    Json,
    file_object,
    results_of,
)
from radixlm.server.http.store_thread import DiskFullError

T = TypeVar("T")

_logger = logging.getLogger("radixlm.server")
_EXPIRED = "This request could not be executed before the completion window expired."


class BatchKeeper:
    """Runs batches in the event loop that serves.

    store: the caller's to close. parts: into how many a batch is cut, which run side by side.
    """

    def __init__(self, store: FileStore, parts: Callable[[], int] = lambda: 1) -> None:
        self.store, self._parts = store, parts
        self._asking: Asking | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._open: dict[str, tuple[str, Json]] = {}
        self._results: dict[str, Results] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def connect(self, asking: Asking) -> None:
        """Say whom lines are asked. Before anything runs."""
        self._asking = asking

    async def resume(self) -> None:
        """Go on with what an earlier server left."""
        for owned in await self.store.call(FileTable.open_batches):
            self._start(owned.owner, owned.shown)

    async def close(self) -> None:
        """Leave what runs to a later server."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def add(self, owner: str, batch: Json) -> None:
        """Keep a batch, and run it. Raises QueueFullError, DiskFullError."""
        if sum(each == owner for each, _ in self._open.values()) >= MOST_OPEN:
            raise QueueFullError(f"{MOST_OPEN} batches of this key have not ended; try again later")
        self._open[batch["id"]] = owner, batch
        try:
            await self._put(owner, batch)
        except BaseException:
            del self._open[batch["id"]]
            raise
        self._start(owner, batch)

    def live(self, batch: Json) -> Json:
        """A batch as it is now, from as it was stored."""
        _, now = self._open.get(batch["id"], ("", batch))
        results = self._results.get(batch["id"])
        return now if results is None else now | {"request_counts": _counts(results)}

    def reads(self, file_id: str) -> bool:
        """Whether a batch that has not ended reads a file."""
        return any(batch["input_file_id"] == file_id for _, batch in self._open.values())

    async def cancel(self, batch_id: str) -> None:
        """Begin to end a batch, if it has not ended; what was answered stays."""
        if (task := self._tasks.get(batch_id)) is None:
            return
        owner, batch = self._open[batch_id]
        if batch["status"] in ("validating", "in_progress"):
            batch |= {"status": "cancelling", "cancelling_at": _now()}
            task.cancel()
            await self._put(owner, batch)

    async def _put(self, owner: str, batch: Json) -> None:
        await self.store.call(FileTable.put_batch, owner, dict(batch))

    def _start(self, owner: str, batch: Json) -> None:
        batch_id = batch["id"]
        self._open[batch_id] = owner, batch
        task = self._tasks[batch_id] = asyncio.create_task(self._work(owner, batch))

        def forget(_: asyncio.Task[None]) -> None:
            self._tasks.pop(batch_id, None)
            self._open.pop(batch_id, None)

        task.add_done_callback(forget)

    async def _work(self, owner: str, batch: Json) -> None:
        """Bring a batch to its end, unless the server ends first."""
        try:
            if batch["status"] == "cancelling":
                await self._end(owner, batch, "cancelled")
                return
            async with self._turns[owner]:
                await self._run(owner, batch)
        except asyncio.CancelledError:
            if batch["status"] != "cancelling":
                raise
            await self._end(owner, batch, "cancelled")
        except EngineDeadError:
            return  # it stays as it is, for the next server
        except (NoRoomError, DiskFullError, OSError) as error:
            await self._fail(owner, batch, "storage_error", reason_of(error))
        except Exception as error:  # the log is the only place for it
            _logger.exception("the batch %s failed", batch["id"])
            await self._fail(owner, batch, "server_error", str(error))

    async def _run(self, owner: str, batch: Json) -> None:
        asking = self._asking
        if asking is None:
            raise EngineDeadError("the batches are connected with no server")
        table = self.store.table
        source = table.content(batch["input_file_id"])
        try:
            whole = await _aside(
                partial(plan, source, asking.longest, batch["endpoint"], scratch=table.folder)
            )
        except LineError as error:
            await self._fail(owner, batch, error.code, str(error), error.number)
            return
        batch |= {"status": "in_progress", "in_progress_at": batch["in_progress_at"] or _now()}
        await self._put(owner, batch)
        written = [path.stat().st_size for path in self._paths(batch) if path.exists()]
        room = self.store.limits.total - await self.store.call(FileTable.used) + sum(written)
        results = await asyncio.to_thread(
            Results, batch["id"], whole.numbers, *self._paths(batch), room
        )
        ending, parts = "completed", self._parts()
        with self._shown(batch, results):
            try:
                async with asyncio.timeout(batch["expires_at"] - time.time()):
                    await answer_all(
                        whole,
                        results,
                        asking.on_behalf_of(owner),
                        lambda: asking.room(len(self._results), parts),
                        parts=parts,
                    )
            except TimeoutError:
                batch["status"] = "finalizing"
                await _aside(partial(expire, whole, results, "batch_expired", _EXPIRED))
                ending = "expired"
        await self._end(owner, batch, ending)

    @contextlib.contextmanager
    def _shown(self, batch: Json, results: Results) -> Iterator[None]:
        self._results[batch["id"]] = results
        try:
            yield
        finally:
            del self._results[batch["id"]]
            results.close()
            batch["request_counts"] = _counts(results)

    async def _fail(
        self, owner: str, batch: Json, code: str, message: str, line: int | None = None
    ) -> None:
        error = {"code": code, "message": message, "param": None, "line": line}
        batch["errors"] = {"object": "list", "data": [error]}
        await self._end(owner, batch, "failed")

    async def _end(self, owner: str, batch: Json, status: str) -> None:
        """Give what was answered to its owner as files, and the batch its last status, in one
        moment, once the disk has room for that; until then, it can not be cancelled any more.
        """
        now = _now()
        ended, files = dict(batch), list[Json]()
        if batch["status"] != "cancelling":
            batch["status"] = "finalizing"
        for name, path in zip(("output", "error"), self._paths(batch), strict=True):
            if path.exists() and (size := path.stat().st_size):
                title = f"{batch['id']}_{name}.jsonl"
                files.append(file_object(path.name, size, title, "batch_output", now))
                ended[f"{name}_file_id"] = path.name
            else:
                path.unlink(missing_ok=True)
        if status in ("completed", "expired"):
            ended["finalizing_at"] = now
        ended |= {"status": status, f"{status}_at": now}
        while True:
            with contextlib.suppress(DiskFullError):
                await self.store.call(FileTable.put_files, owner, files, ended)
                break
            await asyncio.sleep(PAUSE_SECONDS)
        batch |= ended

    def _paths(self, batch: Json) -> tuple[Path, Path]:
        """The places where answers and errors are written, and stay."""
        output, errors = map(self.store.table.content, results_of(batch))
        return output, errors


async def _aside(work: Callable[..., T]) -> T:
    """Do something long in a thread, which asks `stopped` whether anybody waits for its result, and
    is waited for in any case: it uses open files.
    """
    stopped = threading.Event()
    thread = asyncio.ensure_future(asyncio.to_thread(work, stopped=stopped.is_set))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.gather(thread, return_exceptions=True)
        raise


def _counts(results: Results) -> dict[str, Any]:
    total = len(results.done)
    return {"total": total, "completed": results.completed, "failed": results.failed}


def _now() -> int:
    return int(time.time())
