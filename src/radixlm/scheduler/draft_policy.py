"""The number of drafted tokens that pay: by what rows cost on this machine, and how often drafts
are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from radixlm.drafts.acceptance import Acceptance
from radixlm.drafts.draft import Draft

# What drafts must promise to gain, at least: what is measured is not exact.
MARGIN = 1.03
# What a drafted row is thought to cost before any was measured, of a step without drafts.
_PRIOR = 1 / 32
# Steps after which what a step costs is measured again: without drafts, and with this many.
PLAIN_STALE, STALE = 128, 1024
# Steps without drafts before the first with some: the first ones also compile, or read weights.
_ENOUGH = 3
# A step that was faster counts more than one that others have slowed down.
_DOWN, _UP = 1 / 2, 1 / 8


@dataclass(slots=True)
class _Cost:
    """Seconds of a step; count: steps that were measured; at: the number of the last one."""

    seconds: float
    count: int
    at: int


class StepCosts:
    """The seconds that steps take in which all requests decode, by how many these are and how many
    drafted rows there are besides; large numbers are rounded.
    """

    def __init__(self) -> None:
        self._costs: dict[int, dict[int, _Cost]] = {}
        self._steps = 0

    def learn(self, requests: int, drafted: int, seconds: float) -> None:
        """Count a step that took `seconds`."""
        self._steps += 1
        costs = self._costs.setdefault(_bucket(requests), {})
        cost = costs.setdefault(_bucket(drafted), _Cost(seconds, 0, 0))
        cost.seconds += (_DOWN if seconds < cost.seconds else _UP) * (seconds - cost.seconds)
        cost.count, cost.at = cost.count + 1, self._steps

    def of(self, requests: int, most: int) -> list[float]:
        """(most + 1,) seconds of a step with 0, 1, ... drafted rows, along straight lines between
        those that were measured; empty while it is to be measured without drafts first.
        """
        costs = self._costs.get(_bucket(requests), {})
        plain = costs.get(0)
        if plain is None or plain.count < _ENOUGH or self._steps - plain.at > PLAIN_STALE:
            return []
        known = {n: c.seconds for n, c in sorted(costs.items()) if self._steps - c.at <= STALE}
        last, seconds = [*known.items()][-1]
        slope = (seconds - plain.seconds) / last if last else _PRIOR * seconds
        known.setdefault(last + most + 1, seconds + max(slope, 0.0) * (most + 1))
        made: list[float] = np.interp(range(most + 1), [*known], [*known.values()]).tolist()
        return made


def _bucket(number: int) -> int:
    """The number, rounded down to three bits."""
    step = 1 << max(number.bit_length() - 3, 0)
    return number - number % step


class DraftPolicy:
    """Chooses how much of each draft is computed: of all drafted tokens of a step, the likeliest,
    as many as give the most tokens a second.

        tokens of a step     requests + chances of the drafted tokens that are computed
        seconds of it        measured, see StepCosts
    """

    def __init__(self) -> None:
        self.costs = StepCosts()
        self._acceptance = Acceptance()

    def learn(self, draft: Draft, accepted: int) -> None:
        """Count a draft of which the first `accepted` tokens were drawn."""
        self._acceptance.learn(draft, accepted)

    def may_pay(self, requests: int, most: int) -> bool:
        """Whether drafts of at most `most` tokens each would pay if all of them were right."""
        costs = self.costs.of(requests, requests * most)
        return any(
            (requests + count) * costs[0] > MARGIN * requests * seconds
            for count, seconds in enumerate(costs)
            if count
        )

    def choose(self, drafts: Sequence[Draft], requests: int) -> list[int]:
        """How many tokens of each draft are to be computed in a step of `requests`."""
        chances = sorted(
            ((c, -i) for i, each in enumerate(drafts) for c in self._acceptance.chances(each)),
            reverse=True,
        )
        counts, costs = [0] * len(drafts), self.costs.of(requests, len(chances))
        if costs:
            tokens = accumulate((chance for chance, _ in chances), initial=float(requests))
            rates = [each / seconds for each, seconds in zip(tokens, costs, strict=True)]
            rates[0] *= MARGIN
            for _, place in chances[: rates.index(max(rates))]:
                counts[-place] += 1
        return counts
