"""How long tokens of each kind waited for their next use, and what that makes them worth."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from radixlm.cache.policies.reuse_ages import BINS, EDGES, WIDTHS, worths

# What all kinds say counts as much as two lifetimes of those that are alike first of all, which is
# little; what those say as much as these of the ones that are alike in more, and so on below.
_PRIOR, _PRIOR_BELOW = 2.0, 15.0
# Where nothing is known of an age, less than of the one before.
_FIRST_HAZARD, _FADING = 0.1, 0.6
# What is counted at an age says as much of those beside it, and of the next.
_BLUR = 0.7, 0.49
# Ended lifetimes are counted together, when there are as many.
_TOGETHER = 4_096

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# A lifetime that ended, or goes on: kind, age, tokens.
Lifetime = tuple[int, int, int]
_WIDTHS, _EDGES = np.array(WIDTHS, dtype=np.float64), np.array(EDGES)


class Lifetimes:
    """Counts for each kind of the tokens that were used again at an age, or forgotten, by bins of
    ages.

    kinds: how many there can be. alike: kinds are alike first of all where they are equal modulo
    the first of these, then the next; ascending, each divides the one after it.
    """

    def __init__(self, kinds: int, alike: Sequence[int]) -> None:
        self._alike = (*alike, kinds)
        self._row = np.full(kinds, -1)  # of a kind that was ever met, in the arrays
        self._kinds: Ints = np.empty(0, dtype=np.int64)
        self._used, self._lost = np.zeros((2, 0, BINS))
        self._count = self._tokens = 0.0
        self._ended_used: list[Lifetime] = []
        self._ended_lost: list[Lifetime] = []
        self._valued_row = self._row
        self._worths = np.zeros((1, BINS))
        # The same in lists, for one at a time; with what an age beyond all edges is worth.
        self._by_kind: list[list[float]] = []
        self.value([])

    def used(self, kind: int, age: int, n_tokens: int) -> None:
        """Tokens are used again at an age."""
        self._ended_used.append((kind, age, n_tokens))
        if len(self._ended_used) > _TOGETHER:
            self._count_ended()

    def lost(self, kind: int, age: int, n_tokens: int) -> None:
        """Tokens are forgotten: until then they were not used again."""
        self._ended_lost.append((kind, age, n_tokens))
        if len(self._ended_lost) > _TOGETHER:
            self._count_ended()

    def fade(self, share: float) -> None:
        """Let what was counted before the last `value` count less."""
        self._count *= share
        self._tokens *= share
        self._used *= share
        self._lost *= share

    def worth(self, kind: int, age: int) -> float:
        """The worth of a token of an age, as of the last `value`."""
        return self._by_kind[kind][bisect_right(EDGES, age) - 1]

    def worths(self, kinds: Ints, ages: Ints) -> Floats:
        """The same of many."""
        found: Floats = self._worths[self._valued_row[kinds], _bins(ages)]
        return found

    def value(self, going_on: Sequence[Lifetime], share: float = 1.0, half: float = 1.0) -> None:
        """Value all kinds anew. going_on: lifetimes that have reached their age, each for as many
        as 1 / share; those of an age of `half` count half. O(kinds + lifetimes).
        """
        self._count_ended()
        reached = self._used + self._lost
        if going_on:
            kinds, ages, tokens = np.array(going_on).T
            rows = self._rows(kinds)
            reached = np.vstack((reached, np.zeros((self._kinds.size - len(reached), BINS))))
            np.add.at(reached, (rows, _bins(ages)), tokens / share * 0.5 ** (ages / half))
            self._grow()
        reached = reached[:, ::-1].cumsum(axis=1)[:, ::-1]
        weight = _PRIOR * max(self._tokens, 1.0) / max(self._count, 1.0)
        used, reached = _blurred(self._used, _WIDTHS), _blurred(reached, 1.0)
        of_all = _faded(used.sum(axis=0), reached.sum(axis=0), weight)
        hazard, above = of_all[None], np.zeros(self._kinds.size, dtype=np.int64)
        for alike in self._alike:
            of, first, place = np.unique(
                self._kinds % alike, return_index=True, return_inverse=True
            )
            used_by, reached_by = np.zeros((2, of.size, BINS))
            np.add.at(used_by, place, used)
            np.add.at(reached_by, place, reached)
            base = hazard[above[first]]
            hazard = (used_by + weight * base) / (reached_by + weight)
            below = _PRIOR_BELOW / _PRIOR if alike == self._alike[0] else 1.0
            above, weight = place, weight * below
        # The last row is of all kinds that were never met: their row is -1.
        self._worths = worths(np.minimum(np.vstack((hazard[above], of_all)), 1.0))
        self._valued_row = self._row.copy()
        by_row = [[*row, row[-1]] for row in self._worths.tolist()]
        self._by_kind = [by_row[row] for row in self._valued_row.tolist()]

    def _count_ended(self) -> None:
        for was_used, ended in ((True, self._ended_used), (False, self._ended_lost)):
            if not ended:
                continue
            kinds, ages, tokens = np.array(ended).T
            rows = self._rows(kinds)
            self._grow()
            np.add.at(self._used if was_used else self._lost, (rows, _bins(ages)), tokens)
            self._count += len(ended)
            self._tokens += float(tokens.sum())
            ended.clear()

    def _rows(self, kinds: Ints) -> Ints:
        new = np.unique(kinds[self._row[kinds] < 0])
        self._row[new] = self._kinds.size + np.arange(new.size)
        self._kinds = np.concatenate((self._kinds, new))
        return self._row[kinds]

    def _grow(self) -> None:
        more = np.zeros((self._kinds.size - len(self._used), BINS))
        self._used, self._lost = np.vstack((self._used, more)), np.vstack((self._lost, more))


def _bins(ages: Ints) -> Ints:
    return np.clip(np.searchsorted(_EDGES, ages, side="right") - 1, 0, BINS - 1)


def _blurred(counts: Floats, by_width: Floats | float) -> Floats:
    """(rows, bins) with the two bins on either side; counts are in proportion to a width."""
    level = counts / by_width
    found = level.copy()
    for apart, weight in enumerate(_BLUR, 1):
        found[:, apart:] += weight * level[:, :-apart]
        found[:, :-apart] += weight * level[:, apart:]
    return found * by_width


def _faded(used: Floats, reached: Floats, weight: float) -> Floats:
    """(bins,) hazards of all; where little is known, less than that of the age before."""
    hazard, found = _FIRST_HAZARD, []
    for here, there in zip(used.tolist(), reached.tolist(), strict=True):
        hazard = (here + weight * _FADING * hazard) / (there + weight)
        found.append(hazard)
    return np.array(found)
