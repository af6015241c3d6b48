"""What a radix cache must do, by brute force: every cached prefix, in whole pages, by itself.

The model knows no tree. A prefix (namespace and all its tokens) is one number, its code; a page is
the code of the prefix that ends with it. What it can not know, which leaf a policy takes, `Watch`
verifies at each step instead: that it is an unlocked leaf that goes first by the policy's promise.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from radixlm.cache import RadixTree, TreeNode
from radixlm.cache.radix.node import is_mergeable
from radixlm.core.errors import CacheError, InvariantError
from radixlm.core.keys import Slots

PRIME = (1 << 61) - 1
T = TypeVar("T")

# What each policy promises: the leaf for which this is smallest goes first.
PROMISES: dict[str, Callable[[TreeNode], tuple[int, ...]]] = {
    "lru": lambda node: (node.last_used,),
    "lfu": lambda node: (node.hits, node.last_used),
    "fifo": lambda node: (node.created,),
    "mru": lambda node: (-node.last_used,),
    "filo": lambda node: (-node.created,),
    "slru": lambda node: (node.hits >= 2, node.last_used),
    "priority": lambda node: (node.priority, node.last_used),
    # It draws some, so it only promises that what goes may go.
    "learned": lambda node: (),
}


class Mismatch(AssertionError):  # noqa: N818
    """The cache and the model say different things."""


def same(what: str, got: object, expected: object) -> None:
    """Raise Mismatch unless both are equal."""
    if got != expected:
        raise Mismatch(f"{what}: got {got}, expected {expected}")


def expected_to_work(call: Callable[[], T]) -> T:
    """A typed error out of a correct call is a mismatch; a broken invariant stays one."""
    try:
        return call()
    except InvariantError:
        raise
    except CacheError as error:
        raise Mismatch(f"{type(error).__name__}: {error}") from error


def root_code(namespace: Hashable) -> int:
    return zlib.crc32(repr(namespace).encode()) + 1


def codes_after(code: int, tokens: Iterable[int]) -> list[int]:
    """`code`, and one code for each prefix that goes on from it."""
    codes = [code]
    for token in tokens:
        code = (code * 1_000_003 + token + 1) % PRIME
        codes.append(code)
    return codes


class Page:
    """One cached page. locks, pins: leases and pins whose path it is on. followers: cached pages
    right behind it. used: the model's count of uses when it was last locked, unlocked or inserted.
    """

    __slots__ = ("followers", "locks", "parent", "pins", "priority", "slots", "used")

    def __init__(self, parent: int, slots: list[int], priority: int) -> None:
        self.parent = parent
        self.slots = slots
        self.priority = priority
        self.locks = 0
        self.pins = 0
        self.followers = 0
        self.used = 0


class Ghost:
    """One page that is remembered. evicted_at: seconds."""

    __slots__ = ("evicted_at", "parent", "priority")

    def __init__(self, page: Page, evicted_at: float) -> None:
        self.parent = page.parent
        self.priority = page.priority
        self.evicted_at = evicted_at


class PrefixModel:
    """Cached and remembered pages by code. `behind`: the known pages right behind a prefix."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.pages: dict[int, Page] = {}
        self.ghosts: dict[int, Ghost] = {}
        self.behind: dict[int, set[int]] = {}
        self.locked = 0
        self.pinned = 0
        self.uses = 0
        self._owner: dict[int, int] = {}

    @property
    def evictable(self) -> int:
        """In tokens."""
        return (len(self.pages) - self.locked) * self.page_size

    def codes(self, namespace: Hashable, tokens: Sequence[int]) -> list[int]:
        """One code per prefix of `tokens`, the empty one first."""
        return codes_after(root_code(namespace), tokens)

    def match(self, codes: list[int], limit: int) -> int:
        """How many of the first `limit` tokens are cached."""
        length, size = 0, self.page_size
        while length + size <= limit and codes[length + size] in self.pages:
            length += size
        return length

    def insert(self, codes: list[int], slots: Sequence[int]) -> int:
        """Cache all whole pages of a prefix; returns how many tokens were there before."""
        size = self.page_size
        whole = len(slots) - len(slots) % size
        there = self.match(codes, whole)
        for start in range(there, whole, size):
            parent, code = codes[start], codes[start + size]
            ghost = self.ghosts.pop(code, None)
            mine = list(slots[start : start + size])
            self.pages[code] = Page(parent, mine, ghost.priority if ghost else 0)
            self._owner[mine[0]] = code
            self.behind.setdefault(parent, set()).add(code)
            if parent in self.pages:
                self.pages[parent].followers += 1
        return there

    def touch(self, codes: list[int], stop: int) -> None:
        """A path is used: its first tokens and nothing behind them."""
        self.uses += 1
        for page in self._between(codes, 0, stop):
            page.used = self.uses

    def lock(self, codes: list[int], start: int, stop: int, priority: int = 0) -> None:
        """A lease takes tokens [start, stop) of a path."""
        for page in self._between(codes, start, stop):
            self.locked += not page.locks
            page.locks += 1
        for page in self._between(codes, 0, stop):
            page.priority = max(page.priority, priority)

    def unlock(self, codes: list[int], stop: int) -> None:
        self.touch(codes, stop)
        for page in self._between(codes, 0, stop):
            page.locks -= 1
            self.locked -= not page.locks

    def pin(self, codes: list[int], stop: int) -> None:
        self.lock(codes, 0, stop)
        for page in self._between(codes, 0, stop):
            self.pinned += not page.pins
            page.pins += 1

    def unpin(self, codes: list[int], stop: int) -> None:
        for page in self._between(codes, 0, stop):
            page.pins -= 1
            self.pinned -= not page.pins
        self.unlock(codes, stop)

    def unpinned(self, codes: list[int], stop: int) -> int:
        """How many of the first tokens no pin holds."""
        return sum(not page.pins for page in self._between(codes, 0, stop)) * self.page_size

    def slots(self, codes: list[int], stop: int) -> list[int]:
        """The slots of a cached prefix, in token order."""
        return [slot for page in self._between(codes, 0, stop) for slot in page.slots]

    def evict(self, slots: list[int], now: float) -> None:
        """The end of a leaf goes: nobody may hold it, and nothing cached may follow it."""
        size = self.page_size
        for start in range(len(slots) - size, -1, -size):
            code = self._owner.pop(slots[start], -1)
            page = self.pages.pop(code, None)
            if page is None or page.slots != slots[start : start + size]:
                raise Mismatch(f"slots {slots[start : start + size]} are evicted, but not cached")
            same("locks and followers of what is evicted", (page.locks, page.followers), (0, 0))
            if page.parent in self.pages:
                self.pages[page.parent].followers -= 1
            self.ghosts[code] = Ghost(page, now)

    def forget(self, codes: list[int]) -> None:
        """Ghosts go, deepest last in `codes`; nothing that is known may be left behind them."""
        for code in reversed(codes):
            ghost = self.ghosts.pop(code, None)
            if ghost is None or self.behind.get(code):
                raise Mismatch("what is forgotten is no ghost, or something is behind it")
            self.behind.pop(code, None)
            self.behind[ghost.parent].discard(code)
            if not self.behind[ghost.parent]:
                del self.behind[ghost.parent]

    def _between(self, codes: list[int], start: int, stop: int) -> list[Page]:
        size = self.page_size
        return [self.pages[code] for code in codes[start + size : stop + 1 : size]]


