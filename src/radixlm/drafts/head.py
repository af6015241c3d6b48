"""Drafts that a head of the model made in the last step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from radixlm.drafts.draft import Draft

# A head's first token is thought to be right as often as one after a match of this many, at first.
AS_SURE = 12


class DraftedAhead:
    """Proposes what a head drafted after the first `after` tokens of a request. One request's."""

    def __init__(self, source: str, after: int, tokens: tuple[int, ...]) -> None:
        self._source, self._after, self._tokens = source, after, tokens

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        """See DraftSource."""
        its = self._tokens[:most]
        return Draft(its, self._source, AS_SURE) if its and len(tokens) == self._after else None
