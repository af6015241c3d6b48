"""Why a match ended where it did, told from the tree as it was at that moment."""

from __future__ import annotations

import numpy as np

from radixlm.cache.node import TOKEN_BYTES, Match, TreeNode, page_key
from radixlm.core.keys import Key, common_prefix
from radixlm.core.reports import MissReason, MissReport

SHOWN_TOKENS = 12


class Ending:
    """Where a match ended, kept by reference to what can not change: an edge's bytes. Cheap enough
    to be made for every lease; the report is put together when somebody asks.

        key     | matched, resident | the next page ...
        edge    |    (of the node)  | same tokens, a ghost:  evicted
                                    | other tokens:          diverged
                                    | nothing:               new
    """

    __slots__ = ("_at", "_edge", "_evicted_at", "_hits", "_key", "_limit", "_matched", "_page")

    def __init__(self, match: Match, key: Key, limit: int, page_size: int) -> None:
        self._key = key
        self._limit = limit
        self._page = page_size
        self._matched = match.length
        beyond = _beyond(match, key, page_size) if limit - match.length >= page_size else None
        self._edge = b"" if beyond is None else beyond.edge
        self._at = 0
        self._hits = 0
        self._evicted_at = 0.0
        if beyond is not None:
            self._at = match.length - beyond.start
            self._hits = beyond.hits
            self._evicted_at = beyond.evicted_at

    def report(self, prompt_tokens: int, now: float) -> MissReport:
        """The reason, for a prompt of so many tokens; `now` by the tree's clock when it ended."""
        matched, rest = self._matched, self._limit - self._matched
        if rest < self._page:
            return MissReport(prompt_tokens, matched, self._held_back(prompt_tokens), matched)
        if not self._edge:
            return MissReport(prompt_tokens, matched, MissReason.NEW, matched)
        cached: Key = np.frombuffer(self._edge, dtype=np.int32)[self._at :]
        wanted = self._key[matched : self._limit]
        same = common_prefix(cached[: self._page], wanted[: self._page])
        if same == self._page:
            return MissReport(
                prompt_tokens,
                matched,
                MissReason.EVICTED,
                matched,
                evicted_ago=max(0.0, now - self._evicted_at),
                hits=self._hits,
            )
        if matched + same == 0:  # every tree holds other prompts: that explains nothing
            return MissReport(prompt_tokens, 0, MissReason.NEW, 0)
        return MissReport(
            prompt_tokens,
            matched,
            MissReason.DIVERGED,
            matched + same,
            tuple(cached[same : same + SHOWN_TOKENS].tolist()),
            tuple(wanted[same : same + SHOWN_TOKENS].tolist()),
            hits=self._hits,
        )

    def _held_back(self, prompt_tokens: int) -> MissReason:
        """Less than a page was left to look for. The prompt is to blame where what follows fills
        no page; else it is the limit, which gives up the whole page that it lies in.
        """
        torn = self._matched + self._page > prompt_tokens
        if torn and self._limit > self._matched:
            return MissReason.PAGE_FLOOR
        return MissReason.LAST_TOKEN if self._limit >= prompt_tokens - 1 else MissReason.HELD_BACK


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
