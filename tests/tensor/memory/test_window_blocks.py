"""Blocks of a pool whose layers with a window have slots of their own."""

from __future__ import annotations

from queue import SimpleQueue

import numpy as np
import pytest
import torch

from radixlm.core.keys import Slots, as_key
from radixlm.core.moves import NO_SLOT, Ended, Job, Place, Read, Report, StoredPath, Write
from radixlm.memory.host_store import BlockSlots, HostStore
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool, WindowLayers
from radixlm.memory.stores import Block
from radixlm.memory.transfers import Transfers
from tests.pretend_gpu import PretendGpu

TOKENS, WINDOWED = 4, (0, 2)
KINDS = [(torch.float32, False, False), (torch.bfloat16, True, False), (torch.float32, False, True)]
PATH = as_key(range(2 * TOKENS))
NOTHING = np.full(TOKENS, NO_SLOT, dtype=np.int32)


def at(*slots: int) -> Slots:
    return np.array(slots, dtype=np.int32)


PLACES = {
    "runs": (at(3, 4, 5, 6), at(7, 0, 1, 2)),
    "scattered": (at(15, 9, 1, 6), at(7, 3, 0, 5)),
    "one scattered": (at(3, 4, 5, 6), at(7, 3, 0, 5)),
}


def pool_of(
    dtype: torch.dtype, coded: bool, latent: bool, device: torch.device | str = "cpu"
) -> KVPool:
    windows, heads = WindowLayers(frozenset(WINDOWED), 8), 1 if latent else 2
    pool = KVPool(3, 16, heads, 4, dtype, device, coded=coded, latent=latent, windows=windows)
    for parts in (*pool.keys, *pool.values, *pool.scales):
        parts.copy_(torch.randint(-99, 99, parts.shape).to(parts.dtype))
    return pool


def bits(pool: KVPool, slots: Slots, windows: Slots | None) -> list[bytes]:
    """Of layers without a window, then of the others, in their order."""
    layers = [1, *(WINDOWED if windows is not None else ())]
    return [
        part[torch.from_numpy(slots if layer == 1 else windows).long().to(pool.device)]
        .cpu()
        .view(torch.uint8)
        .numpy()
        .tobytes()
        for layer in layers
        for part in pool.parts(layer)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_both_parts_come_back_or_the_first_alone(
    place: str, kind: tuple[torch.dtype, bool, bool]
) -> None:
    pool, (slots, windows) = pool_of(*kind), PLACES[place]
    blocks = PoolBlocks(pool, TOKENS)
    whole, first = (b"".join(blocks.source(slots, each)) for each in (windows, NOTHING))
    assert whole == b"".join(bits(pool, slots, windows))
    assert first == b"".join(bits(pool, slots, None)) == whole[: len(first)]
    assert (len(whole), len(whole) - len(first)) == (blocks.nbytes, blocks.window_bytes)
    for elsewhere, its in PLACES.values():
        for given, stored in ((its, whole), (NOTHING, first)):
            landing = PoolBlocks(other := pool_of(*kind), TOKENS)
            before = bits(other, at(*range(16)), at(*range(8)))
            [buffer] = landing.target(given)
            buffer[:] = stored
            landing.land(elsewhere, given)
            moved = bits(other, elsewhere, its if given is its else None)
            assert moved == bits(pool, slots, windows if given is its else None)
            if given is NOTHING:
                unchanged = len(pool.parts(1))
                assert bits(other, at(*range(16)), at(*range(8)))[unchanged:] == before[unchanged:]


def test_the_first_tokens_of_a_block_may_have_no_window_slot() -> None:
    pool, (slots, windows) = pool_of(*KINDS[0]), PLACES["runs"]
    blocks, other = PoolBlocks(pool, TOKENS), pool_of(*KINDS[0])
    stored = b"".join(blocks.source(slots, windows))
    partly = at(NO_SLOT, NO_SLOT, 4, 5)
    landing = PoolBlocks(other, TOKENS)
    assert landing.place(slots, partly) is None
    before = bits(other, slots, at(0, 1, 2, 3, 6, 7))
    landing.target(partly)[0][:] = stored
    landing.land(slots, partly)
    assert bits(other, slots, partly[2:]) == bits(pool, slots, windows[2:])
    assert bits(other, slots, at(0, 1, 2, 3, 6, 7))[2:] == before[2:]


def test_on_a_gpu(gpu: PretendGpu) -> None:
    pool, (slots, windows) = pool_of(*KINDS[0], gpu.device), PLACES["scattered"]
    blocks = PoolBlocks(pool, TOKENS)
    [row] = blocks.rows(1)
    before = bits(pool, slots, windows)
    blocks.pack(slots, row, windows)
    blocks.unpack(row, at(0, 2, 4, 8), at(NO_SLOT, 1, 2, 4))
    assert bits(pool, at(0, 2, 4, 8), None) == before[:2]
    assert bits(pool, slots, at(1, 2, 4))[2:] == [each[len(each) // 4 :] for each in before[2:]]


def test_host_memory_has_a_second_part_or_gets_it() -> None:
    pool, reports = pool_of(*KINDS[0]), SimpleQueue[Report]()
    store = HostStore(PoolBlocks(pool, TOKENS), 4)
    thread = Transfers(store, store, reports.put, place=Place.HOST, news_seconds=0.05)
    slots, windows = at(*range(8)), at(NO_SLOT, NO_SLOT, NO_SLOT, NO_SLOT, 0, 1, 2, 3)
    before = bits(pool, slots[4:], windows[4:])
    thread.start()

    def ended(job: Job, ticket: int) -> Ended:
        assert thread.submit(job)
        while True:
            report = reports.get(timeout=60)
            if isinstance(report, Ended) and report.ticket == ticket:
                return report

    elsewhere, halves = at(*range(8, 16)), at(*[NO_SLOT] * 6, 6, 7)
    assert ended(Write(1, b"", PATH, 0, slots, windows), 1) == Ended(1, 8)
    missing = Read(2, b"", PATH, 0, elsewhere, at(4, 5, 6, 7, 4, 5, 6, 7))
    assert ended(missing, 2) == Ended(2, 0, lacks_windows=True)
    assert ended(Read(3, b"", PATH, 0, elsewhere, halves), 3) == Ended(3, 8)
    assert thread.stop(10)
    wanted = [*before[:2], *(each[len(each) // 2 :] for each in before[2:])]
    assert bits(pool, at(*range(12, 16)), at(6, 7)) == wanted
    store.put([Block(b"", PATH[:TOKENS], BlockSlots(slots[:4], at(4, 5, 6, 7)))])
    reader = store.reader(StoredPath(b"", PATH), 0)
    assert reader.next(store.target(at(0, 1, 2, 3)))
    assert reader.next(store.target(at(0, 1, 2, 3)))
