"""The ages at which prefixes are used again, in bins, and what it makes worth keeping."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

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


def worths(hazards: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The worth of keeping what has reached each bin unused: the best, over times T, of P(used
    within T) / E(time held until then).

    hazards: (rows, bins) of each bin, the share of what reaches it that is used again in it.

    >>> worths(np.array([[0.5, 0.0, 0.0, 0.9]])).round(3).tolist()
    [[0.667, 0.353, 0.581, 1.636]]
    """
    rows, bins = hazards.shape
    found = np.empty((bins, rows))
    used, held = np.zeros((2, bins, rows))  # by the bin in which T lies
    for begin in range(bins - 1, -1, -1):
        here = hazards[:, begin]
        left = 1 - here
        for of_later, of_here in ((used, here), (held, WIDTHS[begin] * (1 - here / 2))):
            of_later[begin:] *= left
            of_later[begin:] += of_here
        np.divide(used[begin:], held[begin:]).max(axis=0, out=found[begin])
    return found.T
