"""What several engines are and did together, those too that are gone."""

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
        self._known: dict[str, EngineStats] = {}
        self._forgotten = EngineStats()

    def take(self, there: Mapping[str, EngineStats]) -> None:
        """By engine, of those that are there; one that is not may come again."""
        self._known |= there
        gone = [name for name in self._known if name not in there]
        for name in gone[: max(len(self._known) - _MOST_NAMES, 0)]:
            self._forgotten = EngineStats.summed([self._forgotten, self._known.pop(name).totals()])
        absent = [stats.totals() for name, stats in self._known.items() if name not in there]
        self.now = EngineStats.summed([self._forgotten, *there.values(), *absent])
