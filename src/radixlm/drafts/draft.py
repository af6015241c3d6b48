"""A draft, and what proposes one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol


class Draft(NamedTuple):
    """A guess at what a request writes next. Nothing of it counts until the model has drawn it.

    tokens: the continuation, at least one. source: who proposed it, for metrics: "tree", "corpus",
    "prediction", "grammar". matched: how many of the request's last tokens were found before it; 0
    where none is meant.
    """

    tokens: tuple[int, ...]
    source: str
    matched: int


class DraftSource(Protocol):
    def propose(self, namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        """Propose at most `most` tokens that follow on `tokens`, a request's prompt and output so
        far; None where nothing is known. namespace: as in RadixTree.roots; what another namespace
        wrote is never proposed.
        """
