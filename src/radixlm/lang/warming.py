"""What a batch's programs begin with, computed once before they go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from radixlm.lang.backend import Piece, Scores, Session
from radixlm.lang.params import Params
from radixlm.lang.transcript import Transcript

# A shorter prefix is not worth a request.
_LEAST_CHARACTERS = 64


class WarmingSession:
    """A session in which the first call waits for the second one, and then what both begin with is
    computed; the others wait for that. For backends whose requests do not share by themselves.
    """

    shares_in_flight = False

    def __init__(self, session: Session) -> None:
        self._session = session
        self.answers_turns = session.answers_turns
        self.calls_cost = session.calls_cost
        self._first: list[str] = []
        self._warm = asyncio.Event()

    def begin(self) -> Transcript:
        return self._session.begin()

    def ended(self) -> None:
        """A program is over, so there may be no second call to wait for. On the loop."""
        self._warm.set()

    async def answer(
        self, said: Transcript, params: Params, *, stream: bool
    ) -> AsyncGenerator[Piece, None]:
        await self._warmed(said)
        async with aclosing(self._session.answer(said, params, stream=stream)) as pieces:
            async for piece in pieces:
                yield piece

    async def compute(self, said: Transcript) -> None:
        await self._warmed(said)
        await self._session.compute(said)

    async def score(self, said: Transcript, choices: Sequence[str], *, alone: bool) -> Scores:
        await self._warmed(said)
        return await self._session.score(said, choices, alone=alone)

    async def _warmed(self, said: Transcript) -> None:
        if self._warm.is_set():
            return
        self._first.append(said.text)
        if len(self._first) != 2:
            await self._warm.wait()
            return
        common = self._session.begin()
        common.write(_common_prefix(*self._first))
        try:
            if len(common.text) >= _LEAST_CHARACTERS:
                await self._session.compute(common)
        finally:
            self._warm.set()


def _common_prefix(one: str, other: str) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    size = next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
    return one[:size]
