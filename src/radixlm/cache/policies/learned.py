"""A policy that learns after what time which prefixes are used again, and a duel that holds it to
what LRU would have done.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from random import Random

import numpy as np

from radixlm.cache.policies.lifetimes import Lifetime, Lifetimes
from radixlm.cache.radix.eviction import KEY_BITS, LOW_BITS, Chooser
from radixlm.cache.radix.node import TOKEN_BYTES, TreeNode, upward
from radixlm.core.moves import NOWHERE
from radixlm.core.request import Hint

LEARNED = "learned"
# A kind is (((news * _TURNS + turns) * len(Hint) + hint) * 2 + tail) * _HITS + hits, each up to its
# most.
_HITS, _TURNS, _NEWS = 5, 5, 8
_TAIL = _HITS
_HINT = 2 * _HITS
_TURN = _HINT * len(Hint)
_NEW = _TURN * _TURNS
_KINDS = _NEW * _NEWS
# Leaves that are drawn at a time, and how many of them go before the next ones are; what was used
# just now and is looked at beside them.
_DRAWN, _DRAWN_FOR_ONE, _FRESH = 1024, 4, 24
# Uses of the tree after which worths are computed anew, at least, and as a share of its nodes.
_LEAST_BETWEEN, _NODES_BETWEEN = 64, 1 / 6
# Nodes that stand for all whose lifetimes go on.
_LOOKED_AT = 1024
# Counts fade by half within as many uses, at least, and within as many for each node.
_LEAST_HALF_LIFE, _NODES_HALF_LIFE = 4096, 4
# A tail is as much of the end of a request as half of those that go on from it do not find; in
# powers of two, and not less than this share of it.
_LEAST_TAIL = 1 / 64
_TAIL_FADING = 0.99
_POWERS = 40
# What it costs to have a token again that is in host memory or on disk, by computing it.
READ_PRICE = 1 / 20

# What goes first is greatest: less worth, used earlier; then the node's id.
Rank = tuple[float, int, int]


class Learned(Chooser):
    """Eviction by hit density, of leaves drawn at random.

    When a request lets go of a path, a lifetime of its nodes begins, by their kind: how often they
    were asked for, how many requests built on one another up to there, how much was new in the
    request, what its client said of what comes after it, and whether they are its tail. The next
    request for them ends it, whether they are still there or ghosts. Counted are the tokens that
    were used at each age; with those whose lifetimes go on, or which were forgotten, that gives the
    share that is used at an age of what reaches it, and so what a leaf is worth: see `worths`.

    now: the tree's counter of uses, as of the last event.
    """

    name = LEARNED
    ghosts = 8

    def __init__(self, seed: int = 0) -> None:
        self.now = 0
        self.duel = Duel()
        self._lifetimes = Lifetimes(_KINDS, (_TURN, _NEW))
        self._valued_at = 0
        self._random = Random(seed).random  # noqa: S311
        self._fresh: deque[TreeNode] = deque(maxlen=_FRESH)
        self._ranked: list[Rank] = []
        self._drawn_of = self._left = 0
        self._news = 0
        self._tail = 0
        self._ends = [0.0] * _POWERS
        self._mean_length = 0.0

    def key(self, node: TreeNode) -> int:
        """The key by which the longest unused goes first, where it does not choose."""
        return node.last_used

    # What happens to nodes

    def made(self, leaf: TreeNode) -> None:
        if leaf.resident and leaf.parent is not None:
            turns = leaf.parent.kind % _NEW // _TURN
            leaf.kind = min(turns + 1, _TURNS - 1) * _TURN

    def asked(self, node: TreeNode, use: int) -> None:
        self.now = use
        self._found(node)
        for at in upward(node):
            self._used_again(at, 0 if at.lock_ref else at.resident)

    def revived(self, node: TreeNode, n_tokens: int, use: int) -> None:
        self.now = use
        self._used_again(node, n_tokens)

    def forgotten(self, node: TreeNode, n_tokens: int) -> None:
        node.tail -= self._end(self._lifetimes.lost, node, n_tokens)

    def unlocking(self, node: TreeNode, use: int | None, hint: int) -> None:
        """A request that held a path, `node.end` tokens long by now, lets go of it."""
        at: TreeNode | None = node if use is not None else None
        if at is not None and at.lock_ref == 1:
            self._ended(at)
        while at is not None and at.lock_ref == 1:
            kind = at.kind % _NEW
            at.kind = self._news * _NEW + kind + (hint - kind % _TURN // _HINT) * _HINT
            size = len(at.edge) // TOKEN_BYTES
            at.tail = max(0, min(self._tail - (node.end - at.end), size))
            at = at.parent

    def hinted(self, node: TreeNode, hint: int, use: int) -> None:
        """Take a hint: what is known of a node's age so far is no reuse; it goes on as what the
        hint says.
        """
        self.now = use
        self._end(self._lifetimes.lost, node, len(node.edge) // TOKEN_BYTES)
        node.kind += (hint - node.kind % _TURN // _HINT) * _HINT
        if node.queued_key is not None:
            self._fresh.append(node)

    def _used_again(self, node: TreeNode, n_tokens: int) -> None:
        """The last tokens of a node that nobody used are used again, ghosts or not."""
        if n_tokens:
            self._end(self._lifetimes.used, node, n_tokens)
        if node.kind % _HITS < _HITS - 1:
            node.kind += 1

    def _end(self, count: Callable[[int, int, int], None], node: TreeNode, n_tokens: int) -> int:
        """End the lifetimes of a node's last tokens; returns how many were its tail's."""
        age, tail = max(self.now - node.last_used, 0), min(node.tail, n_tokens)
        if tail:
            count(node.kind + _TAIL, age, tail)
        if n_tokens > tail:
            count(node.kind, age, n_tokens - tail)
        return tail

    def _found(self, node: TreeNode) -> None:
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

    def _ended(self, node: TreeNode) -> None:
        """A request ends with a node."""
        top: TreeNode | None = node
        while top is not None and top.kind % _HITS == 0 and top.end:
            top = top.parent
        new = node.end - (top.end if top is not None else 0)
        self._news = min((new.bit_length() + 2) // 3, _NEWS - 1)
        self._mean_length += (node.end - self._mean_length) * (1 - _TAIL_FADING)
        if node.queued_key is not None and not node.children:
            self._fresh.append(node)

    # What is learned

    def learn(self, nodes: Iterable[TreeNode], count: int) -> None:
        """Value all kinds anew, with what ages all nodes have reached. O(nodes + kinds)."""
        passed, self._valued_at = self.now - self._valued_at, self.now
        half = max(_LEAST_HALF_LIFE, _NODES_HALF_LIFE * count)
        step = max(1, count // _LOOKED_AT)
        self._lifetimes.fade(0.5 ** (passed / half))
        self._lifetimes.value(self._going_on(nodes, step), 1 / step, half)
        self._tail = self._learned_tail()

    def _learned_tail(self) -> int:
        ends, all_ends, above = self._ends, sum(self._ends), 0.0
        for power in range(_POWERS - 1, 0, -1):
            above += ends[power]
            if above >= all_ends / 2:
                size: int = 1 << (power - 1)
                return size if size >= _LEAST_TAIL * self._mean_length else 0
        return 0

    def _going_on(self, nodes: Iterable[TreeNode], step: int) -> list[Lifetime]:
        """The lifetimes of one node in `step`, where no request holds it."""
        now, found = self.now, list[Lifetime]()
        for node in islice(nodes, int(self._random() * step), None, step):
            if node.lock_ref or not node.end:
                continue
            age, size, tail = now - node.last_used, len(node.edge) // TOKEN_BYTES, node.tail
            if tail:
                found.append((node.kind + _TAIL, age, tail))
            if size > tail:
                found.append((node.kind, age, size - tail))
        return found

    # What goes

    def judge(self, found: int, under_lru: int, stored: int, asked: int, capacity: int) -> None:
        self.duel.note(found, under_lru, stored, asked, capacity)

    @property
    def chooses(self) -> bool:
        """Whether it decides, or LRU does."""
        return self.duel.won

    def most(self, leaf: TreeNode, n_tokens: int) -> int:
        """How many of `n_tokens` are to go from a leaf's end: its tail goes for itself."""
        tail = leaf.tail - leaf.absent
        return min(tail, n_tokens) if tail > 0 and self.chooses else n_tokens

    def choose(self, entries: list[int], by_id: Mapping[int, TreeNode]) -> TreeNode | None:
        """The leaf of least worth among those that are drawn, and what was used just now. Entries
        that no longer count are taken out where they are met.
        """
        if self.now - self._valued_at >= max(_LEAST_BETWEEN, len(by_id) * _NODES_BETWEEN):
            self.learn(by_id.values(), len(by_id))
        ranked = self._ranked
        while True:
            if not ranked or self._left <= 0:
                self._draw(entries, by_id)
                if not ranked:
                    return None
            if self._fresh or self._drawn_of < len(entries):
                self._rank_new(entries, by_id)
            rank = ranked.pop()
            chosen = by_id.get(rank[2])
            if chosen is None or not is_free(chosen):
                continue
            again = self._rank(chosen)
            if ranked and again < ranked[-1]:  # it has been used since, or has reached another age
                insort(ranked, again)
                continue
            chosen.queued_key = None
            self._left -= 1
            return chosen

    def _rank(self, node: TreeNode) -> Rank:
        used = node.last_used
        kind = _kind_of_end(node) if node.tail else node.kind
        worth = self._lifetimes.worth(kind, self.now - used) * _price(node)
        return -worth, -used, node.id

    def _rank_new(self, entries: list[int], by_id: Mapping[int, TreeNode]) -> None:
        """Rank what became a leaf since the last draw, or was used just now."""
        new = [by_id.get(entry & LOW_BITS) for entry in entries[self._drawn_of :]]
        self._drawn_of = len(entries)
        for node in (*new, *self._fresh):
            if node is not None and is_free(node):
                insort(self._ranked, self._rank(node))
        self._fresh.clear()

    def _draw(self, entries: list[int], by_id: Mapping[int, TreeNode]) -> None:
        """Rank leaves that are drawn: all, where they are few. The lowest part is kept."""
        nodes = self._drawn_leaves(entries, by_id)
        self._drawn_of = len(entries)
        self._left = max(len(nodes) // _DRAWN_FOR_ONE, 1)
        used = np.array([node.last_used for node in nodes], dtype=np.int64)
        kinds = np.array(
            [_kind_of_end(node) if node.tail else node.kind for node in nodes], dtype=np.int64
        )
        prices = np.array([_price(node) for node in nodes])
        worths = self._lifetimes.worths(kinds, self.now - used) * prices
        lowest = np.lexsort((used, worths))[: self._left][::-1].tolist()
        self._ranked[:] = [(-worths.item(at), -used.item(at), nodes[at].id) for at in lowest]

    def _drawn_leaves(self, entries: list[int], by_id: Mapping[int, TreeNode]) -> list[TreeNode]:
        """The leaves among some entries that count; others that are met are taken out."""
        random, count = self._random, len(entries)
        places: Iterable[int] = range(count)
        if count > _DRAWN:
            places = {int(random() * count) for _ in range(_DRAWN)}
        found, dead = list[TreeNode](), list[int]()
        for place in places:
            entry = entries[place]
            node = by_id.get(entry & LOW_BITS)
            if node is not None and node.queued_key == entry >> KEY_BITS:
                if not node.lock_ref and not node.live and node.resident:
                    found.append(node)
                    continue
                node.queued_key = None
            dead.append(place)
        for place in sorted(dead, reverse=True):
            entries[place] = entries[-1]
            entries.pop()
        return found


def _price(node: TreeNode) -> float:
    """The price of having a node's end again, by computing it."""
    stored = node.stored
    return READ_PRICE if stored != NOWHERE and max(stored) >= node.resident else 1.0


def _kind_of_end(node: TreeNode) -> int:
    """The kind of what goes first of a node."""
    tail = node.tail
    return node.kind + _TAIL if tail and tail > node.absent else node.kind


def is_free(node: TreeNode) -> bool:
    """Whether it is a leaf that can be evicted, and is known as one."""
    return node.queued_key is not None and not node.lock_ref and not node.live and node.resident > 0


class Duel:
    """A duel of the learned policy and LRU: who decides.

    LRU's side is a shadow of it: of each prompt, how much a pool of the same size would have held
    under LRU (see Reuse). A ledger adds what was found beyond that; it may owe a small share of the
    pool before LRU takes over, and is forgiven a small share of what is asked for, after which it
    is tried again. So what is ever lost against LRU is bounded.
    """

    def __init__(self) -> None:
        self.won = True
        self.ledger = 0.0

    def note(self, found: float, under_lru: float, stored: int, asked: int, capacity: int) -> None:
        """Note how much of a prompt of `asked` tokens was found, and would have been; stored: what
        can be read back, which is found for the most part.
        """
        found, under_lru = (
            each + (1 - READ_PRICE) * max(stored - each, 0) for each in (found, under_lru)
        )
        self.ledger += _FORGIVEN * asked + found - under_lru
        self.ledger = max(-_LEAST * capacity, min(self.ledger, _MOST_CREDIT * capacity))
        if self.ledger < -_MOST_DEBT * capacity:
            self.won = False
        elif self.ledger >= -_DEBT_LEFT * capacity:
            self.won = True


_FORGIVEN = 0.002
_MOST_CREDIT, _MOST_DEBT, _DEBT_LEFT, _LEAST = 1.0, 0.15, 0.05, 0.25