class Watch:
    """Stands before a tree's `trim` and `forget`: takes over into the model what was evicted and
    forgotten, and verifies each choice. order_every: one of as many evictions is compared with all
    candidates. trims: evictions that left a part of a leaf.
    """

    def __init__(
        self,
        tree: RadixTree,
        model: PrefixModel,
        now: Callable[[], float] = lambda: 0.0,
        order_every: int = 1,
    ) -> None:
        self._tree = tree
        self._model = model
        self._now = now
        self._order_every = order_every
        self._trim, self._forget, self._forget_ghosts = tree.trim, tree.forget, tree.forget_ghosts
        self._budget = tree.ghosts.budget
        self._calls = 0
        self.compared = 0
        self.trims = 0
        self.freed: list[int] = []
        tree.trim = self.trim  # type: ignore[method-assign]
        tree.forget = self.forget  # type: ignore[method-assign]
        tree.forget_ghosts = self.forget_ghosts  # type: ignore[method-assign]

    def take_freed(self) -> list[int]:
        """The slots that were evicted since the last call."""
        freed, self.freed = self.freed, []
        return freed

    def trim(self, leaf: TreeNode, n_tokens: int) -> Slots:
        same("locks and live children of what is evicted", (leaf.lock_ref, live(leaf)), (0, 0))
        self._calls += 1
        if self._calls % self._order_every == 0:
            self._is_first(leaf)
        size = self._model.page_size
        pages = min(-(-n_tokens // size), leaf.resident // size)
        expected = leaf.slots[leaf.resident - pages * size :].tolist()
        self._model.evict(expected, self._now())
        freed = self._trim(leaf, n_tokens)
        same("evicted slots", freed.tolist(), expected)
        self.trims += leaf.resident > 0
        self.freed.extend(expected)
        return freed

    def forget_ghosts(self, budget: int = 0) -> None:
        self._budget = budget
        self._forget_ghosts(budget)

    def forget(self, node: TreeNode) -> None:
        size = self._tree.ghosts.size
        if size <= self._budget:
            raise Mismatch(f"{size} ghost tokens are within {self._budget}, yet one goes")
        first = node.resident
        codes, pending = [], [(node, code_at_start(node))]
        while pending:
            at, code = pending.pop()
            below = codes_after(code, at.tokens().tolist())
            codes.extend(below[first + self._model.page_size :: self._model.page_size])
            first = 0
            pending.extend((child, below[-1]) for child in at.children.values())
        self._model.forget(codes)
        self._forget(node)

    def _is_first(self, leaf: TreeNode) -> None:
        key = PROMISES[self._tree.order.policy.name]
        mine = key(leaf)
        for node in self._tree.nodes():
            candidate = node.parent and node.resident and not node.lock_ref and not live(node)
            if candidate and key(node) < mine:
                raise Mismatch(f"leaf {leaf.id} {mine} goes before {node.id} {key(node)}")
        self.compared += 1


def live(node: TreeNode) -> int:
    """Counted, not looked up."""
    return sum(1 for child in node.children.values() if child.resident)


def code_at_start(node: TreeNode) -> int:
    """The code of the prefix that `node` begins after."""
    edges = []
    at = node
    while at.parent is not None:
        at = at.parent
        edges.append(at.edge)
    tokens = np.frombuffer(b"".join(edges[::-1]), dtype=np.int32).tolist()
    return codes_after(root_code(node.namespace), tokens)[-1]


def compare_tree(tree: RadixTree, model: PrefixModel) -> None:
    """Raise Mismatch unless the tree holds and remembers exactly the model's pages: in the same
    slots, under as many locks and pins, with the same priority, the unlocked ones of the same age.
    Nor may it hold two unlocked nodes that could be one.
    """
    size, resident, ghosts = model.page_size, 0, 0
    pending: list[tuple[TreeNode, int]] = [
        (root, root_code(name)) for name, root in tree.roots.items()
    ]
    while pending:
        node, code = pending.pop()
        codes = codes_after(code, node.tokens().tolist())
        slots = node.slots.tolist()
        said = (node.lock_ref, node.pins, node.priority)
        for start in range(0, node.resident, size):
            page = model.pages.get(codes[start + size])
            if page is None or page.slots != slots[start : start + size]:
                raise Mismatch(f"node {node.id} holds what the model does not, at {start}")
            same("locks, pins, priority", said, (page.locks, page.pins, page.priority))
            if not node.lock_ref:
                same("last use", node.last_used, page.used)
        for start in range(node.resident, len(node), size):
            ghost = model.ghosts.get(codes[start + size])
            if ghost is None:
                raise Mismatch(f"node {node.id} remembers what was not evicted, at {start}")
            same("priority of a ghost", node.priority, ghost.priority)
            if node.evicted_at < ghost.evicted_at:
                raise Mismatch(f"node {node.id} says it was evicted before it was")
        resident += node.resident
        ghosts += node.ghosts
        if not node.lock_ref and is_mergeable(node):
            raise Mismatch(f"node {node.id} and its only child could be one")
        pending.extend((child, codes[-1]) for child in node.children.values())
    same("cached tokens", resident, len(model.pages) * size)
    same("remembered tokens", ghosts, len(model.ghosts) * size)
