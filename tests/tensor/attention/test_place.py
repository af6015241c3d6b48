"""Queries and keys normed and turned, keys and values put into the pool: compiled, against torch's
own.
"""

from __future__ import annotations

import pytest
import torch

from radixlm.attention.backends import CpuBackend, make_backend
from radixlm.attention.plan import make_plan
from radixlm.attention.torch_backend import TorchBackend
from radixlm.layers.linear import QueryKeyNorm
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool
from radixlm.products.compiled import TensorOptions
from tests.tensor.attention_cases import Heads, make_case, unturned

CPU = torch.device("cpu")


@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize(("n_heads", "head_dim"), [(12, 20), (9, 64)])
@pytest.mark.parametrize("normed", ["", "before", "after"])
def test_as_torch_does_it(
    tokens: int, dtype: torch.dtype, near: float, n_heads: int, head_dim: int, normed: str
) -> None:
    """Queries have factors where nothing is normed before."""
    heads = Heads(n_heads, 3, head_dim)
    case = make_case([(7, tokens)], heads, dtype, "cpu", seed=0, scattered=True)
    options = TensorOptions(dtype, CPU)
    norm = QueryKeyNorm(n_heads, head_dim, 1e-6, options, after=normed == "after")
    for _, weight in norm.named_weights():
        weight.normal_(1.0, 0.3)
    angles = torch.randn(tokens, head_dim // 2)
    factors = None if normed == "before" else torch.rand(tokens) + 0.5
    rotation = Rotation(torch.cat((angles.cos(), angles.sin()), dim=1).to(dtype), factors)
    qkv = torch.cat((case.q, case.k, case.v), dim=1).flatten(1)
    pools, answers = [], []
    for backend in (make_backend, TorchBackend):
        pool = KVPool(2, case.pool.capacity, 3, head_dim, dtype)
        for side in ("keys", "values"):
            getattr(pool, side)[0].copy_(getattr(case.pool, side)[0])
            getattr(pool, side)[1].copy_(getattr(case.pool, side)[1])
        attend = backend(pool, n_heads).prepare(make_plan(case.rows), case.table, case.slots)
        answers.append(attend(1, qkv.clone(), rotation, norm if normed else None))
        pools.append(pool)
    ours, theirs = pools
    torch.testing.assert_close(*answers, atol=near, rtol=near)
    new = case.slots
    torch.testing.assert_close(ours.keys[1][new], theirs.keys[1][new], atol=near, rtol=near)
    for pool in pools:
        assert torch.equal(pool.values[1][new], case.v)
        old = torch.ones(pool.capacity, dtype=torch.bool).index_fill_(0, new, False)
        for side in ("keys", "values"):
            for layer, rows in ((0, slice(None)), (1, old)):
                made, given = (getattr(p, side)[layer][rows] for p in (pool, case.pool))
                assert torch.equal(made.nan_to_num(9), given.nan_to_num(9))


def test_keys_that_are_not_turned_are_copied() -> None:
    case = make_case([(7, 5)], Heads(12, 3, 20), torch.bfloat16, "cpu", seed=0, scattered=True)
    attend = CpuBackend(case.pool, 12).prepare(make_plan(case.rows), case.table, case.slots)
    qkv = torch.cat((case.q, case.k, case.v), dim=1).flatten(1)
    attend(1, qkv, unturned(case.q), None)
    assert torch.equal(case.pool.keys[1][case.slots], case.k)


@pytest.mark.parametrize("slot", [-1, 64])
def test_a_slot_outside_the_pool_raises(slot: int) -> None:
    case = make_case([(7, 2)], Heads(2, 1, 16), torch.float32, "cpu", seed=0, scattered=False)
    backend = make_backend(KVPool(1, 64, 1, 16, torch.float32), 2)
    qkv = torch.cat((case.q, case.k, case.v), dim=1).flatten(1)
    with pytest.raises((IndexError, RuntimeError)):
        backend.prepare(make_plan(case.rows), case.table, torch.tensor([3, slot]))(
            0, qkv, unturned(case.q), None
        )
