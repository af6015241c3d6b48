"""Quantized weights in panels, see `quantized_products`: codes are laid out by compiled code."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from radixlm.kernels.bytes import planes_of, turn_of
from radixlm.kernels.huge_pages import huge_pages
from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker
from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import halves, inner, over_rows, words
from radixlm.products.float_strips import NEAR
from radixlm.products.quantized import QuantizedWeight
from radixlm.products.quantized_tiles import STEP
from radixlm.products.quantized_units import LANES, UNIT, StripKind

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
    blocks, block_bytes = weight.scales.shape[1] // kind.groups, kind.block_bytes
    if not kind.group:
        # Filled up to whole steps of tiles: what is not there counts nothing.
        block_bytes = -(-inputs // STEP) * STEP * LANES * kind.bits // 8
    shape = numbers.numel() // LANES, blocks, block_bytes
    panels = huge_pages().zeros(shape, torch.uint8)
    ends = torch.zeros((panels.shape[0], 2, LANES))
    _put_codes(weight, numbers, kind, panels)
    for first in range(0, panels.shape[0], _PANELS_AT_ONCE):
        some = slice(first, first + _PANELS_AT_ONCE)
        rows = numbers[first * LANES : some.stop * LANES]
        both = [part[rows] for part in (weight.scales, weight.offsets) if part is not None]
        steps = None if weight.steps is None else weight.steps[rows].unbind(2)
        factors = _put_heads(both, steps, kind, panels[some])
        ends[some, 0] = factors.view(-1, LANES)
        if bias is not None:
            ends[some, 1] = bias[rows].view(-1, LANES).float()
    return panels.view(panels.shape[0], -1), ends


def _put_codes(weight: QuantizedWeight, order: Tensor, kind: StripKind, panels: Tensor) -> None:
    """Write codes into panels (panels, blocks, bytes), one part of their bits after the other."""
    groups, codes = weight.scales.shape[1], weight.codes.contiguous()
    into = panels.data_ptr() + kind.step_bytes + kind.groups * kind.head_bytes
    place = 0
    for width in planes_of(kind.bits):
        Worker(
            codes_kernel(kind.bits, width, place, floats=not kind.are_bytes),
            rows=panels.shape[0],
            groups=groups,
            group=weight.group,
            order=order.data_ptr(),
            codes=codes.data_ptr(),
            into=into,
            group_bytes=kind.units_bytes,
            of_block=kind.groups,
            block_bytes=panels.shape[2],
            panel_bytes=panels.stride(0),
        )()
        place += width
        into += kind.turn * width // 8 * LANES * UNIT


def _put_heads(
    both: Sequence[Tensor], steps: Sequence[Tensor] | None, kind: StripKind, panels: Tensor
) -> Tensor:
    """Write scales, and offsets, (outputs, groups) into their panels; returns each output's factor.
    In a group float16 holds the scales over the row's largest one, to a power of two, or bytes hold
    them over the steps (outputs, blocks).
    """
    if not kind.group:
        return both[0]
    blocks = panels.shape[1]
    if steps is None:
        factors = _factors(both)
        scales = _by_lanes([each / factors.unsqueeze(1) for each in both], blocks)
        parts = [scales.half() if kind.scale_bytes == 2 else scales]
    else:
        factors = torch.ones(len(both[0]))
        small = [_multiples(each, step) for each, step in zip(both, steps, strict=True)]
        parts = [_by_lanes(steps, blocks).half(), _by_lanes(small, blocks).char()]
    heads = torch.cat([part.view(torch.uint8) for part in parts], dim=2)
    panels[:, :, : heads.shape[2]] = heads
    return factors


def _by_lanes(values: Sequence[Tensor], blocks: int) -> Tensor:
    """Each of (out, n) of several -> (panels, blocks, numbers of a block): by group, by kind."""
    made: Tensor = torch.stack(list(values)).unflatten(1, (-1, LANES))  # kinds, panels, lanes, n
    return made.permute(1, 3, 0, 2).contiguous().view(made.shape[1], blocks, -1)


def _multiples(values: Tensor, steps: Tensor) -> Tensor:
    """How many steps (out, blocks) values (out, groups) are; none of steps of 0."""
    made: Tensor = values.unflatten(1, (steps.shape[1], -1)) / steps.unsqueeze(2)
    made.round_().nan_to_num_(0)
    return made.view(values.shape)


def _factors(both: Sequence[Tensor]) -> Tensor:
    """Powers of two such that each row's scales and offsets have float16's upper range."""
    _, exponents = torch.frexp(torch.cat(list(both), dim=1).abs().amax(1))
    made = torch.ones(len(exponents))
    return torch.ldexp(made, (exponents - 15).clamp(min=_LEAST_EXPONENT))


_Arguments = namedtuple(
    "_Arguments",
    "counters rows groups group order codes into group_bytes of_block block_bytes panel_bytes",
)


@compiled(_Arguments)
def codes_kernel(bits: int, width: int, place: int, *, floats: bool) -> Callable[[Any], None]:
    """`width` bits of the codes of panels, from a place of a code on, as `unit_codes` reads them,
    or in the order of `float_strips` if they are floats. rows: panels; order: the output of each
    lane; codes: (outputs, inputs); into: where those of the first panel go, `of_block` groups to a
    block.
    """
    each, mask, turn = 8 // width, 0x0101 * ((1 << width) - 1), turn_of(bits)
    shared, turn_bytes, at_once = (
        turn // each,
        turn * LANES * UNIT * bits // 8,
        _UNITS_AT_ONCE // turn,
    )

    @inner
    def unit(codes: int, into: int, lane: int) -> None:
        for half in range(2):
            at = lane * UNIT + 2 * half
            if floats:
                at = lane // NEAR * 16 + half * 8 + lane % NEAR * 2
            made = 0
            for i in range(each):
                made |= (halves(codes + i * UNIT + 2 * half)[0] >> place & mask) << i * width
            halves(into + at)[0] = made

    @inner
    def panel(args: Any, index: int) -> None:
        turns = args.group // UNIT // turn
        for g in range(args.groups):
            into = args.into + index * args.panel_bytes
            into += g // args.of_block * args.block_bytes + g % args.of_block * args.group_bytes
            for first in range(0, turns, at_once):
                last = min(first + at_once, turns)
                for lane in range(LANES):
                    row = words(args.order)[index * LANES + lane]
                    codes = args.codes + (row * args.groups + g) * args.group
                    for t in range(first, last):
                        for s in range(shared):
                            unit(
                                codes + (t * turn + s * each) * UNIT,
                                into + t * turn_bytes + s * LANES * UNIT,
                                lane,
                            )

    return over_rows(panel, 1)
