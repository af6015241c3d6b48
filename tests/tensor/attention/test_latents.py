"""Attention over latents, absorbed and expanded, against its definition in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.attention.backends import make_backend
from radixlm.attention.latents import LatentBackend, least_expanded, pays_expanded
from radixlm.attention.plan import make_plan
from radixlm.attention.torch_backend import TorchBackend
from radixlm.core.batch import ScheduledRow
from radixlm.layers.expansion import Expansion, LatentSizes
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool
from radixlm.products.compiled import TensorOptions
from tests.tensor.attention_cases import EVERYTHING, Heads, Path, make_tree_case, random_tree

# Rows of 32 numbers; 84 new tokens and more gain by an expanded context of any length.
SIZES = LatentSizes(rank=24, turned=8, plain=16, values=12)
HEADS = 4
CPU = torch.device("cpu")


class Step(NamedTuple):
    rows: list[ScheduledRow]
    pool: KVPool
    table: Tensor
    slots: Tensor
    qkv: Tensor
    rotation: Rotation
    expansions: list[Expansion]


def make_step(
    paths: Sequence[Path],
    dtype: torch.dtype,
    *,
    seed: int,
    page: int = 0,
    device: torch.device = CPU,
    sizes: LatentSizes = SIZES,
    n_heads: int = HEADS,
) -> Step:
    """Two layers; slots that no row has hold NaN."""
    case = make_tree_case(paths, Heads(n_heads, 1, 8), dtype, device, seed=seed, page=page)
    draw = torch.Generator().manual_seed(seed)
    pool = KVPool(2, case.pool.capacity, 1, sizes.row, dtype, device, latent=True)
    pool.keys[1].fill_(torch.nan)
    for row in case.rows:
        before = case.table[row.row, : row.start].long()
        old = torch.randn(before.numel(), 1, sizes.row, generator=draw).to(device, dtype)
        pool.keys[1].index_copy_(0, before, old)
    total = case.slots.numel()
    width = n_heads * sizes.key + sizes.row
    qkv = torch.randn(total, width, generator=draw).to(device, dtype)
    angles = torch.randn(total, sizes.turned // 2, generator=draw)
    rotation = Rotation(torch.cat((angles.cos(), angles.sin()), dim=1).to(device, dtype))
    options = TensorOptions(dtype, device)
    scale = 0.2 if sizes == SIZES else sizes.key**-0.5
    expansions = [Expansion(sizes, n_heads, scale, options) for _ in range(2)]
    for each in expansions:
        drawn = torch.randn(each.weight.shape, generator=draw)
        each.weight.copy_(drawn * sizes.rank**-0.5)
    return Step(case.rows, pool, case.table, case.slots, qkv, rotation, expansions)


def expected(step: Step) -> Tensor:
    """By the paper: keys and values of all heads, made of the rows that the pool should hold."""
    up, pool = step.expansions[1], step.pool.keys[1][:, 0].clone()
    sizes, heads = up.sizes, up.n_heads
    queries, latents, key = step.qkv.split((heads * sizes.key, sizes.rank, sizes.turned), dim=1)
    turned = step.rotation.turned(key[:, None])[:, 0]
    pool[step.slots] = torch.cat((latents, turned), dim=1)
    q = queries.reshape(-1, heads, sizes.key)
    q = torch.cat((q[..., : sizes.plain], step.rotation.turned(q[..., sizes.plain :])), -1).double()
    weight = up.weight.double().view(heads, sizes.plain + sizes.values, sizes.rank)
    answers, token = [], 0
    for row in step.rows:
        seen = pool[step.table[row.row, : row.stop].long()].double()
        made = torch.einsum("tr,hdr->htd", seen[:, : sizes.rank], weight)
        shared = seen[:, sizes.rank :].expand(heads, -1, -1)
        keys = torch.cat((made[..., : sizes.plain], shared), dim=-1)
        new = q[token : token + row.n_new].transpose(0, 1)
        later = torch.ones(row.n_new, row.stop, dtype=torch.bool, device=q.device).triu(
            row.start + 1
        )
        scores = (new @ keys.transpose(1, 2) * up.scale).masked_fill(later, float("-inf"))
        answers.append((scores.softmax(-1) @ made[..., sizes.plain :]).transpose(0, 1).flatten(1))
        token += row.n_new
    return torch.cat(answers)


BACKENDS = ("compiled", "torch")


def backend_of(step: Step, kind: str) -> LatentBackend:
    made = make_backend(step.pool, step.expansions[1].n_heads, expansions=step.expansions)
    if kind == "torch":
        made = LatentBackend(step.pool, step.expansions, TorchBackend(step.pool, HEADS))
    assert isinstance(made, LatentBackend)
    return made


def check(step: Step, kind: str, tolerance: float, *, sharing: bool = True) -> None:
    wanted, backend = expected(step), backend_of(step, kind)
    least_view = EVERYTHING.least_view if kind == "torch" else backend.sharing.least_view
    rule = EVERYTHING._replace(largest=backend.sharing.largest, least_view=least_view)
    plan = make_plan(step.rows, rule if sharing else None)
    attend = backend.prepare(plan, step.table, step.slots)
    found = attend(1, step.qkv.clone(), step.rotation, None)
    assert found.shape == wanted.shape
    assert (found.double() - wanted).abs().max() <= tolerance


DTYPES = [(torch.float32, 5e-6), (torch.bfloat16, 4e-2)]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_single_tokens_that_share_a_prefix(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    paths = [Path(((1, 300), (2, 20)), own, 1) for own in (0, 3, 40)]
    paths += [Path(((1, 300),), 7, 1), Path((), 30, 1)]
    step = make_step(paths, dtype, seed=1)
    plan = make_plan(step.rows, EVERYTHING)
    assert plan.kv_tokens_read < plan.kv_tokens_of_rows / 2
    check(step, kind, tolerance)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rows_of_many_new_tokens_beside_rows_of_few(
    kind: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Expanded are the second and the fifth, the latter over more than one piece."""
    paths = [Path(((1, 64),), 3, 1), Path((), 0, 50), Path(((1, 64),), 9, 1)]
    paths += [Path((), 300, 20), Path((), 700, 600), Path(((1, 64),), 5, 2)]
    step = make_step(paths, dtype, seed=2)
    spans = make_plan(step.rows).rows
    assert [pays_expanded(span, SIZES) for span in spans] == [0, 1, 0, 0, 1, 0]
    check(step, kind, tolerance, sharing=False)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("seed", range(4))
