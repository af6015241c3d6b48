"""Merge back: a node and its only child are one again when nothing tells them apart."""

from __future__ import annotations

import pytest

from radixlm.cache import RadixCache, RadixTree, TreeNode
from tests.invariants import check


def shape(tree: RadixTree) -> list[tuple[list[int], list[int]]]:
    """(tokens, slots) of every node but the roots, sorted."""
    return sorted(
        (node.tokens().tolist(), node.slots.tolist()) for node in tree.nodes() if node.parent
    )


def lock(tree: RadixTree, *tokens: int, priority: int = 0) -> TreeNode:
    return tree.inc_lock_ref(tree.match_prefix(tokens), priority)


def use(tree: RadixTree, *tokens: int, priority: int = 0) -> None:
    tree.dec_lock_ref(lock(tree, *tokens, priority=priority))


WHOLE = [([1, 2, 3, 4], [10, 11, 12, 13])]


@pytest.fixture
def line() -> RadixTree:
    """root - [1 2 3 4] 10 11 12 13."""
    tree = RadixTree(ghost_budget=100)
    tree.insert([1, 2, 3, 4], [10, 11, 12, 13])
    return tree


class TestMerges:
    def test_after_a_use_of_the_whole(self, line: RadixTree) -> None:
        use(line, 1, 2)
        node = lock(line, 1, 2, 3, 4)
        assert len(shape(line)) == 2
        line.dec_lock_ref(node)
        assert shape(line) == WHOLE
        assert (line.stats.splits, line.stats.merges, line.node_count) == (1, 1, 2)
        check(line)

    def test_after_an_insert_of_the_whole(self, line: RadixTree) -> None:
        line.insert([1, 2], [0, 0])
        assert len(shape(line)) == 2
        line.insert([1, 2, 3, 4], [0] * 4, priority=2)
        assert shape(line) == WHOLE
        check(line)

    def test_after_an_insert_below(self, line: RadixTree) -> None:
        line.insert([1, 2], [0, 0])
        node = line.insert([1, 2, 3, 4, 5, 6], range(10, 16)).node
        assert shape(line) == [([1, 2, 3, 4, 5, 6], [10, 11, 12, 13, 14, 15])]
        assert line.match_prefix([1, 2, 3, 4, 5, 6]).node is node
        check(line)

    def test_after_an_aborted_lease(self) -> None:
        cache = RadixCache(32)
        first = cache.acquire([1, 2, 3, 4, 5])
        first.extend(5)
        first.commit(5)
        first.release()
        second = cache.acquire([1, 2, 3, 9, 9])
        second.extend(2)
        assert cache.tree.node_count == 3
        second.release()
        assert cache.tree.node_count == 3  # [4 5] is older now
        third = cache.acquire([1, 2, 3, 4, 5, 6])
        third.release()
        assert (cache.tree.node_count, third.slots.tolist()) == (2, [0, 1, 2, 3, 4])
        check(cache)

    def test_a_repeated_prompt(self) -> None:
        """Cached but for its last token, which is computed again: one node, held or not."""
        cache = RadixCache(32)
        for _ in range(3):
            lease = cache.acquire([1, 2, 3, 4])
            lease.extend(4 - lease.cached)
            lease.commit(4)
            assert (cache.tree.node_count, len(lease.segments())) == (2, 1)
            lease.release()
            assert cache.tree.node_count == 2
        check(cache)

    def test_a_chat_that_grows(self) -> None:
        cache = RadixCache(100)
        for turn in range(1, 9):
            lease = cache.acquire(list(range(10 * turn)))
            lease.extend(10 * turn - lease.cached)
            lease.commit(10 * turn)
            lease.release()
            assert cache.tree.node_count == 2
        check(cache)

    def test_after_a_forgotten_sibling(self, line: RadixTree) -> None:
        line.insert([1, 2, 9], [10, 11, 20])
        use(line, 1, 2, 3, 4)
        assert line.evict(1).tolist() == [20]
        assert line.node_count == 4  # the ghost of [9] is still there
        line.forget_ghosts()
        assert shape(line) == WHOLE
        check(line)

    def test_a_ghost_that_is_computed_again(self, line: RadixTree) -> None:
        line.evict(2)
        leaf = line.match_prefix([1]).node
        held = lock(line, 1, 2, 3)
        assert shape(line) == [([1, 2], [10, 11]), ([3, 4], [])]
        held = line.insert([1, 2, 3, 4], [0, 0, 22, 23], start=held).node
        assert (shape(line), held) == ([([1, 2, 3, 4], [10, 11, 22, 23])], leaf)
        line.dec_lock_ref(held)
        check(line)

    def test_under_a_lock_that_goes_deeper(self, line: RadixTree) -> None:
        low, high = lock(line, 1, 2, 3, 4), lock(line, 1, 2)
        assert len(shape(line)) == 2
        line.dec_lock_ref(high)
        assert (shape(line), low.lock_ref, line.protected_size) == (WHOLE, 1, 4)
        check(line)
        line.dec_lock_ref(low)
        check(line)

    def test_when_a_lock_moves_on(self, line: RadixTree) -> None:
        held = lock(line, 1, 2)
        deeper = line.insert([1, 2, 3, 4], [0, 0, 0, 0], start=held).node
        assert (shape(line), deeper.lock_ref, deeper.end) == (WHOLE, 1, 4)
        check(line)

    def test_a_chain_in_one_go(self, line: RadixTree) -> None:
        held = [lock(line, *range(1, end + 1)) for end in (1, 2, 3)]
        assert len(shape(line)) == 4
        for node in held[::-1]:
            line.dec_lock_ref(node)
        assert len(shape(line)) == 4  # each was used later than the next
        use(line, 1, 2, 3)
        assert [tokens for tokens, _ in shape(line)] == [[1, 2, 3], [4]]
        use(line, 1, 2, 3, 4)
        assert shape(line) == WHOLE
        check(line)

    def test_the_child_keeps_its_identity_and_the_larger_numbers(self, line: RadixTree) -> None:
        leaf = line.match_prefix([1, 2, 3, 4]).node
        assert leaf is not None
        created = leaf.created
        upper = lock(line, 1, 2)
        assert (upper.hits, leaf.hits) == (1, 0)
        line.dec_lock_ref(upper)
        use(line, 1, 2, 3, 4)
        assert line.match_prefix([1, 2, 3, 4]).node is leaf
        assert (leaf.hits, leaf.created, leaf.start, leaf.end) == (2, created, 0, 4)
        assert leaf.last_used == line.match_prefix([7]).node.last_used  # the root's
        assert upper.parent is None


