"""RadixTree: match, insert with split, path locks, eviction from the leaves' ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from radixlm.cache import RadixTree, TreeNode
from radixlm.core.errors import CacheError, StaleMatchError
from tests.invariants import check

PAGE_SIZES = [1, 4, 16]


def shape(tree: RadixTree) -> list[tuple[list[int], list[int]]]:
    """(tokens, slots) of every node but the roots, sorted."""
    return sorted(
        (node.tokens().tolist(), node.slots.tolist()) for node in tree.nodes() if node.parent
    )


def resident(tree: RadixTree) -> list[tuple[list[int], list[int]]]:
    return [(tokens[: len(slots)], slots) for tokens, slots in shape(tree) if slots]


def lock(tree: RadixTree, *tokens: int) -> TreeNode:
    return tree.inc_lock_ref(tree.match_prefix(tokens))


class TestMatchAndInsert:
    def test_classic_split(self, classic: RadixTree) -> None:
        assert shape(classic) == [([1, 2], [10, 11]), ([3, 4], [12, 13]), ([9], [22])]
        assert (classic.node_count, classic.evictable_size) == (4, 5)
        check(classic)

    @pytest.mark.parametrize(
        ("key", "slots"),
        [
            ([1], [10]),
            ([1, 2], [10, 11]),
            ([1, 2, 3], [10, 11, 12]),
            ([1, 2, 3, 4, 5], [10, 11, 12, 13]),
            ([1, 2, 9, 9], [10, 11, 22]),
            ([1, 9], [10]),
            ([2], []),
        ],
    )
    def test_longest_match(self, classic: RadixTree, key: list[int], slots: list[int]) -> None:
        match = classic.match_prefix(key)
        assert match.length == len(slots)
        assert match.slots().tolist() == slots

    def test_match_leaves_no_trace(self, classic: RadixTree) -> None:
        before = (classic.version, [(n.id, n.last_used, n.hits) for n in classic.nodes()])
        classic.match_prefix([1, 2, 3])
        classic.match_prefix([7], "nobody")
        assert before == (classic.version, [(n.id, n.last_used, n.hits) for n in classic.nodes()])

    def test_insert_of_a_prefix_splits_and_adds_nothing(self, classic: RadixTree) -> None:
        inserted = classic.insert([1, 2, 3], [7, 7, 7])
        assert (inserted.already_there, inserted.node.end) == (3, 3)
        assert shape(classic)[1:3] == [([3], [12]), ([4], [13])]
        check(classic)

    def test_insert_again_keeps_the_first_slots(self, classic: RadixTree) -> None:
        assert classic.insert([1, 2, 9], [7, 8, 9]).already_there == 3
        assert classic.match_prefix([1, 2, 9]).slots().tolist() == [10, 11, 22]

    def test_a_free_leaf_grows_in_place(self, classic: RadixTree) -> None:
        leaf = classic.match_prefix([1, 2, 9]).node
        inserted = classic.insert([1, 2, 9, 8, 7], [0, 0, 0, 23, 24])
        assert (inserted.already_there, inserted.node) == (3, leaf)
        assert leaf is not None
        assert leaf.slots.tolist() == [22, 23, 24]
        check(classic)

    def test_a_locked_leaf_grows_only_for_its_holder(self, classic: RadixTree) -> None:
        held = lock(classic, 1, 2, 9)
        stranger = classic.insert([1, 2, 9, 8], [0, 0, 0, 23]).node
        assert (stranger is held, stranger.parent) == (False, held)
        assert classic.evict(3).tolist() == [12, 13, 23]
        assert classic.insert([1, 2, 9, 8], [0, 0, 0, 24], start=held).node is held
        assert classic.protected_size == 4
        check(classic)

    def test_a_leaf_with_two_holders_does_not_grow(self, classic: RadixTree) -> None:
        held = lock(classic, 1, 2, 9)
        lock(classic, 1, 2, 9)
        assert classic.insert([1, 2, 9, 8], [0, 0, 0, 23], start=held).node is not held

    def test_start_spares_the_comparison_above(self, classic: RadixTree) -> None:
        held = lock(classic, 1, 2)
        inserted = classic.insert([1, 2, 3, 4, 5], [0, 0, 0, 0, 14], start=held)
        assert inserted.already_there == 4
        assert classic.match_prefix([1, 2, 3, 4, 5]).slots().tolist() == [10, 11, 12, 13, 14]
        check(classic)

    @pytest.mark.parametrize("page_size", PAGE_SIZES)
    def test_only_whole_pages_are_kept_and_matched(self, page_size: int) -> None:
        tree = RadixTree(page_size)
        key = list(range(3 * page_size + page_size // 2))
        inserted = tree.insert(key, key)
        assert (inserted.node.end, tree.evictable_size) == (3 * page_size, 3 * page_size)
        other = [*key[: 2 * page_size - 1], 999]
        assert tree.match_prefix(other).length == (1 if page_size == 1 else page_size)
        tree.insert(other, other)
        check(tree)

    @pytest.mark.parametrize("page_size", PAGE_SIZES[1:])
    def test_less_than_a_page_leaves_nothing_behind(self, page_size: int) -> None:
        tree = RadixTree(page_size)
        assert tree.insert([5], [0]).already_there == 0
        assert (tree.node_count, tree.evictable_size) == (0, 0)
        check(tree)

    def test_pages_that_begin_alike_are_different_children(self) -> None:
        tree = RadixTree(4)
        tree.insert([1, 1, 1, 1], [0, 1, 2, 3])
        tree.insert([1, 1, 1, 2], [4, 5, 6, 7])
        assert (tree.evictable_size, tree.node_count) == (8, 3)

    def test_a_difference_deep_in_a_long_edge_is_found(self) -> None:
        key = np.arange(100_000, dtype=np.int32)
        tree = RadixTree()
        tree.insert(key, key)
        other = key.copy()
        other[77_777] = 1
        assert tree.match_prefix(other).length == 77_777

    def test_an_edge_does_not_keep_the_prompt_alive(self) -> None:
        key = np.arange(8, dtype=np.int32)
        slots = key.copy()
        tree = RadixTree()
        tree.insert(key, slots)
        key[:], slots[:] = 0, 0
        assert tree.match_prefix(range(8)).slots().tolist() == list(range(8))


class TestNamespaces:
    def test_namespaces_never_share(self) -> None:
        tree = RadixTree()
        tree.insert([1, 2], [0, 1])
        tree.insert([1, 2, 3], [2, 3, 4], "adapter")
        assert tree.match_prefix([1, 2, 3]).slots().tolist() == [0, 1]
        assert tree.match_prefix([1, 2, 3], "adapter").slots().tolist() == [2, 3, 4]
        assert tree.match_prefix([1, 2, 3], "other").length == 0

    def test_empty_namespaces_leave_no_root(self) -> None:
        tree = RadixTree()
        for name in range(5):
            tree.insert([1, 2], [2 * name, 2 * name + 1], name)
        node = tree.inc_lock_ref(tree.match_prefix([1], "only looked at"))
        assert tree.node_count == 11
        tree.evict(10)
        tree.dec_lock_ref(node)
        assert (tree.node_count, list(tree.nodes())) == (0, [])
        check(tree)

    def test_a_locked_root_stays_until_it_is_let_go(self) -> None:
        tree = RadixTree()
        node = lock(tree, 5)
        tree.insert([5], [0])
        tree.evict(1)
        assert tree.node_count == 1
        tree.dec_lock_ref(node)
        assert tree.node_count == 0


class TestLocks:
    def test_a_lock_covers_the_path_and_splits_at_its_end(self, classic: RadixTree) -> None:
        node = lock(classic, 1, 2, 3)
        assert (classic.protected_size, classic.evictable_size) == (3, 2)
        assert [n.lock_ref for n in (node, node.parent, node.parent.parent)] == [1, 1, 1]
        check(classic)
        classic.dec_lock_ref(node)
        assert (classic.protected_size, classic.evictable_size) == (0, 5)
        check(classic)

    def test_a_split_of_a_locked_edge_locks_both_halves(self, classic: RadixTree) -> None:
        low = lock(classic, 1, 2, 3, 4)
        high = lock(classic, 1)
        assert (high.lock_ref, low.parent.lock_ref, low.lock_ref) == (2, 1, 1)
        classic.dec_lock_ref(low)
        assert (classic.protected_size, classic.evictable_size) == (1, 4)
        check(classic)

    def test_the_tail_of_a_split_edge_keeps_its_age(self) -> None:
        tree = RadixTree()
        tail = tree.insert([1, 2, 3, 4], [0, 1, 2, 3]).node
        age = tail.last_used
        tree.insert([9], [9])
        upper = lock(tree, 1, 2)
        assert (tail.last_used, upper.last_used > age) == (age, True)

    def test_insert_moves_the_lock_down_with_it(self, classic: RadixTree) -> None:
        high = lock(classic, 1, 2)
        low = classic.insert([1, 2, 3, 4], [0] * 4, start=high).node
        assert (high.lock_ref, low.lock_ref, classic.protected_size) == (1, 1, 4)
        check(classic)
        classic.dec_lock_ref(low)
        assert classic.protected_size == 0
        check(classic)

    def test_only_the_caller_s_lock_moves(self, classic: RadixTree) -> None:
        mine, other = lock(classic, 1, 2), lock(classic, 1, 2)
        low = classic.insert([1, 2, 7], [0, 0, 30], start=mine).node
        assert (other.lock_ref, low.lock_ref, classic.protected_size) == (2, 1, 3)
        check(classic)

    def test_unlocked_tokens_of_a_match(self, classic: RadixTree) -> None:
        assert classic.match_prefix([1, 2, 3]).unlocked() == 3
        lock(classic, 1)
        assert classic.match_prefix([1, 2, 3]).unlocked() == 2
        assert classic.match_prefix([1]).unlocked() == 0
        assert classic.match_prefix([1], "nobody").unlocked() == 0

    @pytest.mark.parametrize(
        "change",
        [
            lambda tree: tree.insert([8], [80]),
            lambda tree: tree.insert([1, 2, 3, 4, 5], [0, 0, 0, 0, 14]),
            lambda tree: tree.insert([1], [0]),
            lambda tree: tree.evict(1),
            lambda tree: lock(tree, 1),
        ],
    )
    def test_a_stale_match_raises(
        self, classic: RadixTree, change: Callable[[RadixTree], object]
    ) -> None:
        match = classic.match_prefix([1, 2, 3])
        change(classic)
        protected = classic.protected_size
        with pytest.raises(StaleMatchError, match=f"match of version {match.version}"):
            classic.inc_lock_ref(match)
        assert classic.protected_size == protected
        check(classic)

    def test_letting_go_of_what_is_not_held_raises(self, classic: RadixTree) -> None:
        node = lock(classic, 1, 2)
        classic.dec_lock_ref(node)
        with pytest.raises(CacheError, match=f"node {node.id} is not locked"):
            classic.dec_lock_ref(node)
        check(classic)


class TestEviction:
    def test_leaf_first_and_oldest_first(self, classic: RadixTree) -> None:
        assert classic.evict(2).tolist() == [12, 13]
        assert classic.evict(1).tolist() == [22]
        assert classic.evict(2).tolist() == [10, 11]
        assert classic.node_count == 0
        check(classic)

    def test_the_end_of_a_leaf_goes_first(self, classic: RadixTree) -> None:
        assert classic.evict(1).tolist() == [13]
        assert classic.match_prefix([1, 2, 3, 4]).slots().tolist() == [10, 11, 12]
        check(classic)

    def test_use_makes_young(self, classic: RadixTree) -> None:
        classic.dec_lock_ref(lock(classic, 1, 2, 3, 4))
        assert classic.evict(3).tolist() == [22, 12, 13]

    @pytest.mark.parametrize("page_size", PAGE_SIZES)
    def test_whole_pages(self, page_size: int) -> None:
        tree = RadixTree(page_size)
        key = list(range(4 * page_size))
        tree.insert(key, key)
        assert tree.evict(1).tolist() == key[3 * page_size :]
        assert tree.evict(page_size + 1 if page_size > 1 else 2).size == 2 * page_size
        assert tree.evictable_size == page_size
        check(tree)

    def test_locked_is_never_evicted(self, classic: RadixTree) -> None:
        held = lock(classic, 1, 2, 3)
        assert sorted(classic.evict(2).tolist()) == [13, 22]
        with pytest.raises(CacheError, match="1 tokens to evict, 0 are evictable"):
            classic.evict(1)
        assert resident(classic) == [([1, 2, 3], [10, 11, 12])]
        check(classic)
        classic.dec_lock_ref(held)
        assert classic.evict(3).size == 3

    def test_too_much_raises_and_changes_nothing(self, classic: RadixTree) -> None:
        before = (classic.version, shape(classic))
        with pytest.raises(CacheError, match="6 tokens to evict, 5 are evictable"):
            classic.evict(6)
        assert (classic.version, shape(classic)) == before

    def test_nothing_to_evict_is_nothing(self, classic: RadixTree) -> None:
        assert classic.evict(0).size == 0
        assert classic.evictable_size == 5

    def test_a_policy_is_one_method(self) -> None:
        class Shortest:
            def key(self, node: TreeNode) -> int:
                return node.end

        tree = RadixTree(policy=Shortest())
        tree.insert([1, 1, 1], [0, 1, 2])
        tree.insert([2], [3])
        assert tree.evict(1).tolist() == [3]
