"""Drafts from what the tree holds and from what running requests have written."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import itemgetter

import numpy as np

from radixlm.cache.radix.node import TreeNode, upward
from radixlm.cache.radix.observer import TreeObserver
from radixlm.cache.radix.tree import RadixTree
from radixlm.core.keys import Key
from radixlm.drafts.draft import Draft, Sibling, in_common
from radixlm.drafts.own_tail import find_within, going_on
from radixlm.drafts.token_log import LEAD, LEAST_CAPACITY, TOKEN_BYTES, TokenLog

SOURCE = "tree"
# Tokens that a running request writes at a time. What it has not written yet is looked for in its
# last ones, twice as many.
BUNCH = 64


class TreeDrafts(TreeObserver):
    """Proposes what followed on the last tokens of a request where they stood before in its
    namespace: after the longest match, of equally long ones after the newest.

        the tree      a node's tokens are written to a log when they are made or grow, after the
                      last ones of the path above it. Splits, merges and evictions change nothing;
                      when a match is asked for, what the log has lost of its path is written again
        outputs       are written in bunches (`wrote`), and once more by the tree when it has them
        last tokens   of the request itself: those that no bunch has yet

    Each namespace has a log of its own, so nothing of another one is ever compared, let alone
    found. A log goes when the tree forgets its namespace. What the tree forgets before can be found
    until the log has forgotten it. Used by the engine's thread alone.

    capacity: tokens of all logs together. Where one would grow beyond it, larger ones forget their
    older halves, and if none is larger the log itself does. siblings: drafts have these, from the
    longest match after which other tokens come.
    """

    def __init__(self, tree: RadixTree, capacity: int, *, siblings: bool = False) -> None:
        self._siblings = siblings
        self._capacity = max(capacity, LEAST_CAPACITY)
        self._logs: dict[Hashable, TokenLog] = {}
        # The number of the place where the first token of each node was written, see TokenLog.base.
        self._written: dict[int, int] = {}
        # Numbers of the places of later logs begin here.
        self._base = 0
        for node in tree.nodes():
            self.made(node)
        tree.watch(self)

    @property
    def capacity(self) -> int:
        """Tokens that its logs have room for now."""
        return sum(log.capacity for log in self._logs.values())

    @property
    def nbytes(self) -> int:
        return sum(log.nbytes for log in self._logs.values())

    def propose(self, namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        """See DraftSource. O(1)."""
        last = np.asarray(tokens[-2 * BUNCH :], dtype=np.int32)
        tail = last.tobytes()
        near, log = find_within(tail), self._logs.get(namespace)
        ways = [(near.matched, 0, near.place)] if near.matched else []
        if log is not None:
            ways += (
                (each.matched, -1, each.place)
                for each in log.places(tail, longest=not self._siblings)
            )
        draft: Draft | None = None
        for matched, far, place in sorted(ways, key=itemgetter(0, 1), reverse=True):
            tokens = log.after(place, most) if far and log else going_on(last.tolist(), place, most)
            if draft is None:
                draft = Draft(tuple(tokens), SOURCE, matched)
                if not self._siblings:
                    break
            elif (same := in_common(draft.tokens, tokens)) < min(len(tokens), len(draft.tokens)):
                return draft._replace(sibling=Sibling(same, tuple(tokens[same:]), matched))
        return draft

    def wrote(self, namespace: Hashable, tokens: Sequence[int], n_new: int) -> None:
        """Note that a request has `tokens` now, of which the last `n_new` are new. O(n_new)."""
        start, stop = len(tokens) - n_new, len(tokens)
        start, stop = start - start % BUNCH, stop - stop % BUNCH
        if start < stop:
            piece = np.asarray(tokens[max(start - LEAD, 0) : stop], dtype=np.int32)
            self._write(namespace, piece[: start - stop], piece[start - stop :])

    def clear(self) -> None:
        """Forget all."""
        for namespace in list(self._logs):
            self._drop(namespace)

    # What the tree does

    def asked(self, node: TreeNode, _use: int) -> None:
        """Write again what the log has lost of a path."""
        log = self._logs.get(node.namespace)
        if log is not None and not log.base:
            return
        base = self._base if log is None else log.base
        lost = [at for at in upward(node) if at.end and self._written.get(at.id, -1) < base]
        for at in reversed(lost):
            self._written.pop(at.id, None)
            self._add(at, len(at))

    def made(self, leaf: TreeNode) -> None:
        self._add(leaf, len(leaf))

    def grown(self, leaf: TreeNode, n_tokens: int) -> None:
        self._add(leaf, n_tokens)

    def split(self, node: TreeNode, upper: TreeNode) -> None:
        self._written[upper.id] = self._written.get(node.id, -1)

    def merged(self, node: TreeNode, child: TreeNode) -> None:
        places = self._written.pop(node.id, -1), self._written.get(child.id, -1)
        self._written[child.id] = min(places)

    def left(self, node: TreeNode) -> None:
        self._written.pop(node.id, None)
        if node.is_root:
            self._drop(node.namespace)

    def _add(self, node: TreeNode, n_tokens: int) -> None:
        if n_tokens:
            tokens = node.tokens()[-n_tokens:]
            place = self._write(node.namespace, _before(node, n_tokens), tokens)
            self._written.setdefault(node.id, place)

    # Logs

    def _write(self, namespace: Hashable, lead: Key, piece: Key) -> int:
        """Write a piece; returns the number of its first place."""
        log = self._logs.get(namespace)
        if log is None:
            if self._make_room(LEAST_CAPACITY, LEAST_CAPACITY):
                self._drop(next(iter(self._logs)))  # all are as small as can be: the oldest
            log = self._logs[namespace] = TokenLog(self._base)
        most = log.capacity
        if (wanted := log.capacity_for(piece.size)) > most:
            most = wanted - self._make_room(wanted - most, most)
        log.write(lead, piece, most)
        return max(log.base, log.base + log.end - piece.size)

    def _make_room(self, n_tokens: int, capacity: int) -> int:
        """Have logs of more than `capacity` make room for `n_tokens`; returns how many it falls
        short.
        """
        while (short := self.capacity + n_tokens - self._capacity) > 0:
            largest = max(self._logs.values(), key=lambda log: log.capacity)
            if largest.capacity <= capacity:
                return short
            largest.shrink()
        return 0

    def _drop(self, namespace: Hashable) -> None:
        if (log := self._logs.pop(namespace, None)) is not None:
            self._base = max(self._base, log.base + log.end)


def _before(node: TreeNode, n_tokens: int) -> Key:
    """The last tokens of a node's path before its own last `n_tokens`, as many as a lead has."""
    size = LEAD * TOKEN_BYTES
    stop = len(node.edge) - n_tokens * TOKEN_BYTES
    text = node.edge[max(stop - size, 0) : stop]
    while len(text) < size and node.parent is not None:
        node = node.parent
        text = node.edge[len(text) - size :] + text
    return np.frombuffer(text, dtype=np.int32)
