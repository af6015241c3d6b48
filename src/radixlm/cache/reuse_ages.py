"""After what time prefixes are used again, in bins, and what it makes worth keeping."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

_RATIO = 1.3
_BINS = 56


def _edges() -> list[int]:
    edges = [0, 1]
    while len(edges) <= _BINS:
        edges.append(max(edges[-1] + 1, int(_RATIO * edges[-1])))
    return edges


# A bin holds ages from its edge to below the next one; the last one all that are greater, too.
EDGES: Sequence[int] = tuple(_edges())
WIDTHS: Sequence[int] = tuple(b - a for a, b in pairwise(EDGES))
BINS = len(WIDTHS)


def bin_of(age: int) -> int:
    """The bin of an age of 0 or more.

    >>> [bin_of(age) for age in (0, 1, 2, 10, 11)], WIDTHS[:12]
    ([0, 1, 2, 8, 9], (1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4, 5))
    """
    return min(bisect_right(EDGES, age) - 1, BINS - 1)


def densities(hazards: Sequence[float], most: int = BINS) -> list[float]:
    """What it is worth to keep what has reached each of the first `most` bins unused: the best,
    over times T, of P(used within T) / E(time held until then). hazards: of each bin, the share of
    what reaches it that is used again in it.

    >>> [round(each, 3) for each in densities([0.5, 0.0, 0.0, 0.9], 4)]
    [0.667, 0.353, 0.581, 1.636]
    """
    found = []
    for begin in range(most):
        there, used, held, best = 1.0, 0.0, 0.0, 0.0
        for at in range(begin, most):
            hazard = hazards[at]
            gone = there * hazard
            used += gone
            held += WIDTHS[at] * (there - gone / 2)
            there -= gone
            if hazard and used > best * held:
                best = used / held
        found.append(best)
    return found
