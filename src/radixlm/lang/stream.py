"""One state's steps: what the program submits, in order, and what comes of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from radixlm.core.errors import ProgramError, RadixLMError, UnknownVariableError
from radixlm.lang.executor import Executor
from radixlm.lang.interpreter import Performer, Style
from radixlm.lang.ir import Expr, Gen, ScopeBegin, ScopeEnd, Select
from radixlm.lang.lines import Line, caller_line, error_line
from radixlm.lang.transcript import Transcript
from radixlm.lang.values import Value

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Fork(Expr):
    origins: tuple[asyncio.Future[Transcript], ...]

    def go(self, said: Transcript) -> None:
        for origin in self._wanted():
            origin.set_result(said.copy())

    def refuse(self, error: ProgramError) -> None:
        for origin in self._wanted():
            origin.set_exception(error)
            origin.exception()  # looked at: a fork that was cancelled first never will

    def _wanted(self) -> list[asyncio.Future[Transcript]]:
        return [origin for origin in self.origins if not origin.done()]


@dataclass(frozen=True, slots=True)
class _Read(Expr):
    function: Callable[[Transcript], Any]


class _Step(NamedTuple):
    expr: Expr
    line: Line
    value: Value


class Stream:
    """Submitting never waits; reading does, for what was submitted before.

        program's thread:  submit ──> queue ──> work, on the executor's loop ──> values

    After a step failed, those behind it are not run, and every value that would have come of them
    fails with the same error.

    family: the streams of one program, which end together. text: all the text, as it grows.
    """

    def __init__(
        self,
        executor: Executor,
        style: Style,
        line: Line,
        *,
        parent: Stream | None = None,
        origin: asyncio.Future[Transcript] | None = None,
        variables: dict[str, Any] | None = None,
    ) -> None:
        """line: of the program, or of the fork. origin: gives what the fork goes on from."""
        self._executor = executor
        self._style = style
        self.family: list[Stream] = [] if parent is None else parent.family
        self.variables = variables or {}
        self._inherited = dict(self.variables)
        self.text = Value()
        self._changed = threading.Condition()
        self._closed: str | None = None  # why nothing can be submitted any more
        self._open: dict[Value, Expr] = {}  # steps that have no result yet
        self._scopes: dict[str, Value] = {}  # those that are open
        self._error: ProgramError | None = None
        self._said: Transcript | None = None
        self._over = threading.Event()
        self._queue: asyncio.Queue[_Step | None] = asyncio.Queue()
        self._line = line
        self._parent = parent
        self._origin = origin
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self.family.append(self)
        if parent is not None and parent._cancelled:
            self._cancelled = True  # by one who may not have seen this one in the family
        executor.start(self._work())

    def submit(self, expr: Expr) -> Value:
        """Raises ProgramError when the state takes no more."""
        value, line = Value(), caller_line()
        with self._changed:
            if self._closed is not None:
                raise ProgramError(self._closed, line=str(line))
            self._mark_scope(expr, value, line)
            if self._over.is_set():
                error = self._error or _cancelled(line)  # nothing is done any more
                value.fail(error)
                if isinstance(expr, _Fork):
                    self._executor.call(expr.refuse, error)
            else:
                self._open[value] = expr
                self._executor.call(self._queue.put_nowait, _Step(expr, line, value))
            if isinstance(expr, Gen | Select | ScopeBegin) and expr.name is not None:
                self.define({expr.name: value})
        return value

    def define(self, variables: Mapping[str, Any]) -> None:
        """Set these."""
        with self._changed:
            self.variables.update(variables)
            self._changed.notify_all()

    def fork(self, size: int) -> list[Stream]:
        """Streams that go on from what is submitted so far. They come with this one's variables."""
        line = caller_line()
        origins = tuple(self._executor.loop.create_future() for _ in range(size))
        self.submit(_Fork(origins))  # where it is refused, nobody is left to wait for an origin
        return [
            Stream(
                self._executor,
                self._style,
                line,
                parent=self,
                origin=origin,
                variables=dict(self.variables),
            )
            for origin in origins
        ]

    def read(self, function: Callable[[Transcript], T]) -> T:
        """Of what is said when all that is submitted is done. Raises ProgramError."""
        with self._changed:
            asked = self.submit(_Read(function)) if self._closed is None else None
        if asked is not None:
            result: T = asked.get()
            return result
        self._over.wait()
        if self._error is not None or self._said is None:
            raise self._error or _cancelled(caller_line())
        return function(self._said)

    def find(self, name: str, *, wait: bool) -> Any:
        """A variable as it is, which may be a Value. Raises UnknownVariableError.

        wait: as long as the program runs it may still come.
        """
        with self._changed:
            if self._style.spec_tokens and self._closed is None:
                self.submit(_Read(bool))  # answers that are put off for others are wanted now
            while wait and name not in self.variables and self._closed is None:
                self._changed.wait()
            if name in self.variables:
                found = self.variables[name]
                if not wait and self._is_open(name, found):
                    raise ProgramError(
                        f"{name!r} is read inside its own scope, which is not over: read it "
                        "behind the `with`",
                        line=str(caller_line()),
                    )
                return found
            known = ", ".join(map(repr, self.variables)) or "none"
        raise UnknownVariableError(
            f"there is no variable {name!r} (known: {known})", line=str(caller_line())
        )

    def made(self) -> dict[str, Any]:
        """The variables that are not as they were when this was forked."""
        inherited = self._inherited
        return {
            name: value
            for name, value in list(self.variables.items())
            if name not in inherited or value is not inherited[name]
        }

    def _mark_scope(self, expr: Expr, value: Value, line: Line) -> None:
        match expr:
            case ScopeBegin(name) if name in self._scopes:
                raise ProgramError(f"the scope {name!r} is open already", line=str(line))
            case ScopeBegin(name):
                self._scopes[name] = value
            case ScopeEnd(name):
                del self._scopes[name]

    def _is_open(self, name: str, value: object) -> bool:
        """Whether it is a scope's, of this stream or of one that it was forked from."""
        scope = self._scopes.get(name)
        if scope is not None and scope is value:
            return not scope.over
        return self._parent is not None and self._parent._is_open(name, value)

    def close(self, reason: str) -> None:
        """Take no more. What is submitted goes on. Closed again, nothing happens."""
        with self._changed:
            if self._closed is not None:
                return
            self._closed = reason
            if not self._over.is_set():
                self._executor.call(self._queue.put_nowait, None)
            self._changed.notify_all()

    def cancel(self) -> None:
        """End it, and all of its family, where they are."""
        for stream in self.family:
            stream._cancelled = True
            with suppress(RuntimeError):  # the loop is closed: all of it is over
                self._executor.call(stream._stop)

    def wait(self) -> None:
        """Until a closed stream's steps are done."""
        self._over.wait()

    def fail(self, error: Exception) -> None:
        """The program itself failed: what is read of the state from now on does too."""
        self._error = self._error or _told(error, error_line(error) or self._line)

    async def _work(self) -> None:
        line = self._line
        self._task = asyncio.current_task()
        try:
            if self._cancelled:
                raise asyncio.CancelledError
            performer = await self._begun()
            while (step := await self._queue.get()) is not None:
                line = step.line
                await self._do(performer, step)
        except asyncio.CancelledError:
            self.fail(_cancelled(line))
            raise
        finally:
            self._end()

    def _stop(self) -> None:
        # A task that is cancelled before its first step never comes to its end: that step looks.
        if self._task is not None:
            self._task.cancel()

    async def _begun(self) -> Performer | None:
        """None when there is nothing to go on from."""
        session = self._executor.session
        try:
            self._said = session.begin() if self._origin is None else await self._origin
        except ProgramError as error:
            self.fail(error)
            return None
        return Performer(session, self._said, self._style, self.text.grow)

    async def _do(self, performer: Performer | None, step: _Step) -> None:
        if self._error is None and performer is not None:
            try:
                await self._perform(performer, step)
            except Exception as error:  # a backend may raise anything; it is told where it is read
                self._error = _told(error, step.line)
        if self._error is not None:
            self._fail_open(self._error)
        else:
            self._forget(step)

    def _forget(self, step: _Step) -> None:
        with self._changed:
            if step.value.over:
                self._open.pop(step.value, None)
            if isinstance(step.expr, _Read | _Fork):  # what was put off until now is over too
                self._open = {value: expr for value, expr in self._open.items() if not value.over}

    async def _perform(self, performer: Performer, step: _Step) -> None:
        match step.expr:
            case _Read(function):
                await performer.catch_up()
                step.value.settle(function(performer.said))
            case _Fork(origins):
                await performer.catch_up()
                session = self._executor.session
                if len(origins) > 1 and performer.said.text and not session.shares_in_flight:
                    await session.compute(performer.said)
                step.expr.go(performer.said)
            case expr:
                await performer.perform(expr, step.value)
        if not isinstance(step.expr, Gen | Select | ScopeBegin):
            step.value.settle(None)

    def _end(self) -> None:
        with self._changed:
            self._over.set()
        if self._open:
            self._fail_open(self._error or _cancelled(self._line))
        if self._error is None and self._said is not None:
            self.text.settle(self._said.text)
        else:
            self.text.fail(self._error or _cancelled(self._line))

    def _fail_open(self, error: ProgramError) -> None:
        with self._changed:
            left, self._open = self._open, {}
        for value, expr in left.items():
            value.fail(error)
            if isinstance(expr, _Fork):
                expr.refuse(error)


def _told(error: Exception, line: Line) -> ProgramError:
    if isinstance(error, ProgramError):
        return error
    text = str(error)
    if not isinstance(error, RadixLMError | ValueError):
        text = f"{type(error).__name__}: {text}"
    told = ProgramError(text, line=str(line))
    told.__cause__ = error
    return told


def _cancelled(line: Line) -> ProgramError:
    return ProgramError("the program was cancelled", line=str(line))
