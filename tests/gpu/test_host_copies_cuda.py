"""A pool on a GPU: its blocks go to pinned memory and come back beside what it computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlm.core.keys import as_key
from radixlm.core.moves import StoredPath
from radixlm.memory.host_store import BlockSlots, HostStore
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool
from radixlm.memory.stores import Block

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

TOKENS, LAYERS = 16, 8


@pytest.mark.parametrize("coded", [False, True])
def test_what_the_kernels_before_have_written_comes_back(coded: bool) -> None:
    pool = KVPool(LAYERS, 4_096, 8, 64, torch.bfloat16, "cuda", coded=coded)
    blocks = PoolBlocks(pool, TOKENS)
    assert blocks.rows(1).is_pinned()
    store, path = HostStore(blocks, 4), as_key(range(TOKENS))
    slots = torch.randperm(4_096)[:TOKENS].numpy().astype(np.int32)
    elsewhere = torch.randperm(4_096)[:TOKENS].numpy().astype(np.int32)
    k, v = torch.randn(2, TOKENS, 8, 64, device="cuda", dtype=torch.bfloat16)
    busy = torch.randn(8_192, 8_192, device="cuda")
    for _ in range(20):
        busy = busy @ busy * 1e-4  # the writes wait behind these
    index = torch.from_numpy(slots).long().cuda()
    for layer in range(LAYERS):
        pool.write(layer, index, k, v)
    assert store.put([Block(b"", path, BlockSlots(slots))]) == 1
    before = [part.clone() for layer in range(LAYERS) for part in pool.read(layer, index)]
    assert store.reader(StoredPath(b"", path), 0).next(store.target())
    store.land(elsewhere)
    there = torch.from_numpy(elsewhere).long().cuda()
    after = [part for layer in range(LAYERS) for part in pool.read(layer, there)]
    for ours, theirs in zip(after, before, strict=True):
        assert torch.equal(ours, theirs)
