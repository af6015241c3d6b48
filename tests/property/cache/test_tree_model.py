"""Hypothesis against RadixTree: any order of calls, compared with a set of all prefixes."""

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

from benchmarks.cache_stress import PrefixModel, compare_tree
from radixlm.cache import RadixTree
from radixlm.core.errors import CacheError, StaleMatchError

NAMESPACES = st.sampled_from([None, "adapter"])
PAGES = st.lists(st.integers(0, 1), min_size=0, max_size=6)


class TreeMachine(RuleBasedStateMachine):
    """Keys are pages of two kinds and a torn rest, so that collisions and splits are common."""

    held = Bundle("held")

    @initialize(page_size=st.sampled_from([1, 4, 16]))
    def start(self, page_size: int) -> None:
        self.page_size = page_size
        self.tree = RadixTree(page_size)
        self.model = PrefixModel(page_size)
        self.next_slot = 0

    def _key(self, pages: list[int], rest: int) -> list[int]:
        torn = [7] * (rest % self.page_size)
        return [kind for kind in pages for _ in range(self.page_size)] + torn

    def _fresh(self, n: int) -> list[int]:
        self.next_slot += n
        return list(range(self.next_slot - n, self.next_slot))

    @rule(pages=PAGES, rest=st.integers(0, 15), namespace=NAMESPACES)
    def insert(self, pages: list[int], rest: int, namespace: str | None) -> None:
        key = self._key(pages, rest) or [0]
        slots = self._fresh(len(key))
        codes = self.model.codes(namespace, key)
        there = self.model.insert(codes, slots)
        inserted = self.tree.insert(key, slots, namespace)
        assert inserted.already_there == there
        assert inserted.node.end == len(key) - len(key) % self.page_size

    @rule(target=held, lock=consumes(held), pages=PAGES)
    def insert_below_a_held_node(self, lock: tuple, pages: list[int]) -> tuple:
        """The lock stays where it is, unless its node is the leaf that grew in place."""
        node, namespace, key = lock
        longer = key + self._key(pages, 0)
        if not longer:
            return lock
        slots = self._fresh(len(longer))
        codes = self.model.codes(namespace, longer)
        there = self.model.insert(codes, slots)
        inserted = self.tree.insert(longer, slots, namespace, start=node)
        assert inserted.already_there == there
        if inserted.node is not node:
            return lock
        self.model.held[codes[len(key)]] -= 1
        self.model.held[codes[-1]] += 1
        return node, namespace, longer

    @rule(pages=PAGES, rest=st.integers(0, 15), namespace=NAMESPACES)
    def match(self, pages: list[int], rest: int, namespace: str | None) -> None:
        key = self._key(pages, rest) or [0]
        codes = self.model.codes(namespace, key)
        version, nodes = self.tree.version, self.tree.node_count
        match = self.tree.match_prefix(key, namespace)
        assert match.length == self.model.match(codes, len(key))
        assert match.slots().tolist() == self.model.slots(codes[match.length])
        assert (self.tree.version, self.tree.node_count) == (version, nodes)

    @rule(target=held, pages=PAGES, namespace=NAMESPACES)
    def lock(self, pages: list[int], namespace: str | None) -> tuple:
        key = self._key(pages, 0) or [0] * self.page_size
        codes = self.model.codes(namespace, key)
        match = self.tree.match_prefix(key, namespace)
        unlocked = self.tree.unlocked_on_path(match)
        evictable = self.tree.evictable_size
        node = self.tree.inc_lock_ref(match)
        assert self.tree.evictable_size == evictable - unlocked
        assert node.end == match.length
        self.model.touch(codes[match.length])
        self.model.held[codes[match.length]] += 1
        return node, namespace, key[: match.length]

    @rule(lock=consumes(held))
    def unlock(self, lock: tuple) -> None:
        node, namespace, key = lock
        code = self.model.codes(namespace, key)[-1]
        self.model.touch(code)
        self.model.held[code] -= 1
        self.tree.dec_lock_ref(node)

    @rule(target=held, lock=consumes(held), pages=PAGES)
    def move(self, lock: tuple, pages: list[int]) -> tuple:
        """Insert below and take the lock along, as a commit does: a leaf may grow in place."""
        node, namespace, key = lock
        longer = key + self._key(pages, 0)
        if not longer:
            return lock
        slots = self._fresh(len(longer))
        codes = self.model.codes(namespace, longer)
        self.model.insert(codes, slots)
        deeper = self.tree.insert(longer, slots, namespace, start=node).node
        self.tree.move_lock(node, deeper)
        self.model.held[codes[len(key)]] -= 1
        self.model.held[codes[-1]] += 1
        return deeper, namespace, longer

    @precondition(lambda self: self.tree.evictable_size > 0)
    @rule(share=st.floats(0, 1))
    def evict(self, share: float) -> None:
        n_tokens = int(self.tree.evictable_size * share)
        freed = self.tree.evict(n_tokens).tolist()
        assert len(freed) - n_tokens in range(self.page_size)
        assert sorted(freed) == sorted(self.model.evict(n_tokens))

    @rule()
    def evict_too_much(self) -> None:
        version = self.tree.version
        with pytest.raises(CacheError, match="are evictable"):
            self.tree.evict(self.tree.evictable_size + 1)
        assert self.tree.version == version

    @rule(pages=PAGES, namespace=NAMESPACES)
    def stale_match(self, pages: list[int], namespace: str | None) -> None:
        key = self._key(pages, 0) or [0]
        match = self.tree.match_prefix(key, namespace)
        version = self.tree.version
        other = [9] * self.page_size
        slots = self._fresh(self.page_size)
        self.model.insert(self.model.codes(namespace, other), slots)
        self.tree.insert(other, slots, namespace)
        if self.tree.version == version:
            return
        with pytest.raises(StaleMatchError):
            self.tree.inc_lock_ref(match)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.check()
        compare_tree(self.tree, self.model)
        locked = len(self.model.locked()) * self.page_size
        assert self.tree.protected_size == locked
        assert self.tree.evictable_size == len(self.model.pages) * self.page_size - locked

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.evict(self.tree.evictable_size)
        if not self.tree.protected_size and not self.model.held.total():
            assert self.tree.node_count == 0


TestTree = TreeMachine.TestCase
TestTree.settings = settings(
    max_examples=150,
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
