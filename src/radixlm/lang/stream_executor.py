"""One state's steps: what the program submits, in order, and what comes of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from radixlm.core.errors import ProgramError, RadixLMError, UnknownVariableError
from radixlm.core.futures import fail, settle
from radixlm.lang import ir
from radixlm.lang.backend import Backend, Session, Warming
from radixlm.lang.interpreter import Interpreter, Style, Value, done, interpreter_for
from radixlm.lang.transcript import Transcript

T = TypeVar("T")


class Executor:
    """An event loop on its own thread, with one session of a backend: runs the streams of one
    program, or of a batch of programs.

    The thread ends, and the session with it, when `finish` was called and every stream is over.
    Every method but `spawn` may be called from any thread. Raises what opening the session raises.
    """

    loop: asyncio.AbstractEventLoop
    warming: Warming | None = None

    def __init__(self, backend: Backend) -> None:
        self._opened: Future[Session] = Future()
        self._tasks: dict[asyncio.Task[None], object] = {}
        self._cancelled: set[object] = set()
        self._thread = threading.Thread(target=self._run, args=[backend], name="radixlm-programs")
        self._thread.start()
        self.session = self._opened.result()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Soon, on the loop, in the order of the calls. Not after `finish` and the last stream."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it, wait, and give its result. Not after `finish`."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def finish(self, *, wait: bool = False) -> None:
        """No stream will be started any more. Once only. wait: for the thread to end."""
        self.call(self._last.set)
        if wait:
            self._thread.join()

    def cancel(self, group: object = None) -> None:
        """End the streams of this group, or all, where they are; those that come later, too. Does
        nothing once the thread is over.
        """
        with suppress(RuntimeError):  # the loop is closed
            self.call(self._cancel, group)

    def _run(self, backend: Backend) -> None:
        try:
            asyncio.run(self._main(backend))
        except BaseException as error:  # handed to the thread that waits for the session
            if self._opened.done():
                raise
            fail(self._opened, error)

    async def _main(self, backend: Backend) -> None:
        self.loop = asyncio.get_running_loop()
        self._last = asyncio.Event()
        async with backend.session() as session:
            settle(self._opened, session)
            await self._last.wait()
            while self._tasks:
                await asyncio.wait(self._tasks)

    def spawn(
        self, work: Coroutine[Any, Any, None], group: object, ended: Callable[[], None]
    ) -> None:
        """Run a stream on the loop, then `ended`, even if it is cancelled first."""
        task = self.loop.create_task(work)
        self._tasks[task] = group
        task.add_done_callback(lambda _: ended())
        task.add_done_callback(self._tasks.pop)
        if self._cancelled & {group, None}:
            task.cancel()

    def _cancel(self, group: object) -> None:
        self._cancelled.add(group)
        for task, own in self._tasks.items():
            if group in (own, None):
                task.cancel()


@dataclass(frozen=True, slots=True)
class _Read(ir.Expr):
    """readers: streams that go on from what is read."""

    function: Callable[[Transcript], Any]
    readers: int = 1


_NAMED = (ir.Gen, ir.Select, ir.ScopeBegin)
_WITH_VALUES = (*_NAMED, _Read)
_NO_VALUE = Value()  # of all other steps


class _Step(NamedTuple):
    expr: ir.Expr
    line: ir.Line
    value: Value


class StreamExecutor:
    """Submitting never waits; reading does, for what was submitted before.

        program's thread:  submit ──> queue ──> work, on the executor's loop ──> values

    After a step failed, those after it are not run, and every value that would have come of them
    fails with the same error.

    text: all the text, as it grows; over when all steps are. family: the streams of one program,
    which end together.
    """

    def __init__(
        self,
        executor: Executor,
        style: Style,
        line: ir.Line,
        thread: threading.Thread,
        *,
        parent: StreamExecutor | None = None,
        origin: Value | None = None,
    ) -> None:
        """line: of the program, or of the fork. thread: the program's. origin: what a fork begins
        with.
        """
        self._executor, self._style, self._line, self._thread = executor, style, line, thread
        self._origin = origin
        self.variables: dict[str, Any] = {} if parent is None else dict(parent.variables)
        self._inherited = dict(self.variables)
        self.text = Value()
        self._changed = threading.Condition()
        self._closed: str | None = None  # why nothing can be submitted any more
        self._open: set[Value] = set()  # what can be read, and has no result yet
        self._scopes: dict[str, Value] = {}  # those that are open
        self._error: ProgramError | None = None
        self._said: Transcript | None = None
        self._queue: asyncio.Queue[_Step | None] = asyncio.Queue()
        self._root: StreamExecutor = self if parent is None else parent._root
        self.family: list[StreamExecutor] = [] if parent is None else parent.family
        self.family.append(self)
        executor.call(executor.spawn, self._work(), self._root, self._end)

    @property
    def may_wait(self) -> bool:
        """Whether the caller may wait for what the program has yet to submit."""
        return threading.current_thread() is not self._thread

    def submit(self, expr: ir.Expr) -> Value:
        """Raises ProgramError when the state takes no more."""
        has_value = isinstance(expr, _WITH_VALUES)
        value, line = Value() if has_value else _NO_VALUE, ir.caller_line()
        with self._changed:
            if self._closed is not None:
                raise ProgramError(self._closed, line=str(line))
            self._mark_scope(expr, value, line)
            if has_value:
                self._open.add(value)
                value.add_done_callback(self._open.discard)
            if not self.text.done():
                self._executor.call(self._queue.put_nowait, _Step(expr, line, value))
            elif has_value:
                value.fail(self._error or _cancelled(line))
            if isinstance(expr, _NAMED) and expr.name is not None:
                self.define({expr.name: value})
        return value

    def define(self, variables: Mapping[str, Any]) -> None:
        with self._changed:
            self.variables.update(variables)
            self._changed.notify_all()

    def fork(self, size: int) -> list[StreamExecutor]:
        """Streams that go on from what is submitted so far. They come with this one's variables."""
        line, origin = ir.caller_line(), self.submit(_Read(lambda said: said.copy(), size))
        parts = self._executor, self._style, line, self._thread
        return [StreamExecutor(*parts, parent=self, origin=origin) for _ in range(size)]

    def read(self, function: Callable[[Transcript], T]) -> T:
        """Read what is said when all that is submitted is done. Raises ProgramError."""
        with self._changed:
            asked = self.submit(_Read(function)) if self._closed is None else None
        if asked is not None:
            result: T = asked.result()
            return result
        self.text.result()
        if self._error is not None or self._said is None:
            raise self._error or _cancelled(ir.caller_line())
        return function(self._said)

    def find(self, name: str) -> Any:
        """A variable as it is, which may be a Value. Raises UnknownVariableError."""
        wait = self.may_wait
        with self._changed:
            if self._style.spec_tokens and self._closed is None:
                self.submit(_Read(bool))  # answers that are put off for others are wanted now
            while wait and name not in self.variables and self._closed is None:
                self._changed.wait()
            if name not in self.variables:
                known = ", ".join(map(repr, self.variables)) or "none"
                reason = f"there is no variable {name!r} (known: {known})"
                raise UnknownVariableError(reason, line=str(ir.caller_line()))
            found = self.variables[name]
        if not wait and isinstance(found, Value) and found.in_scope and not found.done():
            raise ir.wrong(
                f"{name!r} is read inside its own scope, which is not over: "
                "read it after the `with`"
            )
        return found

    def made(self) -> dict[str, Any]:
        """The variables that are not as they were when this was forked."""
        before, unknown = self._inherited, object()
        return {
            name: value
            for name, value in list(self.variables.items())
            if value is not before.get(name, unknown)
        }

    def close(self, reason: str) -> None:
        """Take no more. What is submitted goes on. Closed again, nothing happens."""
        with self._changed:
            if self._closed is not None:
                return
            self._closed = reason
            if not self.text.done():
                self._executor.call(self._queue.put_nowait, None)
            self._changed.notify_all()

    def cancel(self) -> None:
        """End it, and all of its family, where they are."""
        self._executor.cancel(self._root)

    def fail(self, error: Exception) -> None:
        """The program itself failed: what is read of the state from now on does too."""
        self._error = self._error or _as_program_error(error, ir.error_line(error) or self._line)

    def _mark_scope(self, expr: ir.Expr, value: Value, line: ir.Line) -> None:
        match expr:
            case ir.ScopeBegin(name) if name in self._scopes:
                raise ProgramError(f"the scope {name!r} is open already", line=str(line))
            case ir.ScopeBegin(name):
                self._scopes[name] = value
                value.in_scope = True
            case ir.ScopeEnd(name):
                self._scopes.pop(name).in_scope = False

    async def _work(self) -> None:
        line = self._line
        try:
            interpreter = await self._begun()
            while (step := await self._queue.get()) is not None:
                line = step.line
                await self._do(interpreter, step)
        except asyncio.CancelledError:
            self.fail(_cancelled(line))
            raise

    async def _begun(self) -> Interpreter | None:
        """None when there is nothing to go on from."""
        session = self._executor.session
        if self._origin is None:
            self._said = session.begin()
        else:
            await done(self._origin)
            if isinstance(error := self._origin.exception(), ProgramError):
                self.fail(error)
                return None
            self._said = self._origin.result().copy()
            self._origin = None  # a transcript may be long
        return interpreter_for(session, self._said, self._style, self.text.grow)

    async def _do(self, interpreter: Interpreter | None, step: _Step) -> None:
        if self._error is None and interpreter is not None:
            try:
                await self._perform(interpreter, step)
            except Exception as error:  # a backend may raise anything; reading raises it
                self._error = _as_program_error(error, step.line)
        if self._error is not None:
            self._fail_open(self._error)

    async def _perform(self, interpreter: Interpreter, step: _Step) -> None:
        session, said, warming = self._executor.session, interpreter.said, self._executor.warming
        if not isinstance(step.expr, _Read):
            if warming is not None and isinstance(step.expr, ir.Gen | ir.Select):
                await warming.before(said)
            await interpreter.perform(step.expr, step.value)
            return
        await interpreter.catch_up()
        if step.expr.readers > 1 and said.text and not session.shares_in_flight:
            if warming is not None:
                await warming.before(said)
            await session.compute(said)
        step.value.settle(step.expr.function(said))

    def _end(self) -> None:
        with self._changed:
            if self._said is None:  # cancelled before its first step
                self.fail(_cancelled(self._line))
            if self._error is None and self._said is not None:
                self.text.settle(self._said.text)
            else:
                self.text.fail(self._error or _cancelled(self._line))
        self._fail_open(self._error or _cancelled(self._line))

    def _fail_open(self, error: ProgramError) -> None:
        with self._changed:
            left = list(self._open)
        for value in left:
            value.fail(error)


def _as_program_error(error: Exception, line: ir.Line) -> ProgramError:
    if isinstance(error, ProgramError):
        return error
    text = str(error)
    if not isinstance(error, RadixLMError | ValueError):
        text = f"{type(error).__name__}: {text}"
    found = ProgramError(text, line=str(line))
    found.__cause__ = error
    return found


def _cancelled(line: ir.Line) -> ProgramError:
    return ProgramError("the program was cancelled", line=str(line))
