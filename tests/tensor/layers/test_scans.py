"""Scans, compiled and by torch, against a loop over tokens in float64; where bits stay."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from radixlm.layers.scan_kernel import ScanShape
from radixlm.layers.scans import Scan
from radixlm.layers.step_states import StateRow, StepStates
from radixlm.layers.torch_scans import CHUNK, ScanInputs
from radixlm.products.compiled import TensorOptions

HEADS, KEY_HEADS, KEY, VALUE = 6, 3, 8, 5
EXACT = TensorOptions(torch.float32, torch.device("cpu"))
# What no compiled code is for.
OTHER = TensorOptions(torch.float64, torch.device("cpu"))
SKIP = torch.linspace(-1, 1, HEADS)
WAYS = pytest.mark.parametrize("options", [EXACT, OTHER], ids=["compiled", "torch"])
KINDS = pytest.mark.parametrize("delta", [True, False], ids=["delta", "mamba"])


def made_up(
    count: int, *, key: int = KEY, value: int = VALUE, by_channel: bool = False
) -> ScanInputs:
    draw = torch.Generator().manual_seed(count)
    sizes = KEY_HEADS * key, KEY_HEADS * key, HEADS * value
    parts = torch.randn(count, 9 + sum(sizes), generator=draw)[:, 9:].split(sizes, dim=1)
    heads = KEY_HEADS, KEY_HEADS, HEADS
    parts = [part.unflatten(1, (its, -1)) for part, its in zip(parts, heads, strict=True)]
    fades = (count, HEADS, key) if by_channel else (count, HEADS)
    decay = -torch.randn(fades, generator=draw).exp() / 9
    return ScanInputs(*parts, decay, torch.randn(count, HEADS, generator=draw).sigmoid())


def of(shape: ScanShape, options: TensorOptions = EXACT) -> Scan:
    return Scan(shape, options, None if shape.delta else SKIP)


def states(key: int = KEY, value: int = VALUE, slots: int = 2) -> Tensor:
    return torch.randn(slots, HEADS, key, value, generator=torch.Generator().manual_seed(9))


def by_token(inputs: ScanInputs, state: Tensor, *, delta: bool) -> tuple[Tensor, Tensor]:
    read, state = [], state.double()
    for token in range(len(inputs.queries)):
        q, k, v, decay, beta = (each[token].double() for each in inputs)
        q, k = (each.repeat_interleave(HEADS // KEY_HEADS, 0) for each in (q, k))
        skipped = SKIP[:, None] * v
        if delta:
            q, k = normalize(q, dim=-1) * q.shape[-1] ** -0.5, normalize(k, dim=-1)
        state = state * decay.exp().view(HEADS, -1, 1)
        if delta:
            v, skipped = v - (k[:, :, None] * state).sum(1), 0
        state = state + k[:, :, None] * (v * beta[:, None])[:, None, :]
        read.append((q[:, :, None] * state).sum(1) + skipped)
    return torch.stack(read), state


def scanned(scan: Scan, inputs: ScanInputs, kept: Tensor, *rows: StateRow) -> tuple[Tensor, Tensor]:
    kept = kept.clone()
    return scan(inputs, 0, StepStates(rows, [torch.empty(2, 0)], [kept])), kept


@WAYS
@KINDS
@pytest.mark.parametrize("position", [0, 1, CHUNK - 1])
@pytest.mark.parametrize("count", [1, 2, CHUNK, CHUNK + 1, 3 * CHUNK - 5])
def test_a_row_equals_a_loop(
    options: TensorOptions, count: int, position: int, *, delta: bool
) -> None:
    inputs, kept = made_up(count), states()
    scan, row = of(ScanShape(KEY, VALUE, delta), options), StateRow(0, count, position, 1)
    read, after = scanned(scan, inputs, kept, row)
    expected, its = by_token(inputs, kept[1], delta=delta)
    assert (read - expected).abs().max() < 1e-4
    assert (after[1] - its).abs().max() < 1e-5
    assert torch.equal(after[0], kept[0])


@pytest.mark.parametrize(
    "shape",
    [
        ScanShape(128, 128, delta=True),
        ScanShape(128, 128, delta=True, by_channel=True),
        ScanShape(256, 64, delta=False),
        ScanShape(12, 20, delta=True, by_channel=True),
        ScanShape(7, 3, delta=False),
        ScanShape(40_000, 1, delta=True, by_channel=True),  # whose decays no thread's stack holds
    ],
    ids=str,
)
def test_sizes_that_are_compiled(shape: ScanShape) -> None:
    key, value, delta, by_channel = shape
    count = 70 if key < 1000 else 3
    inputs, kept = made_up(count, key=key, value=value, by_channel=by_channel), states(key, value)
    read, after = scanned(of(shape), inputs, kept, StateRow(0, count, 0, 1))
    expected, its = by_token(inputs, kept[1], delta=delta)
    assert (read - expected).abs().max() < 1e-4 * expected.abs().max()
    assert (after[1] - its).abs().max() < 1e-5 * its.abs().max()


@WAYS
@KINDS
def test_rows_of_one_token_and_of_several(options: TensorOptions, *, delta: bool) -> None:
    inputs, kept = made_up(7), states(slots=5)
    rows = StateRow(0, 1, 3, 2), StateRow(1, 6, 0, 4), StateRow(6, 7, 8, 0)
    read, after = scanned(of(ScanShape(KEY, VALUE, delta), options), inputs, kept, *rows)
    for row in rows:
        its = inputs.of(slice(row.first, row.stop))
        expected, state = by_token(its, kept[row.slot], delta=delta)
        assert (read[row.first : row.stop] - expected).abs().max() < 1e-5
        assert (after[row.slot] - state).abs().max() < 1e-5
    assert torch.equal(after[1::2], kept[1::2])


@KINDS
@pytest.mark.parametrize("by_channel", [False, True])
def test_wherever_a_row_is_cut_the_bits_stay(*, delta: bool, by_channel: bool) -> None:
    inputs, kept = made_up(150, key=16, value=32, by_channel=by_channel), states(16, 32)
    scan, made = of(ScanShape(16, 32, delta, by_channel)), []
    whole, its = scanned(scan, inputs, kept, StateRow(0, 150, 0, 1))
    for start, stop in ((0, 1), (1, 2), (2, 40), (40, 104), (104, 149), (149, 150)):
        row = StateRow(0, stop - start, start, 1)
        read, kept = scanned(scan, inputs.of(slice(start, stop)), kept, row)
        made.append(read)
    assert torch.equal(torch.cat(made), whole)
    assert torch.equal(kept, its)


@KINDS
def test_a_cut_at_a_chunk_leaves_torch_s_bits_as_they_are(*, delta: bool) -> None:
    inputs, kept = made_up(5 * CHUNK), torch.zeros(2, HEADS, KEY, VALUE)
    scan, at = of(ScanShape(KEY, VALUE, delta), OTHER), 2 * CHUNK
    whole = scanned(scan, inputs, kept, StateRow(0, 5 * CHUNK, 0, 1))
    first, kept = scanned(scan, inputs.of(slice(0, at)), kept, StateRow(0, at, 0, 1))
    row = StateRow(0, 3 * CHUNK, at, 1)
    rest, kept = scanned(scan, inputs.of(slice(at, None)), kept, row)
    assert torch.equal(torch.cat((first, rest)), whole[0])
    assert torch.equal(kept, whole[1])


@WAYS
def test_strong_decays_are_finite(options: TensorOptions) -> None:
    inputs = made_up(2 * CHUNK)
    inputs = inputs._replace(decay=torch.full_like(inputs.decay, -80.0))
    scan, row = of(ScanShape(KEY, VALUE, delta=True), options), StateRow(0, 2 * CHUNK, 0, 0)
    read, kept = scanned(scan, inputs, torch.zeros(1, HEADS, KEY, VALUE), row)
    assert read.isfinite().all()
    assert kept.isfinite().all()


@WAYS
def test_numbers_that_are_not_finite_stay_so(options: TensorOptions) -> None:
    inputs = made_up(3)
    inputs.values[1] = torch.nan
    scan, row = of(ScanShape(KEY, VALUE, delta=True), options), StateRow(0, 3, 0, 0)
    read, _ = scanned(scan, inputs, torch.zeros(1, HEADS, KEY, VALUE), row)
    assert not read[-1].isfinite().any()


@WAYS
@pytest.mark.parametrize(("delta", "by_channel"), [(True, False), (True, True), (False, False)])
def test_copies_on_the_way_are_those_of_rows_that_end_there(
    options: TensorOptions, *, delta: bool, by_channel: bool
) -> None:
    inputs, kept = made_up(151, key=16, value=32, by_channel=by_channel), states(16, 32, 8)
    scan = of(ScanShape(16, 32, delta, by_channel), options)
    copies = (2, 5), (40, 6), (150, 7)
    rows = StateRow(0, 1, 4, 2, ((1, 3),)), StateRow(1, 150, 9, 1, copies)
    last = StateRow(150, 151, 3, 4)
    read, after = scanned(scan, inputs, kept, last, *rows)
    cuts, made, its = (0, 1, 2, 40, 150, 151), [], kept
    slots = (2, 3), (1, 5), (1, 6), (1, 7), (4, None)
    for (slot, copy), (start, stop) in zip(slots, pairwise(cuts), strict=True):
        position = {2: 4, 1: 8 + start, 4: 3}[slot]
        row = StateRow(0, stop - start, position, slot)
        found, its = scanned(scan, inputs.of(slice(start, stop)), its, row)
        made.append(found)
        if copy is not None:
            its[copy] = its[slot]
    off = 0 if options is EXACT else 1e-5  # torch takes one token in another way than several
    assert (after - its).abs().max() <= off
    assert (torch.cat(made) - read).abs().max() <= off
