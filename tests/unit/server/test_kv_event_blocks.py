"""Changes of the tree, by hand, and what is told of them."""

from __future__ import annotations

import numpy as np

from radixlm.cache.radix.node import NO_SLOTS
from radixlm.core.reports import NodeView
from radixlm.core.request import Namespace
from radixlm.server.kv_events.blocks import BlockLedger, Removed, Stored

ROOT = 1


def view(name: int, tokens: list[int], start: int = 0, *, parent: int | None = ROOT) -> NodeView:
    """All of it is resident."""
    edge = np.array(tokens, dtype=np.int32).tobytes()
    return NodeView(
        id=name, parent_id=parent, namespace=Namespace(), start=start, edge=edge,
        resident=len(tokens), lock_ref=0, pins=0, hits=0, priority=0, last_used=0, slots=NO_SLOTS,
    )  # fmt: skip


def ledger_with(*views: NodeView) -> tuple[BlockLedger, list[int]]:
    """A ledger of blocks of two, and the hashes it told, in order."""
    ledger = BlockLedger(2)
    told = ledger.update([], [view(ROOT, [], parent=None), *views])
    hashes = [each for stored in told if isinstance(stored, Stored) for each in stored.hashes]
    return ledger, hashes


def tokens_of(stored: Stored | Removed) -> list[int]:
    assert isinstance(stored, Stored)
    return np.frombuffer(stored.tokens, dtype=np.int32).tolist()


def test_a_block_may_begin_in_a_node_above():
    _, hashes = ledger_with(view(2, [1, 2, 3]), view(3, [4, 5], 3, parent=2))
    _, whole = ledger_with(view(2, [1, 2, 3, 4, 5]))
    assert hashes == whole
    assert len(hashes) == 2


def test_a_hash_is_of_the_namespace_too():
    ledger = BlockLedger(2)
    for name, namespace in enumerate([Namespace("a"), Namespace("", "a"), Namespace("", "", "a")]):
        root, below = view(10 * name, [], parent=None), view(10 * name + 1, [1, 2])
        root.namespace = below.namespace = namespace
        below.parent_id = root.id
        ledger.update([], [root, below])
    assert len({each for stored in ledger.all() for each in stored.hashes}) == 3


def test_hashes_are_the_same_everywhere():
    """Routers compare those of several servers."""
    _, hashes = ledger_with(view(2, [1, 2, 3, 4]))
    assert hashes == [7416111637559335320, 1739041141194347180]


def test_growth_tells_what_is_new():
    ledger, [first] = ledger_with(view(2, [1, 2, 3]))
    [stored] = ledger.update([], [view(2, [1, 2, 3, 4, 5, 6])])
    assert (stored.parent, stored.first, tokens_of(stored)) == (first, 1, [3, 4, 5, 6])


def test_a_split_is_no_news():
    ledger, hashes = ledger_with(view(2, [1, 2, 3, 4, 5, 6]))
    assert ledger.update([], [view(9, [1, 2, 3]), view(2, [4, 5, 6], 3, parent=9)]) == []
    assert ledger.update([9], [view(2, [1, 2, 3, 4, 5, 6])]) == []
    assert [each for stored in ledger.all() for each in stored.hashes] == hashes


def test_an_end_that_was_lost_and_replaced_between_two_looks():
    ledger, hashes = ledger_with(view(2, [1, 2, 3, 4, 5, 6]))
    removed, stored = ledger.update([], [view(2, [1, 2, 9, 9, 5, 6])])
    assert removed == Removed([hashes[2], hashes[1]], cleared=False)
    assert (stored.parent, tokens_of(stored)) == (hashes[0], [9, 9, 5, 6])
    assert set(stored.hashes).isdisjoint(hashes)


def test_the_last_blocks_to_go_are_told_so():
    ledger, hashes = ledger_with(view(2, [1, 2]), view(3, [3, 4], 2, parent=2))
    assert ledger.update([3], []) == [Removed([hashes[1]], cleared=False)]
    assert ledger.update([2, ROOT], []) == [Removed([hashes[0]], cleared=True)]


def test_a_fresh_look_tells_the_difference():
    root = view(ROOT, [], parent=None)
    ledger, hashes = ledger_with(view(2, [1, 2]), view(3, [3, 4]))
    removed, stored = ledger.replace([root, view(3, [3, 4]), view(4, [5, 6])])
    assert removed == Removed([hashes[0]], cleared=False)
    assert tokens_of(stored) == [5, 6]
