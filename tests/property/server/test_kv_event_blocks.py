"""Whatever happens to the tree: who follows the events has just the whole blocks that are there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.cache import RadixCache
from radixlm.core.reports import TreeQuery, TreeSnapshot
from radixlm.core.request import Namespace
from radixlm.server.config.server_config import load_libraries
from radixlm.server.kv_events.blocks import BlockLedger, Removed, Stored
from radixlm.server.kv_events.publisher import CLEARED, BatchWriter, events_of
from tests.kv_follower import Follower, Prefix
from tests.tree_pictures import take_changes, tree_snapshot, watched

NAMESPACES = [
    Namespace(),
    Namespace(cache_salt="a"),
    Namespace(extra_key="x"),
    Namespace("lora", "a", "x"),
]
WRITER = BatchWriter(load_libraries())


def extra_keys(namespace: Namespace) -> tuple[str, ...] | None:
    return tuple(part for part in namespace if part) or None


def whole_blocks(tree: TreeSnapshot, block_size: int) -> set[Prefix]:
    """By brute force: every prompt up to the end of a block of which all is resident."""
    found: set[Prefix] = set()
    paths: dict[int | None, tuple[int, ...]] = {None: ()}
    for view in tree.nodes:
        above = paths[view.parent_id]
        paths[view.id] = above + view.tokens
        there = above + view.tokens[: view.resident]
        for end in range(block_size, len(there) + 1, block_size):
            if end > len(above):
                assert isinstance(view.namespace, Namespace)
                found.add((extra_keys(view.namespace), there[:end]))
    return found


class Chain:
    """A cache, the ledger that follows it, and a router that follows the ledger."""

    def __init__(self, page_size: int, block_size: int) -> None:
        self.cache = RadixCache(24 * page_size, page_size, ghost_budget=12 * page_size)
        self._picture = watched(self.cache.tree, TreeQuery())
        self._picture.develop(10**6)
        self._picture.snapshot()
        self.ledger = BlockLedger(block_size)
        self.follower = Follower()
        self._leases: list = []

    def run(self, namespace: Namespace, key: list[int], chunk: int) -> None:
        """A request that computes what it can get, a chunk at a time."""
        lease = self.cache.acquire(key, namespace)
        while lease.length < len(key):
            if lease.extend(min(chunk, len(key) - lease.length)) is None:
                break
            lease.commit(lease.length)
        self._leases.append(lease)
        if len(self._leases) > 2:
            self.release()

    def release(self) -> None:
        if self._leases:
            self._leases.pop(0).release()

    def tell(self) -> None:
        """Tell the router what has changed."""
        changes = take_changes(self.cache.tree)
        if changes is not None:
            change = self._picture.update(changes)
            self._send(self.ledger.update(change.removed, change.nodes))

    def tell_afresh(self) -> None:
        """As after a viewer was too slow: what is there, and nothing of how it came."""
        changes = take_changes(self.cache.tree)
        if changes is not None:
            self._picture.update(changes)
        self._send(self.ledger.replace(tree_snapshot(self.cache.tree).nodes))

    def check(self) -> None:
        expected = whole_blocks(tree_snapshot(self.cache.tree), self.ledger.block_size)
        assert self.follower.prefixes == expected
        assert len(self.follower.blocks) == len(expected)
        late = Follower()
        late.take(WRITER.batch(0.0, [CLEARED, *self._events(self.ledger.all())]))
        assert late.blocks == self.follower.blocks

    def _send(self, changes: list[Stored | Removed]) -> None:
        self.follower.take(WRITER.batch(0.0, self._events(changes)))

    def _events(self, changes) -> Iterator:
        size = self.ledger.block_size
        return (event for change in changes for event in events_of(change, size))


keys = st.lists(st.integers(0, 1), min_size=1, max_size=12)
requests = st.tuples(st.just("run"), st.sampled_from(NAMESPACES), keys, st.integers(1, 7))
others = st.tuples(st.sampled_from(["release", "release", "tell", "tell", "afresh", "flush"]))


RUNS = given(
    page_size=st.sampled_from([1, 1, 2]),
    block_size=st.integers(1, 5),
    steps=st.lists(requests | others, max_size=40),
)


def a_router_knows_just_the_whole_blocks(page_size, block_size, steps) -> None:
    chain = Chain(page_size, block_size)
    for step in [*steps, ("tell",)]:
        match step:
            case ("run", namespace, key, chunk):
                chain.run(namespace, [token for token in key for _ in range(page_size)], chunk)
            case ("release",):
                chain.release()
            case ("flush",):
                chain.cache.flush()
            case ("tell",):
                chain.tell()
                chain.check()
            case ("afresh",):
                chain.tell_afresh()
                chain.check()


test_a_router_knows_just_the_whole_blocks = settings(max_examples=80, deadline=None)(
    RUNS(a_router_knows_just_the_whole_blocks)
)
test_a_router_knows_just_the_whole_blocks_at_length = pytest.mark.slow(
    settings(max_examples=300, deadline=None)(RUNS(a_router_knows_just_the_whole_blocks))
)
