"""The stored responses as routes use them, and those that are made while nobody waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from radixlm.server.config import ServerConfig
from radixlm.server.responses.store import StoreLimits, Turn, TurnStore

T = TypeVar("T")


class Keeper:
    """One store, on a thread of its own, and the tasks of responses that run in the background."""

    def __init__(self, store: TurnStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "radixlm-responses")
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @classmethod
    def from_config(cls, config: ServerConfig) -> Keeper:
        """Raises ConfigError for a file that is no store."""
        limits = StoreLimits(
            config.max_stored_responses, config.max_stored_bytes, config.response_ttl
        )
        path = None if config.response_store is None else Path(config.response_store)
        return cls(TurnStore(path, limits, time.time))

    def close(self) -> None:
        """Nothing may be asked of it afterwards."""
        self._thread.submit(self._store.close)
        self._thread.shutdown()

    def fail_open(self, failed: Callable[[str], str]) -> None:
        """As TurnStore.fail_open: a server that begins works on none that an earlier one left."""
        self._thread.submit(self._store.fail_open, failed).result()

    async def put(self, turn: Turn) -> bool:
        """As TurnStore.put."""
        return await self._do(self._store.put, turn, frozenset(self._tasks))

    async def get(self, owner: str, turn_id: str) -> Turn | None:
        """As TurnStore.get."""
        return await self._do(self._store.get, owner, turn_id)

    async def conversation(self, owner: str, turn_id: str) -> list[Turn]:
        """As TurnStore.conversation."""
        return await self._do(self._store.conversation, owner, turn_id)

    async def items(self, owner: str, item_ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """As TurnStore.items."""
        return await self._do(self._store.items, owner, item_ids)

    async def delete(self, owner: str, turn_id: str) -> bool:
        """As TurnStore.delete."""
        return await self._do(self._store.delete, owner, turn_id)

    def start(self, turn_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which makes this response, whoever comes and goes."""
        task = asyncio.create_task(work)
        self._tasks[turn_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(turn_id, None))

    async def stop(self, turn_id: str) -> None:
        """Cancel the work on a response and wait until it has ended, if there is any.

        Once only: another time would cancel what the work does about it.
        """
        task = self._tasks.get(turn_id)
        if task is not None:
            if not task.cancelling():
                task.cancel()
            await asyncio.wait([task])

    async def _do(self, call: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, call, *arguments)
