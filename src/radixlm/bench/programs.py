"""What a workload is made of: programs that ask, wait for the answers, and ask again.

A program sees a Client and nothing else, so the same one runs against an engine and in a dry run,
whose client makes answers up. Content is random token ids, all drawn before the first request, so
that it does not depend on who is answered first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request.

    prompt: token ids. out: tokens to generate, no fewer and no more.
    scored: how many of the prompt's last tokens are wanted with their log-probabilities.
    seed: draw the tokens with it; None takes the likeliest ones.
    """

    prompt: list[int]
    out: int
    scored: int = 0
    seed: int | None = None

    @property
    def reusable(self) -> int:
        """Prompt tokens that may come from a cache: what is predicted needs the logits of the
        token before it, so at least the last one is computed.
        """
        return len(self.prompt) - self.scored - 1


class Reply(NamedTuple):
    """token_ids: what was generated. logprob: the sum over the scored tokens, 0 without any."""

    token_ids: list[int]
    logprob: float = 0.0


class Client(Protocol):
    """Answers any number of requests at once."""

    async def ask(self, ask: Ask, /) -> Reply: ...


# Runs to its end and returns the token ids of its result.
Program = Callable[[Client], Coroutine[Any, Any, list[int]]]


class Draw:
    """Random content. Equal seeds give equal tokens. vocabulary: those that are drawn from, or how
    many there are.
    """

    def __init__(self, vocabulary: int | Sequence[int], *seeds: int) -> None:
        ids = np.arange(vocabulary) if isinstance(vocabulary, int) else np.array(vocabulary)
        self._vocabulary = ids
        self._random = np.random.default_rng(seeds)

    def tokens(self, count: int) -> list[int]:
        places = self._random.integers(0, self._vocabulary.size, count)
        drawn: list[int] = self._vocabulary[places].tolist()
        return drawn

    def parts(self, count: int, size: int) -> list[list[int]]:
        """`count` times `size` token ids."""
        return [self.tokens(size) for _ in range(count)]

    def number(self) -> int:
        """A seed for something else."""
        return int(self._random.integers(0, 2**31))

    def fractions(self, count: int) -> list[float]:
        """Numbers from 0 to 1."""
        drawn: list[float] = self._random.random(count).tolist()
        return drawn

    def choice(self, among: int, count: int) -> list[int]:
        """Different numbers below `among`, rising."""
        return sorted(self._random.choice(among, count, replace=False).tolist())


async def together(client: Client, asks: Iterable[Ask]) -> list[Reply]:
    """Ask all at once; the replies in the order of the requests."""
    return await asyncio.gather(*(client.ask(ask) for ask in asks))


async def run_all(client: Client, programs: Iterable[Program]) -> list[list[int]]:
    """Start all programs at once and wait for the last."""
    return await asyncio.gather(*(program(client) for program in programs))
