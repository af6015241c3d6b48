"""A replica's reports to the router."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing, suppress

from ray.exceptions import RayError

from radixlm.build import AsyncEngine
from radixlm.core.errors import EngineDeadError
from radixlm.core.reports import TreeQuery
from radixlm.engine.watching import Scene
from radixlm.ray.desk import Desk
from radixlm.routing import News, Report, TreeFeed

_logger = logging.getLogger("radixlm.ray")

_SECONDS_BETWEEN = 0.01
_SECONDS_AT_MOST = 1.0


class Reporter:
    """Reports what comes and goes in the engine's tree, and which requests begin and end, in order,
    as soon as the last report is taken; and every second that it is there.
    """

    def __init__(self, name: str, engine: AsyncEngine, desk: Desk) -> None:
        self._name, self._engine, self._desk = name, engine, desk
        self._news: list[News] = []
        self._began: list[str] = []
        self._ended: list[tuple[str, int | None]] = []
        self._under_way: set[str] = set()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """In the running loop."""
        self._tasks = [asyncio.create_task(self._report())]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def arrived(self, request_id: str) -> None:
        self._under_way.add(request_id)

    def began(self, request_id: str) -> None:
        """It has its first token."""
        self._began.append(request_id)
        self._changed.set()

    def ended(self, request_id: str, answer_tokens: int | None) -> None:
        self._under_way.discard(request_id)
        self._ended.append((request_id, answer_tokens))
        self._changed.set()

    async def _report(self) -> None:
        while True:
            following = asyncio.create_task(self._follow())
            try:
                await self._report_while_all_is_known()
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                self._news.clear()

    async def _report_while_all_is_known(self) -> None:
        """Until something was missed."""
        loop = asyncio.get_running_loop()
        capacity, whole_at = self._engine.info.kv_tokens, 0.0
        known = True
        while known:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _SECONDS_AT_MOST)
            await asyncio.sleep(_SECONDS_BETWEEN)
            self._changed.clear()
            news, self._news = self._news, []
            began, self._began = self._began, []
            ended, self._ended = self._ended, []
            whole = loop.time() - whole_at >= _SECONDS_AT_MOST
            report = Report(self._name, capacity, news, began, ended)
            if whole:
                whole_at = loop.time()
                stats, under_way = self._engine.stats(), frozenset(self._under_way)
                report = report._replace(under_way=under_way, stats=stats)
            try:
                known = await self._desk.ask("report", report)
            except RayError as error:
                _logger.warning("the router is away: %s", error)
                await asyncio.sleep(_SECONDS_AT_MOST)
                return

    async def _follow(self) -> None:
        """The tree, from a whole one on."""
        feed = TreeFeed()
        with suppress(EngineDeadError), closing(self._engine.watch(TreeQuery(), own=True)) as seen:
            while True:
                sight = await seen.next()
                if sight.tree is not None:
                    news = feed.take(sight.tree)
                    if isinstance(sight, Scene) or news.changes:
                        self._news.append(news)
                        self._changed.set()
