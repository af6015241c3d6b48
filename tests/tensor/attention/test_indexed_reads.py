"""Attention over latents that are chosen by an index, against its definition in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.attention.backends import make_backend
from radixlm.attention.latents import LatentBackend
from radixlm.attention.plan import make_plan
from radixlm.attention.torch_backend import TorchBackend
from radixlm.core.batch import ScheduledRow
from radixlm.layers.expansion import Expansion, LatentSizes
from radixlm.layers.index_keys import IndexSizes
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool, LayerShape
from radixlm.products.compiled import TensorOptions
from tests.tensor.attention_cases import (
    EVERYTHING,
    Heads,
    IndexInputs,
    Path,
    chosen,
    make_tree_case,
    random_tree,
)

SIZES = LatentSizes(rank=24, turned=8, plain=16, values=12)
HEADS = 4
# Layer 0 has no part in it; layer 2 reads what layer 1 chose.
INDEX = IndexSizes(20, 12, 30, False, (True, True, False))


class Step(NamedTuple):
    rows: list[ScheduledRow]
    pool: KVPool
    table: Tensor
    slots: Tensor
    qkv: Tensor
    of_index: Tensor
    rotation: Rotation
    up: Expansion


def make_step(paths: Sequence[Path], dtype: torch.dtype, *, seed: int, page: int = 0) -> Step:
    """Slots that no row has hold NaN."""
    case = make_tree_case(
        paths, Heads(HEADS, 1, SIZES.row), torch.float32, "cpu", seed=seed, page=page
    )
    draw = torch.Generator().manual_seed(seed)
    shapes = [LayerShape(1, SIZES.row, None, INDEX.size if its else 0) for its in INDEX.layers]
    pool = KVPool(3, case.pool.capacity, 1, SIZES.row, dtype, latent=True, shapes=shapes)
    held = torch.cat([case.table[row.row, : row.start].long() for row in case.rows]).unique()
    for layer in (1, 2):
        for part in pool.parts(layer):
            part.fill_(torch.nan)
            part[held] = torch.randn(held.numel(), *part.shape[1:], generator=draw).to(dtype)
    total = case.slots.numel()
    qkv = torch.randn(total, HEADS * SIZES.key + SIZES.row, generator=draw).to(dtype)
    of_index = torch.randn(total, sum(INDEX.parts()), generator=draw).to(dtype)
    angles = torch.randn(total, SIZES.turned // 2, generator=draw)
    rotation = Rotation(torch.cat((angles.cos(), angles.sin()), dim=1).to(dtype))
    up = Expansion(SIZES, HEADS, 0.2, TensorOptions(dtype, torch.device("cpu")))
    up.weight.normal_(0, SIZES.rank**-0.5, generator=draw)
    return Step(case.rows, pool, case.table, case.slots, qkv, of_index, rotation, up)


def expected(step: Step, layer: int) -> Tensor:
    rows, keys = step.pool.keys[layer][:, 0].clone(), step.pool.index_keys[1].clone()
    queries, latents, key = step.qkv.split((HEADS * SIZES.key, SIZES.rank, SIZES.turned), dim=1)
    rows[step.slots] = torch.cat((latents, step.rotation.turned(key[:, None])[:, 0]), dim=1)
    inputs = IndexInputs.of(INDEX, step.of_index, step.rotation)
    keys[step.slots] = inputs.keys.to(keys.dtype)
    q = queries.reshape(-1, HEADS, SIZES.key)
    q = torch.cat((q[..., : SIZES.plain], step.rotation.turned(q[..., SIZES.plain :])), -1).double()
    weight = step.up.weight.double().view(HEADS, SIZES.plain + SIZES.values, SIZES.rank)
    answers, token = [], 0
    for row in step.rows:
        new, slots = slice(token, token + row.n_new), step.table[row.row, : row.stop].long()
        seen = torch.ones(row.n_new, row.stop, dtype=torch.bool).tril(row.start)
        scores = IndexInputs(*(each[new] for each in inputs)).scores(keys[slots])
        seen = chosen(INDEX.chosen, scores, seen)
        its = rows[slots].double()
        made = torch.einsum("tr,hdr->htd", its[:, : SIZES.rank], weight)
        turned = its[:, SIZES.rank :].expand(HEADS, -1, -1)
        whole = torch.cat((made[..., : SIZES.plain], turned), dim=-1)
        weights = q[new].transpose(0, 1) @ whole.transpose(1, 2) * step.up.scale
        weights = weights.masked_fill(~seen, float("-inf")).softmax(-1)
        answers.append((weights @ made[..., SIZES.plain :]).transpose(0, 1).flatten(1))
        token += row.n_new
    return torch.cat(answers)


def check(step: Step, kind: str, tolerance: float, *, sharing: bool = True) -> None:
    wanted = [expected(step, layer) for layer in (1, 2)]
    backend = make_backend(step.pool, HEADS, expansions=[step.up] * 3, index=INDEX)
    if kind == "torch":
        reader = TorchBackend(step.pool, HEADS)
        backend = LatentBackend(step.pool, [step.up] * 3, reader, INDEX)
    rule = EVERYTHING._replace(largest=backend.sharing.largest) if sharing else None
    attend = backend.prepare(make_plan(step.rows, rule), step.table, step.slots)
    first = attend(1, torch.cat((step.qkv, step.of_index), dim=1), step.rotation, None)
    second = attend(2, step.qkv.clone(), step.rotation, None)
    for found, right in zip((first, second), wanted, strict=True):
        assert (found.double() - right).abs().max() <= tolerance


BACKENDS = ("compiled", "torch")


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.bfloat16, 4e-2)])
def test_rows_that_choose_beside_rows_that_read_all(
    kind: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Single tokens that share a prefix, prompts that begin before they have to choose and behind;
    long ones are expanded up to there.
    """
    paths = [Path(((1, 20),), own, 1) for own in (0, 4, 9, 10, 40)]
    paths += [Path((), 0, 25), Path((), 0, 90), Path((), 25, 3), Path(((2, 300),), 7, 200)]
    check(make_step(paths, dtype, seed=1), kind, tolerance)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("seed", range(4))
def test_random_trees(kind: str, seed: int) -> None:
    page = (0, 1, 16)[seed % 3]
    paths = random_tree(np.random.default_rng(seed), depth=3, page=page)
    check(make_step(paths, torch.float32, seed=seed, page=page), kind, 5e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_index_keys_of_steps_that_read_all(dtype: torch.dtype) -> None:
    """They are written, for steps that choose among them."""
    step = make_step([Path((), 3, 5), Path((), 0, 1)], dtype, seed=3)
    check(step, "compiled", 4e-2)
    kept = step.pool.index_keys[1][step.slots]
    inputs = IndexInputs.of(INDEX, step.of_index, step.rotation)
    assert torch.equal(kept, inputs.keys.to(dtype))


def test_nothing_is_kept_of_a_layer_without_an_index() -> None:
    pool = make_step([Path((), 0, 1)], torch.float32, seed=0).pool
    assert [len(pool.parts(layer)) for layer in range(3)] == [2, 2, 1]
    assert pool.nbytes == pool.capacity * (3 * SIZES.row + 2 * INDEX.size) * 4


def test_an_index_key_that_is_no_number_ends_what_is_sound() -> None:
    step = make_step([Path((), 9, 1)], torch.float32, seed=0)
    slots = step.table[step.rows[0].row, :9].long()
    assert step.pool.sound(slots) == 9
    step.pool.index_keys[1][slots[6], 3] = torch.inf
    assert step.pool.sound(slots) == 6
