"""Short convolutions, compiled and by torch, against one over whole rows in float64."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.causal_conv import CausalConv
from radixlm.layers.step_states import StateRow, StepStates
from radixlm.products.compiled import TensorOptions

CPU = torch.device("cpu")
OPTIONS = {
    "float32": TensorOptions(torch.float32, CPU),
    "bfloat16": TensorOptions(torch.bfloat16, CPU),
    "torch": TensorOptions(torch.float64, CPU),  # for which there is no compiled code
}
SIZES = (1, 5, 1, 2, 9)


def made_up(
    options: TensorOptions, channels: int, width: int, *, bias: bool, gated: bool
) -> CausalConv:
    torch.manual_seed(3)
    conv = CausalConv(channels, width, options, bias=bias, gated=gated)
    for _, weight in conv.named_weights("conv"):
        weight.normal_()
    return conv


def whole(conv: CausalConv, x: Tensor, *, gated: bool) -> Tensor:
    """All of a row at once."""
    weights = [each.double() for _, each in conv.named_weights("conv")]
    dtype, x, after = x.dtype, x.double(), functional.silu
    if gated:
        first, second, inner = x.chunk(3, dim=1)
        x, after = (first * inner).to(dtype).double(), second.mul
    padded = functional.pad(x.t()[None], (weights[0].shape[2] - 1, 0))
    bias = weights[1] if len(weights) > 1 else None
    return after(functional.conv1d(padded, weights[0], bias, groups=len(weights[0]))[0].t())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("channels", "width", "bias"), [(300, 4, False), (21, 2, True), (64, 3, True)]
)
@pytest.mark.parametrize("kind", OPTIONS)
def test_rows_in_parts(kind: str, channels: int, width: int, *, bias: bool, gated: bool) -> None:
    """Of two rows by turns, the second of which is only one token long each time."""
    options = OPTIONS[kind]
    conv = made_up(options, channels, width, bias=bias, gated=gated)
    wide = 3 * channels if gated else channels
    x = torch.randn(2, sum(SIZES), wide + 7).to(options.dtype)[:, :, 7:]
    kept = torch.randn(5, width - 1, channels).to(options.dtype)
    kept[1] = kept[4] = 0
    others, made = kept[::2][:2].clone(), ([], [])
    for number, (start, stop) in enumerate(pairwise(accumulate(SIZES, initial=0))):
        count = stop - start
        rows = [StateRow(0, 1, number, 4), StateRow(1, 1 + count, start, 1)]
        given = torch.cat((x[1, number : number + 1], x[0, start:stop]))
        given = torch.nn.functional.pad(given, (5, 0))[:, 5:]
        out = conv(given, 0, StepStates(rows, [kept], [torch.empty(5, 0)]))
        made[1].append(out[:1])
        made[0].append(out[1:])
    tolerance = 2e-2 if kind == "bfloat16" else 1e-5
    for its, row in zip(made, x, strict=True):
        found = torch.cat(its)
        expected = whole(conv, row[: len(found)], gated=gated)
        assert torch.allclose(found.double(), expected, tolerance, tolerance)
    assert torch.equal(kept[::2][:2], others)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", OPTIONS)
def test_copies_on_the_way_are_those_of_rows_that_end_there(kind: str, *, gated: bool) -> None:
    options, channels = OPTIONS[kind], 300
    conv = made_up(options, channels, 4, bias=True, gated=gated)
    x = torch.randn(20, 3 * channels if gated else channels).to(options.dtype)
    kept = torch.randn(5, 3, channels).to(options.dtype)
    its, made = kept.clone(), []

    def convolved(row: StateRow, given: Tensor, state: Tensor) -> Tensor:
        return conv(given.clone(), 0, StepStates([row], [state], [torch.empty(5, 0)])).clone()

    found = convolved(StateRow(0, 20, 3, 2, ((2, 0), (13, 4), (20, 1))), x, kept)
    for start, stop, copy in ((0, 2, 0), (2, 13, 4), (13, 20, 1)):
        row = StateRow(0, stop - start, 3 + start, 2)
        made.append(convolved(row, x[start:stop], its))
        its[copy] = its[2]
    assert torch.equal(kept, its)
    assert torch.equal(torch.cat(made), found)
