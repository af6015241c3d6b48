"""Blocks go to the host's memory, pinned for a GPU, and come back beside what it computes."""

from __future__ import annotations

import pytest
import torch

from radixlm.core.keys import as_key
from radixlm.core.moves import StoredPath
from radixlm.memory.host_store import BlockSlots, HostStore
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool
from radixlm.memory.stores import Block

TOKENS, LAYERS = 16, 8


@pytest.mark.parametrize("coded", [False, True])
def test_what_the_kernels_before_have_written_comes_back(device: torch.device, coded: bool) -> None:
    on_gpu = device.type == "cuda"
    pool = KVPool(LAYERS, 4_096, 8, 64, torch.bfloat16, device, coded=coded)
    blocks = PoolBlocks(pool, TOKENS)
    assert blocks.rows(1).is_pinned() == on_gpu
    store, path = HostStore(blocks, 4), as_key(range(TOKENS))
    slots, elsewhere = torch.randperm(4_096)[: 2 * TOKENS].int().chunk(2)
    index, there = slots.long().to(device), elsewhere.long().to(device)
    k, v = torch.randn(2, TOKENS, 8, 64, device=device, dtype=torch.bfloat16)
    busy = torch.randn([8_192 if on_gpu else 8] * 2, device=device)
    for _ in range(20):
        busy = busy @ busy * 1e-4  # the writes wait behind these
    for layer in range(LAYERS):
        pool.write(layer, index, k, v)
    assert store.put([Block(b"", path, BlockSlots(slots.numpy()))]) == 1
    before = [part.clone() for layer in range(LAYERS) for part in pool.read(layer, index)]
    assert store.reader(StoredPath(b"", path), 0).next(store.target())
    store.land(elsewhere.numpy())
    after = [part for layer in range(LAYERS) for part in pool.read(layer, there)]
    for ours, theirs in zip(after, before, strict=True):
        assert torch.equal(ours, theirs)
