"""The small operations between products, each one pass over memory, compiled for the CPU.

torch takes several passes for each, and each pass its own parallel stretch. Numbers are computed
as float32 whatever their type.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from torch import Tensor
from torch.nn import functional

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker, team, threads_for
from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import (
    LOG2_E,
    MOST_LANES,
    Lanes,
    emitted,
    float_of_bits,
    inner,
    offset,
    over_rows,
    vectors_and_rest,
)

ROWS_PER_UNIT = 4
_INT64 = ir.IntType(64)
_ZERO = ir.Constant(_INT64, 0)


class TensorOptions(NamedTuple):
    """Type and place of a layer's weights and activations."""

    dtype: torch.dtype
    device: torch.device

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=self.dtype, device=self.device)

    def known(self, width: int = 0) -> bool:
        """Whether there is compiled code here: for rows of any width, or of `width` in vectors."""
        types_known = self.dtype in (torch.float32, torch.bfloat16)
        here = self.device.type == "cpu" and team().is_whole
        return here and types_known and width % MOST_LANES == 0


def _step(element: int) -> Any:
    """Bytes of a vector of numbers."""
    return ir.Constant(_INT64, MOST_LANES * element)


_NormArguments = namedtuple("_NormArguments", "counters rows width hidden added weight out eps")


@compiled(_NormArguments)
def norm_kernel(*, bfloat16: bool) -> Callable[[Any], None]:
    """hidden += added (0: nothing), then out = hidden / rms(hidden) * weight; eps: the bits of a
    float32.
    """
    element = 2 if bfloat16 else 4

    @emitted(types.float32, types.int64, types.int64, types.int64)
    def add_squares(builder: ir.IRBuilder, hidden: Any, added: Any, size: Any) -> Any:
        """hidden += added (address 0: nothing) for a row of `size` bytes; the sum of its squares.

        The sum is one of vectors, so that no lane waits for the others.
        """
        ops = Lanes(builder, MOST_LANES)
        total = cgutils.alloca_once_value(builder, ops.all(0))
        cell = cgutils.alloca_once(builder, ops.vector)
        is_added = builder.icmp_signed("!=", added, ir.Constant(_INT64, 0))
        with cgutils.for_range_slice(builder, _ZERO, size, _step(element), _INT64) as (at, _):
            here = builder.add(hidden, at)
            builder.store(ops.load(here, 0, bfloat16=bfloat16), cell)
            with builder.if_then(is_added):
                more = ops.load(builder.add(added, at), 0, bfloat16=bfloat16)
                made = builder.fadd(builder.load(cell), more)
                ops.put(made, here, bfloat16=bfloat16)
                builder.store(made, cell)
            x = builder.load(cell)
            builder.store(ops.multiply_add(x, x, builder.load(total)), total)
        return ops.sum(builder.load(total))

    @emitted(types.void, *[types.int64] * 2, types.float32, *[types.int64] * 2)
    def scale(builder: ir.IRBuilder, x: Any, weight: Any, factor: Any, out: Any, size: Any) -> None:
        """out = x * factor * weight for a row of `size` bytes."""
        ops = Lanes(builder, MOST_LANES)
        factors = ops.spread(factor)
        with cgutils.for_range_slice(builder, _ZERO, size, _step(element), _INT64) as (at, _):
            read, into, by = (builder.add(address, at) for address in (x, out, weight))
            scaled = builder.fmul(ops.load(read, 0, bfloat16=bfloat16), factors)
            made = builder.fmul(scaled, ops.load(by, 0, bfloat16=bfloat16))
            ops.put(made, into, bfloat16=bfloat16)

    @inner
    def norm(args: _NormArguments, row: int) -> None:
        size = args.width * element
        hidden, out = args.hidden + row * size, args.out + row * size
        added = (args.added + row * size) * (args.added != 0)
        mean = add_squares(hidden, added, size) / np.float32(args.width)
        factor = np.float32(1) / np.sqrt(mean + float_of_bits(np.int32(args.eps)))
        scale(hidden, args.weight, factor, out, size)

    return over_rows(norm, ROWS_PER_UNIT)


