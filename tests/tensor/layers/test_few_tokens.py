"""Steps whose calls are made again in one go give the bits of steps computed call by call."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.attention.backends import make_backend
from radixlm.attention.plan import make_plan
from radixlm.kernels.openmp import Team
from radixlm.layers.few_tokens import MOST_TOKENS
from radixlm.layers.lora import Adapted, AdaptedRows
from radixlm.memory.pools import KVPool, ReqToTokenPool
from radixlm.models import CausalLM, PlainCheckpoint, load_config, load_model
from radixlm.models.adapters import load_adapter
from radixlm.products.gemm_choice import one_way
from radixlm.products.quantized_products import forms_of
from radixlm.products.quantizing import quantize
from radixlm.testing.peft_adapters import make_adapter
from radixlm.testing.reference import make_checkpoint
from tests.tensor.rows import make_row

CPU = torch.device("cpu")


class Step(NamedTuple):
    """Of each row the tokens before and the new ones."""

    rows: tuple[tuple[int, int], ...]
    seed: int
    coded: bool = False


# Pairs of steps that make the same calls, on other tokens, places and lengths.
PAIRS = {
    "one token": (Step(((5, 1),), 1), Step(((90, 1),), 2)),
    "three tokens": (Step(((5, 1), (70, 1), (9, 1)), 3), Step(((200, 1), (3, 1), (1, 1)), 4)),
    "a long context": (Step(((1500, 1),), 5), Step(((1800, 1),), 6)),
    "a chunk and a token": (Step(((30, 40), (9, 1)), 7), Step(((64, 40), (20, 1)), 8)),
    "codes": (Step(((5, 1), (7, 1)), 9, coded=True), Step(((80, 1), (3, 1)), 10, coded=True)),
}


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "mixture"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma"])
def test_the_same_bits(
    tmp_path: Path, architecture: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint(tmp_path, architecture, head_dim=16, max_position_embeddings=2048)
    runs: list[int] = []
    run = Team.run

    def counted(*call: Any) -> None:
        runs.append(1)
        run(*call)

    monkeypatch.setattr(Team, "run", counted)
    model, other = _loaded(folder, kind), _loaded(folder, kind)
    for name, (first, second) in PAIRS.items():
        pools = _pool(model, coded=first.coded), _pool(other, coded=first.coded)
        compute(model, pools[0], first)
        runs.clear()
        again = compute(model, pools[0], second)
        of_again = len(runs)
        runs.clear()
        expected = compute(other, pools[1], second)
        assert torch.equal(again, expected), name
        if model.layers[0].is_compiled:
            assert of_again < len(runs) / 2, name


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_the_same_bits_with_adapters(tmp_path: Path, kind: str) -> None:
    """Rows of two adapters and one of none, in steps that make the same calls and others."""
    base = make_checkpoint(tmp_path / "base", "llama", head_dim=16, max_position_embeddings=2048)
    model = _loaded(base, kind)
    folders = [make_adapter(tmp_path / str(seed), base, seed=seed) for seed in range(2)]
    one, two = (load_adapter(folder, model).additions for folder in folders)
    first, second = PAIRS["three tokens"]
    rows = [AdaptedRows(one, 0, 1), AdaptedRows(two, 2, 3)]
    adapted, pool = Adapted(rows), _pool(model)
    compute(model, pool, first, adapted)
    again = compute(model, pool, second, adapted)
    assert len(adapted.chains) == int(model.layers[0].is_compiled)
    expected = compute(model, pool, second, Adapted(rows))
    assert torch.equal(again, expected), "made again and made once"
    moved = (again - compute(model, pool, second)).abs().mean(1)
    assert moved[1] < moved[0] / 10, "no adapter: rounded in another place"
    assert moved[1] < moved[2] / 10


def test_more_tokens_than_few_are_computed_call_by_call(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama")
    model = _loaded(folder, "float32")
    pool = _pool(model)
    many = Step(((0, MOST_TOKENS + 1),), 1)
    assert torch.equal(compute(model, pool, many), compute(model, pool, many))


def _loaded(folder: Path, kind: str) -> CausalLM:
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    model = load_model(
        PlainCheckpoint(folder), load_config(folder), dtype=dtype, device=CPU, progress=False
    )
    if kind == "mixture" and forms_of(quantize(model.layers[0].mlp.down.weight, bits=8)):
        # As in GGUF files: values have more bits than queries and keys.
        for layer in model.layers:
            qkv = layer.attention.qkv
            for name, weight in dict(qkv.named_weights()).items():
                bits = 8 if name == "v_proj.weight" else 4
                qkv.put(name.removesuffix(".weight"), quantize(weight, bits=bits))
    model.pack(one_way, partial(quantize, bits=8) if kind in ("int8", "mixture") else None)
    assert kind != "mixture" or model.layers[0].is_compiled == model.layers[0].mlp.is_compiled
    return model


def _pool(model: CausalLM, *, coded: bool = False) -> KVPool:
    config = model.config
    dtype = model.norm.weight.dtype
    shape = config.n_layers, 2000, config.n_kv_heads, config.head_dim
    return KVPool(*shape, dtype, coded=coded)


@torch.inference_mode()
def compute(model: CausalLM, pool: KVPool, step: Step, adapted: Adapted | None = None) -> Tensor:
    """The logits of all new tokens; what lies in the pool before them depends on the seed."""
    rng = np.random.default_rng(step.seed)
    noise = torch.Generator().manual_seed(step.seed)
    slots = torch.arange(pool.capacity)
    for layer in range(pool.n_layers):
        shape = pool.capacity, pool.n_kv_heads, pool.head_dim
        keys, values = (torch.randn(shape, generator=noise).to(pool.dtype) for _ in range(2))
        pool.write(layer, slots, keys, values)
    places, taken, rows = rng.permutation(pool.capacity), 0, []
    table = ReqToTokenPool(len(step.rows), pool.capacity)
    for index, (before, new) in enumerate(step.rows):
        length = before + new
        tokens, own = rng.integers(0, 300, length).tolist(), places[taken : taken + length]
        rows.append(make_row(tokens, slots=own.tolist(), start=before, table_row=index))
        table.apply(rows[-1:])
        taken += length
    backend = make_backend(pool, model.config.n_heads)
    new_slots = torch.from_numpy(np.concatenate([row.new_slots for row in rows]).astype(np.int64))
    token_ids = torch.from_numpy(np.concatenate([row.tokens[row.start :] for row in rows])).long()
    positions = torch.cat([torch.arange(row.start, row.stop) for row in rows])
    attend = backend.prepare(make_plan(rows, backend.sharing), table.table, new_slots)
    rows_of_logits = torch.arange(token_ids.numel())
    return model.forward(token_ids, positions, attend, rows_of_logits, adapted)
