"""Chances that checkpoints are used again, learned from those that were, and those that went."""

from __future__ import annotations

from radixlm.cache.radix.node import TreeNode

# What is counted fades by this with each that goes.
_FADES = 0.995
# What is expected before anything is counted, and as how many that counts.
_EXPECTED_OF_ENDS, _EXPECTED_ON_THE_WAY, _PRIOR = 0.5, 0.05, 5.0
_END, _BRANCH = 0, 1
# Distances to where a way ends, in tokens, by powers of two from the first on; the last has no end.
_NEAR, _DISTANCES = 64, 8
_FAR = _NEAR << _DISTANCES - 2
_KINDS = 2 + _DISTANCES
_MOST_USES = 2


class ReuseChances:
    """Shares of checkpoints that are alike which were used again before they went.

    Alike are those that were used as often (never, once, more) and whose nodes are ends, branches,
    or on the way of one prompt as far from where that ends: an end that chats go on from, what
    they have left behind, places near the end of a prompt where others part from it.
    """

    def __init__(self) -> None:
        kinds = _KINDS * (_MOST_USES + 1)
        self._used, self._gone = [0.0] * kinds, [0.0] * kinds

    def used(self, node: TreeNode, uses: int) -> None:
        """A checkpoint is used that was so `uses` times before."""
        self._used[_alike(node, uses)] += 1

    def gone(self, node: TreeNode, uses: int) -> None:
        """A checkpoint makes room."""
        self._gone[_alike(node, uses)] += 1
        for counts in (self._used, self._gone):
            counts[:] = [_FADES * count for count in counts]

    def of(self, node: TreeNode, uses: int) -> float:
        """The chance of one. O(nodes on its way, as far as distances differ)."""
        alike = _alike(node, uses)
        used, gone = self._used[alike], self._gone[alike]
        ends = alike % _KINDS in (_END, _BRANCH)
        expected = _EXPECTED_OF_ENDS if ends else _EXPECTED_ON_THE_WAY
        return (used + _PRIOR * expected) / (used + gone + _PRIOR)


def _alike(node: TreeNode, uses: int) -> int:
    return min(uses, _MOST_USES) * _KINDS + _kind(node)


def _kind(node: TreeNode) -> int:
    if not node.children:
        return _END
    if len(node.children) > 1:
        return _BRANCH
    at = node
    while at.end - node.end < _FAR and len(at.children) == 1:
        (at,) = at.children.values()
    return 2 + min(((at.end - node.end) // _NEAR).bit_length(), _DISTANCES - 1)
