"""A policy that learns after what time which prefixes are used again, and a duel that holds it to
what LRU would have done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

import numpy as np
import numpy.typing as npt

from radixlm.cache.node import TreeNode
from radixlm.cache.reuse_ages import BINS, bin_of, worths

LEARNED = "learned"
# A kind is (length * _TURNS + turns) * _HITS + hits, each up to its most.
_HITS, _TURNS = 5, 8
_TRAITS = _HITS * _TURNS
# Leaves that are drawn for each that goes, beside the best of those drawn before.
_DRAWN, _CARRIED = 24, 24
_LEAST_BETWEEN = 64
_NODES_BETWEEN = 1 / 8
_HALF_LIFE = 32
# What all kinds together say counts as much as this many lifetimes of its own; what an age says for
# the next one as much as this many.
_PRIOR = 2.0
_FIRST_HAZARD, _FADING = 0.1, 0.6

Counts = list[float]


class Learned:
    """Eviction by hit density, of leaves drawn at random.

    Each release of a path opens a lifetime of its nodes, by their kind: how often they were asked
    for, how many requests built on one another up to there, and how long the request was. The next
    request for them ends it, whether they are still there or ghosts. What is counted is how many
    tokens reached each age unused (`reached`), and how many were used then (`used`): so at any time
    what has not ended counts as well. Counts fade.

    now: the tree's counter of uses, kept by the tree.
    """

    name = LEARNED

    def __init__(self, seed: int = 0) -> None:
        self.now = 0
        self.duel = Duel()
        self._used: dict[int, Counts] = {}
        self._reached: dict[int, Counts] = {}
        self._worths: dict[int, Counts] = {}
        nothing = _faded([0.0] * BINS, [0.0] * BINS, 1.0)
        self._of_unknown: Counts = worths(nothing[None])[0].tolist()
        self._random = Random(seed).random  # noqa: S311
        self._carried: list[TreeNode] = []
        self._counted_at = 0
        self._lifetimes = self._tokens = 0.0

    def key(self, node: TreeNode) -> int:
        """Where it does not choose, the longest unused goes first."""
        return node.last_used

    # What happens to nodes

    def made(self, node: TreeNode, parent: TreeNode) -> None:
        """A node was added below a parent."""
        turns = parent.kind % _TRAITS // _HITS
        node.kind = min(turns + 1, _TURNS - 1) * _HITS

    def asked(self, node: TreeNode, n_tokens: int) -> None:
        """Tokens of a node that nobody used are used again; they may have been ghosts."""
        if n_tokens:
            self._end(node, n_tokens, used=True)
        if node.kind % _HITS < _HITS - 1:
            node.kind += 1

    def released(self, node: TreeNode, length: int) -> None:
        """A request that held a node, of `length` tokens by now, has let go of it."""
        node.kind = length_class(length) * _TRAITS + node.kind % _TRAITS

    def forgotten(self, node: TreeNode, n_tokens: int) -> None:
        """Ghosts are forgotten, so nobody will know whether they are used again."""
        self._end(node, n_tokens, used=False)

    def _end(self, node: TreeNode, n_tokens: int, *, used: bool) -> None:
        last = node.last_used
        age = bin_of(max(self.now - last, 0))
        counts = self._reached.get(node.kind)
        if counts is None:
            counts = self._open(node.kind)
        first = bin_of(self._counted_at - last) + 1 if last <= self._counted_at else 0
        for at in range(first, age + 1):
            counts[at] += n_tokens
        if used:
            self._used[node.kind][age] += n_tokens
        self._lifetimes += 1
        self._tokens += n_tokens

    def _open(self, kind: int) -> Counts:
        self._used[kind] = [0.0] * BINS
        self._reached[kind] = [0.0] * BINS
        return self._reached[kind]

    # What is learned

    def learn(self, nodes: Iterable[TreeNode]) -> None:
        """Count what ages all nodes have reached, and value them anew. O(nodes + kinds)."""
        before, now = self._counted_at, self.now
        count = 0
        for node in nodes:
            count += 1
            last = node.last_used
            if node.lock_ref or not node.end:
                continue
            age = bin_of(now - last)
            first = bin_of(before - last) + 1 if last <= before else 0
            if first <= age:
                counts = self._reached.get(node.kind)
                if counts is None:
                    counts = self._open(node.kind)
                for at in range(first, age + 1):
                    counts[at] += len(node)
        self._counted_at = now
        self._value()
        self._fade(0.5 ** ((now - before) / max(_HALF_LIFE * _LEAST_BETWEEN, 8 * count)))

    def _value(self) -> None:
        kinds = list(self._reached)
        if not kinds:
            return
        used, reached = np.array(list(self._used.values())), np.array(list(self._reached.values()))
        weight = _PRIOR * max(self._tokens, 1.0) / max(self._lifetimes, 1.0)
        of_all = _faded(used.sum(axis=0).tolist(), reached.sum(axis=0).tolist(), weight)
        hazards = (used + weight * of_all) / (reached + weight)
        found = worths(np.vstack((hazards, of_all)))
        self._worths = dict(zip(kinds, found.tolist(), strict=False))
        self._of_unknown = found[-1].tolist()

    def _fade(self, share: float) -> None:
        self._lifetimes *= share
        self._tokens *= share
        for counts in (self._used, self._reached):
            for kind, each in counts.items():
                counts[kind] = [share * count for count in each]
        for kind in [kind for kind, each in self._reached.items() if each[0] < 1e-3]:
            del self._used[kind], self._reached[kind]

    # What goes

    @property
    def chooses(self) -> bool:
        """Whether it decides, or LRU does."""
        return self.duel.won

    def worth(self, node: TreeNode) -> float:
        row = self._worths.get(node.kind, self._of_unknown)
        return row[bin_of(self.now - node.last_used)]

    def choose(self, entries: list[int], by_id: Mapping[int, TreeNode]) -> TreeNode | None:
        """The leaf of least worth among some that are drawn, and those of the last draw that were
        next. Entries that no longer count are taken out where they are met.
        """
        if self.now - self._counted_at >= max(_LEAST_BETWEEN, len(by_id) * _NODES_BETWEEN):
            self.learn(by_id.values())
        rows, unknown, now, random = self._worths, self._of_unknown, self.now, self._random
        found = {
            node.id: node for node in self._carried if is_free(node) and by_id.get(node.id) is node
        }
        for _ in range(_DRAWN):
            if not entries:
                break
            place = int(random() * len(entries))
            entry = entries[place]
            node = by_id.get(entry & _LOW)
            if node is None or not is_free(node) or entry >> _BITS != node.queued_key:
                entries[place] = entries[-1]
                entries.pop()
                if node is not None and node.queued_key == entry >> _BITS:
                    node.queued_key = None
                continue
            found[node.id] = node
        if not found:
            return None
        ranked = sorted(
            (rows.get(node.kind, unknown)[bin_of(now - node.last_used)], node.last_used, node.id)
            for node in found.values()
        )
        chosen = found[ranked[0][2]]
        chosen.queued_key = None
        self._carried = [found[each[2]] for each in ranked[1 : _CARRIED + 1]]
        return chosen


_BITS = 64
_LOW = (1 << _BITS) - 1


def is_free(node: TreeNode) -> bool:
    """Whether it is a leaf that can be evicted, and is known as one."""
    return node.queued_key is not None and not node.lock_ref and not node.live and node.resident > 0


def length_class(n_tokens: int) -> int:
    """In steps of half a power of two.

    >>> [length_class(n) for n in (1, 2, 3, 4, 1000, 1400, 1500)]
    [0, 2, 3, 4, 19, 20, 20]
    """
    bits = n_tokens.bit_length() - 1
    return 2 * bits + (n_tokens >> (bits - 1)) % 2 if bits > 0 else 0


def _faded(used: Counts, reached: Counts, weight: float) -> npt.NDArray[np.float64]:
    """(bins,) hazards of all; where little is known, less than that of the age before."""
    hazard, found = _FIRST_HAZARD, []
    for here, there in zip(used, reached, strict=True):
        hazard = (here + weight * _FADING * hazard) / (there + weight)
        found.append(hazard)
    return np.array(found)


class Duel:
    """Who decides: the learned policy, or LRU.

    LRU's side is a shadow of it: of each prompt, how much a pool of the same size would have held
    under LRU (see Reuse). A ledger adds what was found beyond that; it may owe a small share of the
    pool before LRU takes over, and is forgiven a small share of what is asked for, after which it
    is tried again. So what is ever lost against LRU is bounded.
    """

    def __init__(self) -> None:
        self.won = True
        self.ledger = 0.0

    def note(self, found: int, under_lru: int, asked: int, capacity: int) -> None:
        """Of a prompt of `asked` tokens so much was found, and would have been."""
        self.ledger += _FORGIVEN * asked
        if self.won:
            self.ledger += found - under_lru
        self.ledger = min(self.ledger, _MOST_CREDIT * capacity)
        if self.ledger < -_MOST_DEBT * capacity:
            self.won = False
        elif self.ledger >= -_DEBT_LEFT * capacity:
            self.won = True


_FORGIVEN = 0.002
_MOST_CREDIT, _MOST_DEBT, _DEBT_LEFT = 0.2, 0.15, 0.05
