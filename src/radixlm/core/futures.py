"""How one thread gives another what it waits for."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def settle(future: Future[T], value: T) -> None:
    """Give a future its result. Any thread may call it at any time: a future that has an outcome
    keeps it, and one that was cancelled stays cancelled.

    >>> given_up: Future[int] = Future()
    >>> given_up.cancel()
    True
    >>> settle(given_up, 7)
    """
    with suppress(InvalidStateError):  # asking first leaves a moment in which it may be cancelled
        future.set_result(value)


def fail(future: Future[T], error: BaseException) -> None:
    """Give a future an error instead; otherwise as `settle`."""
    with suppress(InvalidStateError):
        future.set_exception(error)
