"""When each cached token was last used, and so what a pool of another size would hold.

Under LRU a pool of n tokens holds the n that were used last. So a token is found in it when fewer
than n others were used since, and those others can be counted whatever the real pool's size is, for
as long as the evicted ones are remembered as ghosts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from radixlm.cache.node import TOKEN_BYTES, TreeNode
from radixlm.core.misses import POOL_SCALES

# Epochs that a pool's worth of tokens is counted in: the resolution of distances.
_EPOCHS_IN_POOL = 64
_MOST_EPOCHS = 1_280


class Reuse:
    """Known tokens that no lock holds, by when they were last used.

        use     0        40           95      120          the tree's counter
                | epoch  | epoch      | epoch | epoch ...  each a small share of the pool
        tokens    310      95           402     57         resident ones and ghosts

    Tokens are the newer the later their epoch; within one, half of the others count as newer.
    O(log epochs) a change. A tenth of the epochs would be enough for the ghosts that are kept; they
    are joined where there are too many.
    """

    def __init__(self, capacity: int, page_size: int = 1) -> None:
        self._sizes = [int(scale * capacity) for scale in POOL_SCALES]
        self._width = max(capacity // _EPOCHS_IN_POOL, 1)
        self._page = page_size
        self._newest = 0
        self._begins = [0]
        self.tokens = [0]

    def is_right(self, nodes: Iterable[TreeNode]) -> bool:
        """Whether it counts what all nodes of a tree hold; for checks."""
        tokens = [0] * len(self.tokens)
        for node in nodes:
            if not node.lock_ref:
                tokens[self._epoch(node.last_used)] += len(node)
        return tokens == self.tokens

    def enter(self, use: int, n_tokens: int) -> None:
        """Count tokens that are under no lock now, and were last used at `use`."""
        if use > self._newest:  # an epoch that begins earlier would take over what is in the last
            self._newest = use
            if self.tokens[-1] >= self._width:
                self._begins.append(use)
                self.tokens.append(0)
                if len(self._begins) > _MOST_EPOCHS:
                    self._join()
        self.tokens[self._epoch(use)] += n_tokens

    def leave(self, use: int, n_tokens: int) -> None:
        """Uncount tokens, last used at `use`, that are locked now, or forgotten."""
        self.tokens[self._epoch(use)] -= n_tokens

    def expected(self, node: TreeNode | None, length: int, in_use: int) -> tuple[int, ...]:
        """For each of POOL_SCALES, how many tokens of a prompt a pool of that size would hold.

        node, length: where what is known of the prompt ends, ghosts included, and after how many
        tokens. in_use: tokens that running requests hold, which stand before all others.
        O(epochs + nodes on the path).
        """
        sizes = self._sizes
        if node is None or not length or node.lock_ref or self._is_recent(node, sizes[0] - in_use):
            return (length - length % self._page,) * len(sizes)
        path = []
        while node is not None and not node.lock_ref and node.parent is not None:
            path.append(node)
            node = node.parent
        # What is locked is there, however small the pool.
        there = 0 if node is None else min(node.end, length)
        held: list[int] = []
        while path and len(held) < len(sizes):
            epoch = self._epoch(path[-1].last_used)
            others, start = self.tokens[epoch], there
            while path and path[-1].last_used >= self._begins[epoch]:
                node = path.pop()
                others -= len(node.edge) // TOKEN_BYTES
                there = min(node.end, length)
            newer = in_use + sum(self.tokens[epoch + 1 :]) + others // 2
            # The sizes ascend: where one holds all of this part, so do those that follow.
            while len(held) < len(sizes) and sizes[len(held)] < newer + there - start:
                held.append(start + max(sizes[len(held)] - newer, 0))
        held += [there] * (len(sizes) - len(held))
        return tuple([tokens - tokens % self._page for tokens in held])

    def _is_recent(self, node: TreeNode, room: int) -> bool:
        """Whether all that was used since a node was, itself included, takes no more than that."""
        return sum(self.tokens[self._epoch(node.last_used) :]) <= room

    def _epoch(self, use: int) -> int:
        """Which one a use falls into; most fall into the last."""
        begins = self._begins
        return len(begins) - 1 if use >= begins[-1] else bisect_right(begins, use) - 1

    def _join(self) -> None:
        """Join neighbours that are not larger than one epoch may be."""
        begins, tokens = self._begins[:1], self.tokens[:1]
        for begin, count in zip(self._begins[1:], self.tokens[1:], strict=True):
            if tokens[-1] + count <= self._width:
                tokens[-1] += count
            else:
                begins.append(begin)
                tokens.append(count)
        self._begins, self.tokens = begins, tokens
