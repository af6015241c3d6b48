"""The number of drafted tokens that pay: by what rows cost on this machine, and how often drafts
are right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

from radixlm.drafts.acceptance import Acceptance
from radixlm.drafts.draft import Draft, in_common

# What drafts must promise to gain, at least: what is measured is not exact.
MARGIN = 1.05
# What a drafted row is thought to cost before any was measured, and at least, of a step without.
_PRIOR, _LEAST = 1 / 32, 1 / 128
# Steps after which what one costs is measured again, of any kind: without drafts, and with some.
PLAIN_STALE, STALE = 128, 1024
# Steps without drafts before the first with some: the first ones also compile, or read weights.
_ENOUGH = 3
# After this many steps in which no draft paid, they are looked for in every fourth one only: even
# looking takes some 200 us, a twentieth of a small model's step.
_PATIENCE, _EVERY = 32, 4
# How much a step counts beside those before it: more if it was faster.
_DOWN, _UP = 1 / 2, 1 / 4


@dataclass(slots=True)
class _Cost:
    """Seconds of a step; last: those of the last one that was measured, the step of number `at`;
    count: steps that were measured.
    """

    seconds: float
    last: float
    at: int
    count: int = 0

    def learn(self, seconds: float, at: int) -> None:
        """Count the faster one of this step and the last one: a step that others have held up says
        nothing by itself.
        """
        both = min(seconds, self.last)
        share = _DOWN if both < self.seconds else _UP
        self.seconds += max(share, 1 / max(self.count, 1)) * (both - self.seconds)
        self.last, self.at, self.count = seconds, at, self.count + 1


class StepCosts:
    """The seconds that steps take in which all requests decode, by how many these are and how many
    drafted rows there are besides; large numbers are rounded.
    """

    def __init__(self) -> None:
        self._costs: dict[int, dict[int, _Cost]] = {}
        self._steps = 0
        # What `of` has made since the last step.
        self._made: dict[int, list[float]] = {}

    def age(self) -> None:
        """Count a step, measured or not: what was measured before is older now."""
        self._steps += 1
        self._made.clear()

    def learn(self, requests: int, drafted: int, seconds: float) -> None:
        """Learn that the last step took `seconds`."""
        thought = [seconds, *self.of(requests, drafted)][-1]
        self._made.clear()
        costs = self._costs.setdefault(_bucket(requests), {})
        cost = costs.get(bucket := _bucket(drafted))
        if cost is None or self._steps - cost.at > STALE:
            cost = costs[bucket] = _Cost(thought, thought, self._steps)
        cost.learn(seconds, self._steps)

    def of(self, requests: int, most: int) -> list[float]:
        """(most + 1,) seconds of a step with 0, 1, ... drafted rows, along straight lines between
        those that were measured, and no more than what was measured of more rows; empty while it is
        to be measured without drafts first.
        """
        made = self._made.get(requests := _bucket(requests))
        if made is None or 0 < len(made) <= most:
            made = self._made[requests] = self._line(self._costs.get(requests, {}), most)
        return made[: most + 1]

    def _line(self, costs: Mapping[int, _Cost], most: int) -> list[float]:
        """See `of`."""
        plain = costs.get(0)
        if plain is None or plain.count < _ENOUGH or self._steps - plain.at > PLAIN_STALE:
            return []
        known = {n: c.seconds for n, c in sorted(costs.items()) if self._steps - c.at <= STALE}
        last, seconds = [*known.items()][-1]
        slope = (seconds - plain.seconds) / last if last else _PRIOR * seconds
        known.setdefault(last + most + 1, seconds + max(slope, 0.0) * (most + 1))
        least = np.minimum.accumulate([*known.values()][::-1])[::-1]
        rows = np.arange(most + 1)
        floor = plain.seconds * (1 + _LEAST * rows)
        made: list[float] = np.maximum(np.interp(rows, [*known], least), floor).tolist()
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
        self._without = 0

    def rests(self) -> bool:
        """Whether no drafts are looked for in the next step, since none have paid for long."""
        self._without += 1
        return self._without > _PATIENCE and self._without % _EVERY > 0

    def learn(self, draft: Draft, accepted: int) -> None:
        """Count a draft of which the first `accepted` tokens were drawn."""
        self._acceptance.learn(draft, accepted)

    def verify(self, draft: Draft, proposed: Draft, drawn: Sequence[int]) -> None:
        """Count a draft in place of which `drawn` came, and a sibling that it was proposed with,
        though perhaps nothing of it was computed.
        """
        right = in_common(draft.tokens, drawn)
        self._acceptance.learn(draft, right)
        its = proposed.sibling
        if its is None or its.after != right or right == len(drawn):
            return
        if drawn[right] != proposed.tokens[right]:
            its = draft.sibling or its._replace(tokens=its.tokens[:1])
            accepted = in_common(its.tokens, drawn[right:])
            self._acceptance.learn_sibling(draft._replace(sibling=its), accepted)

    def expected(self, draft: Draft) -> float:
        """How many tokens of a draft are drawn, on average."""
        return self._acceptance.expected(draft)

    def may_pay(self, requests: int, most: int) -> bool:
        """Whether at most `most` drafted tokens would pay if all of them were right."""
        costs = self.costs.of(requests, most)
        return any(
            (requests + count) * costs[0] > MARGIN * requests * seconds
            for count, seconds in enumerate(costs)
            if count
        )

    def choose(self, drafts: Sequence[Draft], requests: int) -> list[int]:
        """How many tokens of each draft are to be computed in a step of `requests`."""
        return [len(each.tokens) for each in self.cut(drafts, requests)]

    def cut(self, drafts: Sequence[Draft], requests: int) -> list[Draft]:
        """The part of each draft to be computed in a step of `requests`, perhaps no token."""
        each = (self._likeliest(place, draft) for place, draft in enumerate(drafts))
        chances = sorted(chain.from_iterable(each), reverse=True)
        counts, costs = [0] * 2 * len(drafts), self.costs.of(requests, len(chances))
        if costs:
            tokens = accumulate((chance for chance, _ in chances), initial=float(requests))
            rates = [each / seconds for each, seconds in zip(tokens, costs, strict=True)]
            rates[0] *= MARGIN
            for _, place in chances[: rates.index(max(rates))]:
                counts[-place] += 1
                self._without = 0
        both = zip(drafts, counts[::2], counts[1::2], strict=True)
        return [draft.cut(count, of_sibling) for draft, count, of_sibling in both]

    def likeliest(self, draft: Draft, least: float) -> Draft | None:
        """The part of a draft, and of its sibling, whose chances are at least `least`; None if none
        are. No more than the longer of both ways has.
        """
        places = [place for chance, place in self._likeliest(0, draft) if chance >= least]
        cut = draft.cut(places.count(0), places.count(-1))
        return cut if cut.tokens else None

    def _likeliest(self, place: int, draft: Draft) -> list[tuple[float, int]]:
        """The chances of its tokens, of -2 x place, and of its sibling's, of one less: the most, as
        many as the longer of both ways has.
        """
        chances = [(chance, -2 * place) for chance in self._acceptance.chances(draft)]
        if (its := draft.sibling) is None:
            return chances
        of_sibling = self._acceptance.chances_of_sibling(draft)
        chances += ((chance, -2 * place - 1) for chance in of_sibling)
        return sorted(chances, reverse=True)[: max(len(draft.tokens), its.after + len(its.tokens))]