class TestDoesNot:
    def test_where_the_head_was_used_alone(self, line: RadixTree) -> None:
        """Else a cold tail would live as long as its head, and something warmer would go."""
        line.insert([7, 8], [17, 18])
        use(line, 1, 2)
        assert [tokens for tokens, _ in shape(line)] == [[1, 2], [3, 4], [7, 8]]
        assert line.evict(2).tolist() == [12, 13]
        check(line)

    def test_where_the_head_was_inserted_alone(self, line: RadixTree) -> None:
        line.insert([7, 8], [17, 18])
        line.insert([1, 2], [0, 0])
        assert line.evict(2).tolist() == [12, 13]
        check(line)

    def test_where_a_lock_ends_between(self, line: RadixTree) -> None:
        low, high = lock(line, 1, 2, 3, 4), lock(line, 1, 2)
        line.dec_lock_ref(low)
        assert [tokens for tokens, _ in shape(line)] == [[1, 2], [3, 4]]
        check(line)
        line.dec_lock_ref(high)
        use(line, 1, 2, 3, 4)
        assert shape(line) == WHOLE

    def test_where_a_pin_ends_between(self, line: RadixTree) -> None:
        pinned = line.pin(line.match_prefix([1, 2]))
        use(line, 1, 2, 3, 4)
        assert [tokens for tokens, _ in shape(line)] == [[1, 2], [3, 4]]
        check(line)
        line.unpin(pinned)
        use(line, 1, 2, 3, 4)
        assert shape(line) == WHOLE

    def test_where_two_leases_end_at_one_place_and_one_goes(self, line: RadixTree) -> None:
        first, second = lock(line, 1, 2), lock(line, 1, 2)
        line.dec_lock_ref(first)
        assert len(shape(line)) == 2
        line.dec_lock_ref(second)
        use(line, 1, 2, 3, 4)
        assert shape(line) == WHOLE

    def test_where_priorities_differ(self, line: RadixTree) -> None:
        use(line, 1, 2, priority=3)
        use(line, 1, 2, 3, 4)
        assert [tokens for tokens, _ in shape(line)] == [[1, 2], [3, 4]]
        use(line, 1, 2, 3, 4, priority=3)
        assert shape(line) == WHOLE
        check(line)

    def test_where_there_are_two_children(self, line: RadixTree) -> None:
        line.insert([1, 2, 9], [10, 11, 20])
        use(line, 1, 2)
        assert len(shape(line)) == 3

    def test_with_the_root(self, line: RadixTree) -> None:
        use(line, 7)
        assert (line.node_count, shape(line)) == (2, WHOLE)

    def test_a_node_does_not_grow_past_its_priority(self) -> None:
        """What is added by a request of less priority is told apart from what is there."""
        cache = RadixCache(32)
        high = cache.acquire([1, 2], priority=5)
        high.extend(2)
        high.commit(2)
        high.release()
        low = cache.acquire([1, 2, 3, 4])
        low.extend(2)
        low.commit(4)
        low.release()
        nodes = {n.tokens().tolist()[0]: n.priority for n in cache.tree.nodes() if n.parent}
        assert nodes == {1: 5, 3: 0}
        check(cache)


def test_an_insert_says_where_its_key_ends() -> None:
    """Though the nodes above it join, the one that it names stays in the tree."""
    tree = RadixTree()
    tree.insert([1, 2, 3], [1, 2, 3])
    held = tree.inc_lock_ref(tree.match_prefix([1, 2, 3]))
    inserted = tree.insert([1, 2], [1, 2])
    assert inserted.node in set(tree.nodes())
    assert inserted.node.end == 2
    check(tree)
    tree.dec_lock_ref(held)
    check(tree)
