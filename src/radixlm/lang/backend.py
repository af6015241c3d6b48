"""The interface of a backend, of whatever runs the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from os.path import commonprefix
from typing import Any, NamedTuple, Protocol, TypeVar

from radixlm.lang.choices import Tokens, tokens_after
from radixlm.lang.ir import Params
from radixlm.lang.transcript import Answer, Transcript

T = TypeVar("T")
# A shorter prefix is not worth a request.
_LEAST_CHARACTERS = 64


Pieces = AsyncGenerator[Answer, None]


class Scores(NamedTuple):
    """Each choice's tokens after the prompt, and on their own if that was asked for. A token that
    the choice shares with the prompt's last text is the choice's.
    """

    tokens: list[Tokens]
    alone: list[Tokens] | None


async def scores_of_texts(
    said: str, choices: Sequence[str], listed: Callable[[list[str]], Awaitable[list[Tokens]]]
) -> list[Tokens]:
    """Each choice's tokens after what is said. listed: gives the tokens of whole texts."""
    texts = [said + choice for choice in choices]
    if not said:
        return await listed(texts)
    base, *lists = await listed([said, *texts])
    return [tokens_after(base, entries) for entries in lists]


class Session(Protocol):
    """A backend in use, on one event loop. What is closed or cancelled half way ends at the backend
    too. Methods raise InvalidRequestError for a program's mistakes, and other RadixLMErrors.

    shares_in_flight: requests that come together compute what they share once by themselves.
    answers_turns: it answers the messages before an assistant's, not a text. Then nothing can be
        scored, and several answers in one message need prefetching.
    calls_cost: each call takes long or is paid for, so several answers may be had from one.
    """

    shares_in_flight: bool
    answers_turns: bool
    calls_cost: bool

    def begin(self) -> Transcript:
        """A transcript that says nothing yet."""
        ...

    def answer(self, said: Transcript, params: Params, *, stream: bool) -> Pieces:
        """One answer, as it comes if `stream`, else in few pieces. `params.n` is for the caller."""
        ...

    async def compute(self, said: Transcript) -> None:
        """Have this in the cache."""
        ...

    async def score(self, said: Transcript, choices: Sequence[str], *, alone: bool) -> Scores:
        """Log-probabilities of each choice as the text that comes next."""
        ...


class Backend(Protocol):
    """A backend on which programs run. Used from any thread."""

    def session(self) -> AbstractAsyncContextManager[Session]:
        """A session of one run of a program, or of a batch: open connections end with it."""
        ...

    def flush_cache(self) -> bool:
        """Drop what is cached; whether all of it went."""
        ...


class Warming:
    """The order of a batch on a backend whose requests do not share by themselves: the first call
    waits for the second one, then what both begin with is computed; the others wait for that. On
    one loop.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._first: list[str] = []
        self._warm = asyncio.Event()

    def ended(self) -> None:
        """A program is over, so there may be no second call to wait for."""
        self._warm.set()

    async def before(self, said: Transcript) -> None:
        """Await this before a call that goes on from `said`."""
        if self._warm.is_set():
            return
        self._first.append(said.text)
        if len(self._first) != 2:
            await self._warm.wait()
            return
        common = self._session.begin()
        common.write(commonprefix(self._first))  # noqa: RUF071  # of texts, not of paths
        try:
            if len(common.text) >= _LEAST_CHARACTERS:
                await self._session.compute(common)
        finally:
            self._warm.set()


async def side_by_side(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order. When one fails the others are cancelled, and are over, before that
    error is raised.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
