"""What an observer hears of a tree, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from radixlm.cache import RadixTree, Usage, make_policy
from radixlm.cache.radix.observer import TreeObserver
from radixlm.core.errors import InvariantError

EVENTS = [name for name in vars(TreeObserver) if not name.startswith("_")]


class Heard(TreeObserver):
    """Notes each event by its name, with the lock of the node as it was."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def take(self) -> list[tuple[str, int]]:
        taken, self.events = self.events, []
        return taken


def noting(name: str) -> Callable[..., Any]:
    def note(self: Heard, *args: Any) -> bool:
        locks = args[0].lock_ref if name != "matches_changed" else len(args[0])
        if name != "keeps_end":
            self.events.append((name, locks))
        return False

    return note


for event in EVENTS:
    setattr(Heard, event, noting(event))


def heard() -> tuple[RadixTree, Heard]:
    tree, watcher = RadixTree(ghost_budget=4), Heard()
    tree.watch(watcher)
    return tree, watcher


def test_walks_are_heard_of_once_and_before_they_are_made() -> None:
    tree, watcher = heard()
    tree.insert([1, 2, 3], [0, 1, 2])
    watcher.take()
    node = tree.inc_lock_ref(tree.match_prefix([1, 2, 3]))
    pinned = tree.pin(tree.match_prefix([1, 2, 3]))
    assert watcher.take() == [("asked", 0), ("locking", 1)]
    tree.unpin(pinned)
    tree.dec_lock_ref(node)
    assert watcher.take() == [("unlocking", 2), ("unlocking", 1)]


def test_every_transition_is_heard_of() -> None:
    tree, watcher = heard()
    held = tree.inc_lock_ref(tree.match_prefix([1]))
    watcher.take()
    held = tree.insert([1, 2, 3], [0, 1, 2], start=held).node
    assert watcher.take() == [("made", 1)]
    held = tree.insert([1, 2, 3, 4], [0, 1, 2, 3], start=held).node
    assert watcher.take() == [("grown", 1)]
    tree.dec_lock_ref(held)
    watcher.take()
    upper = tree.split(held, 1)
    assert watcher.take() == [("split", 0)]
    tree.merge(upper)
    assert watcher.take() == [("merged", 0)]
    tree.evict(2)
    tree.insert([1, 2, 3, 4], [0, 1, 7, 8])
    assert [name for name, _ in watcher.take()] == ["changed", "locking", "revived", "locking",
                                                    "unlocking"]  # fmt: skip
    tree.evict(4)
    tree.forget_ghosts()
    assert [name for name, _ in watcher.take()] == ["changed", "changed", "forgotten", "left",
                                                    "left"]  # fmt: skip


def test_what_is_not_overridden_is_heard_of_as_a_change() -> None:
    class Changed(TreeObserver):
        def __init__(self) -> None:
            self.count = 0

        def changed(self, node: object) -> None:
            self.count += 1

    tree, watcher = RadixTree(), Changed()
    tree.watch(watcher)
    tree.insert([1, 2], [0, 1])
    assert watcher.count == 4  # the root, its lock, a leaf, and the end of the lock
    tree.unwatch(watcher)
    tree.insert([1, 3], [0, 2])
    assert watcher.count == 4


def test_an_end_that_is_kept_neither_grows_nor_joins() -> None:
    class Keeps(TreeObserver):
        def keeps_end(self, node: object) -> bool:
            return True

    tree = RadixTree()
    tree.watch(Keeps())
    tree.insert([1, 2], [0, 1])
    tree.insert([1, 2, 3], [0, 1, 2])
    assert tree.node_count == 3


def test_a_policy_that_chooses_hears_of_the_tree_for_as_long_as_it_is_the_policy() -> None:
    tree = RadixTree(policy=make_policy("learned"))
    assert tree.observers == (tree.order.chooser,)
    tree.set_policy(make_policy("lru"))
    assert (tree.observers, tree.order.chooser) == ((), None)
    tree.set_policy(make_policy("learned"))
    assert tree.observers == (tree.order.chooser,)


@pytest.mark.parametrize("usage", [Usage(1, 1, 1, 1), Usage(6, -1, 0, 0)])
def test_the_law_is_checked(usage: Usage) -> None:
    Usage(1, 2, 1, 1).check(5)
    with pytest.raises(InvariantError, match="capacity of 5"):
        usage.check(5)
