"""A policy that learns after what time which prefixes are used again, and a duel that holds it to
what LRU would have done.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping
from random import Random
from typing import cast

import numpy as np
import numpy.typing as npt

from radixlm.cache.node import TOKEN_BYTES, TreeNode
from radixlm.cache.reuse_ages import BINS, EDGES, WIDTHS, bin_of, worths

LEARNED = "learned"
# A kind is ((news * _TURNS + turns) * 2 + tail) * _HITS + hits, each up to its most.
_HITS, _TURNS, _NEWS = 5, 5, 8
_TAIL = _HITS
_TURN = 2 * _HITS
_NEW = _TURN * _TURNS
_KINDS = _NEW * _NEWS
# Leaves that are drawn for some that go, beside the best of those drawn before.
_DRAWN, _CARRIED, _A_DRAW = 40, 24, 3
# Uses of the tree after which worths are computed anew, at least, and as a share of its nodes.
_LEAST_BETWEEN, _NODES_BETWEEN = 64, 1 / 8
# Counts fade by half within as many uses, at least, and within as many for each node.
_LEAST_HALF_LIFE, _NODES_HALF_LIFE = 4096, 4
# What all kinds say counts as much as two lifetimes of those with the same hits, which is little;
# what those say as much as these of the ones with the same turns; and in the same way below.
_PRIOR, _PRIOR_BELOW = 2.0, 15.0
# Where nothing is known of an age, less than of the one before.
_FIRST_HAZARD, _FADING = 0.1, 0.6
# What is counted at an age says as much of those beside it, and of the next.
_BLUR = 0.7, 0.49
# A tail is as much of the end of a request as half of those that go on from it do not find; in
# powers of two, and not less than this share of it.
_LEAST_TAIL = 1 / 64
_TAIL_FADING = 0.99
_POWERS = 40

Floats = npt.NDArray[np.float64]
# What goes first is greatest: less worth, used earlier; then the node's id.
Rank = tuple[float, int, int]
_WIDTHS = np.array(WIDTHS, dtype=np.float64)


def _blurred(counts: Floats, by_width: Floats | float) -> Floats:
    """(rows, bins) with the two bins on either side; counts are in proportion to a width."""
    level = counts / by_width
    found = level.copy()
    for apart, weight in enumerate(_BLUR, 1):
        found[:, apart:] += weight * level[:, :-apart]
        found[:, :-apart] += weight * level[:, apart:]
    return found * by_width


class Learned:
    """Eviction by hit density, of leaves drawn at random.

    When a request lets go of a path, a lifetime of its nodes begins, by their kind: how often they
    were asked for, how many requests built on one another up to there, how much was new in the
    request, and whether they are its tail. The next request for them ends it, whether they are
    still there or ghosts. Counted are the tokens that were used at each age; with those whose
    lifetimes go on, or which were forgotten, that gives the share that is used at an age of what
    reaches it, and so what a leaf is worth: see `worths`.

    now: the tree's counter of uses, kept by the tree.
    """

    name = LEARNED

    def __init__(self, seed: int = 0) -> None:
        self.now = 0
        self.duel = Duel()
        self._used = np.zeros((_KINDS, BINS))
        self._lost = np.zeros((_KINDS, BINS))
        self._lifetimes = self._tokens = 0.0
        self._worths: dict[int, list[float]] = {}
        self._of_unknown: list[float] = []
        self._valued_at = 0
        self._random = Random(seed).random  # noqa: S311
        self._fresh: deque[TreeNode] = deque(maxlen=_CARRIED)
        self._ranked: list[Rank] = []
        self._left = 0
        self._news = 0
        self._tail = 0
        self._ends = [0.0] * _POWERS
        self._mean_length = 0.0
        self._value(())

    def key(self, node: TreeNode) -> int:
        """Where it does not choose, the longest unused goes first."""
        return node.last_used

    # What happens to nodes

    def made(self, node: TreeNode, parent: TreeNode) -> None:
        """A node was added below a parent."""
        turns = parent.kind % _NEW // _TURN
        node.kind = min(turns + 1, _TURNS - 1) * _TURN

    def asked(self, node: TreeNode, n_tokens: int) -> None:
        """The last tokens of a node that nobody used are used again, ghosts or not."""
        if n_tokens:
            age, tail = bin_of(max(self.now - node.last_used, 0)), min(node.tail, n_tokens)
            self._used[node.kind, age] += n_tokens - tail
            self._used[node.kind + _TAIL, age] += tail
            self._count(n_tokens)
        if node.kind % _HITS < _HITS - 1:
            node.kind += 1

    def forgotten(self, node: TreeNode, n_tokens: int) -> None:
        """Of a node's ghosts the last ones are forgotten."""
        age, tail = bin_of(max(self.now - node.last_used, 0)), min(node.tail, n_tokens)
        self._lost[node.kind, age] += n_tokens - tail
        self._lost[node.kind + _TAIL, age] += tail
        node.tail -= tail
        self._count(n_tokens)

    def found(self, node: TreeNode) -> None:
        """A request's match ends with a node, which is about to be asked for."""
        children = node.children
        if not children:
            left = 0
        elif len(children) == 1:
            [child] = children.values()
            if child.children or child.last_used != node.last_used:
                return
            left = len(child)
        else:
            return
        ends = self._ends
        for power in range(_POWERS):
            ends[power] *= _TAIL_FADING
        ends[min(left.bit_length(), _POWERS - 1)] += 1

    def released(self, node: TreeNode, length: int) -> None:
        """A request that held a node, of `length` tokens by now, has let go of it."""
        if node.end == length:
            self._ended(node)
        node.kind = self._news * _NEW + node.kind % _NEW
        size = len(node.edge) // TOKEN_BYTES
        node.tail = max(0, min(self._tail - (length - node.end), size))

    def _ended(self, node: TreeNode) -> None:
        """A request ends with a node."""
        top: TreeNode | None = node
        while top is not None and top.kind % _HITS == 0 and top.end:
            top = top.parent
        new = node.end - (top.end if top is not None else 0)
        self._news = min((new.bit_length() + 2) // 3, _NEWS - 1)
        self._mean_length += (node.end - self._mean_length) * (1 - _TAIL_FADING)
        if not node.children:
            self._fresh.append(node)

    def _count(self, n_tokens: int) -> None:
        self._lifetimes += 1
        self._tokens += n_tokens

    # What is learned

    def learn(self, nodes: Iterable[TreeNode], count: int) -> None:
        """Value all kinds anew, with what ages all nodes have reached. O(nodes + kinds)."""
        passed, self._valued_at = self.now - self._valued_at, self.now
        half = max(_LEAST_HALF_LIFE, _NODES_HALF_LIFE * count)
        self._value(nodes, half)
        share = 0.5 ** (passed / half)
        self._lifetimes *= share
        self._tokens *= share
        self._used *= share
        self._lost *= share
        self._tail = self._learned_tail()

    def _learned_tail(self) -> int:
        ends, all_ends, above = self._ends, sum(self._ends), 0.0
        for power in range(_POWERS - 1, 0, -1):
            above += ends[power]
            if above >= all_ends / 2:
                size: int = 1 << (power - 1)
                return size if size >= _LEAST_TAIL * self._mean_length else 0
        return 0

    def _value(self, nodes: Iterable[TreeNode], half_life: float = 1.0) -> None:
        reached = self._used + self._lost + self._going_on(nodes, half_life)
        reached = reached[:, ::-1].cumsum(axis=1)[:, ::-1]
        known = np.flatnonzero(reached[:, 0])
        weight = _PRIOR * max(self._tokens, 1.0) / max(self._lifetimes, 1.0)
        used, reached = _blurred(self._used[known], _WIDTHS), _blurred(reached[known], 1.0)
        of_all = _faded(used.sum(axis=0), reached.sum(axis=0), weight)
        hazard = of_all[None]
        above = np.zeros(known.size, dtype=np.int64)
        for alike in (_TURN, _NEW, _KINDS):
            of, first, place = np.unique(known % alike, return_index=True, return_inverse=True)
            used_by, reached_by = np.zeros((2, of.size, BINS))
            np.add.at(used_by, place, used)
            np.add.at(reached_by, place, reached)
            base = hazard[above[first]]
            hazard = (used_by + weight * base) / (reached_by + weight)
            above, weight = place, weight * (_PRIOR_BELOW / _PRIOR if alike == _TURN else 1.0)
        found = worths(np.minimum(np.vstack((hazard, of_all)), 1.0)).tolist()
        self._worths = dict(zip(known.tolist(), found, strict=False))
        self._of_unknown = found[-1]

    def _going_on(self, nodes: Iterable[TreeNode], half_life: float) -> Floats:
        """(kinds, bins) tokens whose lifetimes go on, by age; faded as if they were counted."""
        now = self.now
        found = [
            (node.kind, now - node.last_used, len(node.edge) // TOKEN_BYTES, node.tail)
            for node in nodes
            if not node.lock_ref and node.end
        ]
        if not found:
            return np.zeros((_KINDS, BINS))
        kinds, ages, sizes, tails = np.array(found).T
        bins = np.minimum(np.searchsorted(EDGES, ages, side="right") - 1, BINS - 1)
        fading = 0.5 ** (ages / half_life)
        size = _KINDS * BINS
        of_all = np.bincount(kinds * BINS + bins, (sizes - tails) * fading, size)
        of_all += np.bincount((kinds + _TAIL) * BINS + bins, tails * fading, size)
        return cast("Floats", of_all.reshape(_KINDS, BINS))

    # What goes

    @property
    def chooses(self) -> bool:
        """Whether it decides, or LRU does."""
        return self.duel.won

    def most(self, leaf: TreeNode, n_tokens: int) -> int:
        """How many of `n_tokens` are to go from a leaf's end: its tail goes for itself."""
        tail = leaf.tail - leaf.absent
        return min(tail, n_tokens) if tail > 0 and self.chooses else n_tokens

    def choose(self, entries: list[int], by_id: Mapping[int, TreeNode]) -> TreeNode | None:
        """The leaf of least worth among some that are drawn, those of the last draw that were next,
        and what was used just now. Entries that no longer count are taken out where they are met.
        """
        if self.now - self._valued_at >= max(_LEAST_BETWEEN, len(by_id) * _NODES_BETWEEN):
            self.learn(by_id.values(), len(by_id))
            self._left = 0
        ranked = self._ranked
        while True:
            if self._left <= 0 or not ranked:
                self._draw(entries, by_id)
                self._left = _A_DRAW
                if not ranked:
                    return None
            for node in self._fresh:
                if by_id.get(node.id) is node and is_free(node):
                    insort(ranked, self._rank(node))
            self._fresh.clear()
            self._left -= 1
            _, last_used, node_id = ranked.pop()
            chosen = by_id.get(node_id)
            if chosen is not None and chosen.last_used == -last_used and is_free(chosen):
                chosen.queued_key = None
                return chosen

    def _rank(self, node: TreeNode) -> Rank:
        row = self._worths.get(
            node.kind + _TAIL if node.tail and node.tail > node.absent else node.kind,
            self._of_unknown,
        )
        age = bisect_right(EDGES, self.now - node.last_used) - 1
        return -row[age], -node.last_used, node.id

    def _draw(self, entries: list[int], by_id: Mapping[int, TreeNode]) -> None:
        """Rank leaves that are drawn, and those that were next, anew."""
        found = {rank[2] for rank in self._ranked[-_CARRIED:]}
        random = self._random
        for _ in range(_DRAWN):
            if not entries:
                break
            place = int(random() * len(entries))
            entry = entries[place]
            node = by_id.get(entry & _LOW)
            if node is None or entry >> _BITS != node.queued_key or not is_free(node):
                entries[place] = entries[-1]
                entries.pop()
                if node is not None and node.queued_key == entry >> _BITS:
                    node.queued_key = None
                continue
            found.add(node.id)
        nodes = [by_id[node_id] for node_id in found if node_id in by_id]
        self._ranked[:] = sorted(self._rank(node) for node in nodes if is_free(node))


_BITS = 64
_LOW = (1 << _BITS) - 1


def is_free(node: TreeNode) -> bool:
    """Whether it is a leaf that can be evicted, and is known as one."""
    return node.queued_key is not None and not node.lock_ref and not node.live and node.resident > 0


def _faded(used: Floats, reached: Floats, weight: float) -> Floats:
    """(bins,) hazards of all; where little is known, less than that of the age before."""
    hazard, found = _FIRST_HAZARD, []
    for here, there in zip(used.tolist(), reached.tolist(), strict=True):
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
        self.ledger += _FORGIVEN * asked + found - under_lru
        self.ledger = max(-_LEAST * capacity, min(self.ledger, _MOST_CREDIT * capacity))
        if self.ledger < -_MOST_DEBT * capacity:
            self.won = False
        elif self.ledger >= -_DEBT_LEFT * capacity:
            self.won = True


_FORGIVEN = 0.002
_MOST_CREDIT, _MOST_DEBT, _DEBT_LEFT, _LEAST = 1.0, 0.15, 0.05, 0.25
