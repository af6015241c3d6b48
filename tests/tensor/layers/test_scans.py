"""Scans: chunks against a loop over tokens in float64, and where their bits stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from radixlm.layers.scans import CHUNK, ScanInputs, scan, step

HEADS, KEY, VALUE = 3, 8, 5


def made_up(count: int, *, delta: bool = True) -> ScanInputs:
    draw = torch.Generator().manual_seed(count)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(count, HEADS, *shape, generator=draw)

    keys = torch.nn.functional.normalize(drawn(KEY), dim=-1)
    beta = drawn().sigmoid() if delta else None
    return ScanInputs(drawn(KEY), keys, drawn(VALUE), -drawn().exp() / 9, beta)


def by_token(inputs: ScanInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    read = []
    for token in range(len(inputs.queries)):
        q, k, v, decay = (each[token].double() for each in inputs[:4])
        state = state * decay.exp()[:, None, None]
        if inputs.beta is not None:
            v = (v - (k[:, :, None] * state).sum(1)) * inputs.beta[token].double()[:, None]
        state = state + k[:, :, None] * v[:, None, :]
        read.append((q[:, :, None] * state).sum(1))
    return torch.stack(read), state


@pytest.mark.parametrize("offset", [0, 1, CHUNK - 1])
@pytest.mark.parametrize("count", [1, 2, CHUNK, CHUNK + 1, 3 * CHUNK - 5])
@pytest.mark.parametrize("delta", [True, False])
def test_chunks_equal_a_loop(count: int, offset: int, *, delta: bool) -> None:
    inputs = made_up(count, delta=delta)
    state = torch.randn(HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(9))
    read, after = scan(inputs, state, offset)
    expected, its = by_token(inputs, state.double())
    assert read.shape == expected.shape
    assert (read - expected).abs().max() < 1e-4
    assert (after - its).abs().max() < 1e-5


@pytest.mark.parametrize("delta", [True, False])
def test_a_step_equals_a_loop(*, delta: bool) -> None:
    inputs = made_up(4, delta=delta)
    states = torch.randn(4, HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(9))
    read, after = step(inputs, states)
    for row in range(4):
        expected, its = by_token(inputs.of(slice(row, row + 1)), states[row].double())
        assert (read[row] - expected[0]).abs().max() < 1e-5
        assert (after[row] - its).abs().max() < 1e-5


@pytest.mark.parametrize("delta", [True, False])
def test_a_cut_at_a_chunk_leaves_the_bits_as_they_are(*, delta: bool) -> None:
    inputs, empty = made_up(5 * CHUNK, delta=delta), torch.zeros(HEADS, KEY, VALUE)
    whole = scan(inputs, empty, 0)
    first, state = scan(inputs.of(slice(0, 2 * CHUNK)), empty, 0)
    rest, state = scan(inputs.of(slice(2 * CHUNK, None)), state, 0)
    assert torch.equal(torch.cat((first, rest)), whole[0])
    assert torch.equal(state, whole[1])


def test_strong_decays_are_finite() -> None:
    inputs = made_up(2 * CHUNK)
    inputs = inputs._replace(decay=torch.full_like(inputs.decay, -80.0))
    read, state = scan(inputs, torch.zeros(HEADS, KEY, VALUE), 0)
    assert read.isfinite().all()
    assert state.isfinite().all()
