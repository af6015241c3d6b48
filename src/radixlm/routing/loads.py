"""The work that replicas have, and what new tokens cost them."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from radixlm.routing.replica_tree import ReplicaMatches

# New tokens push out others, which somebody may have to compute again; so a prompt does not leave
# its prefix for a queue that is a little shorter. Less than this loses hits on Mooncake's trace,
# more lengthens queues behind hot prefixes: ADR 36.
_CHURN = 30.0
# Older ones are made to count less each time that this part of all caches was computed.
_AGES = 0.01
_LN2 = math.log(2.0)

Numbers = npt.NDArray[np.float64]


class ReplicaLoads:
    """The loads of replicas, by their numbers, as arrays: a choice looks at all of them.

    queues: tokens to compute for requests that have not begun to answer, and what those that have
    may still generate, as tokens. prices: of a new token, beside computing it; `_CHURN` where as
    much of its cache was computed lately as of others'. Lately: tokens count half after as many as
    all caches hold.
    """

    def __init__(self) -> None:
        self.queues, self.prices = np.zeros(0), np.zeros(0)
        self._capacities: dict[int, int] = {}
        self._computed, self._ages = 0, 0.0

    def costs(self, size: int, found: ReplicaMatches) -> Numbers:
        """(replicas,) what a prompt of `size` tokens costs each, of which that was found.

            missing + queue - what is computed there for others anyway + price x own tokens

        Of what is missing, tokens that others wait for too are only in part its own: a second
        replica that computes them does so for some of these. So a prefix that many want spreads
        soon, and a conversation stays where it is.
        """
        held = np.zeros(self.queues.size)
        own = np.full(self.queues.size, found.own(0, size))
        for end, holders in found.levels:
            places = _places(holders)
            held[places] = end
            own[places] = found.own(end, size)
        costs = own * self.prices
        costs += self.queues
        costs += size
        costs -= held
        for number, end in found.coming.items():
            if (more := end - held[number]) > 0:
                dearer = own[number] - found.own(end, size)
                costs[number] -= 2 * more + dearer * self.prices[number]
        return costs

    def add(self, number: int, capacity: int, price: float) -> None:
        """A replica, in the place of one that is gone or at the end."""
        if number == self.queues.size:
            self.queues, self.prices = np.append(self.queues, 0.0), np.append(self.prices, 0.0)
        self.queues[number], self.prices[number] = 0.0, price
        self._capacities[number] = max(capacity, 1)
        self._ages = _AGES * sum(self._capacities.values())

    def remove(self, number: int) -> None:
        del self._capacities[number]
        self._ages = _AGES * sum(self._capacities.values())

    def send(self, number: int, tokens: int) -> None:
        """Count tokens that are to be computed."""
        self.queues[number] += tokens
        self.prices[number] += _CHURN * _LN2 * tokens / self._capacities[number]
        self._computed += tokens
        if self._computed > self._ages:
            self.prices *= 2.0 ** (-_AGES * self._computed / self._ages)
            self._computed = 0


@lru_cache(maxsize=1_024)
def _places(mask: int) -> npt.NDArray[np.intp]:
    """The places of its set bits; the same replicas hold many nodes."""
    return np.array([bit for bit in range(mask.bit_length()) if mask >> bit & 1], np.intp)
