"""Cases in which every two values of different parameters meet, without all combinations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairs(*parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Choose cases, one value of each parameter, until every pair of values has met.

    Greedy, in the order of the product, so equal parameters give equal cases. Raises ValueError
    for a parameter without values.

    >>> pairs("ab", "xy", "12")
    [('a', 'x', '1'), ('a', 'y', '2'), ('b', 'x', '2'), ('b', 'y', '1')]
    """
    if not all(parameters):
        raise ValueError("a parameter has no values")
    products = [frozenset(_met(case)) for case in itertools.product(*map(_places, parameters))]
    cases = list(itertools.product(*parameters))
    open_pairs = frozenset().union(*products)
    chosen: set[int] = set()
    while open_pairs:
        best = max(range(len(cases)), key=lambda at: len(products[at] & open_pairs))
        chosen.add(best)
        open_pairs -= products[best]
    return [cases[at] for at in sorted(chosen)]


def _places(parameter: Sequence[Any]) -> range:
    return range(len(parameter))


def _met(case: tuple[int, ...]) -> list[tuple[tuple[int, int], ...]]:
    """Of one parameter alone its values, each with its place."""
    values = list(enumerate(case))
    return list(itertools.combinations(values, min(2, len(values))))