def silu_product(builder: ir.IRBuilder, ops: Lanes, x: Any, up: Any, *, coarse: bool) -> Any:
    """x / (1 + e^-x) * up, of e^-|x|, which never overflows (and is never less than 2^-100: right
    for x down to -1e20). coarse: for results that are rounded to bfloat16, whose error is fifty
    times as large.
    """
    minus = builder.fsub(ops.all(0), x)
    least = builder.select(builder.fcmp_ordered("<", x, minus), x, minus)
    power = ops.exp2_coarse(builder.fmul(least, ops.all(LOG2_E))) if coarse else ops.exp(least)
    above = builder.select(builder.fcmp_ordered(">=", x, ops.all(0)), ops.all(1), power)
    below = builder.fadd(ops.all(1), power)
    part = ops.ratio_coarse(above, below) if coarse else builder.fdiv(above, below)
    return builder.fmul(builder.fmul(x, part), up)


_GateArguments = namedtuple("_GateArguments", "counters rows width gate_up out")


@compiled(_GateArguments)
def gate_kernel(*, bfloat16: bool, in_turns: bool) -> Callable[[Any], None]:
    """out = silu(gate) * up, of rows that hold both, one after the other or vectors in turns."""
    element = 2 if bfloat16 else 4

    @emitted(types.void, *[types.int64] * 4)
    def turns(builder: ir.IRBuilder, both: Any, _up: Any, out: Any, width: Any) -> None:
        ops, step = Lanes(builder, VECTOR_LANES), ir.Constant(_INT64, VECTOR_LANES)
        with cgutils.for_range_slice(builder, _ZERO, width, step, _INT64) as (index, _):
            at = offset(builder, both, index, 2 * element)
            x, y = (ops.load(at, n, bfloat16=bfloat16) for n in (0, VECTOR_LANES))
            made = silu_product(builder, ops, x, y, coarse=bfloat16)
            ops.put(made, offset(builder, out, index, element), bfloat16=bfloat16)

    @emitted(types.void, *[types.int64] * 4)
    def silu_times(builder: ir.IRBuilder, gate: Any, up: Any, out: Any, width: Any) -> None:
        for ops, index in vectors_and_rest(builder, width):
            x, y, into = (offset(builder, at, index, element) for at in (gate, up, out))
            x, y = (ops.load(at, 0, bfloat16=bfloat16) for at in (x, y))
            ops.put(silu_product(builder, ops, x, y, coarse=bfloat16), into, bfloat16=bfloat16)

    made = turns if in_turns else silu_times

    @inner
    def gate(args: _GateArguments, row: int) -> None:
        size = args.width * element
        both = args.gate_up + 2 * row * size
        made(both, both + size, args.out + row * size, args.width)

    return over_rows(gate, ROWS_PER_UNIT)


class Gate:
    """silu(gate) * up of rows that hold both, all gates first, or vectors of both in turns."""

    def __init__(self, options: TensorOptions) -> None:
        self._bfloat16 = options.dtype == torch.bfloat16
        self._worker: Worker | None = None
        self._turning: Worker | None = None
        if options.known():
            self._worker = Worker(gate_kernel(bfloat16=self._bfloat16, in_turns=False))

    def learn_turns(self) -> None:
        """Before it is called with such rows."""
        self._turning = Worker(gate_kernel(bfloat16=self._bfloat16, in_turns=True))

    def __call__(
        self, gate_up: Tensor, out: Tensor | None = None, *, in_turns: bool = False
    ) -> Tensor:
        """(tokens, 2 x size), contiguous -> (tokens, size), new or, if compiled, in `out`."""
        worker = self._turning if in_turns else self._worker
        if worker is None:
            gate, up = gate_up.chunk(2, dim=-1)
            return functional.silu(gate).mul_(up)
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, width)) if out is None else out
        arguments = worker.arguments
        arguments.rows, arguments.width = rows, width
        arguments.gate_up, arguments.out = gate_up.data_ptr(), out.data_ptr()
        worker(threads_for(rows, ROWS_PER_UNIT))
        return out


class Gated:
    """A product and its gate."""

    def __init__(self, ungated: Callable[[Tensor], Tensor], gate: Gate) -> None:
        self.ungated, self.gate = ungated, gate

    def __call__(self, x: Tensor) -> Tensor:
        return self.gate(self.ungated(x))
