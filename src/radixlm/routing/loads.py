"""What replicas have to do, and have computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MOST_GROWTH = 1e100

Numbers = npt.NDArray[np.float64]


class Loads:
    """What replicas have to do, by their numbers, as arrays: a choice looks at all of them.

    queues: tokens to compute for requests that have not begun to answer, and what those that have
    may still generate, as tokens. lately: tokens computed, older ones count less: it is the new
    ones that count more, by `_growth`.
    """

    def __init__(self) -> None:
        self.queues, self.lately = np.zeros(0), np.zeros(0)
        self._growth = 1.0

    def add(self, number: int, lately: float) -> None:
        if number == self.queues.size:
            self.queues, self.lately = np.append(self.queues, 0.0), np.append(self.lately, 0.0)
        self.queues[number], self.lately[number] = 0.0, lately

    def send(self, number: int, tokens: int, capacity: int) -> None:
        """So much is to be computed; what was before counts half after as much as `capacity`."""
        self.queues[number] += tokens
        self._growth *= 2.0 ** (tokens / max(capacity, 1))
        self.lately[number] += tokens * self._growth
        if self._growth > _MOST_GROWTH:
            self.lately /= self._growth
            self._growth = 1.0
