"""Rows of a quantized weight that are looked up in its panels, see `quantized_products`: a tied
head and its embedding are one, and no table is held in floats."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from torch import Tensor

from radixlm.kernels.bytes import planes_of
from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker, team, threads_for
from radixlm.kernels.vectors import (
    emitted,
    floats,
    inner,
    make_put,
    octets,
    take_unit,
    thread_number,
    words,
)
from radixlm.products.quantized import LEVELS, QuantizedWeight
from radixlm.products.quantized_panels import laid_out
from radixlm.products.quantized_products import QuantizedProduct, forms_of, kind_of
from radixlm.products.quantized_units import LANES, UNIT, StripKind

_ROWS_PER_UNIT = 4


class QuantizedRows:
    """Rows in `kind`'s type of panels and their ends, as `laid_out` makes them. One call at a time.

    shape: outputs, inputs and groups of the weight.
    """

    def __init__(
        self, panels: Tensor, ends: Tensor, kind: StripKind, shape: tuple[int, int, int]
    ) -> None:
        outputs, inputs, groups = shape
        self._kept, self._inputs, self._team = (panels, ends), inputs, team()
        self._dtype = torch.bfloat16 if kind.bfloat16 else torch.float32
        codes = range(1 << kind.bits)
        numbers = LEVELS["iq4"] if kind.numbers == "iq4" else [code - kind.zero for code in codes]
        self._numbers = torch.tensor(numbers, dtype=torch.float32)
        self._worker = Worker(
            rows_kernel(kind._replace(halves=kind.bfloat16, gate=None)),
            rows=0,
            outputs=outputs,
            inputs=inputs,
            groups=groups,
            panels=panels.data_ptr(),
            panel_bytes=panels.stride(0),
            ends=ends.data_ptr(),
            numbers=self._numbers.data_ptr(),
        )

    def __call__(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """(rows,) int64 -> (rows, inputs), in `out`, contiguous, or new memory."""
        made = torch.empty((len(ids), self._inputs), dtype=self._dtype) if out is None else out
        ids = ids.contiguous()
        arguments = self._worker.arguments
        arguments.rows, arguments.ids = len(ids), ids.data_ptr()
        arguments.into = made.data_ptr()
        arguments.scratch = self._team.scratch(self._team.size * 4 * self._inputs)
        self._worker(threads_for(len(ids), _ROWS_PER_UNIT))
        return made


def has_rows(weight: QuantizedWeight) -> bool:
    """Whether rows of a weight can be looked up in its panels here."""
    return weight.are_bytes and bool(forms_of(weight))


def rows_of(product: QuantizedProduct) -> QuantizedRows:
    """The rows of a product's weight, in its panels."""
    return QuantizedRows(*product.parts)


def quantized_rows(weight: QuantizedWeight, dtype: torch.dtype) -> QuantizedRows:
    """The rows of a weight that `has_rows`, which nothing multiplies."""
    kind, shape = kind_of(weight, dtype, dtype), (*weight.shape, weight.scales.shape[1])
    return QuantizedRows(*laid_out(weight, None, kind), kind, shape)


@emitted(types.float32, types.int64)
def _half(builder: ir.IRBuilder, address: Any) -> Any:
    """The float16 at an address."""
    stored = builder.load(builder.inttoptr(address, ir.HalfType().as_pointer()))
    return builder.fpext(stored, ir.FloatType())


@emitted(types.float32, types.int64)
def _signed(builder: ir.IRBuilder, address: Any) -> Any:
    """The signed byte at an address."""
    stored = builder.load(builder.inttoptr(address, ir.IntType(8).as_pointer()))
    return builder.sitofp(stored, ir.FloatType())


_Arguments = namedtuple(
    "_Arguments",
    "counters rows ids outputs inputs groups panels panel_bytes ends numbers into scratch",
)


@compiled(_Arguments)
def rows_kernel(kind: StripKind) -> Callable[[Any], None]:
    """The rows `ids`. numbers: what codes stand for. scratch: a row in float32 for each thread."""
    put, element = make_put(bfloat16=kind.bfloat16), 2 if kind.bfloat16 else 4
    read_group = _make_group(kind)

    def rows(args: Any) -> None:
        row = args.scratch + thread_number(args.counters) * 4 * args.inputs
        begin = take_unit(args.counters) * _ROWS_PER_UNIT
        while begin < args.rows:
            for index in range(begin, min(begin + _ROWS_PER_UNIT, args.rows)):
                token = words(args.ids)[index]
                panel = token // LANES
                lane = token - min(panel * LANES, args.outputs - LANES)
                for g in range(args.groups):
                    read_group(args, args.panels + panel * args.panel_bytes, g, lane, row)
                factor = floats(args.ends)[panel * 2 * LANES + lane]
                put(row, factor, args.inputs, args.into + index * args.inputs * element)
            begin = take_unit(args.counters) * _ROWS_PER_UNIT

    return rows


def _make_group(kind: StripKind) -> Any:
    """read_group(args, panel, g, lane, row): a group's numbers of one output, as float32."""
    turn, of_block, block_bytes = kind.turn, kind.groups, kind.block_bytes
    turn_bytes, units_at = turn * kind.unit_bits // 8, kind.step_bytes + of_block * kind.head_bytes
    units_bytes, has_offsets = kind.units_bytes, kind.offsets
    scale_of, code_at = _make_scale(kind), _make_code(kind)

    @inner
    def read_group(args: Any, panel: int, g: int, lane: int, row: int) -> None:
        size, block, within = args.inputs // args.groups, panel, 0
        if block_bytes:
            block, within = panel + g // of_block * block_bytes, g % of_block
        scale = scale_of(block, within, lane)
        offset = scale_of(block, within, LANES + lane) if has_offsets else np.float32(0)
        units = block + units_at + within * units_bytes
        numbers, made = floats(args.numbers), floats(row)
        for i in range(size):
            unit = i // UNIT
            code = code_at(units + unit // turn * turn_bytes, unit % turn, lane * UNIT + i % UNIT)
            made[g * size + i] = numbers[code] * scale + offset

    return read_group


def _make_code(kind: StripKind) -> Any:
    """code_at(units that fill whole bytes, one of them, byte): the parts of a code together."""
    plane, parts, begin, place = LANES * UNIT, [], 0, 0
    for width in planes_of(kind.bits):
        parts.append((width, begin, place))
        begin, place = begin + kind.turn * width // 8 * plane, place + width
    known = tuple(parts)

    @inner
    def code_at(units: int, unit: int, byte: int) -> int:
        code = 0
        for width, start, shift in known:
            stored = octets(units + start + unit * width // 8 * plane)[byte]
            code |= (stored >> unit * width % 8 & ((1 << width) - 1)) << shift
        return code

    return code_at


def _make_scale(kind: StripKind) -> Any:
    """scale(block, group of it, number): see `GroupEnds`."""
    is_whole, in_steps = not kind.group, bool(kind.block)
    heads, head_bytes, in_halves = kind.step_bytes, kind.head_bytes, kind.scale_bytes == 2

    @inner
    def scale(block: int, group: int, number: int) -> Any:
        head = block + heads + group * head_bytes
        if is_whole:
            return np.float32(1)
        if in_steps:
            return _signed(head + number) * _half(block + 2 * number)
        if in_halves:
            return _half(head + 2 * number)
        return floats(head)[number]

    return scale
