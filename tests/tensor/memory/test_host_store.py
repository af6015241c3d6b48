"""Blocks in host memory come back with the same bits, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

import numpy as np
import pytest
import torch

from radixlm.core.keys import Key, Slots, as_key
from radixlm.core.moves import Drop, Ended, Moved, Place, Read, Report, StoredPath, Write
from radixlm.memory.host_store import BlockSlots, HostStore
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool
from radixlm.memory.stores import Block
from radixlm.memory.transfers import Transfers

TOKENS = 4
CAPACITY = 16 * TOKENS
PATH = as_key(range(3 * TOKENS))
OTHER = as_key([*range(TOKENS), *range(50, 50 + TOKENS)])  # parts after a block
RUNS: dict[str, Slots] = {
    "one run": np.arange(3 * TOKENS, dtype=np.int32),
    "runs": np.array([8, 9, 2, 3, 20, 21, 22, 23, 30, 31, 32, 33], dtype=np.int32),
    "scattered": np.arange(0, 6 * TOKENS, 2, dtype=np.int32)[::-1].copy(),
}


def pool_of(dtype: torch.dtype = torch.float32, *, coded: bool = False) -> KVPool:
    pool = KVPool(2, CAPACITY, 2, 4, dtype, coded=coded)
    torch.manual_seed(0)
    for layer in range(2):
        k, v = torch.randn(2, CAPACITY, 2, 4).to(dtype)
        pool.write(layer, torch.arange(CAPACITY), k, v)
    return pool


def bits(pool: KVPool, slots: Slots) -> list[torch.Tensor]:
    index = torch.from_numpy(slots).long()
    parts = (*pool.keys, *pool.values, *(pool.scales if pool.coded else ()))
    return [part[index].clone() for part in parts]


def put(store: HostStore, tokens: Key, slots: Slots, namespace: bytes = b"") -> int:
    ends = range(TOKENS, tokens.size + 1, TOKENS)
    return store.put(
        Block(namespace, tokens[:end], BlockSlots(slots[end - TOKENS : end])) for end in ends
    )


def found(store: HostStore, tokens: Key, start: int = 0, namespace: bytes = b"") -> int:
    """How many blocks of a path are read from one on."""
    reader, into = store.reader(StoredPath(namespace, tokens), start), np.arange(40, 40 + TOKENS)
    count = 0
    while reader.next(store.target()):
        store.land(into.astype(np.int32))
        count += 1
    return count


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize(
    ("dtype", "coded"),
    [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)],
)
def test_a_block_comes_back_with_its_bits(runs: str, dtype: torch.dtype, coded: bool) -> None:
    pool, slots = pool_of(dtype, coded=coded), RUNS[runs]
    store = HostStore(PoolBlocks(pool, TOKENS), 3)
    before = bits(pool, slots)
    assert put(store, PATH, slots) == len(store) == 3
    elsewhere = np.arange(40, 40 + 3 * TOKENS, dtype=np.int32)
    reader = store.reader(StoredPath(b"", PATH), 0)
    for at in range(0, PATH.size, TOKENS):
        assert reader.next(store.target())
        store.land(elsewhere[at : at + TOKENS])
    for ours, theirs in zip(bits(pool, elsewhere), before, strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def test_only_the_whole_path_finds_a_block() -> None:
    store = HostStore(PoolBlocks(pool_of(), TOKENS), 8)
    slots = RUNS["one run"]
    assert put(store, PATH, slots) == 3
    assert put(store, OTHER, slots) == 2
    assert len(store) == 4  # the first block is shared
    assert found(store, PATH) == 3
    assert found(store, PATH, TOKENS) == 2
    assert found(store, OTHER) == 2
    assert found(store, PATH, namespace=b"another") == 0
    assert found(store, PATH[TOKENS:]) == 0
    changed = PATH.copy()
    changed[1] += 1
    assert found(store, changed, TOKENS) == 0


def test_a_namespace_is_no_beginning_of_tokens() -> None:
    store = HostStore(PoolBlocks(pool_of(), TOKENS), 8)
    first = PATH[:TOKENS].tobytes()
    put(store, PATH[TOKENS : 2 * TOKENS], RUNS["one run"], namespace=first)
    assert found(store, PATH) == 0
    assert found(store, PATH[TOKENS : 2 * TOKENS], namespace=first) == 1


def test_without_room_or_a_parent_nothing_is_put() -> None:
    store = HostStore(PoolBlocks(pool_of(), TOKENS), 2)
    slots = RUNS["one run"]
    assert store.put([Block(b"", PATH[: 2 * TOKENS], BlockSlots(slots[:TOKENS]))]) == 0
    assert put(store, PATH, slots) == 2
    assert found(store, PATH) == 2
    assert put(store, PATH, slots) == 2  # those that are there are


def test_deleting_gives_room_back_with_all_that_follows() -> None:
    store = HostStore(PoolBlocks(pool_of(), TOKENS), 4)
    put(store, PATH, RUNS["one run"])
    put(store, OTHER, RUNS["one run"])
    assert store.delete([StoredPath(b"", PATH[: 2 * TOKENS])]) == 2
    assert (found(store, PATH), found(store, OTHER)) == (1, 2)
    assert store.delete([StoredPath(b"", PATH), StoredPath(b"x", PATH)]) == 0
    assert store.delete([StoredPath(b"", PATH[:TOKENS])]) == 2
    assert len(store) == 0
    assert put(store, PATH, RUNS["one run"]) == 3


@pytest.fixture
def copier() -> Iterator[tuple[KVPool, Transfers[BlockSlots], SimpleQueue[Report]]]:
    pool, reports = pool_of(), SimpleQueue[Report]()
    store = HostStore(PoolBlocks(pool, TOKENS), 8)
    thread = Transfers(store, store, reports.put, place=Place.HOST, news_seconds=0.05)
    thread.start()
    yield pool, thread, reports
    assert thread.stop(10)


def ended(reports: SimpleQueue[Report], ticket: int) -> tuple[list[int], Ended]:
    """How far the job had come with each report."""
    seen: list[int] = []
    while True:
        report = reports.get(timeout=60)
        if isinstance(report, Moved) and report.ticket == ticket:
            seen.append(report.upto)
        if isinstance(report, Ended) and report.ticket == ticket:
            return seen, report


def test_the_thread_copies_there_and_back(
    copier: tuple[KVPool, Transfers[BlockSlots], SimpleQueue[Report]],
) -> None:
    pool, thread, reports = copier
    slots, elsewhere = RUNS["runs"], np.arange(40, 40 + 3 * TOKENS, dtype=np.int32)
    before = bits(pool, slots)
    thread.submit(Write(1, b"", PATH, 0, slots))
    assert ended(reports, 1) == ([12], Ended(1, 12))
    thread.submit(Read(2, b"", PATH, TOKENS, elsewhere[TOKENS:]))
    assert ended(reports, 2) == ([8, 12], Ended(2, 12))
    thread.submit(Read(3, b"", PATH, 0, elsewhere[:TOKENS]))
    assert ended(reports, 3) == ([4], Ended(3, 4))
    for ours, theirs in zip(bits(pool, elsewhere), before, strict=True):
        assert torch.equal(ours, theirs)
    thread.submit(Drop([StoredPath(b"", PATH[: 2 * TOKENS])]))
    thread.submit(Write(4, b"", OTHER, TOKENS, slots[:TOKENS]))
    assert ended(reports, 4)[1] == Ended(4, 8)
    thread.submit(Read(5, b"", PATH, 0, elsewhere))
    assert ended(reports, 5) == ([4], Ended(5, 4, absent=True))


def test_what_is_given_up_is_not_stored() -> None:
    """Its slots may have been others' by then."""
    store = HostStore(PoolBlocks(pool_of(), TOKENS), 8)
    slots = RUNS["one run"]
    put(store, PATH[:TOKENS], slots)

    def given_up() -> Iterator[Block[BlockSlots]]:
        for end in range(TOKENS, PATH.size + 1, TOKENS):
            yield Block(b"", PATH[:end], BlockSlots(slots[end - TOKENS : end]))
        raise RuntimeError("abandoned")

    with pytest.raises(RuntimeError, match="abandoned"):
        store.put(given_up())
    assert (len(store), found(store, PATH)) == (1, 1)
    assert put(store, PATH, slots) == len(store) == 3
