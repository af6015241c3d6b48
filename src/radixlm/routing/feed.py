"""A replica's reports of its cache, numbered, so that what is lost, late or doubled is seen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from radixlm.core.keys import Key
from radixlm.core.reports import TreeChange, TreeSnapshot
from radixlm.core.request import Namespace
from radixlm.routing.tree_mirror import Change, Dropped, TreeMirror


class Position(NamedTuple):
    """How far a replica has reported of its cache.

    process: the replica's; another one of the same name has another cache, perhaps of other
    weights. feed: they are counted, each begins with a whole tree. number: of whole trees and
    changes in it.
    """

    process: str
    feed: int
    number: int

    @property
    def next(self) -> Position:
        return self._replace(number=self.number + 1)


class FeedUpdate(NamedTuple):
    """at: where these changes follow; where a whole tree, which replaces all before, leads."""

    at: Position
    whole: bool
    changes: list[Change]


class TreeFeed:
    """A feed from a viewer of the tree to a router. at: how far it is."""

    def __init__(self, process: str, feed: int = 0) -> None:
        self.at = Position(process, feed, 0)
        self._mirror = TreeMirror()

    def take(self, shown: TreeSnapshot | TreeChange) -> FeedUpdate | None:
        """A snapshot replaces all that was reported before. None: nothing that a router wants."""
        if isinstance(shown, TreeSnapshot):
            self.at = self.at.next
            return FeedUpdate(self.at, whole=True, changes=self._mirror.replace(shown.nodes))
        return self._tell(self._mirror.update(shown.removed, shown.nodes))

    def settle(self, prompts: Iterable[tuple[Namespace, Key]]) -> FeedUpdate | None:
        """Prompts that were computed are held, a router believes; of which that is not so: they
        were dropped before they were shown, or never stayed.
        """
        held = [(namespace, key, self._mirror.held(namespace, key)) for namespace, key in prompts]
        return self._tell([Dropped(*each) for each in held if each[2] < each[1].size])

    def _tell(self, changes: list[Change]) -> FeedUpdate | None:
        if not changes:
            return None
        news = FeedUpdate(self.at, whole=False, changes=changes)
        self.at = self.at.next
        return news
