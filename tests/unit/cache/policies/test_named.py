"""Eviction policies: each one's order, a user's own, and what none of them may do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radixlm.cache import POLICIES, RadixCache, RadixTree, TreeNode, make_policy
from radixlm.cache.radix.eviction import EvictionOrder
from radixlm.core.errors import ConfigError
from tests.invariants import check

HERE = f"{__name__}"


class LowestToken:
    """A user's own: found by its path."""

    def key(self, node: TreeNode) -> int:
        return int(node.tokens()[0])


class NoPolicy:
    """Has no key()."""


class NeedsArgument:
    def __init__(self, size: int) -> None:
        self.size = size

    def key(self, node: TreeNode) -> int:
        return self.size


def use(tree: RadixTree, token: int, times: int = 1, priority: int = 0) -> None:
    for _ in range(times):
        tree.dec_lock_ref(tree.inc_lock_ref(tree.match_prefix([token]), priority))


def four(policy: str) -> RadixTree:
    """Leaves [3] [1] [4] [2], in that order; a leaf's slot is its token.

    token      3  1  4  2
    hits       0  3  1  2      each used after the other, the longest ago first: 3 1 2 4
    priority   2  0  1  0
    """
    tree = RadixTree(policy=make_policy(policy))
    for token in (3, 1, 4, 2):
        tree.insert([token], [token])
    use(tree, 3, 0)
    use(tree, 1, 3)
    use(tree, 2, 2)
    use(tree, 4, 1)
    for token, priority in ((3, 2), (1, 0), (4, 1), (2, 0)):
        node = tree.match_prefix([token]).node
        assert node is not None
        node.priority = priority
    return tree


def one_by_one(tree: RadixTree) -> list[int]:
    order = []
    while tree.evictable_size:
        order += tree.evict(1).tolist()
        check(tree)
    return order


ORDERS = {
    "lru": [3, 1, 2, 4],
    "mru": [4, 2, 1, 3],
    "lfu": [3, 4, 2, 1],
    "fifo": [3, 1, 4, 2],
    "filo": [2, 4, 1, 3],
    "slru": [3, 4, 1, 2],
    "priority": [1, 2, 4, 3],
    f"{HERE}:LowestToken": [1, 2, 3, 4],
}


class TestOrder:
    def test_every_policy_is_here(self) -> None:
        assert set(POLICIES) == {name for name in ORDERS if ":" not in name}

    @pytest.mark.parametrize("name", [name for name in ORDERS if ":" not in name])
    def test_of_each(self, name: str) -> None:
        tree = four(name)
        tree.set_policy(make_policy(name))
        assert one_by_one(tree) == ORDERS[name]

    @pytest.mark.parametrize("first", sorted(POLICIES))
    @pytest.mark.parametrize("second", sorted(POLICIES))
    def test_a_change_at_run_time(self, first: str, second: str) -> None:
        tree = four(first)
        tree.set_policy(make_policy(first))
        assert tree.evict(1).tolist() == ORDERS[first][:1]
        tree.set_policy(make_policy(second))
        check(tree)
        assert one_by_one(tree) == [t for t in ORDERS[second] if t != ORDERS[first][0]]

    @pytest.mark.parametrize(
        ("name", "expected"),
        [("lru", [1, 2]), ("mru", [2, 1]), ("lfu", [1, 2]), ("fifo", [1, 2]), ("filo", [2, 1])],
    )
    def test_keys_that_change_without_a_rebuild(self, name: str, expected: list[int]) -> None:
        """2 is used, then 1, then 2 again: entries in the order are stale both ways."""
        tree = RadixTree(policy=make_policy(name))
        tree.insert([1], [1])
        tree.insert([2], [2])
        for token in (2, 1, 2):
            use(tree, token)
        assert one_by_one(tree) == expected

    def test_priority_is_the_request_s(self) -> None:
        tree = RadixTree(policy=make_policy("priority"))
        tree.insert([1], [1])
        tree.insert([2], [2])
        use(tree, 1, priority=1)
        use(tree, 2)
        assert one_by_one(tree) == [2, 1]

    def test_slru_protects_what_was_found_twice(self) -> None:
        tree = RadixTree(policy=make_policy("slru"))
        for token in (1, 2, 3):
            tree.insert([token], [token])
        use(tree, 1, 2)
        use(tree, 2, 1)
        use(tree, 3, 1)
        assert one_by_one(tree) == [2, 3, 1]


