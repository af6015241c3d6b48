"""Ghosts: evicted tokens are remembered within a budget, never matched, and revived in place."""

from __future__ import annotations

import pytest

from radixlm.cache import RadixCache, RadixTree
from radixlm.core.clock import VirtualClock
from tests.invariants import check

PAGE_SIZES = [1, 4, 16]


def ghosts(tree: RadixTree) -> list[tuple[list[int], int]]:
    """(tokens, resident) of every node that remembers something, sorted."""
    return sorted((node.tokens().tolist(), node.resident) for node in tree.nodes() if node.ghosts)


def serve(cache: RadixCache, tokens: list[int], namespace: str | None = None) -> int:
    lease = cache.acquire(tokens, namespace)
    assert lease.extend(len(tokens) - lease.length) is not None
    lease.commit(len(tokens))
    lease.release()
    check(cache)
    return lease.cached


class TestLeftBehind:
    def test_a_trimmed_leaf_keeps_its_whole_key(self) -> None:
        tree = RadixTree(ghost_budget=10)
        leaf = tree.insert([1, 2, 3, 4], [10, 11, 12, 13]).node
        tree.evict(1)
        check(tree)
        assert (len(leaf), leaf.resident, leaf.ghosts) == (4, 3, 1)
        tree.evict(3)
        assert (len(leaf), leaf.resident, leaf.slots.size) == (4, 0, 0)
        assert (tree.ghosts.size, tree.evictable_size, tree.node_count) == (4, 0, 2)
        check(tree)

    @pytest.mark.parametrize("page_size", PAGE_SIZES)
    def test_are_never_matched(self, page_size: int) -> None:
        tree = RadixTree(page_size, ghost_budget=100)
        key = list(range(4 * page_size))
        tree.insert(key, key)
        tree.evict(2 * page_size)
        match = tree.match_prefix(key)
        assert (match.length, match.slots().tolist()) == (2 * page_size, key[: 2 * page_size])
        tree.evict(2 * page_size)
        assert tree.match_prefix(key).length == 0
        check(tree)

    def test_a_match_stops_at_the_last_resident_ancestor(self) -> None:
        tree = RadixTree(ghost_budget=100)
        tree.insert([1, 2, 3, 4], [0, 1, 2, 3])
        tree.insert([1, 2, 9], [0, 1, 4])
        tree.evict(4)  # both leaves and the end of [1 2]
        assert tree.match_prefix([1, 2, 3, 4]).length == 1
        check(tree)

    def test_a_lock_cuts_what_is_resident_from_its_ghost(self) -> None:
        tree = RadixTree(ghost_budget=100)
        leaf = tree.insert([1, 2, 3, 4], [0, 1, 2, 3]).node
        tree.evict(2)
        held = tree.inc_lock_ref(tree.match_prefix([1, 2, 3, 4]))
        assert (held.end, held.ghosts, leaf.parent, leaf.resident) == (2, 0, held, 0)
        check(tree)
        tree.dec_lock_ref(held)
        assert ghosts(tree) == [([3, 4], 0)]
        check(tree)

    def test_no_budget_no_ghosts(self) -> None:
        tree = RadixTree()
        leaf = tree.insert([1, 2, 3], [0, 1, 2]).node
        tree.evict(1)
        assert (len(leaf), leaf.end, tree.ghosts.size) == (2, 2, 0)
        tree.evict(2)
        assert (tree.node_count, tree.ghosts.size) == (0, 0)
        assert tree.stats.forgotten_tokens == 3
        check(tree)

    def test_an_empty_namespace_is_kept_for_its_ghosts_only(self) -> None:
        tree = RadixTree(ghost_budget=2)
        tree.insert([1, 2], [0, 1], "a")
        tree.evict(2)
        assert list(tree.roots) == ["a"]
        tree.insert([1, 2], [2, 3], "b")
        tree.evict(2)
        assert list(tree.roots) == ["b"]
        check(tree)


