"""What a replica reports of its cache, numbered, so that a gap is seen."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from radixlm.core.reports import TreeChange, TreeSnapshot
from radixlm.routing.tree_ledger import Change, TreeLedger


class News(NamedTuple):
    """epoch: of the replica's process. number: of these changes; those of a whole tree are not
    counted: the next changes have its number.
    """

    epoch: str
    number: int
    whole: bool
    changes: list[Change]


class TreeFeed:
    """From what a viewer of the tree is shown to what a router takes."""

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(8)
        self._next = 0
        self._ledger = TreeLedger()

    def take(self, shown: TreeSnapshot | TreeChange) -> News:
        """A snapshot replaces all that was reported before."""
        if isinstance(shown, TreeSnapshot):
            changes = self._ledger.replace(shown.nodes)
            return News(self._epoch, self._next, whole=True, changes=changes)
        changes = self._ledger.update(shown.removed, shown.nodes)
        news = News(self._epoch, self._next, whole=False, changes=changes)
        self._next += 1
        return news