class TestNever:
    @pytest.mark.parametrize("name", sorted(POLICIES))
    def test_an_inner_node_before_its_descendants(self, name: str) -> None:
        tree = RadixTree(policy=make_policy(name))
        tree.insert([1, 2, 3], [1, 2, 3])
        tree.insert([1, 2, 4, 5], [1, 2, 14, 15])
        tree.insert([9], [9])
        use(tree, 1, 3, priority=0)
        order = one_by_one(tree)
        assert sorted(order) == [1, 2, 3, 9, 14, 15]
        assert order.index(1) > order.index(2) > max(order.index(3), order.index(14))
        assert order.index(15) < order.index(14)

    @pytest.mark.parametrize("name", sorted(POLICIES))
    def test_what_is_locked(self, name: str) -> None:
        tree = RadixTree(policy=make_policy(name))
        tree.insert([1, 2, 3], [1, 2, 3])
        tree.insert([4, 5, 6], [4, 5, 6])
        held = tree.inc_lock_ref(tree.match_prefix([1, 2]))
        pinned = tree.pin(tree.match_prefix([4]))
        assert sorted(tree.evict(tree.evictable_size).tolist()) == [3, 5, 6]
        check(tree)
        tree.dec_lock_ref(held)
        assert tree.evict(2).tolist() == [1, 2]
        tree.unpin(pinned)
        assert tree.evict(1).tolist() == [4]
        check(tree)


class TestPriority:
    def nodes(self, cache: RadixCache) -> dict[int, int]:
        return {n.tokens().tolist()[0]: n.priority for n in cache.tree.nodes() if n.parent}

    def serve(self, cache: RadixCache, tokens: list[int], priority: int = 0) -> None:
        lease = cache.acquire(tokens, priority=priority)
        lease.extend(len(tokens) - lease.length)
        lease.commit(len(tokens))
        lease.release()
        check(cache)

    def test_is_propagated_to_the_path(self) -> None:
        cache = RadixCache(64)
        self.serve(cache, [1, 2, 3])
        self.serve(cache, [1, 2, 4, 5], priority=7)
        assert self.nodes(cache) == {1: 7, 3: 0, 4: 7}
        self.serve(cache, [1, 9], priority=3)
        assert self.nodes(cache) == {1: 7, 2: 7, 3: 0, 4: 7, 9: 3}

    def test_what_others_add_below_has_its_own(self) -> None:
        """A shared prefix, and a root, that was important does not make everything so."""
        cache = RadixCache(64)
        self.serve(cache, [1, 2], priority=9)
        self.serve(cache, [1, 2, 5, 5])
        self.serve(cache, [7, 7])
        assert self.nodes(cache) == {1: 9, 5: 0, 7: 0}

    def test_the_lowest_goes_first(self) -> None:
        cache = RadixCache(6, policy=make_policy("priority"))
        self.serve(cache, [1, 1], priority=5)
        self.serve(cache, [2, 2], priority=1)
        self.serve(cache, [3, 3], priority=3)
        self.serve(cache, [4, 4])
        assert cache.match([2, 2, 0]).length == 0
        self.serve(cache, [5, 5], priority=4)
        assert [cache.match([n, n, 0]).length for n in (1, 2, 3, 4, 5)] == [2, 0, 2, 0, 2]


class TestNames:
    def test_of_the_user_s_own(self) -> None:
        tree = four(f"{LowestToken.__module__}:LowestToken")
        assert one_by_one(tree) == ORDERS[f"{HERE}:LowestToken"]

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            (
                "lrru",
                "'lrru' is not one of lru, lfu, fifo, mru, filo, slru, priority, learned, nor",
            ),
            ("", "'' is not one of"),
            ("no_such_module_here:Thing", "no_such_module_here"),
            ("radixlm.cache:NoSuchClass", "NoSuchClass"),
            ("radixlm.cache:", "can not be made"),
            (":Thing", "can not be made"),
            (f"{HERE}:NoPolicy", "no attribute 'key'"),
            (f"{HERE}:NeedsArgument", "missing 1 required positional argument"),
            ("radixlm.cache:POLICIES", "not callable"),
        ],
    )
    def test_that_are_wrong(self, name: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            make_policy(name)


def test_the_default_is_lru() -> None:
    assert RadixTree().order.policy.name == "lru"


def test_the_order_is_rebuilt_when_most_entries_no_longer_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under mru each use makes a second entry."""
    rebuilt: list[int] = []
    rebuild: Callable[..., None] = EvictionOrder.rebuild

    def counted(self: EvictionOrder, *args: object) -> None:
        rebuilt.append(len(self._heap))
        rebuild(self, *args)

    monkeypatch.setattr(EvictionOrder, "rebuild", counted)
    tree = RadixTree(policy=make_policy("mru"))
    for token in (1, 2, 3):
        tree.insert([token], [token])
    use(tree, 1, 5_000)
    assert len(rebuilt) >= 4
    assert len(tree.order) < 1_100
    assert one_by_one(tree) == [1, 3, 2]


@pytest.mark.slow
def test_nodes_that_were_joined_leave_no_heap_of_entries() -> None:
    """Each leaf waits for eviction, gets a child of less priority, and is joined with it."""
    tree = RadixTree()
    for length in range(1, 2_000):
        key = list(range(length))
        tree.insert(key, key)
        tree.dec_lock_ref(tree.inc_lock_ref(tree.match_prefix(key), 1))
    assert (tree.node_count, tree.stats.merges) == (2, 1_998)
    assert len(tree.order) < 1_100
    assert tree.evict(1_999).size == 1_999
