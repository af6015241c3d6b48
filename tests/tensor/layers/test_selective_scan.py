"""Mamba's scan against a loop over tokens in float64, and where its bits stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from radixlm.layers.selective_scan import SelectiveInputs, SelectiveScan, selective_scan
from radixlm.layers.step_states import StateRow, StepStates
from radixlm.products.compiled import TensorOptions

CHANNELS, HEADS, KEY = 24, 2, 6
DECAY = -torch.linspace(0.01, 90.0, CHANNELS * KEY).view(CHANNELS, KEY)


def made_up(count: int) -> SelectiveInputs:
    draw = torch.Generator().manual_seed(count)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=draw)

    of_heads = drawn(HEADS, KEY), drawn(HEADS, KEY)
    return SelectiveInputs(drawn(CHANNELS), drawn(CHANNELS).exp(), *of_heads)


def by_token(inputs: SelectiveInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    read = []
    for value, step, *of_heads in zip(*(each.double() for each in inputs), strict=True):
        query, key = (each.repeat_interleave(CHANNELS // HEADS, dim=0) for each in of_heads)
        state = state * (step[:, None] * DECAY).exp() + (step * value)[:, None] * key
        read.append((state * query).sum(1))
    return torch.stack(read), state


@pytest.mark.parametrize("count", [1, 15, 16, 50])
def test_a_scan_equals_a_loop(count: int) -> None:
    inputs = made_up(count)
    state = torch.randn(CHANNELS, KEY, generator=torch.Generator().manual_seed(9))
    read, after = selective_scan(inputs, DECAY, state)
    expected, its = by_token(inputs, state.double())
    assert (read - expected).abs().max() < 1e-4
    assert (after - its).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "torch"])
def test_rows_of_one_token_and_of_several(dtype: torch.dtype) -> None:
    """Each goes on from the state in its slot."""
    inputs, kept = made_up(21), torch.randn(4, CHANNELS, KEY)
    rows = StateRow(0, 1, 7, 3), StateRow(1, 20, 0, 1), StateRow(20, 21, 9, 0)
    before = kept.clone()
    states = StepStates(rows, [torch.empty(0)], [kept])
    scan = SelectiveScan(KEY, TensorOptions(dtype, torch.device("cpu")))
    read = scan(inputs, DECAY, 0, states)
    for first, stop, _, slot, _ in rows:
        expected, its = by_token(inputs.of(slice(first, stop)), before[slot].double())
        assert (read[first:stop] - expected).abs().max() < 1e-4
        assert (kept[slot] - its).abs().max() < 1e-4
    assert torch.equal(kept[2], before[2])


def test_compiled_bits_stay_wherever_a_row_is_cut() -> None:
    scan = SelectiveScan(KEY, TensorOptions(torch.float32, torch.device("cpu")))
    inputs, kept, made = made_up(50), torch.zeros(2, 1, CHANNELS, KEY), []

    def scanned(start: int, stop: int, slot: int) -> Tensor:
        row, its = StateRow(0, stop - start, start, 0), inputs.of(slice(start, stop))
        return scan(its, DECAY, 0, StepStates([row], [torch.empty(0)], [kept[slot]]))

    whole = scanned(0, 50, 0)
    for start, stop in ((0, 1), (1, 2), (2, 33), (33, 50)):
        made.append(scanned(start, stop, 1))
    assert torch.equal(torch.cat(made), whole)
    assert torch.equal(kept[0], kept[1])


@pytest.mark.parametrize("cut", [1, 17, 32])
def test_a_cut_leaves_the_bits_as_they_are(cut: int) -> None:
    inputs, empty = made_up(50), torch.zeros(CHANNELS, KEY)
    whole = selective_scan(inputs, DECAY, empty)
    first, state = selective_scan(inputs.of(slice(cut)), DECAY, empty)
    rest, state = selective_scan(inputs.of(slice(cut, None)), DECAY, state)
    assert torch.equal(torch.cat((first, rest)), whole[0])
    assert torch.equal(state, whole[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "torch"])
def test_copies_on_the_way_are_those_of_rows_that_end_there(dtype: torch.dtype) -> None:
    scan = SelectiveScan(KEY, TensorOptions(dtype, torch.device("cpu")))
    inputs, kept = made_up(50), torch.randn(4, CHANNELS, KEY)
    its, made = kept.clone(), []

    def scanned(row: StateRow, given: SelectiveInputs, state: Tensor) -> Tensor:
        return scan(given, DECAY, 0, StepStates([row], [torch.empty(0)], [state]))

    whole = scanned(StateRow(0, 50, 7, 1, ((1, 0), (33, 2), (50, 3))), inputs, kept)
    for start, stop, copy in ((0, 1, 0), (1, 33, 2), (33, 50, 3)):
        row = StateRow(0, stop - start, 7 + start, 1)
        made.append(scanned(row, inputs.of(slice(start, stop)), its))
        its[copy] = its[1]
    assert torch.equal(kept, its)
    assert torch.equal(torch.cat(made), whole)
