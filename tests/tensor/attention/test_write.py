"""New keys and values into the pool, compiled, against torch's own."""

from __future__ import annotations

import pytest
import torch

from radixlm.attention.backends import make_backend
from radixlm.attention.plan import make_plan
from radixlm.memory.pools import KVPool
from tests.tensor.attention_cases import Heads, make_case


@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_lie_where_the_slots_say(tokens: int, dtype: torch.dtype) -> None:
    heads = Heads(3, 3, 20)
    case = make_case([(7, tokens)], heads, dtype, "cpu", seed=0, scattered=True)
    made, wanted = (KVPool(2, case.pool.capacity, 3, 20, dtype) for _ in range(2))
    attend = make_backend(made, 3).prepare(make_plan(case.rows), case.table, case.slots)
    attend(1, case.q, case.k, case.v)
    wanted.write(1, case.slots, case.k, case.v)
    assert all(map(torch.equal, made.keys, wanted.keys))
    assert all(map(torch.equal, made.values, wanted.values))


@pytest.mark.parametrize("slot", [-1, 64])
def test_a_slot_outside_the_pool_raises(slot: int) -> None:
    case = make_case([(7, 2)], Heads(1, 1, 16), torch.float32, "cpu", seed=0, scattered=False)
    backend = make_backend(KVPool(1, 64, 1, 16, torch.float32), 1)
    with pytest.raises((IndexError, RuntimeError)):
        backend.prepare(make_plan(case.rows), case.table, torch.tensor([3, slot]))(
            0, case.q, case.k, case.v
        )
