from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlm.core.errors import ConfigError
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool
from tests.pretend_gpu import PretendGpu

SLOTS = {
    "one run": [3, 4, 5, 6],
    "two runs": [9, 10, 2, 3],
    "many runs": [9, 1, 7, 3],
    "backwards": [6, 5, 4, 3],
}
KINDS = [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)]


def filled(dtype: torch.dtype, coded: bool) -> KVPool:
    pool = KVPool(3, capacity=12, n_kv_heads=2, head_dim=4, dtype=dtype, coded=coded)
    for layer in range(3):
        pool.write(layer, torch.arange(12), torch.randn(12, 2, 4), torch.randn(12, 2, 4))
    return pool


@pytest.mark.parametrize(("dtype", "coded"), KINDS)
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_a_block_comes_back_bit_by_bit(slots: list[int], dtype: torch.dtype, coded: bool) -> None:
    pool = filled(dtype, coded) if dtype == torch.float32 else half(dtype, coded)
    blocks = PoolBlocks(pool, 4)
    stored = b"".join(blocks.source(np.array(slots, dtype=np.int32)))
    assert len(stored) == blocks.nbytes == 4 * pool.nbytes // 12
    other = KVPool(3, capacity=12, n_kv_heads=2, head_dim=4, dtype=dtype, coded=coded)
    landing, elsewhere = PoolBlocks(other, 4), np.array([11, 0, 5, 2], dtype=np.int32)
    for at in (elsewhere, np.array(slots, dtype=np.int32)):
        start = 0
        for part in landing.target():
            part[:] = stored[start : start + part.nbytes]
            start += part.nbytes
        landing.land(at)
        for ours, theirs in zip(tensors(pool), tensors(other), strict=True):
            assert torch.equal(ours[slots], theirs[torch.from_numpy(at).long()])
    untouched = sorted(set(range(12)) - set(slots) - set(elsewhere.tolist()))
    assert not any(part[untouched].any() for part in tensors(other))


@pytest.mark.parametrize(("dtype", "coded"), KINDS)
def test_a_block_of_a_gpu_s_pool_goes_to_the_host_and_back(
    gpu: PretendGpu, dtype: torch.dtype, coded: bool
) -> None:
    pool = KVPool(3, 12, 2, 4, dtype, gpu.device, coded=coded)
    for layer in range(3):
        k, v = torch.randn(2, 12, 2, 4).to(dtype).to(gpu.device)
        pool.write(layer, torch.arange(12, device=gpu.device), k, v)
    blocks, slots, elsewhere = PoolBlocks(pool, 4), [9, 1, 7, 3], [11, 0, 5, 2]
    before = [part[slots].cpu() for part in tensors(pool)]
    [row] = blocks.rows(1)
    gpu.count()
    blocks.pack(np.array(slots, dtype=np.int32), row)
    assert gpu.count().waits == 1
    blocks.unpack(row, np.array(elsewhere, dtype=np.int32))
    assert gpu.count().copies == 2
    for part, wanted in zip(tensors(pool), before, strict=True):
        assert torch.equal(part[elsewhere].cpu(), wanted)


def half(dtype: torch.dtype, coded: bool) -> KVPool:
    pool = KVPool(3, capacity=12, n_kv_heads=2, head_dim=4, dtype=dtype, coded=coded)
    for layer in range(3):
        k, v = torch.randn(2, 12, 2, 4).to(dtype)
        pool.write(layer, torch.arange(12), k, v)
    return pool


def tensors(pool: KVPool) -> list[torch.Tensor]:
    parts = (*pool.keys, *pool.values, *(pool.scales if pool.coded else ()))
    return [part.view(torch.uint8) for part in parts]


def test_the_order_of_bytes_does_not_hang_on_the_slots() -> None:
    pool = filled(torch.float32, False)
    blocks, packed = PoolBlocks(pool, 4), torch.empty(4 * pool.nbytes // 12, dtype=torch.uint8)
    for slots in SLOTS.values():
        at = np.array(slots, dtype=np.int32)
        blocks.pack(at, packed)
        assert packed.numpy().tobytes() == b"".join(blocks.source(at))
        assert packed[: 4 * 2 * 4 * 4].view(torch.float32).view(4, 2, 4).equal(pool.keys[0][slots])


def test_rows_begin_at_a_page() -> None:
    blocks = PoolBlocks(filled(torch.float32, False), 4)
    for count in (1, 3):
        rows = blocks.rows(count)
        assert rows.shape == (count, blocks.nbytes)
        assert rows.data_ptr() % 4096 == 0
        assert not rows.any()


@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_latents_are_stored_once(slots: list[int]) -> None:
    """Their values are their keys, the same memory."""
    pool, other = (KVPool(3, 12, 1, 5, torch.float32, latent=True) for _ in range(2))
    for keys in pool.keys:
        keys.normal_()
    blocks, landing = PoolBlocks(pool, 4), PoolBlocks(other, 4)
    stored = b"".join(blocks.source(np.array(slots, dtype=np.int32)))
    assert len(stored) == blocks.nbytes == 3 * 4 * 5 * 4 == 4 * pool.nbytes // 12
    landing.target()[0][:] = stored
    landing.land(np.array(slots, dtype=np.int32))
    for ours, theirs in zip(pool.keys, other.values, strict=True):
        assert torch.equal(ours[slots], theirs[slots])


@pytest.mark.parametrize("tokens", [13, 10**8, 10**30])
def test_a_block_that_the_pool_does_not_hold_is_refused(tokens: int) -> None:
    with pytest.raises(ConfigError, match=f"--disk-block-tokens {tokens} is more than the 12 "):
        PoolBlocks(filled(torch.float32, False), tokens)
