"""Hypothesis against RadixTree: any order of calls, compared with a dictionary of all prefixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from radixlm.cache import NAMES, RadixTree, TreeNode, make_policy
from radixlm.core.errors import CacheError, InvalidKeyError, StaleMatchError
from tests.cache_model import PrefixModel, Watch, codes_after, compare_tree
from tests.invariants import check

NAMESPACES = st.sampled_from([None, "adapter"])
PAGES = st.lists(st.integers(0, 1), min_size=0, max_size=6)
REST = st.integers(0, 15)
PRIORITIES = st.sampled_from([0, 0, 1, 2])
Lock = tuple[TreeNode, list[int], list[int]]  # node, key, codes


class TreeMachine(RuleBasedStateMachine):
    """Keys are pages of two kinds and a torn rest, so that collisions and splits are common.

    Every eviction and every ghost that is forgotten goes through a Watch, see there.
    """

    held = Bundle("held")
    pinned = Bundle("pinned")

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        policy=st.sampled_from(sorted(NAMES)),
        ghosts=st.sampled_from([0, 2, 8, 100]),
    )
    def start(self, page_size: int, policy: str, ghosts: int) -> None:
        self.page_size = page_size
        self.tree = RadixTree(
            page_size, policy=make_policy(policy), ghost_budget=ghosts * page_size
        )
        self.model = PrefixModel(page_size)
        self.watch = Watch(self.tree, self.model)
        self.next_slot = 0
        self.locks = 0

    def _key(self, pages: list[int], rest: int) -> list[int]:
        torn = [7] * (rest % self.page_size)
        return [kind for kind in pages for _ in range(self.page_size)] + torn

    def _fresh(self, n: int) -> list[int]:
        self.next_slot += n
        return list(range(self.next_slot - n, self.next_slot))

    @rule(pages=PAGES, rest=REST, namespace=NAMESPACES)
    def insert(self, pages: list[int], rest: int, namespace: str | None) -> None:
        key = self._key(pages, rest) or [0]
        slots = self._fresh(len(key))
        codes = self.model.codes(namespace, key)
        there = self.model.insert(codes, slots)
        inserted = self.tree.insert(key, slots, namespace)
        assert inserted.already_there == there
        assert inserted.node.end == len(key) - len(key) % self.page_size
        self.model.touch(codes, inserted.node.end)

    @rule(target=held, lock=consumes(held), pages=PAGES, rest=REST, priority=PRIORITIES)
    def insert_below(self, lock: Lock, pages: list[int], rest: int, priority: int) -> Lock:
        """As a commit does: the lock moves down to where the key ends."""
        node, key, codes = lock
        longer = key + self._key(pages, rest)
        whole = len(longer) - len(longer) % self.page_size
        if not longer:
            return lock
        priority = min(priority, node.priority)  # a lease's own: its path has it already
        slots = self._fresh(len(longer))
        codes = codes + codes_after(codes[-1], longer[len(key) :])[1:]
        there = self.model.insert(codes, slots)
        self.model.lock(codes, len(key), whole, priority)
        inserted = self.tree.insert(longer, slots, start=node, priority=priority)
        assert inserted.already_there == there
        assert inserted.node.end == whole
        return inserted.node, longer[:whole], codes[: whole + 1]

    @rule(pages=PAGES, rest=REST, namespace=NAMESPACES)
    def match(self, pages: list[int], rest: int, namespace: str | None) -> None:
        key = self._key(pages, rest) or [0]
        codes = self.model.codes(namespace, key)
        version, nodes = self.tree.version, self.tree.node_count
        match = self.tree.match_prefix(key, namespace)
        assert match.length == self.model.match(codes, len(key))
        assert match.slots().tolist() == self.model.slots(codes, match.length)
        assert (self.tree.version, self.tree.node_count) == (version, nodes)

    @rule(target=held, pages=PAGES, namespace=NAMESPACES, priority=PRIORITIES)
    def lock(self, pages: list[int], namespace: str | None, priority: int) -> Lock:
        key = self._key(pages, 0) or [0] * self.page_size
        codes = self.model.codes(namespace, key)
        match = self.tree.match_prefix(key, namespace)
        unlocked = match.unlocked()
        evictable = self.tree.evictable_size
        node = self.tree.inc_lock_ref(match, priority)
        assert self.tree.evictable_size == evictable - unlocked
        assert node.end == match.length
        self.model.lock(codes, 0, match.length, priority)
        self.model.touch(codes, match.length)
        self.locks += 1
        return node, key[: match.length], codes[: match.length + 1]

    @rule(lock=consumes(held))
    def unlock(self, lock: Lock) -> None:
        node, key, codes = lock
        self.tree.dec_lock_ref(node)
        self.model.unlock(codes, len(key))
        self.locks -= 1

    @rule(target=pinned, pages=PAGES, namespace=NAMESPACES)
    def pin(self, pages: list[int], namespace: str | None) -> Lock:
        key = self._key(pages, 0) or [0] * self.page_size
        codes = self.model.codes(namespace, key)
        match = self.tree.match_prefix(key, namespace)
        assert match.unpinned() == self.model.unpinned(codes, match.length)
        node = self.tree.pin(match)
        self.model.pin(codes, match.length)
        self.locks += 1
        return node, key[: match.length], codes[: match.length + 1]

    @rule(lock=consumes(pinned))
    def unpin(self, lock: Lock) -> None:
        node, key, codes = lock
        self.tree.unpin(node)
        self.model.unpin(codes, len(key))
        self.locks -= 1

    @precondition(lambda self: self.tree.evictable_size > 0)
    @rule(share=st.floats(0, 1))
    def evict(self, share: float) -> None:
        n_tokens = int(self.tree.evictable_size * share)
        freed = self.tree.evict(n_tokens).tolist()
        assert len(freed) - n_tokens in range(self.page_size)
        assert freed == self.watch.take_freed()

    @rule(policy=st.sampled_from(sorted(NAMES)))
    def set_policy(self, policy: str) -> None:
        self.tree.set_policy(make_policy(policy))

    @rule()
    def forget_ghosts(self) -> None:
        self.tree.forget_ghosts()
        assert self.tree.ghosts.size == 0

    @rule(pages=PAGES, namespace=NAMESPACES)
    def misuse(self, pages: list[int], namespace: str | None) -> None:
        version = self.tree.version
        with pytest.raises(CacheError, match="are evictable"):
            self.tree.evict(self.tree.evictable_size + 1)
        assert self.tree.version == version
        key = np.array([*self._key(pages, 0), *[-5] * self.page_size], dtype=np.int32)
        with pytest.raises(InvalidKeyError, match="got -5"):
            self.tree.insert(key, np.arange(key.size), namespace)

    @rule(pages=PAGES, namespace=NAMESPACES)
    def stale_match(self, pages: list[int], namespace: str | None) -> None:
        key = self._key(pages, 0) or [0]
        match = self.tree.match_prefix(key, namespace)
        version = self.tree.version
        self.insert([1, 1, 0], 0, namespace)
        if self.tree.version == version:
            return
        for hold in (self.tree.inc_lock_ref, self.tree.pin):
            with pytest.raises(StaleMatchError):
                hold(match)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "tree"):
            return
        check(self.tree)
        compare_tree(self.tree, self.model)
        locked = self.model.locked * self.page_size
        assert self.tree.protected_size == locked
        assert self.tree.evictable_size == self.model.evictable
        assert self.tree.pinned_size == self.model.pinned * self.page_size

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.evict(self.tree.evictable_size)
        self.tree.forget_ghosts()
        if not self.locks:
            assert self.tree.node_count == 0


TestTree = TreeMachine.TestCase
TestTree.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_a_key_is_the_same_in_any_integer_type(dtype: type) -> None:
    tree = RadixTree()
    tree.insert(np.array([5, 6, 7], dtype=dtype), [0, 1, 2])
    assert tree.match_prefix([5, 6, 7]).length == 3


@pytest.mark.slow
class TestTreeAtLength(TestTree):  # type: ignore[misc,valid-type]
    settings = settings(TestTree.settings, max_examples=150)
