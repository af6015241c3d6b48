"""Which prefix lives where."""

from __future__ import annotations

from radixlm.core.keys import as_key
from radixlm.core.reports import TreeQuery
from radixlm.core.request import Namespace
from radixlm.routing import Router
from radixlm.routing.prefix_map import MOST_LOOKED_AT, prefix_map
from radixlm.routing.replica_tree import ReplicaTree

NAMES = {0: "a", 1: "b"}
HERE, OWN = Namespace(), Namespace(cache_salt="ann/1")


def test_each_branch_says_who_has_it_and_what_of_below():
    tree = ReplicaTree()
    tree.hold(0, HERE, as_key([1, 2, 3, 4, 5]))
    tree.hold(1, HERE, as_key([1, 2, 3, 6]))
    tree.hold(1, HERE, as_key([9]))
    tree.send(0, HERE, as_key([1, 2, 3, 6]))
    found = prefix_map(tree, TreeQuery(), NAMES)
    rows = [(e.above, e.start, e.tokens, e.below, e.cached, e.coming) for e in found.prefixes]
    assert rows == [
        (None, 0, 3, 6, {"a": 5, "b": 4}, ["a"]),
        (0, 3, 2, 2, {"a": 2}, []),
        (0, 3, 1, 1, {"b": 1}, ["a"]),
        (None, 0, 1, 1, {"b": 1}, []),
    ]
    assert found.prefixes[1].edge == as_key([4, 5]).tobytes()
    assert (found.nodes, found.looked_at) == (4, 4)


def test_the_heaviest_are_kept_with_what_is_above_them():
    tree = ReplicaTree()
    tree.hold(0, HERE, as_key([7]))
    for last in range(10):
        tree.hold(0, HERE, as_key([1, 2, *[last] * (last + 1)]))
    found = prefix_map(tree, TreeQuery(max_nodes=3), NAMES).prefixes
    assert [(each.above, each.tokens) for each in found] == [(None, 2), (0, 10), (0, 9)]


def test_only_what_may_be_seen_is_shown():
    tree = ReplicaTree()
    tree.hold(0, HERE, as_key([1]))
    tree.hold(0, OWN, as_key([2, 3]))

    def shown(query: TreeQuery) -> list[object]:
        return [each.namespace for each in prefix_map(tree, query, NAMES).prefixes]

    assert shown(TreeQuery()) == [OWN, HERE]
    assert shown(TreeQuery(salted=False)) == [HERE]
    assert shown(TreeQuery(within="ann/")) == [OWN]
    assert shown(TreeQuery(within="bob/")) == []


def test_of_very_many_the_newest_are_looked_at():
    tree = ReplicaTree()
    for first in range(MOST_LOOKED_AT + 5):
        tree.hold(0, HERE, as_key([first, 1]))
    found = prefix_map(tree, TreeQuery(max_nodes=1), NAMES)
    assert (found.nodes, found.looked_at) == (MOST_LOOKED_AT + 5, MOST_LOOKED_AT)
    assert found.prefixes[0].edge == as_key([MOST_LOOKED_AT + 4, 1]).tobytes()
    assert prefix_map(ReplicaTree(), TreeQuery(), NAMES).prefixes == []


def test_only_the_replicas_that_are_asked_for_are_shown():
    router = Router()
    for name in NAMES.values():
        router.join(name, 1_000)
    router.choose("1", HERE, as_key([1, 2]), among=["a"])
    router.choose("2", HERE, as_key([1, 3]), among=["b"])
    found = router.prefixes(TreeQuery(), ["b", "unknown"]).prefixes
    assert [(each.tokens, each.below, each.coming) for each in found] == [
        (1, 2, ["b"]),
        (1, 1, ["b"]),
    ]
    assert len(router.prefixes(TreeQuery()).prefixes) == 3


def test_other_replicas_take_no_room():
    tree = ReplicaTree()
    tree.hold(0, HERE, as_key([1, 2]))
    for first in range(MOST_LOOKED_AT):
        tree.hold(8, HERE, as_key([first + 5, 1]))
    found = prefix_map(tree, TreeQuery(), {number: f"{number}" for number in range(8)})
    assert [(each.tokens, each.cached) for each in found.prefixes] == [(2, {"0": 2})]
    assert found.looked_at == 1


def test_what_is_shared_is_looked_at_first():
    tree = ReplicaTree()
    tree.hold(0, HERE, as_key([1, 2, 3]))
    tree.hold(0, HERE, as_key([1, 2, 4]))
    for first in range(MOST_LOOKED_AT):
        tree.hold(1, HERE, as_key([first + 5, *range(9)]))
        tree.hold(1, Namespace(cache_salt=f"{first}"), as_key([1]))
    found = prefix_map(tree, TreeQuery(), NAMES)
    assert found.looked_at == MOST_LOOKED_AT < found.nodes
    [shared] = [each for each in found.prefixes if "a" in each.cached]
    assert (shared.namespace, shared.tokens) == (HERE, 2)
    assert sum(each.namespace == HERE for each in found.prefixes) > 0.9 * MOST_LOOKED_AT
