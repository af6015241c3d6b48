"""How often drafts are right, by where they are from and how much of them was matched."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from radixlm.drafts.draft import Draft, Sibling

# Chances of a draft's first tokens are kept apart, as many as this; all after these are alike.
DEPTH = 8
# How often the first drafted token is right, by matched ones from here on, in agents'
# answers; with 0 the beginning of a prediction is meant. Counts begin as if WEIGHT drafts had been
# seen.
_PRIOR = {0: 0.5, 1: 0.25, 2: 0.38, 3: 0.5, 4: 0.58, 6: 0.65, 8: 0.7, 12: 0.75, 16: 0.85, 32: 0.95}
_WEIGHT = 8
# Each further token: the chance that it is wrong is that of the one before, times this.
_SURER = 0.75
# Counts are halved here, so that older drafts count less and less: what is written may be of
# another kind soon.
_ENOUGH = 40
_BUCKETS = tuple(_PRIOR)


class Acceptance:
    """Counts of drafted tokens that were drawn, given that all before them in their draft were.

    By a draft's source and by how many tokens had matched, in buckets, and by place in the draft:
    a token counts as drafted only if its turn came.

    >>> seen = Acceptance()
    >>> first = seen.chances(Draft((1, 2), "tree", 4))
    >>> for _ in range(100):
    ...     seen.learn(Draft((1, 2), "tree", 4), accepted=1)
    >>> later = seen.chances(Draft((1, 2), "tree", 4))
    >>> later[0] > 0.9 > first[0], later[1] < 0.1 < first[1]
    (True, True)
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int], tuple[list[float], list[float]]] = {}

    def chances(self, draft: Draft) -> list[float]:
        """The chance of each token of a draft that it is drawn, and all before it."""
        right, drafted = self._of(draft.source, draft.matched)
        given = [many / of for many, of in zip(right, drafted, strict=True)]
        given += given[-1:] * (len(draft.tokens) - DEPTH)
        return list(accumulate(given[: len(draft.tokens)], mul))

    def chances_of_sibling(self, draft: Draft) -> list[float]:
        """The chances of its sibling's tokens: as far as the draft itself is wrong there."""
        if (sibling := draft.sibling) is None:
            return []
        before = [1.0, *self.chances(draft), 0.0][sibling.after : sibling.after + 2]
        return [(before[0] - before[1]) * each for each in self.chances(_as_draft(draft, sibling))]

    def expected(self, draft: Draft) -> float:
        """How many tokens of a draft are drawn, on average."""
        return sum(self.chances(draft)) + sum(self.chances_of_sibling(draft))

    def learn_sibling(self, draft: Draft, accepted: int) -> None:
        """Count the sibling of a draft that was wrong there."""
        if draft.sibling is not None:
            self.learn(_as_draft(draft, draft.sibling), accepted)

    def learn(self, draft: Draft, accepted: int) -> None:
        """Count a draft that was verified, of which the first `accepted` tokens were drawn."""
        right, drafted = self._of(draft.source, draft.matched)
        for place in range(min(accepted + 1, len(draft.tokens))):
            at = min(place, DEPTH - 1)
            right[at] += place < accepted
            drafted[at] += 1
            if drafted[at] > _ENOUGH:
                right[at] /= 2
                drafted[at] /= 2

    def _of(self, source: str, matched: int) -> tuple[list[float], list[float]]:
        """Tokens that were right, and tokens in all, by place in the draft."""
        bucket = next(size for size in reversed(_BUCKETS) if size <= matched)
        counts = self._counts.get((source, bucket))
        if counts is None:
            wrong = 1 - _PRIOR[bucket]
            right = [_WEIGHT * (1 - wrong * _SURER**place) for place in range(DEPTH)]
            counts = self._counts[source, bucket] = right, [float(_WEIGHT)] * DEPTH
        return counts


def _as_draft(draft: Draft, sibling: Sibling) -> Draft:
    """The sibling as a draft of a source of its own, so that it is counted apart."""
    return Draft(sibling.tokens, f"{draft.source}, sibling", sibling.matched)
