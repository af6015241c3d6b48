"""What the cache shows of itself: snapshots, totals, histograms, events, the block table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from radixlm.cache import RadixCache, RadixTree
from radixlm.cache.radix.tree_stats import Histogram
from radixlm.core.keys import as_key
from radixlm.core.moves import Place
from radixlm.core.reports import NodeView, TreeQuery, TreeSnapshot
from tests.invariants import check
from tests.tree_pictures import take_changes, tree_snapshot, watched


def serve(cache: RadixCache, tokens: list[int], namespace: str | None = None) -> None:
    lease = cache.acquire(tokens, namespace)
    assert lease.extend(len(tokens) - lease.length) is not None
    lease.commit(len(tokens))
    lease.release()
    check(cache)


def buckets(histogram: Histogram) -> tuple[tuple[int, int], ...]:
    """(smallest value, count) of every bucket that is not empty."""
    counts = enumerate(histogram.tally().by_bits)
    return tuple((1 << bits >> 1, count) for bits, count in counts if count)


@pytest.fixture
def cache() -> RadixCache:
    """[1 2] - [3 4 5] - [6] and [7], [1 2] - [8]; in another namespace [1 2 3]."""
    cache = RadixCache(100)
    for tokens in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7], [1, 2, 8]):
        serve(cache, tokens)
    serve(cache, [1, 2, 3], "a")
    return cache


def shown(snapshot: TreeSnapshot) -> list[tuple[object, tuple[int, ...], int]]:
    """(namespace, tokens, hidden), sorted."""
    rows = [(node.namespace, node.tokens, node.hidden) for node in snapshot.nodes]
    return sorted(rows, key=str)


class TestSnapshot:
    def test_whole(self, cache: RadixCache) -> None:
        pin = cache.pin([1, 2, 3])
        lease = cache.acquire([1, 2, 8, 9], priority=4)
        snapshot = tree_snapshot(cache.tree)
        assert (snapshot.version, snapshot.page_size) == (cache.tree.version, 1)
        assert len(snapshot.nodes) == cache.tree.node_count
        views = {(view.namespace, view.start, view.tokens): view for view in snapshot.nodes}
        upper = views[None, 0, (1, 2)]
        assert (upper.lock_ref, upper.pins, upper.priority, upper.resident) == (2, 1, 4, 2)
        assert (upper.hits, upper.hidden) == (3, 0)
        assert (views[None, 2, (3,)].pins, views[None, 2, (8,)].lock_ref) == (1, 1)
        assert views["a", 0, (1, 2, 3)].hits == 0
        cache.unpin(pin.id)
        lease.release()

    def test_the_path_to_a_node_is_of_its_namespace(self, cache: RadixCache) -> None:
        [node] = [view for view in tree_snapshot(cache.tree).nodes if view.tokens == (1, 2, 3)]
        path = tree_snapshot(cache.tree, TreeQuery(node=node.id)).path
        assert [view.namespace for view in path] == ["a"]

    def test_parents_come_first(self, cache: RadixCache) -> None:
        seen: set[int | None] = {None}
        snapshot = tree_snapshot(cache.tree)
        for view in snapshot.nodes:
            assert view.parent_id in seen
            seen.add(view.id)

        def below(node_id: int | None) -> list[NodeView]:
            return [view for view in snapshot.nodes if view.parent_id == node_id]

        roots = below(None)
        assert {root.namespace for root in roots} == {None, "a"}
        [top] = below(next(root.id for root in roots if root.namespace is None))
        assert {view.tokens for view in below(top.id)} == {(3, 4, 5), (8,)}

    def test_is_frozen(self, cache: RadixCache) -> None:
        snapshot = tree_snapshot(cache.tree)
        before = [(replace(view), view.slots.tolist()) for view in snapshot.nodes]
        serve(cache, [1, 2, 3, 50])
        cache.flush()
        assert [(view, view.slots.tolist()) for view in snapshot.nodes] == before
        assert snapshot.version != cache.tree.version

    @pytest.mark.parametrize(
        ("depth", "expected"),
        [
            (0, [("a", (), 1), (None, (), 5)]),
            (1, [("a", (), 0), ("a", (1, 2, 3), 0), (None, (), 0), (None, (1, 2), 4)]),
            (2, [("a", (), 0), ("a", (1, 2, 3), 0), (None, (), 0), (None, (1, 2), 0),
                 (None, (3, 4, 5), 2), (None, (8,), 0)]),
        ],
    )  # fmt: skip
    def test_pruned_by_depth(self, cache: RadixCache, depth: int, expected: list) -> None:
        snapshot = tree_snapshot(cache.tree, TreeQuery(max_depth=depth))
        assert shown(snapshot) == sorted(expected, key=str)
        hidden = sum(view.hidden for view in snapshot.nodes)
        assert len(snapshot.nodes) + hidden == cache.tree.node_count

    @pytest.mark.parametrize(
        ("least", "expected"),
        [
            (2, [("a", (), 0), ("a", (1, 2, 3), 0), (None, (), 0), (None, (1, 2), 1),
                 (None, (3, 4, 5), 2)]),
            (5, [("a", (), 1), (None, (), 0), (None, (1, 2), 1), (None, (3, 4, 5), 2)]),
            (6, [("a", (), 1), (None, (), 0), (None, (1, 2), 4)]),
            (9, [("a", (), 1), (None, (), 5)]),
        ],
    )  # fmt: skip
    def test_pruned_by_size(self, cache: RadixCache, least: int, expected: list) -> None:
        snapshot = tree_snapshot(cache.tree, TreeQuery(min_tokens=least))
        assert shown(snapshot) == sorted(expected, key=str)

    def test_by_both(self, cache: RadixCache) -> None:
        assert shown(tree_snapshot(cache.tree, TreeQuery(max_depth=1, min_tokens=5))) == sorted(
            [("a", (), 1), (None, (), 0), (None, (1, 2), 4)], key=str
        )

    def test_ghosts_show(self) -> None:
        tree = RadixTree(ghost_budget=10)
        tree.insert([1, 2, 3], [0, 1, 2])
        tree.evict(2)
        [_, view] = tree_snapshot(tree).nodes
        assert (view.tokens, view.resident) == ((1, 2, 3), 1)

    def test_what_is_on_disk_shows(self) -> None:
        cache = RadixCache(16)
        tier = cache.add_store(Place.DISK, 2, 8)
        picture = watched(cache.tree, TreeQuery())
        picture.develop(100)
        tier.stored(as_key([1, 2, 3, 4, 5]), None, 0, 5)
        changes = take_changes(cache.tree)
        assert changes is not None
        [*_, view] = picture.update(changes).nodes
        assert (view.tokens, view.resident, view.stored) == ((1, 2, 3, 4), 0, (0, 4))
        assert [node.stored for node in tree_snapshot(cache.tree).nodes] == [(0, 0), (0, 4)]

    def test_of_nothing(self) -> None:
        assert tree_snapshot(RadixCache(8).tree) == TreeSnapshot(0, 1, ())


class TestStats:
    def test_totals(self) -> None:
        cache = RadixCache(8)
        serve(cache, [1, 2, 3, 4])
        serve(cache, [1, 2, 9])
        serve(cache, [5] * 5)
        stats = cache.tree.stats
        assert (stats.matches, stats.matched_tokens) == (3, 2)
        assert (stats.inserts, stats.inserted_tokens, stats.revived_tokens) == (3, 10, 0)
        assert (stats.splits, stats.merges) == (1, 0)
        assert (stats.evictions, stats.evicted_tokens, stats.forgotten_tokens) == (1, 2, 0)
        serve(cache, [1, 2, 3, 4])
        assert stats.revived_tokens == 2
        cache.flush()
        assert stats.evicted_tokens == stats.revived_tokens + stats.forgotten_tokens

    def test_reuse_age_and_hits_at_eviction(self) -> None:
        tree = RadixTree()
        tree.insert([1], [0])
        tree.insert([2], [1])
        for _ in range(3):
            tree.dec_lock_ref(tree.inc_lock_ref(tree.match_prefix([2])))
        tree.dec_lock_ref(tree.inc_lock_ref(tree.match_prefix([1])))
        tree.dec_lock_ref(tree.inc_lock_ref(tree.match_prefix([7])))  # finds nothing: no reuse
        ages = buckets(tree.stats.reuse_age)
        assert ages == ((1, 3), (8, 1))
        tree.evict(2)
        assert buckets(tree.stats.hits_at_eviction) == ((1, 1), (2, 1))

    @pytest.mark.parametrize(
        ("value", "bucket"),
        [(0, 0), (1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (1_000, 512), (2**60, 2**38)],
    )
    def test_histogram(self, value: int, bucket: int) -> None:
        histogram = Histogram()
        histogram.add(value)
        assert buckets(histogram) == ((bucket, 1),)


class TestBlockTable:
    @pytest.mark.parametrize("page_size", [1, 4, 16])
    def test_names_the_page_of_each_page(self, page_size: int) -> None:
        cache = RadixCache(16 * page_size, page_size)
        blocker = cache.acquire([9] * (8 * page_size))
        lease = cache.acquire(list(range(6 * page_size)))
        for _ in range(3):
            blocker.extend(page_size)
            lease.extend(2 * page_size)
        table = lease.block_table()
        assert table.tolist() == [1, 2, 4, 5, 7, 8]
        offsets = np.arange(6 * page_size) % page_size
        assert (table.repeat(page_size) * page_size + offsets).tolist() == lease.slots.tolist()

    def test_the_reserved_page_is_in_it(self) -> None:
        cache = RadixCache(64, 16)
        lease = cache.acquire(list(range(20)))
        lease.extend(17)
        assert lease.block_table().tolist() == [0, 1]

    def test_follows_a_remap(self) -> None:
        cache = RadixCache(64, 4)
        first, second = cache.acquire(range(8)), cache.acquire(range(8))
        first.extend(8)
        second.extend(8)
        first.commit(8)
        assert second.block_table().tolist() == [2, 3]
        second.commit(8)
        assert second.block_table().tolist() == first.block_table().tolist() == [0, 1]

    def test_of_nothing(self) -> None:
        assert RadixCache(8).acquire([1, 2]).block_table().size == 0
