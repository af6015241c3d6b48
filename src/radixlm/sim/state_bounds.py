"""A bound that no placement of checkpoints of states could have passed, whatever it knew of the
future: Belady's question for checkpoints, of those keys and values that the run had.

Each request goes on from at most one state, at a place where its keys and values are there, and
that state was in a slot since the last request that came by its place. So of all pairs of a place
and a later use, each with the tokens that it saves and the requests during which it holds a slot,
at most one is chosen for each request, and at each request no more than there are slots beside
those of running requests. That is relaxed: slots have a price at each request (Lagrange), the best
pairs by these prices bound the best choice from above for any prices, and the prices are lowered or
raised where too few or too many slots are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

_ROUNDS = 1_000
Ints = npt.NDArray[np.int64]


class Access(Protocol):
    """parts: of a request's path, from the root. held: of its prompt, in what sizes of parts count,
    what has keys and values.
    """

    @property
    def parts(self) -> Sequence[int]: ...
    @property
    def held(self) -> int: ...


def placed(sizes: Sequence[int], accesses: Sequence[Access], slots: Sequence[int]) -> float:
    """Most that could be found, in what `sizes` of parts count. slots: for checkpoints, at each
    access. O(pairs) for each round.
    """
    since, until, gain = _pairs(sizes, accesses)
    room = np.array(slots)
    if not gain.size or not room.any():
        return 0.0
    heads = np.flatnonzero(np.diff(until, prepend=-1))
    of = np.cumsum(np.diff(until, prepend=-1) != 0) - 1
    prices = np.zeros(len(accesses))
    best = float(np.maximum.reduceat(gain, heads).sum())
    for number in range(_ROUNDS):
        total = np.concatenate(([0.0], np.cumsum(prices)))
        left = gain - (total[until + 1] - total[since + 1])
        most = np.maximum.reduceat(left, heads)
        best = min(best, float(np.maximum(most, 0).sum() + (room * prices).sum()))
        chosen = np.flatnonzero((left >= most[of]) & (left > 0))
        chosen = chosen[np.unique(of[chosen], return_index=True)[1]]
        change = np.zeros(len(accesses) + 1)
        np.add.at(change, since[chosen] + 1, 1)
        np.add.at(change, until[chosen] + 1, -1)
        over = np.cumsum(change)[:-1] - room
        step = float(gain.mean() / room.mean()) / np.sqrt(1 + number)
        prices = np.maximum(0, prices + step * over / max(1.0, float(np.abs(over).mean())))
    return best


def _pairs(sizes: Sequence[int], accesses: Sequence[Access]) -> tuple[Ints, Ints, Ints]:
    """Ends of parts that requests could go on from: the last request that came by, the one that
    goes on, and how much that saves it.
    """
    last: dict[int, int] = {}
    pairs: list[tuple[int, int, int]] = []
    for number, access in enumerate(accesses):
        end = 0
        for part in access.parts:
            if end < access.held and part in last:
                pairs.append((last[part], number, min(end + sizes[part], access.held)))
            end += sizes[part]
            last[part] = number
    since, until, gain = np.array(pairs, dtype=np.int64).reshape(-1, 3).T
    return since, until, gain
