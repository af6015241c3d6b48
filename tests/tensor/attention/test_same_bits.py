"""Deterministic attention: a token's bits depend on its context alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.attention.backends import CpuBackend
from radixlm.attention.plan import make_plan
from radixlm.core.batch import ScheduledRow
from tests.tensor.attention_cases import (
    DTYPES,
    Case,
    Heads,
    Path,
    attention,
    in_codes,
    make_tree_case,
    reference,
)

HEADS = [
    Heads(9, 3, 64),
    Heads(4, 1, 20),
    *(pytest.param(heads, marks=pytest.mark.slow) for heads in (Heads(4, 4, 16), Heads(5, 1, 80))),
]


def _attention(case: Case, backend: CpuBackend, rows: list[ScheduledRow], new: slice) -> Tensor:
    """Of some rows, whose new tokens are these of the case."""
    plan = make_plan(rows, backend.sharing)
    attend = backend.prepare(plan, case.table, case.slots[new])
    return attention(attend, case, new)


def _backend(case: Case) -> CpuBackend:
    """One that shares whatever it can."""
    made = CpuBackend(case.pool, case.q.shape[1], deterministic=True)
    made.sharing = made.sharing._replace(fewest=1, shortest=0, least_saved=1)
    return made


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize(("dtype", "near"), DTYPES)
@pytest.mark.parametrize(("page", "coded"), [(0, False), (16, False), (16, True)])
def test_a_row_has_the_same_bits_in_any_company_and_any_chunks(
    heads: Heads, dtype: torch.dtype, near: float, page: int, coded: bool
) -> None:
    root, left, right, deep = (1, 800), (2, 1600), (3, 512), (4, 96)
    paths = [
        Path((root, left, deep), 0, 1),
        Path((root, left, deep), 37, 1),
        Path((root, left), 700, 1),
        Path((root, left), 3, 1),
        Path((root, right), 64, 1),
        Path((root, right), 0, 2),
        Path((root,), 10, 1100),
        Path((), 5, 1),
        Path((), 1, 40),
    ]
    case = make_tree_case(paths, heads, dtype, "cpu", seed=1, page=page)
    case = in_codes(case) if coded else case
    backend = _backend(case)
    together = _attention(case, backend, case.rows, slice(None))
    assert (together.double() - reference(case)).abs().max().item() < near
    assert make_plan(case.rows, backend.sharing).shared
    token = 0
    for row in case.rows:
        wanted = together[token : token + row.n_new]
        for chunk in {row.n_new, 1, 7, 130}:
            if chunk <= row.n_new <= 100 * chunk:
                assert torch.equal(_in_chunks(case, backend, row, token, chunk), wanted), chunk
        token += row.n_new


def _in_chunks(
    case: Case, backend: CpuBackend, row: ScheduledRow, token: int, chunk: int
) -> Tensor:
    made = []
    for start in range(row.start, row.stop, chunk):
        stop = min(start + chunk, row.stop)
        part = _cut(row, start, stop)
        first = token + start - row.start
        made.append(_attention(case, backend, [part], slice(first, first + stop - start)))
    return torch.cat(made)


def _cut(row: ScheduledRow, start: int, stop: int) -> ScheduledRow:
    """A row that computes the new tokens [start, stop) of another."""
    *nodes, tail = row.segments
    extents, length = [], stop - tail.start
    for extent in tail.extents:
        taken = min(extent.stop - extent.start, length)
        if taken > 0:
            extents.append(extent._replace(stop=extent.start + taken))
        length -= taken
    segments = (*nodes, tail._replace(stop=stop, extents=tuple(extents)))
    return replace(
        row,
        start=start,
        tokens=row.tokens[:stop],
        new_slots=row.new_slots[start - row.start : stop - row.start],
        segments=segments,
    )


def test_where_parts_would_take_too_much_nothing_is_shared() -> None:
    paths = [Path(((1, 1024),), 2000, 1)] * 3
    case = make_tree_case(paths, Heads(4, 1, 20), torch.float32, "cpu", seed=4, page=0)
    backend = _backend(case)
    wanted = _attention(case, backend, case.rows, slice(None))
    assert len(make_plan(case.rows, backend.sharing).shared) == 1
    assert backend.sharing.most_parts * 4 * 4 * 22 <= 64 << 20
    backend.sharing = backend.sharing._replace(most_parts=11)
    assert not make_plan(case.rows, backend.sharing).shared
    assert torch.equal(_attention(case, backend, case.rows, slice(None)), wanted)
    assert make_plan(case.rows, backend.sharing._replace(most_parts=12)).shared


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_change_nothing(dtype: torch.dtype, threads: int) -> None:
    paths = [Path((), 3000, 1), Path((), 2600, 30)]
    case = make_tree_case(paths, Heads(9, 3, 64), dtype, "cpu", seed=2, page=0)
    backend = _backend(case)
    wanted = _attention(case, backend, case.rows, slice(None))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = _attention(case, backend, case.rows, slice(None))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(made, wanted)


def test_a_token_reads_tiles_from_its_first_one_on() -> None:
    """A context that begins a tile later has other bits: so the order matters at all."""
    case = make_tree_case(
        [Path((), 1500, 1)], Heads(9, 3, 64), torch.float32, "cpu", seed=3, page=0
    )
    wanted = _attention(case, _backend(case), case.rows, slice(None))
    order = np.roll(case.table.numpy()[1, :1500], 7)
    case.table[1, :1500] = torch.as_tensor(order)
    made = _attention(case, _backend(case), case.rows, slice(None))
    assert not torch.equal(made, wanted)
    torch.testing.assert_close(made, wanted, atol=1e-5, rtol=0)
