"""The engine's own thread: messages in, one step after another, messages out."""

from __future__ import annotations

import logging
import threading
from queue import Empty, SimpleQueue
from typing import Protocol

from radixlm.core.clock import Clock
from radixlm.core.errors import (
    CacheError,
    EngineDeadError,
    EngineStoppedError,
    InvalidRequestError,
)
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput
from radixlm.engine.engine_core import EngineCore
from radixlm.engine.engine_stats import EngineStats, StepLog
from radixlm.engine.messages import (
    Abort,
    Answer,
    Ask,
    Died,
    Inbound,
    Outbound,
    Outputs,
    Question,
    Stop,
    StopWatching,
    Submit,
    WatchTree,
)

_logger = logging.getLogger("radixlm.engine")


class Outbox(Protocol):
    def put(self, message: Outbound, /) -> None: ...


class EngineThread(threading.Thread):
    """Runs an EngineCore. Messages take effect between steps, so an abort within one step.

    A crash ends the thread with a Died message, never silently.
    stats: as of the last step; read from any thread.
    """

    def __init__(
        self, core: EngineCore, inbox: SimpleQueue[Inbound], outbox: Outbox, clock: Clock
    ) -> None:
        super().__init__(name="radixlm-engine", daemon=True)
        self.stats: EngineStats = core.stats()
        self._core = core
        self._inbox = inbox
        self._outbox = outbox
        self._clock = clock
        self._log = StepLog(clock)
        self._stopping = False

    def run(self) -> None:
        end: EngineDeadError = EngineStoppedError("the engine was shut down")
        try:
            while not self._stopping:
                self._receive()
                if self._core.has_work:
                    self._step()
                for seen in self._core.watching.turn():
                    self._outbox.put(seen)
        except BaseException as error:  # a native part's panic is no Exception
            _logger.exception("the engine loop crashed")
            end = EngineDeadError(f"the engine loop crashed: {type(error).__name__}: {error}")
        self._outbox.put(Died(end))

    def _step(self) -> None:
        outputs = self._core.step()
        self.stats = self._core.stats()
        self._log.record(self.stats)
        if outputs:
            self._outbox.put(Outputs(tuple(outputs)))

    def _receive(self) -> None:
        """Handle all messages there are; wait for one when there is nothing else to do.

        Requests that end by them are in one message: thousands may be aborted in one moment.
        """
        ended: list[RequestOutput] = []
        if not self._core.has_work:
            with self._log.idle():
                message = self._wait()
            if message is None:
                return
            self._handle(message, ended)
        while not self._stopping:
            try:
                message = self._inbox.get_nowait()
            except Empty:
                break
            self._handle(message, ended)
        self.stats = self._core.stats()
        if ended:
            self._outbox.put(Outputs(tuple(ended)))

    def _wait(self) -> Inbound | None:
        """The next message, or None when there is something to be sent to watchers first."""
        try:
            return self._inbox.get(timeout=self._core.watching.seconds_left())
        except Empty:
            return None

    def _handle(self, message: Inbound, ended: list[RequestOutput]) -> None:
        match message:
            case Submit(requests, at):
                waited = self._clock.now() - at  # for the step that ran when they came
                for request in requests:
                    self._add(request, waited, ended)
            case Abort(request_id):
                output = self._core.abort(request_id)
                if output is not None:
                    ended.append(output)
            case Ask(ticket, question):
                answer = self._answer(ticket, question)
                self.stats = self._core.stats()  # the answer's effect is in them
                self._outbox.put(answer)
            case WatchTree(ticket, query, follow):
                self._core.watching.watch(ticket, query, follow=follow)
            case StopWatching(ticket):
                self._core.watching.stop(ticket)
            case Stop():
                self._stopping = True

    def _answer(self, ticket: int, question: Question) -> Answer:
        try:
            return Answer(ticket, self._core.answer(question))
        except CacheError as error:
            return Answer(ticket, None, error)
        except (TypeError, ValueError) as error:  # a question put wrongly is the asker's affair
            return Answer(ticket, None, CacheError(f"{type(error).__name__}: {error}"))

    def _add(self, request: GenerateRequest, waited: float, ended: list[RequestOutput]) -> None:
        try:
            self._core.add(request, waited=waited)
        except InvalidRequestError as error:
            refused = RequestOutput(
                request.request_id,
                prompt_tokens=request.key.size,
                finish_reason=FinishReason.ERROR,
                error=str(error),
            )
            ended.append(refused)
