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
        cached, wanted = self._continuations()
        return MissReport(
            prompt_tokens,
            matched,
            reason,
            matched + same,
            tuple(cached[same : same + SHOWN_TOKENS].tolist()),
            tuple(wanted[same : same + SHOWN_TOKENS].tolist()),
            hits=self._hits,
        )

    def _judged(self, prompt_tokens: int) -> tuple[MissReason, int]:
        """The reason, and how many tokens of the page behind the match agree nevertheless."""
        if self._limit - self._matched < self._page:
            return self._held_back(prompt_tokens), 0
        if not self._edge:
            return MissReason.NEW, 0
        cached, wanted = self._continuations()
        same = common_prefix(cached[: self._page], wanted[: self._page])
        if same == self._page:
            return MissReason.EVICTED, same
        # Every tree holds other prompts: that explains nothing.
        return (MissReason.DIVERGED if self._matched + same else MissReason.NEW), same

    def _continuations(self) -> tuple[Key, Key]:
        """What is known to follow the match, and what was looked for there."""
        cached: Key = np.frombuffer(self._edge, dtype=np.int32)[self._at :]
        return cached, self._key[self._matched : self._limit]

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
