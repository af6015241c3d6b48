"""The state that a program writes to and reads from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, Self

from radixlm.core.errors import ProgramError
from radixlm.lang import ir
from radixlm.lang.interpreter import Value
from radixlm.lang.ir import Expr, wrong
from radixlm.lang.stream_executor import StreamExecutor
from radixlm.lang.transcript import Message


class State:
    """The first argument of every program.

    Appending (`s += ...`) and forking never wait. Reading (`s["name"]`, `s.text()`, ...) waits for
    what is read, and raises ProgramError when the step that it comes of failed.

    ret_value: what the program returned. arguments: what it was called with.
    """

    def __init__(
        self, stream_executor: StreamExecutor, arguments: dict[str, Any] | None = None
    ) -> None:
        self.stream_executor = stream_executor
        self.arguments = arguments or {}
        self.ret_value: Any = None

    def __iadd__(self, other: Expr | str) -> Self:
        for part in ir.parts_of(other):
            self.stream_executor.submit(part)
        return self

    def __getitem__(self, name: str) -> Any:
        return _read(self.stream_executor.find(name))

    def __setitem__(self, name: str, value: Any) -> None:
        self.stream_executor.define({name: value})

    def __contains__(self, name: str) -> bool:
        return name in self.stream_executor.variables

    get_var = __getitem__
    set_var = __setitem__

    def _message(self, expr: Expr | str | None = None, *, role: str) -> Any:
        """A whole message, or without `expr` a context manager for one."""
        if expr is None:
            return self._within(ir.RoleBegin(role), ir.RoleEnd(role))
        message = ir.in_role(role, expr)
        self += message
        return message

    system = partialmethod(_message, role="system")
    user = partialmethod(_message, role="user")
    assistant = partialmethod(_message, role="assistant")

    def var_scope(self, name: str) -> AbstractContextManager[None]:
        """A scope: what is appended inside is also the variable `name`."""
        return self._within(ir.ScopeBegin(name), ir.ScopeEnd(name))

    @contextmanager
    def _within(self, begin: Expr, end: Expr) -> Iterator[None]:
        self.stream_executor.submit(begin)
        yield
        self.stream_executor.submit(end)

    def fork(self, size: int = 1) -> Forks:
        """`size` states that go on from here side by side; what they share is computed once."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise wrong(f"a state is forked into 1 or more, got {size!r}")
        return Forks(
            self, [State(child, self.arguments) for child in self.stream_executor.fork(size)]
        )

    @contextmanager
    def copy(self) -> Iterator[State]:
        """A fork of one, joined at the end."""
        forks = self.fork(1)
        try:
            yield forks[0]
        finally:
            forks.join()

    def text(self) -> str:
        """Everything so far, messages as the model reads them."""
        return self.stream_executor.read(lambda said: said.text)

    def messages(self) -> list[Message]:
        """The messages that are whole, in the form of OpenAI's API."""
        return self.stream_executor.read(lambda said: list(said.messages))

    def sync(self) -> None:
        """Wait until all that is appended is done. Raises nothing: see `error`."""
        self.error()

    def error(self) -> ProgramError | None:
        """The error so far, None without any."""
        try:
            self.stream_executor.read(bool)
        except ProgramError as error:
            return error
        return None

    def get_meta_info(self, name: str) -> Any:
        """The backend's facts of an answer, as SGLang's `meta_info`; None of other variables."""
        return _meta(self.stream_executor.find(name))

    def text_iter(self, name: str | None = None) -> Iterator[str]:
        """The text of a variable, or of everything, as it comes; run with `stream=True`."""
        value = self.stream_executor.text if name is None else self.stream_executor.find(name)
        if isinstance(value, Value):
            yield from value.pieces()
        else:
            yield str(_read(value))

    async def text_async_iter(
        self, name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """Iterate over text as `text_iter` does; with return_meta_data pairs of the text and what
        is known of it.
        """
        stream = self.stream_executor
        value: Any = stream.text
        if name is not None:
            known = name in self or not stream.may_wait
            value = stream.find(name) if known else await asyncio.to_thread(stream.find, name)
        if not isinstance(value, Value):
            text = str(await asyncio.to_thread(_read, value))
            yield (text, {}) if return_meta_data else text
            return
        async for piece in value.apieces():
            yield (piece, value.meta or {}) if return_meta_data else piece

    def cancel(self) -> None:
        """End the program where it is; at the backend too. What is read from then on raises."""
        self.stream_executor.cancel()

    def __repr__(self) -> str:
        return f"State({', '.join(list(self.stream_executor.variables))})"


class Forks:
    """States that go on apart from where one was forked."""

    def __init__(self, origin: State, states: list[State]) -> None:
        self._origin = origin
        self._states = states
        self._joined: str | None = None

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[State]:
        return iter(self._states)

    def __getitem__(self, place: int) -> State:
        return self._states[place]

    def __setitem__(self, place: int, state: State) -> None:
        """Do what `forks[i] += ...` does at its end."""
        if self._states[place] is not state:
            raise wrong("a fork can not be replaced")

    def __iadd__(
        self, other: Expr | str | Sequence[Expr | str] | Callable[[int], Expr | str]
    ) -> Self:
        """The same for all, or a list with one for each, or a function of the fork's place."""
        for state, own in zip(self._states, self._each(other), strict=True):
            state += own
        return self

    def join(self, mode: str = "gather_variable") -> None:
        """End the forks. Every variable that they made, or changed, is a list in the state that was
        forked, with an entry for each fork that did.
        """
        if mode != "gather_variable":
            raise wrong(f"the mode of a join is 'gather_variable', got {mode!r}")
        if self._joined is not None:
            raise wrong(f"these forks were joined before, by {self._joined}")
        self._joined = line = str(ir.caller_line())
        made: dict[str, list[Any]] = {}
        for state in self._states:
            state.stream_executor.close(f"this fork was joined, by {line}")
            for name, value in state.stream_executor.made().items():
                made.setdefault(name, []).append(value)
        self._origin.stream_executor.define(
            {name: _Gathered(values) for name, values in made.items()}
        )

    def _each(self, other: Any) -> Sequence[Expr | str]:
        if isinstance(other, Expr | str):
            return [other] * len(self._states)
        if callable(other):
            return [other(place) for place in range(len(self._states))]
        if isinstance(other, list | tuple) and len(other) == len(self._states):
            return other
        raise wrong(
            f"{len(self._states)} forks are given one expression, a list of as many, or a function "
            f"of their place, got {other!r:.80}"
        )


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A variable of several forks."""

    values: list[Any]


def _read(value: Any) -> Any:
    if isinstance(value, Value):
        return value.result()
    if isinstance(value, _Gathered):
        return [_read(entry) for entry in value.values]
    return value


def _meta(value: Any) -> Any:
    if isinstance(value, Value):
        value.result()
        return value.meta
    return [_meta(entry) for entry in value.values] if isinstance(value, _Gathered) else None