class TestBudget:
    def test_the_longest_evicted_goes_first(self) -> None:
        tree = RadixTree(ghost_budget=6)
        for name in (1, 2, 3, 4):
            tree.insert([name, 0, 0], [3 * name, 3 * name + 1, 3 * name + 2])
        tree.evict(6)
        assert ghosts(tree) == [([1, 0, 0], 0), ([2, 0, 0], 0)]
        tree.evict(3)
        assert ghosts(tree) == [([2, 0, 0], 0), ([3, 0, 0], 0)]
        tree.evict(3)
        assert (ghosts(tree), tree.ghosts.size) == ([([3, 0, 0], 0), ([4, 0, 0], 0)], 6)
        assert tree.stats.forgotten_tokens == 6
        check(tree)

    def test_evicted_again_is_fresh_again(self) -> None:
        tree = RadixTree(ghost_budget=4)
        tree.insert([1, 0], [0, 1])
        tree.evict(2)
        tree.insert([2, 0], [2, 3])
        tree.evict(2)
        tree.insert([1, 0], [4, 5])
        tree.evict(2)
        tree.insert([3, 0], [6, 7])
        tree.evict(2)
        assert ghosts(tree) == [([1, 0], 0), ([3, 0], 0)]

    def test_what_is_larger_than_the_budget_is_forgotten_at_once(self) -> None:
        tree = RadixTree(ghost_budget=3)
        leaf = tree.insert(range(10), range(10)).node
        tree.evict(3)
        assert (tree.ghosts.size, len(leaf)) == (3, 10)
        tree.evict(1)
        assert (tree.ghosts.size, len(leaf), leaf.resident) == (0, 6, 6)
        check(tree)

    def test_a_ghost_goes_with_all_below_it(self) -> None:
        tree = RadixTree(ghost_budget=100)
        tree.insert([1, 2, 3], [0, 1, 2])
        tree.insert([1, 2, 4], [0, 1, 3])
        tree.evict(4)
        assert (tree.node_count, tree.ghosts.size) == (4, 4)
        tree.forget_ghosts()
        assert (tree.node_count, tree.ghosts.size) == (0, 0)
        tree.insert([5], [5])
        tree.evict(1)
        assert tree.ghosts.size == 1  # the budget is what it was
        check(tree)

    def test_the_cache_remembers_four_times_its_capacity(self) -> None:
        cache = RadixCache(8)
        for name in range(20):
            serve(cache, [100 + name] * 4)
        assert cache.tree.ghosts.size == 32
        assert RadixCache(8, ghost_budget=3).tree.ghosts.budget == 3

    def test_flush_drops_them(self) -> None:
        cache = RadixCache(8)
        serve(cache, [1, 2, 3, 4])
        held = cache.acquire([1, 2, 9])
        assert cache.flush() == 2
        assert (cache.tree.ghosts.size, cache.tree.node_count) == (0, 2)
        held.release()
        check(cache)


class TestRevival:
    def test_kv_returns_to_the_same_node(self) -> None:
        tree = RadixTree(ghost_budget=10)
        leaf = tree.insert([1, 2, 3, 4], [10, 11, 12, 13]).node
        tree.evict(3)
        inserted = tree.insert([1, 2, 3, 4], [20, 21, 22, 23])
        assert (inserted.already_there, inserted.node) == (1, leaf)
        assert leaf.slots.tolist() == [10, 21, 22, 23]
        assert (tree.ghosts.size, tree.stats.revived_tokens, tree.evictable_size) == (0, 3, 4)
        check(tree)
        assert tree.evict(4).tolist() == [10, 21, 22, 23]

    def test_only_as_far_as_the_key_goes(self) -> None:
        tree = RadixTree(ghost_budget=10)
        leaf = tree.insert([1, 2, 3, 4], [10, 11, 12, 13]).node
        tree.evict(4)
        inserted = tree.insert([1, 2], [20, 21])
        assert (inserted.already_there, inserted.node.slots.tolist()) == (0, [20, 21])
        assert (leaf.parent, leaf.tokens().tolist(), leaf.resident) == (inserted.node, [3, 4], 0)
        check(tree)

    def test_another_end_stays_a_ghost(self) -> None:
        tree = RadixTree(ghost_budget=10)
        leaf = tree.insert([1, 2, 3, 4], [10, 11, 12, 13]).node
        tree.evict(4)
        tree.insert([1, 2, 7], [20, 21, 22])
        assert tree.match_prefix([1, 2, 7]).slots().tolist() == [20, 21, 22]
        assert (leaf.tokens().tolist(), leaf.resident, tree.ghosts.size) == ([3, 4], 0, 2)
        check(tree)

    def test_a_whole_path_of_ghosts(self) -> None:
        tree = RadixTree(ghost_budget=10)
        tree.insert([1, 2, 3], [10, 11, 12])
        tree.insert([1, 2, 4], [0, 0, 13])
        ids = {node.id for node in tree.nodes()}
        tree.evict(4)
        assert tree.insert([1, 2, 3, 5], [20, 21, 22, 23]).already_there == 0
        assert tree.match_prefix([1, 2, 3, 5]).slots().tolist() == [20, 21, 22, 23]
        assert {node.id for node in tree.nodes()} == ids  # [3] grew in place
        assert ghosts(tree) == [([4], 0)]
        check(tree)

    @pytest.mark.parametrize("page_size", PAGE_SIZES)
    def test_by_a_lease(self, page_size: int) -> None:
        cache = RadixCache(4 * page_size, page_size)
        key = [1] * (3 * page_size)
        serve(cache, key)
        node = cache.match([*key, 9], max_match=3 * page_size).node
        assert node is not None
        serve(cache, [2] * (3 * page_size))
        assert (cache.match(key).length, node.resident) == (page_size, page_size)
        assert serve(cache, [*key, 9]) == page_size
        assert cache.match([*key, 9]).node is node
        assert cache.tree.stats.revived_tokens == 2 * page_size


def test_age_is_by_the_tree_s_clock() -> None:
    clock = VirtualClock(10.0)
    tree = RadixTree(ghost_budget=10, clock=clock)
    leaf = tree.insert([1, 2], [0, 1]).node
    tree.evict(1)
    assert leaf.evicted_at == 10.0
    clock.advance(5)
    tree.evict(1)
    assert leaf.evicted_at == 15.0
