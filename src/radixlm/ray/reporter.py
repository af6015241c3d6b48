"""A replica's reports to the router."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing, suppress

from ray.exceptions import RayError

from radixlm.assembly import AsyncEngine
from radixlm.core.errors import EngineDeadError
from radixlm.core.reports import TreeQuery
from radixlm.core.request import GenerateRequest
from radixlm.ray.router_handle import RouterHandle
from radixlm.routing import Report, ReportBuffer

_logger = logging.getLogger("radixlm.ray")

_SECONDS_BETWEEN = 0.01
_SECONDS_AT_MOST = 1.0


class Reporter:
    """Reports what comes and goes in the engine's tree, and which requests begin and end, in order,
    as soon as the last report is taken; and every second that it is there.
    """

    def __init__(self, name: str, engine: AsyncEngine, router: RouterHandle) -> None:
        self._name, self._engine, self._router = name, engine, router
        adapters = frozenset(each.adapter_id for each in engine.adapters.named.values())
        sizes, tokenizer = (engine.info.kv_tokens, engine.limits.capacity), engine.tokenizer.digest
        blank = Report(name, *sizes, tokenizer=tokenizer, adapters=adapters)
        self._buffer = ReportBuffer(blank)
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start in the running loop."""
        self._tasks = [asyncio.create_task(self._report())]

    async def close(self) -> None:
        """The router forgets the replica."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._router.leave(self._name)
        await self._router.close()

    def arrived(self, request: GenerateRequest) -> None:
        self._buffer.arrived(request)

    def began(self, request: GenerateRequest) -> None:
        """Note that a request has its first token."""
        self._buffer.began(request)
        self._changed.set()

    def ended(self, request: GenerateRequest, answer_tokens: int | None) -> None:
        self._buffer.ended(request, answer_tokens)
        self._changed.set()

    async def _report(self) -> None:
        """Report until the engine is no more; Ray Serve ends the replica some seconds later."""
        while self._is_alive():
            following = asyncio.create_task(self._follow())
            try:
                await self._report_while_all_is_known(following)
            finally:
                following.cancel()
                [failed] = await asyncio.gather(following, return_exceptions=True)
                self._buffer.begin_again()
            if isinstance(failed, Exception):
                _logger.error("the tree can not be followed, and is looked at anew: %s", failed)
                await asyncio.sleep(_SECONDS_AT_MOST)
        await self._router.leave(self._name)

    def _is_alive(self) -> bool:
        with suppress(EngineDeadError):
            self._engine.health()
            return True
        return False

    async def _report_while_all_is_known(self, following: asyncio.Task[None]) -> None:
        """Report until something was missed. A router that knows nothing waits for the whole tree,
        which takes its time; until it has it, it says that it misses something.
        """
        loop = asyncio.get_running_loop()
        whole_at = 0.0
        while not following.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _SECONDS_AT_MOST)
            await asyncio.sleep(_SECONDS_BETWEEN)
            self._changed.clear()
            if not self._is_alive():
                return
            if loop.time() - whole_at >= _SECONDS_AT_MOST:
                whole_at = loop.time()
                report = self._buffer.take_whole(self._engine.stats())
            else:
                report = self._buffer.take()
            whole_reported = self._buffer.whole_reported
            try:
                if not await self._router.ask("report", report) and whole_reported:
                    return
            except RayError as error:
                _logger.warning("the router is away: %s", error)
                await asyncio.sleep(_SECONDS_AT_MOST)
                return

    async def _follow(self) -> None:
        """The tree, from a whole one on."""
        with suppress(EngineDeadError), closing(self._engine.watch(TreeQuery(), own=True)) as seen:
            while True:
                sight = await seen.next()
                if sight.tree is not None and self._buffer.shown(sight.tree):
                    self._changed.set()
