from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from radixlm.core.batch import Remap
from radixlm.memory.pools import (
    CUDA_SHARE,
    KVPool,
    LayerShape,
    ReqToTokenPool,
    bytes_per_token,
    default_kv_tokens,
    free_host_memory,
)
from radixlm.memory.staging import staging_for
from tests.pretend_gpu import PretendGpu
from tests.tensor.rows import make_row


def test_written_tokens_lie_in_their_slots_of_their_layer() -> None:
    pool = KVPool(2, capacity=10, n_kv_heads=3, head_dim=4, dtype=torch.float32)
    k, v = torch.randn(3, 3, 4), torch.randn(3, 3, 4)
    slots = torch.tensor([7, 0, 4])
    pool.write(1, slots, k, v)
    assert torch.equal(pool.keys[1][slots], k)
    assert torch.equal(pool.values[1][slots], v)
    others = torch.tensor([1, 2, 3, 5, 6, 8, 9])
    assert not pool.keys[1][others].any()
    assert not pool.keys[0].any()


def test_a_slot_outside_the_pool_raises() -> None:
    pool = KVPool(1, capacity=4, n_kv_heads=1, head_dim=2, dtype=torch.float32)
    with pytest.raises((IndexError, RuntimeError)):
        pool.write(0, torch.tensor([4]), torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nbytes_is_what_the_tensors_take(dtype: torch.dtype, coded: bool) -> None:
    pool = KVPool(3, capacity=7, n_kv_heads=2, head_dim=4, dtype=dtype, coded=coded)
    assert pool.nbytes == sum(t.nbytes for t in (*pool.keys, *pool.values, *pool.scales))
    assert pool.nbytes == 7 * bytes_per_token(3, 2, 4, dtype, coded=coded)


@pytest.mark.parametrize("coded", [False, True])
def test_layers_of_their_own_shapes(coded: bool) -> None:
    shapes = [LayerShape(2, 4), LayerShape(1, 8), LayerShape(1, 8, source=1)]
    pool = KVPool(3, 7, 2, 4, torch.float32, coded=coded, shapes=shapes)
    of_layers = [bytes_per_token(1, *its[:2], torch.float32, coded=coded) for its in shapes]
    assert [pool.layer_bytes(layer) for layer in range(3)] == of_layers
    assert pool.nbytes == 7 * sum(of_layers[:2])
    assert not pool.parts(2)
    pool.write(1, torch.tensor([3]), torch.ones(1, 1, 8), torch.ones(1, 1, 8))
    assert torch.equal(pool.read(2, torch.tensor([3]))[0], torch.ones(1, 1, 8))


def test_eight_bits_take_little_more_than_half_of_sixteen() -> None:
    shape = (28, 8, 128, torch.bfloat16)
    assert bytes_per_token(*shape) / bytes_per_token(*shape, coded=True) > 1.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_stand_for_what_was_written(dtype: torch.dtype) -> None:
    """Within half a step, of each head its own; a head's largest number but for rounding."""
    pool = KVPool(2, capacity=9, n_kv_heads=3, head_dim=10, dtype=dtype, coded=True)
    k, v = (torch.randn(5, 3, 10) * 10.0 ** torch.arange(-2, 3)[:, None, None]).to(dtype), None
    v = k.flip(0) * 3
    k[0, 1] = 0
    slots = torch.tensor([7, 0, 4, 8, 1])
    pool.write(1, slots, k, v)
    for numbers, wanted in zip(pool.read(1, slots), (k, v), strict=True):
        assert numbers.dtype == dtype
        largest = wanted.float().abs().amax(-1, keepdim=True)
        near = largest / 127 / 2 + largest * torch.finfo(dtype).eps
        assert bool(((numbers.float() - wanted.float()).abs() <= near).all())
    assert not pool.read(1, slots)[0][0, 1].any()
    assert pool.keys[1][slots].abs().amax(-1).flatten()[1:].tolist()[3:] == [127] * 11
    assert not pool.keys[0].any()


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("side", [0, 1])
def test_sound_tokens_end_at_the_first_that_is_not_finite(
    coded: bool, broken: float, side: int
) -> None:
    pool = KVPool(2, capacity=6, n_kv_heads=2, head_dim=4, dtype=torch.float32, coded=coded)
    slots = torch.arange(6).flip(0)
    sides = torch.ones(2, 6, 2, 4)
    for layer in range(2):
        pool.write(layer, slots, *sides)
    assert pool.sound(slots) == 6
    sides[side, 4, 1, 2] = broken
    pool.write(1, slots, *sides)
    assert pool.sound(slots) == 4
    assert pool.sound(slots[5:]) == 1


def test_the_table_follows_remaps_in_order_then_new_slots() -> None:
    pool = ReqToTokenPool(4, 8)
    row = make_row(range(5), slots=[9, 8, 7, 6, 5], start=3, table_row=2)
    later = Remap(1, np.array([20, 21], dtype=np.int32))
    object.__setattr__(row, "remaps", (*row.remaps, later))
    pool.apply([row])
    assert pool.table[2, :5].tolist() == [9, 20, 21, 6, 5]
    assert not pool.table[[0, 1, 3]].any()


def test_a_gpu_s_table_follows_by_one_copy(gpu: PretendGpu) -> None:
    pool = ReqToTokenPool(3, 8, gpu.device)
    later = Remap(1, np.array([20, 21], dtype=np.int32))
    rows = [make_row(range(5), slots=[9, 8, 7, 6, 5], start=3, table_row=row) for row in (2, 0)]
    rows[0] = replace(rows[0], remaps=(*rows[0].remaps, later))
    staging = staging_for(gpu.device)
    gpu.count()
    pool.apply(rows, staging)
    assert not pool.table.cpu().any()
    staging.send()
    assert gpu.count().copies == 1
    assert pool.table.tolist() == [[9, 8, 7, 6, 5, 0, 0, 0], [0] * 8, [9, 20, 21, 6, 5, 0, 0, 0]]
    with pytest.raises(IndexError, match="lie outside a table of 3 rows and 8 tokens"):
        pool.apply([make_row(range(9), start=0)])


@pytest.mark.parametrize("here", [True, False], ids=["cpu", "gpu"])
def test_a_sibling_s_slots_are_those_beside_it_and_its_own(gpu: PretendGpu, here: bool) -> None:
    """Those too that come with the step: a GPU has them once it is sent."""
    device = torch.device("cpu") if here else gpu.device
    pool, staging = ReqToTokenPool(3, 8, device), staging_for(device)
    row = make_row(range(5), slots=[9, 8, 7, 6, 5], start=3, table_row=0)
    its = make_row(range(6), slots=[0, 0, 0, 0, 4, 3], start=4, table_row=2)
    its = replace(its, beside=0, remaps=())
    pool.table[2] = 1
    staging.begin()
    pool.apply([replace(row, sibling=its), its], staging)
    if not here:
        assert pool.table.tolist() == [[0] * 8, [0] * 8, [1] * 8]
    staging.send()
    assert pool.table.tolist() == [[9, 8, 7, 6, 5, 0, 0, 0], [0] * 8, [9, 8, 7, 6, 4, 3, 1, 1]]


@pytest.mark.parametrize(("table_row", "length"), [(1, 4), (0, 5)])
def test_a_row_outside_the_table_is_refused(table_row: int, length: int) -> None:
    pool = ReqToTokenPool(1, 4)
    with pytest.raises(IndexError, match="lie outside a table of 1 rows and 4 tokens"):
        pool.apply([make_row(range(length), start=0, table_row=table_row)])


def test_free_memory_counts_what_the_page_cache_gives_back(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    meminfo.write_text("MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 8000 kB\n")
    assert free_host_memory(meminfo, group) == 8000 * 1024
    group.mkdir()
    (group / "memory.max").write_text("5000000\n")
    (group / "memory.current").write_text("4900000\n")
    (group / "memory.stat").write_text("anon 900000\ninactive_file 4000000\n")
    assert free_host_memory(meminfo, group) == 4_100_000
    (group / "memory.max").write_text("max\n")
    assert free_host_memory(meminfo, group) == 8000 * 1024
    assert free_host_memory(tmp_path / "absent", group) > 0


def test_a_pool_takes_memory_only_where_it_is_written() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    pool = KVPool(4, 1_000_000, 2, 16, torch.float32)
    assert pool.nbytes == 1_024_000_000
    assert resident() - before < pool.nbytes // 10
    pool.write(0, torch.tensor([7]), torch.ones(1, 2, 16), torch.ones(1, 2, 16))
    assert pool.keys[0][6:9].sum() == 32


def test_what_torch_keeps_of_another_engine_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [10_000]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[-1], 200_000))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(100_000))
    assert default_kv_tokens(10, torch.device("cuda")) == CUDA_SHARE * 10_000


OLD = sys.platform != "linux" or tuple(map(int, platform.release().split(".")[:2])) < (5, 14)


POPULATED = """
from pathlib import Path
import torch
from radixlm.memory.pools import KVPool

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

pool = KVPool(2, 280_000, 2, 16, torch.float32)
pool.keys[1][7] = 3.0
before = resident()
pool.populate(140_000)
grown = resident() - before
assert pool.nbytes * 0.4 < grown < pool.nbytes * 0.7, grown
assert pool.keys[1][7].eq(3.0).all()
assert not pool.values[1][:1000].any()
"""


@pytest.mark.skipif(OLD, reason="Linux has it since 5.14")
def test_populated_memory_is_there_and_holds_what_it_held() -> None:
    # In a process of its own: in one with a past some of the pool's memory is there already.
    subprocess.run([sys.executable, "-c", POPULATED], check=True)  # noqa: S603
