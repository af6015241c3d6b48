"""Whatever happens to the tree: who follows the events has just the whole blocks that are there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.core.reports import TreeChange, TreeSnapshot
from radixlm.core.request import Namespace
from radixlm.server.config.server_config import load_libraries
from radixlm.server.kv_events.blocks import BlockLedger, Removed, Stored
from radixlm.server.kv_events.publisher import CLEARED, BatchWriter, events_of
from tests.followed_cache import FollowedCache, steps
from tests.kv_follower import Follower, Prefix
from tests.tree_pictures import tree_snapshot

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


class Chain(FollowedCache):
    """A cache, the ledger that follows it, and a router that follows the ledger."""

    def __init__(self, page_size: int, block_size: int) -> None:
        super().__init__(page_size)
        self.ledger = BlockLedger(block_size)
        self.follower = Follower()

    def take(self, change: TreeChange) -> None:
        self._send(self.ledger.update(change.removed, change.nodes))

    def take_afresh(self, tree: TreeSnapshot) -> None:
        self._send(self.ledger.replace(tree.nodes))

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


RUNS = given(
    page_size=st.sampled_from([1, 1, 2]), block_size=st.integers(1, 5), taken=steps(NAMESPACES)
)


def a_router_knows_just_the_whole_blocks(page_size, block_size, taken) -> None:
    Chain(page_size, block_size).follow(taken)


test_a_router_knows_just_the_whole_blocks = settings(max_examples=80, deadline=None)(
    RUNS(a_router_knows_just_the_whole_blocks)
)
test_a_router_knows_just_the_whole_blocks_at_length = pytest.mark.slow(
    settings(max_examples=300, deadline=None)(RUNS(a_router_knows_just_the_whole_blocks))
)
