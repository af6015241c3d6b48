"""The engine's own thread: messages in, one step after another, messages out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from radixlm.core.clock import Clock
from radixlm.core.errors import (
    CacheError,
    EngineDeadError,
    EngineStoppedError,
    InvalidRequestError,
)
from radixlm.core.futures import fail, settle
from radixlm.core.moves import Report
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput
from radixlm.engine.engine_core import EngineCore
from radixlm.engine.engine_stats import EngineStats, StepLog
from radixlm.engine.tiering import Tiering
from radixlm.engine.watching import TreeUpdate

# How long what is cached may be written to disk when the engine stops.
SECONDS_TO_SAVE = 10.0

_logger = logging.getLogger("radixlm.engine")


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue these requests, all before the next step. at: when they came, by the engine's clock."""

    requests: tuple[GenerateRequest, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Call `question` between two steps; the future takes what it returns, or its CacheError."""

    question: Callable[[EngineCore], Any]
    future: Future[Any]


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread after the step in flight; requests under way are aborted."""


@dataclass(frozen=True, slots=True)
class Outputs:
    outputs: tuple[RequestOutput, ...]


@dataclass(frozen=True, slots=True)
class Died:
    """The loop ended; no further message follows. error: for all requests, later ones too."""

    error: EngineDeadError


@dataclass(frozen=True, slots=True)
class Fail:
    """Something that the engine can not be without is gone: it ends with this error."""

    error: EngineDeadError


Inbound = Submit | Abort | Ask | Stop | Fail | Report
Outbound = Outputs | TreeUpdate | Died


class EngineThread(threading.Thread):
    """Runs an EngineCore. Messages take effect between steps, so an abort within one step.

    A crash ends the thread with a Died message, never silently. With it the core goes, and the
    memory of its runner, so nothing else may keep them. send: called with what comes of it.
    stats: as of the last turn; read from any thread.
    """

    def __init__(
        self,
        core: EngineCore,
        inbox: SimpleQueue[Inbound],
        send: Callable[[Outbound], None],
        clock: Clock,
    ) -> None:
        super().__init__(name="radixlm-engine", daemon=True)
        self.stats: EngineStats = core.stats()
        self._core = core
        self._inbox = inbox
        self._send = send
        self._clock = clock
        self._log = StepLog(clock)
        self._stopping = False

    def run(self) -> None:
        end: EngineDeadError = EngineStoppedError("the engine was shut down")
        try:
            while not self._stopping:
                self._receive()
                if self._core.tiering is not None:
                    self._core.tiering.turn()
                if self._core.has_work:
                    outputs = self._core.step()
                    self.stats = self._core.stats()
                    self._log.record(self.stats)
                    if outputs:
                        self._send(Outputs(tuple(outputs)))
                else:  # what the tiers have let go of
                    self.stats = self._core.stats()
                for seen in self._core.watching.turn(self.stats):
                    self._send(seen)
            self._save()
        except EngineDeadError as error:  # found elsewhere: a traceback says nothing of it
            _logger.error("the engine ends: %s", error)
            end = error.with_traceback(None)  # whose frames know the core
        except BaseException as error:  # a native part's panic is no Exception
            _logger.exception("the engine loop crashed")
            end = EngineDeadError(f"the engine loop crashed: {type(error).__name__}: {error}")
        self._send(Died(end))
        del self._core, self._send  # what is stopped may be kept: it holds no memory of a device

    def _save(self) -> None:
        """Write what is worth it to disk, for as long as a stop may take."""
        tiering = self._core.tiering
        if tiering is None:
            return
        until = self._clock.now() + SECONDS_TO_SAVE
        tiering.stop_reading()
        self._finish_moves(tiering, until)  # what comes after these can be written then
        tiering.save_all()
        self._finish_moves(tiering, until)
        tiering.stop()

    def _finish_moves(self, tiering: Tiering, until: float) -> None:
        while tiering.holds and (left := until - self._clock.now()) > 0:
            try:
                message = self._inbox.get(timeout=left)
            except Empty:
                break
            if isinstance(message, Report):
                tiering.take(message)

    def _receive(self) -> None:
        """Handle all messages, or wait for one; what ends by them is sent in one message."""
        ended: list[RequestOutput] = []
        if not self._core.has_work or self._core.stuck:
            try:
                with self._log.idle():
                    message = self._inbox.get(timeout=self._core.seconds_left())
            except Empty:  # watchers or tiers have their turn first
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
            self._send(Outputs(tuple(ended)))

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
            case Ask(question, future):
                self._answer(question, future)
            case Stop():
                self._stopping = True
            case Fail(error):
                raise error
            case _:
                if self._core.tiering is not None:
                    self._core.tiering.take(message)

    def _answer(self, question: Callable[[EngineCore], Any], future: Future[Any]) -> None:
        try:
            value = question(self._core)
        except CacheError as error:
            fail(future, error)
        except (TypeError, ValueError) as error:  # a question put wrongly is the asker's affair
            fail(future, CacheError(f"{type(error).__name__}: {error}"))
        else:
            self.stats = self._core.stats()  # the answer's effect is in them
            settle(future, value)

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
