"""RadixTree: what is refused, and that `check()` bites."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from radixlm.cache import RadixCache, RadixTree, TreeNode, make_policy
from radixlm.cache.radix.node import NO_SLOTS
from radixlm.core.errors import CacheError, ConfigError, InvalidKeyError, InvariantError
from tests.invariants import check


def state(tree: RadixTree) -> list[tuple[object, ...]]:
    """All that a refused call may not change."""
    sizes = (tree.node_count, tree.evictable_size, tree.protected_size, tree.pinned_size)
    nodes = [(n.id, n.edge, n.slots.tolist(), n.lock_ref, n.last_used) for n in tree.nodes()]
    return [sizes, (tree.ghosts.size, tree.version), *sorted(nodes)]


class TestErrors:
    @pytest.mark.parametrize(
        ("key", "message"),
        [
            ([], "at least one token"),
            ([[1, 2]], r"got shape \(1, 2\)"),
            (7, r"got shape \(\)"),
            ([-1], "got -1"),
            ([2**31], "2147483648 does not fit"),
            ([-(2**40)], "-1099511627776 does not fit"),
            ([2**70], "dtype object"),
            ([1.5], "dtype float64"),
            (["a"], "dtype <U1"),
            ([[1], [1, 2]], "do not form one row"),
            (np.empty(0, dtype=np.int32), "at least one token"),
            (np.zeros((2, 3), dtype=np.int32), r"got shape \(2, 3\)"),
            (np.array([1, 2], dtype=np.float32), "dtype float32"),
            (np.array([True, False]), "dtype bool"),
            (np.array([4, -7], dtype=np.int64), "got -7"),
            (np.array([2**63], dtype=np.uint64), "9223372036854775808 does not fit"),
        ],
    )
    def test_bad_key(self, classic: RadixTree, key: object, message: str) -> None:
        before = state(classic)
        with pytest.raises(InvalidKeyError, match=message):
            classic.match_prefix(key)  # type: ignore[arg-type]
        with pytest.raises(InvalidKeyError, match=message):
            classic.insert(key, [1])  # type: ignore[arg-type]
        assert state(classic) == before
        check(classic)

    def test_slots_must_fit_the_key(self, classic: RadixTree) -> None:
        with pytest.raises(InvalidKeyError, match=r"2 tokens but slots of shape \(1,\)"):
            classic.insert([1, 2], [5])
        check(classic)

    @pytest.mark.parametrize("page_size", [1, 4])
    @pytest.mark.parametrize("namespace", [None, "fresh"])
    @pytest.mark.parametrize("at", [0, 4, 5, 7])
    def test_negative_ids_in_an_int32_array(
        self, page_size: int, namespace: str | None, at: int
    ) -> None:
        """They are taken as a key without a look at each; the tree refuses them."""
        tree = RadixTree(page_size, ghost_budget=8)
        tree.insert([1, 2, 3, 4, 5, 6, 7, 8], range(8))
        tree.evict(2)
        before = state(tree)[0:1] + state(tree)[2:]
        key = np.array([1, 2, 3, 4, 9, 9, 9, 9], dtype=np.int32)
        key[at] = -3
        with pytest.raises(InvalidKeyError, match="got -3"):
            tree.insert(key, np.arange(8), namespace)
        assert state(tree)[0:1] + state(tree)[2:] == before
        assert tree.match_prefix(key, namespace).length <= 4
        check(tree)

    def test_negative_ids_below_a_held_node(self, classic: RadixTree) -> None:
        held = classic.inc_lock_ref(classic.match_prefix([1, 2]))
        before = state(classic)
        key = np.array([1, 2, -1], dtype=np.int32)
        with pytest.raises(InvalidKeyError, match="got -1"):
            classic.insert(key, np.arange(3), start=held)
        assert state(classic) == before
        check(classic)

    def test_a_ghost_budget_is_not_negative(self) -> None:
        with pytest.raises(CacheError, match="got -1"):
            RadixTree(ghost_budget=-1)

    def test_letting_go_of_what_is_not_pinned(self, classic: RadixTree) -> None:
        node = classic.inc_lock_ref(classic.match_prefix([1, 2]))
        before = state(classic)
        with pytest.raises(CacheError, match=f"node {node.id} is not pinned"):
            classic.unpin(node)
        assert state(classic) == before
        check(classic)

    def test_a_locked_node_has_no_ghosts_to_revive(self, classic: RadixTree) -> None:
        node = classic.inc_lock_ref(classic.match_prefix([1, 2]))
        with pytest.raises(CacheError, match=f"node {node.id} can hold no ghosts"):
            classic.revive(node, np.arange(1))
        check(classic)

    @pytest.mark.parametrize("page_size", [0, -1, 3, 12])
    def test_page_size_must_be_a_power_of_two(self, page_size: int) -> None:
        with pytest.raises(ConfigError, match=f"got {page_size}"):
            RadixTree(page_size)

    @pytest.mark.parametrize("offset", [0, 2, -1])
    def test_a_split_outside_of_a_node(self, classic: RadixTree, offset: int) -> None:
        node = classic.match_prefix([1, 2]).node
        assert node is not None
        with pytest.raises(CacheError, match=f"of 2 tokens can not be cut at {offset}"):
            classic.split(node, offset)
        check(classic)


class TestCheck:
    """`check()` bites: each invariant, broken by hand, is named."""

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda _, n: setattr(n, "slots", n.slots[:-1]), "2 resident, not its slots"),
            (lambda _, n: n.set_slots(np.arange(3)), "2 tokens, 3 resident"),
            (lambda _, n: n.parent.set_slots(n.slots[:1]), "outlived its parent"),
            (lambda _, n: n.set_slots(n.slots[:0]), "live children, it has"),
            (lambda _, n: setattr(n, "pins", 1), "0 pins, 1 below it"),
            (lambda _, n: setattr(n.parent, "live", 1), "1 live children, it has 2"),
            (lambda _, n: setattr(n, "priority", 1), "more priority than its parent"),
            (lambda _, n: setattr(n, "lock_ref", -1), "-1 below it"),
            (lambda _, n: setattr(n, "lock_ref", 1), "locks"),
            (lambda _, n: setattr(n, "end", 9), "end 9"),
            (lambda _, n: setattr(n, "last_used", 99), "younger than its parent"),
            (lambda _, n: setattr(n, "namespace", "a"), "is in 'a'"),
            (lambda _, n: setattr(n, "queued_key", None), "in no eviction order"),
            (lambda _, n: setattr(n, "parent", None), "has no parent|does not know"),
            (lambda _, n: n.set_edge(n.edge[::-1], n.slots), "another page"),
            (lambda t, _: setattr(t, "evictable_size", 4), "its books say"),
            (lambda t, _: setattr(t, "protected_size", 1), "its books say"),
            (lambda t, _: t.by_id.popitem(), "its books say"),
            (lambda t, _: setattr(t, "pinned_size", 1), "its books say"),
            (lambda t, _: setattr(t.ghosts, "size", 1), "its books say"),
            (lambda t, _: setattr(t.ghosts, "budget", -1), "0 ghost tokens, the budget is -1"),
            (lambda t, _: t.roots.update(empty=TreeNode(9, b"", NO_SLOTS, None)), "an empty root"),
        ],
    )
    def test_broken_by_hand(
        self,
        classic: RadixTree,
        spoil: Callable[[RadixTree, TreeNode], object],
        message: str,
    ) -> None:
        node = classic.match_prefix([1, 2, 3, 4]).node
        assert node is not None
        spoil(classic, node)
        with pytest.raises(InvariantError, match=message):
            check(classic)

    def test_torn_page(self) -> None:
        tree = RadixTree(4)
        node = tree.insert(range(8), range(8)).node
        node.set_edge(node.edge[:24], node.slots[:6])
        with pytest.raises(InvariantError, match=f"node {node.id}: torn page"):
            check(tree)


def test_what_is_not_held_is_refused_and_nothing_changes() -> None:
    """Unlocking twice, unlocking what is locked from below only, starting where nobody holds."""
    tree = RadixTree()
    tree.insert(list(range(8)), list(range(8)))
    upper = tree.inc_lock_ref(tree.match_prefix([0, 1, 2, 3]))
    lower = tree.inc_lock_ref(tree.match_prefix(list(range(8))))
    tree.dec_lock_ref(upper)
    for node in (upper, *(node for node in tree.nodes() if node is not lower)):
        with pytest.raises(CacheError, match="not locked"):
            tree.dec_lock_ref(node)
        with pytest.raises(CacheError, match="nothing can start there"):
            tree.insert(list(range(9)), list(range(9)), start=node)
    check(tree)
    assert (tree.protected_size, tree.evictable_size) == (8, 0)
    tree.dec_lock_ref(lower)
    check(tree)


def test_a_negative_priority_counts_from_the_start() -> None:
    cache = RadixCache(20, policy=make_policy("priority"))
    for first, priority in ((1, -5), (50, 0)):
        lease = cache.acquire(list(range(first, first + 10)), priority=priority)
        lease.extend(10)
        lease.commit(10)
        lease.release()
    lease = cache.acquire(list(range(80, 85)))
    lease.extend(5)
    lease.release()
    assert cache.match(list(range(1, 12))).length == 5
    assert cache.match(list(range(50, 61))).length == 10
    assert (cache.tree.evictable_size, cache.tree.ghosts.size) == (15, 5)
