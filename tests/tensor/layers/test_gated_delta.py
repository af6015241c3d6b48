"""The gated delta rule: chunks against a loop over tokens in float64, and where its bits stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from radixlm.layers.gated_delta import CHUNK, DeltaInputs, delta_scan, delta_step

HEADS, KEY, VALUE = 3, 8, 5


def made_up(count: int) -> DeltaInputs:
    draw = torch.Generator().manual_seed(count)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(count, HEADS, *shape, generator=draw)

    keys = torch.nn.functional.normalize(drawn(KEY), dim=-1)
    return DeltaInputs(drawn(KEY), keys, drawn(VALUE), -drawn().exp() / 9, drawn().sigmoid())


def by_token(inputs: DeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    read = []
    for q, k, v, decay, beta in zip(*(each.double() for each in inputs), strict=True):
        state = state * decay.exp()[:, None, None]
        change = (v - (k[:, :, None] * state).sum(1)) * beta[:, None]
        state = state + k[:, :, None] * change[:, None, :]
        read.append((q[:, :, None] * state).sum(1))
    return torch.stack(read), state


@pytest.mark.parametrize("offset", [0, 1, CHUNK - 1])
@pytest.mark.parametrize("count", [1, 2, CHUNK, CHUNK + 1, 3 * CHUNK - 5])
def test_chunks_equal_a_loop(count: int, offset: int) -> None:
    inputs = made_up(count)
    state = torch.randn(HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(9))
    read, after = delta_scan(inputs, state, offset)
    expected, its = by_token(inputs, state.double())
    assert read.shape == expected.shape
    assert (read - expected).abs().max() < 1e-4
    assert (after - its).abs().max() < 1e-5


def test_a_step_equals_a_loop() -> None:
    inputs = made_up(4)
    states = torch.randn(4, HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(9))
    read, after = delta_step(inputs, states)
    for row in range(4):
        expected, its = by_token(inputs.of(slice(row, row + 1)), states[row].double())
        assert (read[row] - expected[0]).abs().max() < 1e-5
        assert (after[row] - its).abs().max() < 1e-5


def test_a_cut_at_a_chunk_leaves_the_bits_as_they_are() -> None:
    inputs, empty = made_up(5 * CHUNK), torch.zeros(HEADS, KEY, VALUE)
    whole = delta_scan(inputs, empty, 0)
    first, state = delta_scan(inputs.of(slice(0, 2 * CHUNK)), empty, 0)
    rest, state = delta_scan(inputs.of(slice(2 * CHUNK, None)), state, 0)
    assert torch.equal(torch.cat((first, rest)), whole[0])
    assert torch.equal(state, whole[1])


def test_strong_decays_are_finite() -> None:
    inputs = made_up(2 * CHUNK)
    inputs = inputs._replace(decay=torch.full_like(inputs.decay, -80.0))
    read, state = delta_scan(inputs, torch.zeros(HEADS, KEY, VALUE), 0)
    assert read.isfinite().all()
    assert state.isfinite().all()
