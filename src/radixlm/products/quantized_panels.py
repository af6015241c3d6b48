"""Quantized weights in panels, see `quantized_products`: codes are laid out by compiled code."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker
from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import halves, inner, over_rows, words
from radixlm.products.float_strips import NEAR
from radixlm.products.quantized import QuantizedWeight
from radixlm.products.quantized_strips import LANES, UNIT, StripKind
from radixlm.products.quantized_tiles import STEP

_PANELS_AT_ONCE = 64
# Of float32, denormal numbers left out.
_LEAST_EXPONENT = -126
# Units that are written before the next lane's: they stay in the nearest cache.
_UNITS_AT_ONCE = 64


def laid_out(
    weight: QuantizedWeight, bias: Tensor | None, kind: StripKind
) -> tuple[Tensor, Tensor]:
    """Panels (panels, bytes), and what a panel's sums end with (panels, 2, lanes), float32: factors
    and biases. The last panel ends with the last output, and so may begin within the one before it.
    """
    outputs, inputs = weight.shape
    numbers = torch.arange(outputs)
    if kind.gate:
        numbers = numbers.view(2, -1, VECTOR_LANES).transpose(0, 1).flatten()
    if outputs % LANES:
        numbers = torch.cat([numbers[: outputs // LANES * LANES], numbers[-LANES:]])
    groups = weight.scales.shape[1]
    # What has one group is filled up to whole steps of tiles: what is not there counts nothing.
    padded = inputs if kind.group else -(-inputs // STEP) * STEP
    group_bytes = kind.head_bytes + padded // groups * LANES * kind.bits // 8
    panels = torch.zeros((numbers.numel() // LANES, groups, group_bytes), dtype=torch.uint8)
    ends = torch.zeros((panels.shape[0], 2, LANES))
    codes = weight.codes.contiguous()
    Worker(
        codes_kernel(kind.bits, floats=kind.numbers != "int"),
        rows=panels.shape[0],
        groups=groups,
        group=inputs // groups,
        order=numbers.data_ptr(),
        codes=codes.data_ptr(),
        into=panels.data_ptr() + kind.head_bytes,
        group_bytes=group_bytes,
    )()
    for first in range(0, panels.shape[0], _PANELS_AT_ONCE):
        some = slice(first, first + _PANELS_AT_ONCE)
        rows = numbers[first * LANES : some.stop * LANES]
        offsets = None if weight.offsets is None else weight.offsets[rows]
        factors = _put_heads(weight.scales[rows], offsets, kind, panels[some])
        ends[some, 0] = factors.view(-1, LANES)
        if bias is not None:
            ends[some, 1] = bias[rows].view(-1, LANES).float()
    return panels.view(panels.shape[0], -1), ends


def _put_heads(scales: Tensor, offsets: Tensor | None, kind: StripKind, panels: Tensor) -> Tensor:
    """Write scales and offsets (outputs, groups) into their panels; returns each output's factor.
    In a group float16 holds the scales over the row's largest one, to a power of two.
    """
    if not kind.group:
        return scales
    factors, start = _factors(scales, offsets), 0
    for values in (scales, offsets):
        if values is not None:
            small = values / factors.unsqueeze(1)
            small = small if kind.scale_bytes == 4 else small.to(torch.float16)
            small = small.view(len(panels), LANES, -1).transpose(1, 2).contiguous()
            size = kind.scale_bytes * LANES
            panels[:, :, start : start + size] = small.view(torch.uint8)
            start += size
    return factors


def _factors(scales: Tensor, offsets: Tensor | None) -> Tensor:
    """Powers of two such that each row's scales and offsets have float16's upper range."""
    top = scales.abs().amax(1)
    if offsets is not None:
        top = torch.maximum(top, offsets.abs().amax(1))
    _, exponents = torch.frexp(top)
    return torch.ldexp(torch.ones_like(top), (exponents - 15).clamp(min=_LEAST_EXPONENT))


_Arguments = namedtuple("_Arguments", "counters rows groups group order codes into group_bytes")


@compiled(_Arguments)
def codes_kernel(bits: int, *, floats: bool) -> Callable[[Any], None]:
    """The codes of panels, in the order of `float_strips` if they are floats. rows: panels; order:
    the output of each lane; codes: (outputs, inputs); into: where those of the first panel go.
    """
    per_byte = 8 // bits

    @inner
    def unit(codes: int, into: int, lane: int) -> None:
        for half in range(2):
            place = lane * UNIT + 2 * half
            if floats:
                place = lane // NEAR * 16 + half * 8 + lane % NEAR * 2
            pair = halves(codes + 2 * half)[0]
            if bits == 4:
                pair |= halves(codes + UNIT + 2 * half)[0] << 4
            halves(into + place)[0] = pair

    @inner
    def panel(args: Any, index: int) -> None:
        count = args.group // UNIT // per_byte
        for g in range(args.groups):
            into = args.into + (index * args.groups + g) * args.group_bytes
            for first in range(0, count, _UNITS_AT_ONCE):
                last = min(first + _UNITS_AT_ONCE, count)
                for lane in range(LANES):
                    row = words(args.order)[index * LANES + lane]
                    codes = args.codes + (row * args.groups + g) * args.group
                    for u in range(first, last):
                        unit(codes + u * UNIT * per_byte, into + u * LANES * UNIT, lane)

    return over_rows(panel, 1)
