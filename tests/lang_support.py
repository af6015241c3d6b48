"""A backend without a model: it answers by a function, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from radixlm.lang.backend import Scores, Session
from radixlm.lang.ir import Params
from radixlm.lang.transcript import Answer, Transcript, habit_of
from tests.server_support import until

Reply = Callable[[str], str]


class FakeBackend:
    """asked: the texts, in order. computed: those to be cached. most: answers at one time.

    reply: a text's answer; what it raises, the backend raises. hangs: answers never end.
    """

    def __init__(
        self, reply: Reply = lambda text: f"<{len(text)}>", *, hangs: bool = False
    ) -> None:
        self.reply = reply
        self.hangs = hangs
        self.shares_in_flight = False
        self.answers_turns = False
        self.calls_cost = False
        self.asked: list[str] = []
        self.params: list[Params] = []
        self.messages: list[list[dict[str, str]]] = []
        self.computed: list[str] = []
        self.scored: list[str] = []
        self.running = self.most = self.aborted = self.sessions = 0

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        self.sessions += 1
        try:
            yield self
        finally:
            self.sessions -= 1

    def flush_cache(self) -> bool:
        return True

    def begin(self) -> Transcript:
        return Transcript(habit_of(""))

    async def answer(
        self, said: Transcript, params: Params, *, stream: bool
    ) -> AsyncGenerator[Answer, None]:
        self.asked.append(said.text)
        self.params.append(params)
        self.messages.append(list(said.messages))
        self.running += 1
        self.most = max(self.most, self.running)
        whole = False
        try:
            await asyncio.sleep(3600 if self.hangs else 0.01)
            text = self.reply(said.text)
            size = 2 if stream else max(len(text), 1)
            for place in range(0, len(text), size):
                await asyncio.sleep(0.02 if place else 0)
                yield Answer(text[place : place + size], {"chars": place + size})
            whole = True
        except Exception:
            whole = True
            raise
        finally:
            self.running -= 1
            self.aborted += not whole

    async def compute(self, said: Transcript) -> None:
        self.computed.append(said.text)

    async def score(self, said: Transcript, choices: Sequence[str], *, alone: bool) -> Scores:
        """The shorter a choice, the likelier."""
        self.scored.append(said.text)
        tokens = [[(-float(len(choice)), 0, choice)] for choice in choices]
        return Scores(tokens, tokens if alone else None)


def no_threads_left() -> bool:
    """Whether every thread of every program is over, soon."""
    return until(
        lambda: not [one for one in threading.enumerate() if one.name.startswith("radixlm-program")]
    )
