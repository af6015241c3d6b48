"""A draft, and what proposes one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import takewhile
from operator import eq
from typing import NamedTuple, Protocol


class Sibling(NamedTuple):
    """The other way that a draft may go: `tokens`, at least one, in place of its own after the
    first `after`, of which the first one differs. matched: see Draft.
    """

    after: int
    tokens: tuple[int, ...]
    matched: int


class Draft(NamedTuple):
    """A guess at what a request writes next. Nothing of it counts until the model has drawn it.

    tokens: the continuation, at least one. source: who proposed it, for metrics: "tree", "corpus",
    "prediction", "grammar". matched: how many of the request's last tokens were found before it; 0
    where none is meant. sibling: where another place that was found goes on in another way.
    """

    tokens: tuple[int, ...]
    source: str
    matched: int
    sibling: Sibling | None = None

    @property
    def size(self) -> int:
        """Tokens of it and of its sibling: rows of a step."""
        return len(self.tokens) + (len(self.sibling.tokens) if self.sibling else 0)

    def cut(self, count: int, of_sibling: int) -> Draft:
        """The first tokens, and the first ones of its sibling, if it reaches to where that is."""
        tokens, sibling = self.tokens[:count], self.sibling
        if sibling is not None:
            its = sibling.tokens[:of_sibling] if sibling.after <= len(tokens) else ()
            sibling = sibling._replace(tokens=its) if its else None
        return self._replace(tokens=tokens, sibling=sibling)


def in_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens are the same.

    >>> in_common([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return sum(takewhile(bool, map(eq, one, other)))


class DraftSource(Protocol):
    def propose(self, namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        """Propose at most `most` tokens that follow on `tokens`, a request's prompt and output so
        far; None where nothing is known. namespace: as in RadixTree.roots; what another namespace
        wrote is never proposed.
        """
