"""Keys and values in 8 bits: attention over what codes stand for, and how codes are written."""

from __future__ import annotations

import pytest
import torch

from radixlm.attention.backends import CpuBackend, make_backend
from radixlm.attention.plan import make_plan
from radixlm.attention.torch_backend import TorchBackend
from radixlm.memory.pools import KVPool
from tests.tensor.attention_cases import (
    BACKENDS,
    Case,
    Heads,
    Path,
    in_codes,
    make_case,
    make_tree_case,
    reference,
    run,
    unturned,
)
from tests.tensor.rows import make_row

# Single tokens have queries and weights in 16 bits.
DTYPES = [(torch.float32, 2e-4), (torch.bfloat16, 3e-2)]
WAYS = ["direct", "tiles"]


def _off(case: Case, backend: str) -> float:
    out = run(case, backend=backend)
    assert out.dtype == case.q.dtype
    return (out.double() - reference(case)).abs().max().item()


@pytest.mark.parametrize(("dtype", "near"), DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("heads", [Heads(9, 3, 64), Heads(6, 2, 10)], ids=str)
def test_all_that_reads_a_pool_reads_codes(
    dtype: torch.dtype, near: float, backend: str, heads: Heads
) -> None:
    shapes = [(700, 1), (1, 1), (530, 40), (0, 9), (37, 1)]
    case = make_case(shapes, heads, dtype, "cpu", seed=1, scattered=True)
    assert _off(in_codes(case), backend) < near


@pytest.mark.slow  # each shape is compiled: test_same_bits compares others with the reference
@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize(("heads", "kind"), [(Heads(32, 1, 96), 1), (Heads(4, 1, 20), 1)], ids=str)
def test_any_shape_of_heads(backend: str, heads: Heads, kind: int) -> None:
    dtype, near = DTYPES[kind]
    case = make_case([(70, 1), (3, 9), (0, 140)], heads, dtype, "cpu", seed=1, scattered=True)
    assert _off(in_codes(case), backend) < near


@pytest.mark.parametrize(("dtype", "near"), DTYPES)
@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_shared_reads_and_pieces(dtype: torch.dtype, near: float, backend: str) -> None:
    nodes = ((1, 100), (2, 900), (3, 2))
    paths = [Path(nodes, 600, 1), *[Path(nodes[:2], 0, 1)] * 4, Path(nodes[:1], 3, 30)]
    case = in_codes(make_tree_case(paths, Heads(9, 3, 64), dtype, "cpu", seed=2, page=0))
    sharing = BACKENDS[backend](case.pool, 9).sharing._replace(fewest=1, shortest=0, least_saved=1)
    assert make_plan(case.rows, sharing).shared
    out = run(case, sharing, backend)
    assert (out.double() - reference(case)).abs().max().item() < near


@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("head_dim", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_sums_of_extreme_codes_fit(backend: str, head_dim: int) -> None:
    """All codes the largest ones, of queries too, and all weights of a tile alike."""
    heads = Heads(3, 1, head_dim)
    case = make_case([(511, 1)], heads, torch.float32, "cpu", seed=3, scattered=False)
    for tensor in (case.pool.keys[1], case.pool.values[1], case.k, case.v):
        tensor.fill_(3.0)
    case.q.fill_(5.0)
    assert _off(in_codes(case), backend) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("context", [15, 64, 67])
@pytest.mark.parametrize("side", ["keys", "values"])
def test_broken_numbers_are_seen(dtype: torch.dtype, backend: str, context: int, side: str) -> None:
    """They must reach the logits, where they are refused."""
    case = make_case([(context, 1)], Heads(6, 2, 10), dtype, "cpu", seed=5, scattered=False)
    slot = case.table[1, 3].long()
    getattr(case.pool, side)[1][slot, 1, 7] = float("inf")
    broken = run(in_codes(case), backend=backend).isfinite().logical_not()
    assert bool(broken[:, 3:].all())
    assert not broken[:, :3].any()
    case = make_case([(context, 1)], Heads(6, 2, 10), dtype, "cpu", seed=5, scattered=False)
    case.q.fill_(float("nan"))
    assert bool(run(in_codes(case), backend=backend).isnan().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [10, 64])
def test_codes_are_written_as_torch_does_it(dtype: torch.dtype, head_dim: int) -> None:
    """And of each head alone, whatever is in the others."""
    case = make_case([(7, 33)], Heads(9, 3, head_dim), dtype, "cpu", seed=0, scattered=True)
    case.k[3] = 0
    case.v[4] *= 1e20
    case.k[5] *= 1e-36
    case.v[6, 1, head_dim - 1] = float("inf")
    case.k[7, 2, 0] = float("nan")
    qkv = torch.cat((case.q, case.k, case.v), dim=1).flatten(1)
    pools = []
    for backend in (make_backend, TorchBackend):
        pool = KVPool(2, case.pool.capacity, 3, head_dim, dtype, coded=True)
        attend = backend(pool, 9).prepare(make_plan(case.rows), case.table, case.slots)
        attend(1, qkv.clone(), unturned(case.q), None)
        pools.append(pool)
    ours, theirs = pools
    sound = ours.scales[1].isfinite()
    assert torch.equal(ours.scales[1].nan_to_num(9), theirs.scales[1].nan_to_num(9))
    for place, side in enumerate(("keys", "values")):
        made, wanted = (getattr(pool, side)[1] for pool in pools)
        assert torch.equal(made[sound[:, place]], wanted[sound[:, place]])
    broken = sound[case.slots].logical_not().nonzero().tolist()
    assert broken == [[6, 1, 1], [7, 0, 2]]
    assert ours.sound(case.slots) == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_does_not_hang_on_the_step(dtype: torch.dtype) -> None:
    case = make_case([(7, 40)], Heads(9, 3, 64), dtype, "cpu", seed=0, scattered=True)
    qkv = torch.cat((case.q, case.k, case.v), dim=1).flatten(1)
    [row] = case.rows
    slots, pools = case.table[row.row].numpy(), []
    for size in (40, 1, 7):
        pool = KVPool(2, case.pool.capacity, 3, 64, dtype, coded=True)
        for first in range(0, 40, size):
            part, stop = slice(first, min(first + size, 40)), 7 + min(first + size, 40)
            cut = make_row([1] * stop, slots=slots[:stop], start=7 + first, table_row=row.row)
            backend = CpuBackend(pool, 9)
            attend = backend.prepare(make_plan([cut]), case.table, case.slots[part])
            attend(1, qkv[part].clone(), unturned(case.q[part]), None)
        pools.append(pool)
    for other in pools[1:]:
        for name in ("keys", "values", "scales"):
            assert torch.equal(getattr(other, name)[1], getattr(pools[0], name)[1])
