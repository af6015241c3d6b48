"""The totals of several engines, those too that are gone."""

from __future__ import annotations

from collections.abc import Mapping

from radixlm.engine.engine_stats import EngineStats

_MOST_NAMES = 1_000


class Totals:
    """Sizes are of the engines that are there, totals of all that ever were: a counter that falls
    looks as if it had begun again. now: the sums.
    """

    def __init__(self) -> None:
        self.now = EngineStats()
        self._there: dict[str, EngineStats] = {}
        self._gone: dict[str, EngineStats] = {}
        # Of those that are gone, in all and of those whose names are not kept.
        self._past = self._forgotten = EngineStats()

    def take(self, there: Mapping[str, EngineStats]) -> None:
        """Take the figures by engine, of those that are there; one that is not may come again.
        O(there), and O(all) when one does.
        """
        for name in self._there.keys() - there.keys():
            self._gone[name] = self._there[name].totals()
            self._past = EngineStats.summed([self._past, self._gone[name]])
        again = [self._gone.pop(name) for name in self._gone.keys() & there.keys()]
        while len(self._gone) > _MOST_NAMES:
            oldest = self._gone.pop(next(iter(self._gone)))
            self._forgotten = EngineStats.summed([self._forgotten, oldest])
        if again:
            self._past = EngineStats.summed([self._forgotten, *self._gone.values()])
        self._there = dict(there)
        self.now = EngineStats.summed([self._past, *there.values()])
