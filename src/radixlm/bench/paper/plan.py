"""What a workload will need, before it is run: a dry run against made-up answers."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from radixlm.bench.paper.bound import remember
from radixlm.bench.paper.programs import Ask, Draw, Reply, run_all
from radixlm.bench.paper.workloads import Workload
from radixlm.cache import RadixTree

# Tokens beyond what a pool must hold: pages that are not full, and what the engine reserves.
MARGIN = 256


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
    those that are told again as text.
    """
    programs = workload.programs(vocab_size, seed=seed, scale=scale)
    client = DryClient(Draw(vocab_size, seed))
    asyncio.run(run_all(client, programs))
    return client.plan()


class DryClient:
    """Answers at once, with random tokens, and counts."""

    def __init__(self, draw: Draw) -> None:
        self.asked: list[Ask] = []
        self._draw = draw
        self._tree = RadixTree()
        self._under_way = 0
        self._most = 0

    async def ask(self, ask: Ask) -> Reply:
        size = len(ask.prompt) + ask.out
        self.asked.append(ask)
        self._under_way += size
        self._most = max(self._most, self._under_way)
        await asyncio.sleep(0)  # all that start together are under way together
        self._under_way -= size
        token_ids = self._draw.tokens(ask.out)
        remember(self._tree, ask.prompt + token_ids)
        return Reply(token_ids)

    def plan(self) -> Plan:
        return Plan(
            requests=len(self.asked),
            distinct=self._tree.evictable_size,
            largest=max(len(ask.prompt) + ask.out for ask in self.asked),
            at_once=self._most,
        )
