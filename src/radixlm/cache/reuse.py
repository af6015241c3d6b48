"""When each cached token was last used, and so what a pool of another size would hold.

Under LRU a pool of n tokens holds the n that were used last. So a token is found in it when fewer
than n others were used since, and those others can be counted whatever the real pool's size is, for
as long as the evicted ones are remembered as ghosts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from radixlm.cache.node import TreeNode
from radixlm.core.misses import POOL_SCALES

# Epochs that a pool's worth of tokens is counted in: so fine are distances told apart.
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
        self._tokens = [0]

    def is_right(self, nodes: Iterable[TreeNode]) -> bool:
        """Whether it counts what these, all of a tree, hold; for checks."""
        tokens = [0] * len(self._tokens)
        for node in nodes:
            if not node.lock_ref:
                tokens[bisect_right(self._begins, node.last_used) - 1] += len(node)
        return tokens == self._tokens

    def enter(self, use: int, n_tokens: int) -> None:
        """So many tokens are under no lock now, and were last used at `use`."""
        if use > self._newest:  # an epoch that begins earlier would take over what is in the last
            self._newest = use
            if self._tokens[-1] >= self._width:
                self._begins.append(use)
                self._tokens.append(0)
                if len(self._begins) > _MOST_EPOCHS:
                    self._join()
        self._tokens[bisect_right(self._begins, use) - 1] += n_tokens

    def leave(self, use: int, n_tokens: int) -> None:
        """So many of them, last used at `use`, are locked now, or forgotten."""
        self._tokens[bisect_right(self._begins, use) - 1] -= n_tokens

    def expected(self, node: TreeNode | None, length: int, in_use: int) -> tuple[int, ...]:
        """For each of POOL_SCALES, how many tokens of a prompt a pool of that size would hold.

        node, length: where what is known of the prompt ends, ghosts included, and after how many
        tokens. in_use: tokens that running requests hold, which stand before all others.
        O(epochs + nodes on the path).
        """
        path = []
        while node is not None and node.parent is not None:
            path.append(node)
            node = node.parent
        held = [0] * len(self._sizes)
        for start, stop, newer in self._parts(path[::-1], length, in_use):
            for place, size in enumerate(self._sizes):
                if held[place] == start:  # else an earlier part is not there
                    held[place] += max(min(stop - start, size - newer), 0)
        return tuple(tokens - tokens % self._page for tokens in held)

    def _parts(
        self, path: Sequence[TreeNode], length: int, in_use: int
    ) -> Iterator[tuple[int, int, int]]:
        """(start, stop, newer tokens besides it) of each part of a path, from the root on."""
        epochs = [bisect_right(self._begins, node.last_used) - 1 for node in path]
        epoch, newer, start = -1, 0, 0
        for node, own in zip(path, epochs, strict=True):
            stop = min(node.end, length)
            if node.lock_ref:
                yield start, stop, start - stop  # it is there, however small the pool
            else:
                if own != epoch:
                    epoch = own
                    newer = in_use + sum(self._tokens[own + 1 :])
                    on_path = sum(
                        len(each)
                        for each, its in zip(path, epochs, strict=True)
                        if its == own and not each.lock_ref
                    )
                    newer += (self._tokens[own] - on_path) // 2
                yield start, stop, newer
                newer += stop - start
            start = stop

    def _join(self) -> None:
        """Join neighbours that are not larger than one epoch may be."""
        begins, tokens = self._begins[:1], self._tokens[:1]
        for begin, count in zip(self._begins[1:], self._tokens[1:], strict=True):
            if tokens[-1] + count <= self._width:
                tokens[-1] += count
            else:
                begins.append(begin)
                tokens.append(count)
        self._begins, self._tokens = begins, tokens
