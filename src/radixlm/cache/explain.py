"""Why a match ended where it did, told from the tree as it was at that moment."""

from __future__ import annotations

import numpy as np

from radixlm.cache.node import TOKEN_BYTES, Match, TreeNode, page_key
from radixlm.core.keys import Key, common_prefix
from radixlm.core.misses import MissReason, MissReport

# So much is looked at of a list whose entries changed places: in front of the place, and behind.
_SHARED_TOKENS = 64
_NEXT_TOKENS = 1_024
_MOST_EDGES = 8


class Ending:
    """Where a match ended, kept by reference to what can not change: the bytes of edges. Cheap
    enough to be made for every lease; the report is put together when somebody asks.

        key     | matched, resident | the next page ...
        edge    |    (of the node)  | same tokens, a ghost:  evicted
                                    | other tokens:          diverged
                                    | nothing:               new
    """

    __slots__ = ("_at", "_edges", "_evicted_at", "_hits", "_key", "_limit", "_matched", "_page")

    def __init__(self, match: Match, key: Key, limit: int, page_size: int) -> None:
        self._key = key
        self._limit = limit
        self._page = page_size
        self._matched = match.length
        beyond = _beyond(match, key, page_size) if limit - match.length >= page_size else None
        self._edges: tuple[bytes, ...] = ()
        self._at = 0
        self._hits = 0
        self._evicted_at = 0.0
        if beyond is not None:
            self._edges = _edges_from(beyond)
            self._at = match.length - beyond.start
            self._hits = beyond.hits
            self._evicted_at = beyond.evicted_at

    def reason(self, prompt_tokens: int) -> MissReason:
        """The reason alone, for a prompt of so many tokens."""
        return self._judged(prompt_tokens)[0]

    def report(self, prompt_tokens: int, now: float) -> MissReport:
        """The reason, for a prompt of so many tokens; `now` by the tree's clock when it ended."""
        matched = self._matched
        reason, same = self._judged(prompt_tokens)
        if reason is MissReason.EVICTED:
            return MissReport(
                prompt_tokens,
                matched,
                reason,
                matched,
                evicted_ago=max(0.0, now - self._evicted_at),
                hits=self._hits,
            )
        if reason is not MissReason.DIVERGED:
            return MissReport(prompt_tokens, matched, reason, matched)
        cached, wanted = self._cached(), self._key[matched : self._limit]
        return MissReport(
            prompt_tokens,
            matched,
            reason,
            matched + same,
            shared=self._key[: matched + same][-_SHARED_TOKENS:].tobytes(),
            cached_next=cached[same : same + _NEXT_TOKENS].tobytes(),
            requested_next=wanted[same : same + _NEXT_TOKENS].tobytes(),
            hits=self._hits,
        )

    def _judged(self, prompt_tokens: int) -> tuple[MissReason, int]:
        """The reason, and how many tokens of the page behind the match agree nevertheless."""
        if self._limit - self._matched < self._page:
            return self._held_back(prompt_tokens), 0
        if not self._edges:
            return MissReason.NEW, 0
        wanted = self._key[self._matched : self._limit]
        same = common_prefix(self._cached()[: self._page], wanted[: self._page])
        if same == self._page:
            return MissReason.EVICTED, same
        # Every tree holds other prompts: that explains nothing.
        return (MissReason.DIVERGED if self._matched + same else MissReason.NEW), same

    def _cached(self) -> Key:
        """What the tree had from the match's end on, as far as it is looked at."""
        enough = (self._page + _NEXT_TOKENS) * TOKEN_BYTES
        begin = self._at * TOKEN_BYTES
        first, *rest = self._edges
        parts = (first[begin : begin + enough], *(edge[:enough] for edge in rest))
        return np.frombuffer(b"".join(parts)[:enough], dtype=np.int32)

    def _held_back(self, prompt_tokens: int) -> MissReason:
        """Less than a page was left to look for. The prompt is to blame where what follows fills
        no page; else it is the limit, which gives up the whole page that it lies in.
        """
        torn = self._matched + self._page > prompt_tokens
        if torn and self._limit > self._matched:
            return MissReason.PAGE_FLOOR
        return MissReason.LAST_TOKEN if self._limit >= prompt_tokens - 1 else MissReason.HELD_BACK


def reason_of(ending: Ending | None, prompt_tokens: int) -> MissReason:
    """Why a match ended; None where the cache is off."""
    return MissReason.DISABLED if ending is None else ending.reason(prompt_tokens)


def _edges_from(node: TreeNode) -> tuple[bytes, ...]:
    """The edge into `node`, and of the newest continuations below as many as are looked at."""
    edges, size = [node.edge], len(node.edge)
    while size < _NEXT_TOKENS * TOKEN_BYTES and node.children and len(edges) < _MOST_EDGES:
        node = next(reversed(node.children.values()))
        edges.append(node.edge)
        size += len(node.edge)
    return tuple(edges)


def _beyond(match: Match, key: Key, page_size: int) -> TreeNode | None:
    """The node that holds what follows the match: the ghost of it if there is one, else the last
    of the other continuations, else None.
    """
    node = match.node
    if node is None:
        return None
    if match.offset < len(node.edge) // TOKEN_BYTES:
        return node
    if not node.children:
        return None
    page = page_key(key[match.length : match.length + page_size].tobytes(), page_size)
    return node.children.get(page) or next(reversed(node.children.values()))
