"""The near side of the seam: submits requests to the engine's thread and hands out the replies."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from radixlm.core.clock import Clock, WallClock
from radixlm.core.errors import EngineDeadError, InvalidRequestError, QueueFullError, check_queue
from radixlm.core.futures import fail
from radixlm.core.reports import MAX_WAITING, TreeQuery
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput
from radixlm.engine.adapter_names import Adapters, NoShelf
from radixlm.engine.engine_core import EngineCore
from radixlm.engine.engine_stats import EngineStats
from radixlm.engine.input_processor import InputProcessor
from radixlm.engine.loop import (
    Abort,
    Ask,
    Died,
    EngineThread,
    Inbound,
    Outbound,
    Outputs,
    Stop,
    Submit,
)
from radixlm.engine.mailbox import (
    Look,
    Mailbox,
    TaskMailbox,
    ThreadMailbox,
    Viewer,
    deliver_all,
)
from radixlm.engine.watching import Scene, TreeUpdate

# How many may watch the tree at a time, and how many may wait for a single look.
MAX_VIEWERS = 16
MAX_LOOKS = 16
T = TypeVar("T")


class Background(Protocol):
    """Threads that work for the engine's."""

    def start(self) -> None: ...
    def stop(self) -> object: ...


class EngineClient:
    """Owns the engine's thread. Every method may be called from any thread, but `stream` and, while
    it is used, `abort_ids`: these belong to one event loop.

    processor: makes requests ready; `submit` takes such as it has made. max_queued_requests: how
    many may wait or run; more are refused, so that neither queue nor memory grows without bound.
    inbox: where `places`, threads beside the engine's, put what they report to the core. adapters:
    those of the runner.
    """

    def __init__(
        self,
        core: EngineCore,
        processor: InputProcessor,
        *,
        max_queued_requests: int,
        clock: Clock | None = None,
        inbox: SimpleQueue[Inbound] | None = None,
        places: Background | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        self.processor = processor
        self.adapters = Adapters(NoShelf()) if adapters is None else adapters
        self._max_queued = max_queued_requests
        self._clock = clock or WallClock()
        # Reentrant: the collector may close an abandoned `run`, which aborts, at any allocation.
        self._lock = threading.RLock()
        self._mailboxes: dict[str, Mailbox] = {}
        self._asked: set[Future[Any]] = set()
        self._looking: dict[int, Look] = {}
        self._viewers: dict[int, Viewer] = {}
        self._tickets = 0
        self._dead: EngineDeadError | None = None
        self._inbox: SimpleQueue[Inbound] = SimpleQueue() if inbox is None else inbox
        self._places = places
        self._thread = EngineThread(core, self._inbox, self.put, self._clock)
        self._thread.start()
        if places is not None:
            places.start()
        # A thread that is inside of torch when the interpreter ends takes the process down with it.
        atexit.register(self.close)

    def submit(self, requests: Sequence[GenerateRequest], mailbox: Mailbox) -> None:
        """Queue all of `requests`, or none. Raises QueueFullError, EngineDeadError,
        InvalidRequestError for an id that is in use.
        """
        with self._lock:
            self.check_room(len(requests))
            added: dict[str, Mailbox] = {}
            for request in requests:
                if request.request_id in self._mailboxes or request.request_id in added:
                    raise InvalidRequestError(
                        f"a request with the id {request.request_id!r} is under way",
                        param="request_id",
                    )
                added[request.request_id] = mailbox
            self.adapters.begin(requests)
            self._mailboxes |= added
            self._inbox.put(Submit(tuple(requests), self._clock.now()))

    def check_room(self, count: int = 1) -> None:
        """Raise what `submit` would now for `count` requests, before they are even read."""
        with self._lock:
            self.check_health()
            limit = f"--max-queued-requests {self._max_queued}"
            check_queue(len(self._mailboxes), count, self._max_queued, limit)

    def abort(self, request_id: str, mailbox: Mailbox) -> None:
        """End a request within one step. mailbox: its own; a late abort hits no later id."""
        with self._lock:
            if self._mailboxes.get(request_id) is mailbox:
                self._inbox.put(Abort(request_id))

    def abort_ids(self, request_ids: Collection[str] | None) -> int:
        """End requests by their ids, with None all; returns how many. Each gets a last output."""
        with self._lock:
            self.check_health()
            wanted = self._mailboxes if request_ids is None else request_ids
            found = [name for name in wanted if name in self._mailboxes]
            for name in found:
                self._inbox.put(Abort(name))
        return len(found) + self.processor.abort(request_ids)

    def run(self, requests: Sequence[GenerateRequest]) -> Iterator[RequestOutput]:
        """Run all of them, as many at a time as may be queued, and yield their outputs. Blocks.

        Raises InvalidRequestError before any is run, EngineDeadError, QueueFullError when others'
        requests leave no room. Leaving early, or being interrupted, aborts what is not finished.
        """
        mailbox = ThreadMailbox()
        ahead = [self.processor.ready(request) for request in requests][::-1]
        under_way: set[str] = set()
        try:
            while ahead or under_way:
                room = self._max_queued - len(under_way)
                if ahead and room:
                    window = ahead[-room:][::-1]
                    # Before they are submitted, so that an interrupt in between aborts them.
                    under_way.update(request.request_id for request in window)
                    self.submit(window, mailbox)
                    del ahead[-len(window) :]
                output = mailbox.get()
                if output.finished:
                    under_way.remove(output.request_id)
                self._raise_if_died(output)
                yield output
        finally:
            for name in under_way:
                self.abort(name, mailbox)

    async def stream(
        self, requests: Sequence[GenerateRequest]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the requests' outputs as they come, each one's in order. All are queued, or none.

        Leaving early aborts what is not finished. Raises InvalidRequestError, QueueFullError,
        EngineDeadError; requests whose grammars are compiled do not count as queued.
        """
        resolved = [self.processor.resolve(request) for request in requests]
        self.check_room(len(resolved))  # before their grammars take their time
        ready = [made for made in await self.processor.compiled(resolved) if made is not None]
        mailbox = TaskMailbox(asyncio.get_running_loop())
        self.submit(ready, mailbox)
        under_way = {request.request_id for request in ready}
        aborted = [each.request_id for each in requests if each.request_id not in under_way]
        try:
            for name in aborted:
                yield RequestOutput(name, finish_reason=FinishReason.ABORT)
            while under_way:
                for output in await mailbox.get():
                    if output.finished:
                        under_way.discard(output.request_id)
                    if output.finish_reason is FinishReason.ERROR and output.token_ids:
                        # These came before the error, and are joined with it, since read late.
                        yield replace(output, finish_reason=None, error=None)
                    self._raise_if_died(output)
                    yield output
        finally:
            for name in under_way:
                self.abort(name, mailbox)

    def ask(self, question: Callable[[EngineCore], T]) -> Future[T]:
        """Call `question` with the engine between two steps. The future raises its CacheError."""
        future: Future[T] = Future()
        with self._lock:
            self.check_health()
            self._asked.add(future)
            future.add_done_callback(self._asked.discard)
            self._inbox.put(Ask(question, future))
        return future

    def look(self, query: TreeQuery) -> Future[Scene]:
        """Look at what a query shows, of one moment. Raises QueueFullError, the future
        NodeGoneError.
        """
        look = Look()
        self._begin_to_watch(self._looking, MAX_LOOKS, query, look, follow=False)
        return look

    def watch(
        self, query: TreeQuery, *, max_waiting: int = MAX_WAITING, own: bool = False
    ) -> Viewer:
        """The same, and every change from then on, until it is closed. max_waiting: updates that
        may wait. own: a part of this program, never refused. Raises QueueFullError.
        """
        watch = partial(self._begin_to_watch, self._viewers, MAX_VIEWERS + own, query, follow=True)
        return Viewer(watch, self._stop_watching, max_waiting)

    def stats(self) -> EngineStats:
        """The figures as of the last step."""
        return self._thread.stats

    def check_health(self) -> None:
        """Raise EngineDeadError, with the reason, when the loop is gone."""
        if self._dead is not None:
            raise type(self._dead)(str(self._dead))  # its own for each: it collects a traceback

    def close(self) -> None:
        """Stop after the step in flight; what is under way ends with an error. Once is enough."""
        atexit.unregister(self.close)
        self._inbox.put(Stop())
        self._thread.join()
        places, self._places = self._places, None  # which hold the pool
        if places is not None:
            places.stop()
        self.adapters.close()
        self.processor.close()

    def put(self, message: Outbound) -> None:
        """The outbox: called by the engine's thread."""
        match message:
            case Outputs(outputs):
                self._deliver(outputs)
            case TreeUpdate(ticket, news):
                with self._lock:
                    viewer = self._looking.pop(ticket, None) or self._viewers.get(ticket)
                if viewer is not None:
                    viewer.deliver(news)
            case Died(error):
                self._bury(error)

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        addressed: dict[Mailbox, list[RequestOutput]] = {}
        with self._lock:
            for output in outputs:
                mailbox = self._mailboxes.get(output.request_id)
                if mailbox is not None:
                    addressed.setdefault(mailbox, []).append(output)
                    if output.finished:
                        del self._mailboxes[output.request_id]
                        self.adapters.end(output.request_id)
        deliver_all(addressed)

    def _bury(self, error: EngineDeadError) -> None:
        reason = str(error)
        with self._lock:
            self._dead = error
            names = list(self._mailboxes)
            viewers: list[Look | Viewer] = [*self._looking.values(), *self._viewers.values()]
            self._looking, self._viewers = {}, {}
        self._deliver(
            RequestOutput(name, finish_reason=FinishReason.ERROR, error=reason) for name in names
        )
        for future in list(self._asked):
            fail(future, type(error)(reason))
        for viewer in viewers:
            viewer.deliver(type(error)(reason))

    def _begin_to_watch(
        self, others: dict[int, T], most: int, query: TreeQuery, who: T, *, follow: bool
    ) -> int:
        with self._lock:
            self.check_health()
            if len(others) >= most:
                doing = "watch the cache" if follow else "wait for a look at the cache"
                raise QueueFullError(f"{most} others {doing} already; try again later")
            self._tickets += 1
            others[self._tickets] = who
            ticket = self._tickets
            self.ask(lambda core: core.watching.watch(ticket, query, follow=follow))
            return ticket

    def _stop_watching(self, ticket: int) -> None:
        with self._lock:
            if self._viewers.pop(ticket, None) is not None:
                self.ask(lambda core: core.watching.stop(ticket))

    def _raise_if_died(self, output: RequestOutput) -> None:
        if output.finish_reason is FinishReason.ERROR:
            self.check_health()
            raise InvalidRequestError(output.error or "the request failed")


def collect(
    requests: Sequence[GenerateRequest], outputs: Iterable[RequestOutput]
) -> list[RequestOutput]:
    """Join the outputs of several requests, interleaved as they come, in the requests' order."""
    parts: dict[str, list[RequestOutput]] = {request.request_id: [] for request in requests}
    for output in outputs:
        parts[output.request_id].append(output)
    return [RequestOutput.joined(items) for items in parts.values()]
