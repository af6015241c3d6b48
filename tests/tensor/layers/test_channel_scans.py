"""Scans whose states fade by channels: chunks against a loop over tokens in float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from radixlm.layers.channel_scans import scan_channels
from radixlm.layers.torch_scans import CHUNK, ScanInputs, step

HEADS, KEY, VALUE = 3, 8, 5


def made_up(count: int, most: float) -> ScanInputs:
    """most: the logarithm by which the quickest channels fade at each token; others fade little."""
    draw = torch.Generator().manual_seed(count)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(count, HEADS, *shape, generator=draw)

    keys = torch.nn.functional.normalize(drawn(KEY), dim=-1)
    decay = -drawn(KEY).exp() / 9 * torch.linspace(0.01, most, KEY)
    return ScanInputs(drawn(KEY), keys, drawn(VALUE), decay, drawn().sigmoid())


def by_token(inputs: ScanInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    read = []
    for token in range(len(inputs.queries)):
        q, k, v, decay = (each[token].double() for each in inputs[:4])
        state = state * decay.exp()[..., None]
        v = (v - (k[:, :, None] * state).sum(1)) * inputs.beta[token].double()[:, None]
        state = state + k[:, :, None] * v[:, None, :]
        read.append((q[:, :, None] * state).sum(1))
    return torch.stack(read), state


@pytest.mark.parametrize("most", [1.0, 300.0])
@pytest.mark.parametrize("offset", [0, 1, CHUNK - 1])
@pytest.mark.parametrize("count", [1, 9, CHUNK + 1, 3 * CHUNK - 5])
def test_chunks_equal_a_loop(count: int, offset: int, most: float) -> None:
    """Also where a chunk's channels fade by more than a float can say."""
    inputs = made_up(count, most)
    state = torch.randn(HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(9))
    read, after = scan_channels(inputs, state, offset)
    expected, its = by_token(inputs, state.double())
    assert read.shape == expected.shape
    assert (read - expected).abs().max() < 1e-4
    assert (after - its).abs().max() < 1e-5


def test_a_step_equals_a_loop() -> None:
    inputs = made_up(4, 1.0)
    states = torch.randn(4, HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(9))
    read, after = step(inputs, states, delta=True)
    for row in range(4):
        expected, its = by_token(inputs.of(slice(row, row + 1)), states[row].double())
        assert (read[row] - expected[0]).abs().max() < 1e-5
        assert (after[row] - its).abs().max() < 1e-5


def test_a_state_between_chunks_has_the_same_bits() -> None:
    inputs, state = made_up(3 * CHUNK, 1.0), torch.zeros(HEADS, KEY, VALUE)
    whole = scan_channels(inputs, state, 0)[1]
    for start, stop in pairwise((0, 2 * CHUNK, 3 * CHUNK)):
        state = scan_channels(inputs.of(slice(start, stop)), state, 0)[1]
    assert torch.equal(state, whole)
