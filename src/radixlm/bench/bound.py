"""What requests need at least: the hit rate that no order of admission can beat, and how much a
workload will hold, from a dry run against made-up answers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from radixlm.bench.programs import Ask, Draw, Reply, run_all
from radixlm.bench.workloads import Workload
from radixlm.cache import RadixTree

# Tokens beyond what a pool must hold: pages that are not full, and what the engine reserves.
MARGIN = 256


class Finished(NamedTuple):
    """A request and what it gave. counted: whether it is part of the measurement."""

    ask: Ask
    token_ids: list[int]
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Bound:
    """prompt, cached: tokens of the counted requests; cached is the most that can be."""

    prompt: int
    cached: int

    @property
    def hit_rate(self) -> float:
        return self.cached / self.prompt if self.prompt else 0.0


def best_possible(requests: Iterable[Finished]) -> Bound:
    """Replay requests, given in the order in which they ended, through a cache without limits and
    with pages of one token. The last token of an answer is never computed, so never cached.

    Requests that are not counted come first. Then shorter prompts go before longer ones: a prompt
    that is the beginning of another finds its last token uncomputed, and one that depends on
    another's answer is longer than that one's prompt.
    """
    tree = RadixTree()
    prompt = cached = 0
    for ask, token_ids, counted in sorted(
        requests, key=lambda item: (item.counted, len(item.ask.prompt))
    ):
        if counted:
            prompt += len(ask.prompt)
            cached += tree.match_prefix(ask.prompt[: ask.reusable]).length
        remember(tree, ask.prompt + token_ids[:-1])
    return Bound(prompt, cached)


def remember(tree: RadixTree, tokens: list[int]) -> None:
    """Put tokens into a tree of which only the shape is wanted."""
    tree.insert(tokens, np.zeros(len(tokens), dtype=np.int32))


@dataclass(frozen=True, slots=True)
class Plan:
    """requests: how many. Sizes in tokens, prompts with answers:

    distinct: of all requests, each shared prefix once. largest: of one request.
    at_once: of the requests that are under way together, shared prefixes once for each.
    """

    requests: int
    distinct: int
    largest: int
    at_once: int

    def pool_tokens(self, share: float | None) -> int:
        """A KV pool of `share` of the distinct tokens, but one that the largest request fits;
        None: one in which nothing is ever evicted and nobody waits for room, shared or not.
        """
        if share is None:
            return self.distinct + self.at_once + MARGIN * self.requests
        return max(math.ceil(share * self.distinct), self.largest + MARGIN)


def make_plan(workload: Workload, vocab_size: int, *, seed: int, scale: float) -> Plan:
    """Run the workload's programs without an engine. Lengths do not depend on the answers, but for
    those that are said again as text.
    """
    programs = workload.programs(vocab_size, seed=seed, scale=scale)
    client = DryClient(Draw(vocab_size, seed))
    asyncio.run(run_all(client, programs))
    return client.plan()


class DryClient:
    """Answers at once, with random tokens, and counts."""

    def __init__(self, draw: Draw) -> None:
        self._sizes: list[int] = []
        self._draw = draw
        self._tree = RadixTree()
        self._under_way = 0
        self._most = 0

    async def ask(self, ask: Ask) -> Reply:
        size = len(ask.prompt) + ask.out
        self._sizes.append(size)
        self._under_way += size
        self._most = max(self._most, self._under_way)
        await asyncio.sleep(0)  # all that start together are under way together
        self._under_way -= size
        token_ids = self._draw.tokens(ask.out)
        remember(self._tree, ask.prompt + token_ids)
        return Reply(token_ids)

    def plan(self) -> Plan:
        return Plan(len(self._sizes), self._tree.evictable_size, max(self._sizes), self._most)
