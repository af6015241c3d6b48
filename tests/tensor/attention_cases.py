"""Random steps for attention, and what it must give: a dense float64 reference, row by row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from radixlm.attention import TorchAttention, make_plan
from radixlm.core.batch import ScheduledRow
from radixlm.memory import KVPool, ReqToTokenPool
from tests.tensor.rows import make_row


class Heads(NamedTuple):
    n_heads: int
    n_kv_heads: int
    head_dim: int


class Case(NamedTuple):
    rows: list[ScheduledRow]
    pool: KVPool
    table: Tensor
    slots: Tensor
    q: Tensor
    k: Tensor
    v: Tensor


def make_case(
    shapes: list[tuple[int, int]],
    heads: Heads,
    dtype: torch.dtype,
    device: str,
    *,
    seed: int,
    scattered: bool,
) -> Case:
    """shapes: (tokens before, new tokens) per row. The pool around the rows holds NaN."""
    rng = np.random.default_rng(seed)
    total = sum(before + new for before, new in shapes)
    places = np.arange(3, total + 3)
    if scattered:
        places = rng.permutation(total + 20)[:total]
    rows = []
    table = ReqToTokenPool(len(shapes) + 2, max(before + new for before, new in shapes), device)
    taken = 0
    for index, (before, new) in enumerate(shapes):
        length = before + new
        own = places[taken : taken + length]
        rows.append(make_row([1] * length, slots=own, start=before, table_row=len(shapes) - index))
        table.apply(rows[-1])
        taken += length
    pool = KVPool(2, total + 23, heads.n_kv_heads, heads.head_dim, dtype, device)
    generator = torch.Generator().manual_seed(seed)
    for tensor in (pool.keys[1], pool.values[1]):
        tensor.fill_(float("nan"))
        noise = torch.randn((total, heads.n_kv_heads, heads.head_dim), generator=generator)
        tensor[torch.as_tensor(places)] = noise.to(dtype).to(device)
    slots = torch.as_tensor(np.concatenate([row.new_slots for row in rows]), dtype=torch.int64)
    width = heads.n_heads + 2 * heads.n_kv_heads
    # One strided tensor, as a fused projection gives it.
    qkv = torch.randn((slots.numel(), width, heads.head_dim), generator=generator)
    q, k, v = (
        qkv.to(dtype).to(device).split((heads.n_heads, heads.n_kv_heads, heads.n_kv_heads), dim=1)
    )
    return Case(rows, pool, table.table, slots.to(device), q, k, v)


def run(case: Case, group_tokens: int) -> Tensor:
    plan = make_plan(case.rows, group_tokens)
    attend = TorchAttention(case.pool, case.table, plan, case.slots)
    return attend(1, case.q, case.k, case.v)


def reference(case: Case) -> Tensor:
    """After `run`: reads the pool by the rows' slots; plain scores, softmax, sum, in float64."""
    out = []
    token = 0
    for row in case.rows:
        slots = case.table[row.row, : row.stop].long()
        shared = case.q.shape[1] // case.k.shape[1]
        keys = case.pool.keys[1][slots].double().repeat_interleave(shared, dim=1)
        values = case.pool.values[1][slots].double().repeat_interleave(shared, dim=1)
        queries = case.q[token : token + row.n_new].double()
        scores = torch.einsum("nhd,thd->nht", queries, keys) * queries.shape[-1] ** -0.5
        position = torch.arange(row.stop, device=slots.device)
        ahead = position > position[row.start :, None]
        weights = scores.masked_fill(ahead[:, None], float("-inf")).softmax(-1)
        out.append(torch.einsum("nht,thd->nhd", weights, values))
        token += row.n_new
    return torch.cat(out)


def random_shapes(rng: np.random.Generator) -> list[tuple[int, int]]:
    """Decodes, whole prompts and continued chunks, some past the length of a query block."""
    shapes = []
    for _ in range(int(rng.integers(1, 9))):
        before = int(rng.choice([0, 1, 5, 60, 200]))
        new = int(rng.choice([1, 1, 1, 2, 7, 64, 300]))
        shapes.append((before, new))
    return shapes