def test_random_trees(kind: str, seed: int) -> None:
    page = (0, 1, 16)[seed % 3]
    paths = random_tree(np.random.default_rng(seed), depth=3, page=page)
    check(make_step(paths, torch.float32, seed=seed, page=page), kind, 5e-6)


def test_a_node_is_read_once_beside_a_row_that_is_expanded() -> None:
    paths = [Path((), 0, 60), *[Path(((1, 320),), own, 1) for own in (1, 2, 3)]]
    step = make_step(paths, torch.float32, seed=3)
    backend = backend_of(step, "compiled")
    plan = make_plan(step.rows, EVERYTHING._replace(largest=backend.sharing.largest))
    assert [read.length for read in plan.shared] == [320]
    check(step, "compiled", 5e-6)


def test_rows_that_gain_by_expanding_do_not_share() -> None:
    """Theirs is the whole context: a shared read would be absorbed."""
    assert least_expanded(SIZES) == 84
    for kind in BACKENDS:
        step = make_step([Path((), 0, 2)], torch.float32, seed=0)
        assert backend_of(step, kind).sharing.largest < 84
    # Rows that are no shorter than what is made of them are never expanded.
    short = LatentSizes(rank=8, turned=4, plain=16, values=16)
    assert least_expanded(short) > 1 << 40


def test_a_short_prompt_from_its_start_is_expanded_and_its_answers_are_not() -> None:
    step = make_step([Path((), 0, 20), Path((), 20, 1)], torch.float32, seed=4)
    assert [pays_expanded(span, SIZES) for span in make_plan(step.rows).rows] == [True, False]
    check(step, "compiled", 5e-6)
