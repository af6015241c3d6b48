"""The reasons why a match ended where it did, by the tree as it was at that moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from radixlm.cache.components.component import CutMatch
from radixlm.cache.radix.node import NEVER, TOKEN_BYTES, Match, TreeNode, page_key
from radixlm.core.keys import Key, common_prefix, first_difference
from radixlm.core.misses import MissReason, MissReport
from radixlm.core.moves import NOWHERE, Place

# How many tokens are compared, before and after the place, of lists whose entries changed places.
_SHARED_TOKENS = 64
_NEXT_TOKENS = 1_024
_MOST_EDGES = 8
_MOST_SIBLINGS = 8


class Ending:
    """The end of a match, kept by reference to what can not change: the bytes of edges. It is made
    for every lease, in O(1); the report is made on demand.

        key     | matched, resident | the next page ...
        edge    |    (of the node)  | same tokens, a ghost:  evicted
                                    | other tokens:          diverged
                                    | nothing:               new

    reason: why it ended there, of a prompt of `wanted` tokens of which `limit` were looked for,
    `known` are in the tree, ghosts included, and `stored`, by place, could have been restored, in
    blocks of `block` tokens.
    """

    __slots__ = ("_agreed", "_at", "_edges", "_evicted_at", "_hits", "_key", "_known", "_limit",
                 "_matched", "_page", "_stored", "_wanted", "reason")  # fmt: skip

    def __init__(
        self,
        match: Match,
        known: int,
        key: Key,
        wanted: int,
        limit: int,
        page_size: int,
        stored: Sequence[int] = NOWHERE,
        block: int = 0,
    ) -> None:
        self._key = key
        self._known = known - known % page_size
        self._stored = stored
        self._wanted = wanted
        self._limit = limit
        self._page = page_size
        self._agreed = self._matched = match.length
        if limit - match.length < page_size:
            self.reason = self._held_back()
            return
        if isinstance(match, CutMatch):
            self._agreed, self.reason = match.whole.length, match.reason
            return
        page = key[match.length : match.length + page_size].tobytes()
        beyond = _beyond(match, page, page_size)
        if beyond is None:
            self.reason = MissReason.NEW
            floored = match.length == stored[Place.DISK] and limit - match.length < block
            if floored and _is_of_another_run(match):
                self.reason = MissReason.BLOCK_FLOOR
            return
        self._at = match.offset * TOKEN_BYTES if beyond is match.node else 0
        there = beyond.edge[self._at : self._at + len(page)]
        if not match.length and there[:TOKEN_BYTES] != page[:TOKEN_BYTES]:
            self.reason = MissReason.NEW  # every tree holds other prompts: that explains nothing
            return
        self._hits = beyond.hits
        self._evicted_at = beyond.evicted_at
        if there == page:
            self.reason = MissReason.EVICTED
        else:
            self.reason = MissReason.DIVERGED
            self._edges = _edges_from(beyond)

    def report(self, now: float) -> MissReport:
        """The reason and what belongs to it; `now` by the tree's clock when it ended."""
        matched = self._matched
        report = MissReport(self._wanted, matched, self.reason, matched)
        cut = self._agreed > matched
        if cut or self.reason is MissReason.EVICTED:
            host, disk = (max(matched, min(end, self._known)) for end in self._stored)
            report = replace(report, on_host=host - matched, on_disk=max(0, disk - host))
        if self.reason is MissReason.EVICTED:
            never = self._evicted_at == NEVER
            return replace(
                report,
                evicted=self._known - matched,
                evicted_ago=None if never else max(0.0, now - self._evicted_at),
                hits=self._hits,
            )
        if cut:
            return replace(report, evicted=max(self._agreed, host, disk) - matched)
        if self.reason is not MissReason.DIVERGED:
            return report
        cached, wanted = self._cached(), self._key[matched : self._limit]
        same = common_prefix(cached[: self._page], wanted[: self._page])
        return replace(
            report,
            position=matched + same,
            shared=self._key[: matched + same][-_SHARED_TOKENS:].tobytes(),
            cached_next=cached[same : same + _NEXT_TOKENS].tobytes(),
            requested_next=wanted[same : same + _NEXT_TOKENS].tobytes(),
            hits=self._hits,
        )

    def _cached(self) -> Key:
        """The continuation that the tree had from the match's end on, as far as it is looked at."""
        enough = (self._page + _NEXT_TOKENS) * TOKEN_BYTES
        first, *rest = self._edges
        parts = (first[self._at : self._at + enough], *(edge[:enough] for edge in rest))
        return np.frombuffer(b"".join(parts)[:enough], dtype=np.int32)

    def _held_back(self) -> MissReason:
        """The reason where less than a page was left to look for. The prompt is to blame where what
        follows fills no page; else it is the limit, which gives up the whole page that it lies in.
        """
        torn = self._matched + self._page > self._wanted
        if torn and self._limit > self._matched:
            return MissReason.PAGE_FLOOR
        return MissReason.LAST_TOKEN if self._limit >= self._wanted - 1 else MissReason.HELD_BACK


def _is_of_another_run(match: Match) -> bool:
    """Whether what matched was read from disk, and nothing was known before of what follows."""
    return match.node is not None and match.node.evicted_at == NEVER


def _edges_from(node: TreeNode) -> tuple[bytes, ...]:
    """The edge into `node`, and of the newest continuations below as many as are looked at."""
    edges, size = [node.edge], len(node.edge)
    while size < _NEXT_TOKENS * TOKEN_BYTES and node.children and len(edges) < _MOST_EDGES:
        node = next(reversed(node.children.values()))
        edges.append(node.edge)
        size += len(node.edge)
    return tuple(edges)


def _beyond(match: Match, page: bytes, page_size: int) -> TreeNode | None:
    """The node that holds what follows the match, where `page` is wanted: the ghost of it if there
    is one, else the last of the other continuations, of a page's that which begins most like it,
    else None.
    """
    node = match.node
    if node is None:
        return None
    if match.offset < len(node.edge) // TOKEN_BYTES:
        return node
    if not node.children:
        return None
    ghost = node.children.get(page_key(page, page_size))
    if ghost is not None:
        return ghost
    newest = reversed(node.children.values())
    if page_size == 1:
        return next(newest)
    wanted = memoryview(page).cast("i")
    siblings = islice(newest, _MOST_SIBLINGS)
    return max(siblings, key=lambda child: first_difference(child.edge, wanted))
