"""Rates at which checkpoints are used again, learned from how long others waited for that."""

from __future__ import annotations

from radixlm.cache.radix.node import TreeNode

# Uses that are expected at once, before anything is counted, fewer the longer one has waited.
_EXPECTED_OF_ENDS, _EXPECTED_ON_THE_WAY = 0.5, 0.02
# As many uses as this count as seen at the rate that is expected: of all ages, and of one.
_PRIOR, _PRIOR_OF_AGE = 1.0, 3.0
_END, _BRANCH, _BEFORE_A_BRANCH = 0, 1, 2
# Distances to where a prompt's own way ends, in tokens, by powers of two; the last has no end.
_NEAR, _DISTANCES = 64, 8
_FAR = _NEAR << _DISTANCES - 2
_KINDS = 3 + _DISTANCES
_MOST_USES = 2
# Ages, by powers of two.
_AGES = 24


class ReuseRates:
    """How often checkpoints that are alike are used, of the time that they wait for it.

    Alike are those that were used as often (never, once, more), whose nodes are ends, branches, on
    the way to a branch, or on the way of one prompt as far from where that ends: an end that chats
    go on from, what they have left behind, places near the end of a prompt where others part from
    it. A rate is that of all ages, and changes with the age as far as there is evidence.

    Ages and times are in uses of the tree.
    """

    def __init__(self, soon: int) -> None:
        """soon: up to about this age all that nothing is known of are as likely to be used."""
        self._soon = soon
        kinds = _KINDS * (_MOST_USES + 1)
        self._used, self._waited = ([[0.0] * _AGES for _ in range(kinds)] for _ in range(2))
        # Of all ages: uses, and those that were expected.
        self._all, self._expected = [0.0] * kinds, [0.0] * kinds

    def used(self, node: TreeNode, uses: int, age: int) -> None:
        """A checkpoint of this age is used that was so `uses` times before."""
        alike = _alike(node, uses)
        self._used[alike][_bin(age)] += 1
        self._all[alike] += 1

    def waited(self, node: TreeNode, uses: int, age: int, time: int) -> None:
        """One that has reached this age was not used for that time."""
        alike = _alike(node, uses)
        self._waited[alike][_bin(age)] += time
        self._expected[alike] += time * self._first(alike, age)

    def of(self, node: TreeNode, uses: int, age: int) -> float:
        """The rate of one. O(nodes on its way, as far as distances differ)."""
        return self._rate(_alike(node, uses), age)

    def of_new(self, ahead: int) -> float:
        """The rate of one on the way of a prompt that ends `ahead` tokens later."""
        return self._rate(_on_the_way(ahead), 0)

    def _rate(self, alike: int, age: int) -> float:
        at, rate = _bin(age), self._first(alike, age)
        rate *= (self._all[alike] + _PRIOR) / (self._expected[alike] + _PRIOR)
        return (self._used[alike][at] + _PRIOR_OF_AGE) / (
            self._waited[alike][at] + _PRIOR_OF_AGE / rate
        )

    def _first(self, alike: int, age: int) -> float:
        """The rate where nothing is known."""
        ends = alike % _KINDS in (_END, _BRANCH)
        return (_EXPECTED_OF_ENDS if ends else _EXPECTED_ON_THE_WAY) / (age + self._soon)


def _bin(age: int) -> int:
    return min(age.bit_length(), _AGES - 1)


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
    if len(at.children) > 1:
        return _BEFORE_A_BRANCH
    return _on_the_way(at.end - node.end)


def _on_the_way(ahead: int) -> int:
    return 3 + min((ahead // _NEAR).bit_length(), _DISTANCES - 1)
