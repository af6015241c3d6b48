"""Following the tree: a first picture and every change since are the same as a new picture."""

from __future__ import annotations

import random

import pytest

from radixlm.cache import RadixCache
from radixlm.cache.radix.tree_stats import Changes
from radixlm.core.errors import NodeGoneError, PinError
from radixlm.core.reports import NodeView, TreeChange, TreeQuery, TreeSnapshot
from radixlm.observe.picture import Picture
from tests.invariants import check
from tests.tree_pictures import recorded, take_changes, tree_snapshot, watched

QUERIES = [
    TreeQuery(),
    TreeQuery(min_tokens=6),
    TreeQuery(max_nodes=12),
    TreeQuery(max_depth=2),
    TreeQuery(min_tokens=3, max_nodes=30),
]
EXACT = [query for query in QUERIES if query.max_nodes is None and query.max_depth is None]


class Traffic:
    """Random use of a small cache: splits, merges, growth, evictions, ghosts, pins, flushes."""

    def __init__(self, seed: int, page_size: int) -> None:
        self._draw = random.Random(seed)
        self.cache = RadixCache(40 * page_size, page_size, ghost_budget=30 * page_size)
        self._page = page_size
        self._leases: list = []
        self._pins: list[int] = []

    def step(self) -> None:
        """One operation."""
        draw = self._draw
        kind = draw.random()
        if kind < 0.5:
            self._begin()
        elif kind < 0.9 and self._leases:
            self._leases.pop(draw.randrange(len(self._leases))).release()
        elif kind < 0.95:
            self._pin()
        elif kind < 0.98 and self._pins:
            self.cache.unpin(self._pins.pop())
        elif kind > 0.995:
            self.cache.flush()

    def empty(self) -> None:
        """Let everything go."""
        while self._leases:
            self._leases.pop().release()
        while self._pins:
            self.cache.unpin(self._pins.pop())
        self.cache.flush()

    def _key(self) -> list[int]:
        draw = self._draw
        pages = [draw.randrange(2) for _ in range(draw.randint(1, 9))]
        return [token for token in pages for _ in range(self._page)]

    def _begin(self) -> None:
        key = self._key()
        lease = self.cache.acquire(
            key, self._draw.choice([None, "a"]), priority=self._draw.choice([0, 0, 1])
        )
        while lease.length < len(key):
            n = min(self._page * self._draw.randint(1, 9), len(key) - lease.length)
            if lease.extend(n) is None:
                break
            lease.commit(lease.length)
        self._leases.append(lease)
        if len(self._leases) > 4:
            self._leases.pop(0).release()

    def _pin(self) -> None:
        try:
            self._pins.append(self.cache.pin(self._key(), None).id)
        except PinError:
            return


class Follower:
    """A viewer's own books: what the first picture and the changes after it add up to."""

    def __init__(self, first: TreeSnapshot) -> None:
        self.views: dict[int, NodeView] = {}
        self._put(first.nodes)

    def apply(self, change: TreeChange) -> None:
        for name in change.removed:
            del self.views[name]
        self._put(change.nodes)

    def _put(self, nodes: tuple[NodeView, ...]) -> None:
        for view in nodes:
            assert view.parent_id is None or view.parent_id in self.views, "a child came first"
            self.views[view.id] = view

    def check(self, cache: RadixCache) -> None:
        """All that is shown is as it is in the tree, and what is hidden adds up."""
        now = {view.id: view for view in tree_snapshot(cache.tree).nodes}
        for name, view in self.views.items():
            assert view.parent_id is None or view.parent_id in self.views
            assert _bare(view) == _bare(now[name])
        hidden = sum(view.hidden for view in self.views.values())
        roots = {view.id for view in now.values() if view.parent_id is None}
        assert roots <= self.views.keys() or len(self.views) >= 12
        if roots <= self.views.keys():
            assert len(self.views) + hidden == cache.tree.node_count


def _bare(view: NodeView) -> tuple:
    return (
        view.id, view.parent_id, view.namespace, view.start, view.edge, view.resident,
        view.lock_ref, view.pins, view.hits, view.priority, view.last_used, view.slots.tolist(),
    )  # fmt: skip


def develop(picture: Picture, traffic: Traffic, draw: random.Random) -> TreeSnapshot:
    """Make a picture a few nodes at a time, while the tree changes. It may be told of a change
    again.
    """
    tree = traffic.cache.tree
    while True:
        for _ in range(draw.randrange(3)):
            traffic.step()
        changes = recorded(tree) if draw.random() < 0.5 else take_changes(tree)
        picture.update(changes or Changes())
        picture.develop(draw.randint(1, 9))
        if picture.complete:
            return picture.snapshot()


@pytest.mark.parametrize("query", QUERIES, ids=str)
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_changes_lead_to_the_picture_of_now(query: TreeQuery, page_size: int, seed: int) -> None:
    traffic, draw = Traffic(seed, page_size), random.Random(seed)
    for _ in range(40):
        traffic.step()
    picture = watched(traffic.cache.tree, query)
    follower = Follower(develop(picture, traffic, draw))
    follower.check(traffic.cache)
    for _ in range(150):
        for _ in range(draw.randrange(6)):
            traffic.step()
        changes = take_changes(traffic.cache.tree)
        if changes is not None:
            follower.apply(picture.update(changes))
        follower.check(traffic.cache)
        if query in EXACT:
            now = tree_snapshot(traffic.cache.tree, query)
            assert follower.views == {view.id: view for view in now.nodes}
    check(traffic.cache)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_one_node_until_it_is_gone(seed: int) -> None:
    traffic, draw = Traffic(seed, 1), random.Random(seed)
    for _ in range(40):
        traffic.step()
    nodes = [view for view in tree_snapshot(traffic.cache.tree).nodes if view.parent_id is not None]
    query = TreeQuery(node=draw.choice(nodes).id)
    picture = watched(traffic.cache.tree, query)
    picture.develop(10**6)
    follower = Follower.__new__(Follower)
    first = picture.snapshot()
    follower.views = {view.id: view for view in first.nodes}
    for _ in range(2_000):
        traffic.step()
        changes = take_changes(traffic.cache.tree)
        if changes is None:
            continue
        try:
            change = picture.update(changes)
        except NodeGoneError:
            return
        for name in change.removed:
            del follower.views[name]
        follower.views |= {view.id: view for view in change.nodes}
        assert follower.views == {
            view.id: view for view in tree_snapshot(traffic.cache.tree, query).nodes
        }
    traffic.empty()
    with pytest.raises(NodeGoneError):
        picture.update(take_changes(traffic.cache.tree) or Changes())
