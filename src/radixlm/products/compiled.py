"""The small operations between products, each one pass over memory, compiled for the CPU.

torch takes several passes for each, and each pass its own parallel stretch. Numbers are computed
as float32 whatever their type.
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from torch import Tensor
from torch.nn import functional

from radixlm.kernels.gpu_launch import Launch, aligned, row_kernel
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

# The activation of a gate.
GateKind = Literal["silu", "gelu_tanh"]
# Of gelu's form by tanh (Hendrycks and Gimpel, 2016).
GELU_CUBIC, GELU_TWICE = 0.044715, 2 * math.sqrt(2 / math.pi)
GATES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"silu": functional.silu, "gelu_tanh": functools.partial(functional.gelu, approximate="tanh")}
)
ROWS_PER_UNIT = 4
# Numbers that a program has, on a GPU.
_GATES_AT_ONCE = 1024
_INT64 = ir.IntType(64)
_ZERO = ir.Constant(_INT64, 0)


class TensorOptions(NamedTuple):
    """Type and place of a layer's weights and activations. in_turn: weights of products have no
    memory before they are to be filled, see `Linear.make_room`.
    """

    dtype: torch.dtype
    device: torch.device
    in_turn: bool = False

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def known(self, width: int = 0) -> bool:
        """Whether there is compiled code here: for rows of any width, or of `width` in vectors."""
        types_known = self.dtype in (torch.float32, torch.bfloat16)
        here = self.device.type == "cpu" and team().is_whole
        return here and types_known and width % MOST_LANES == 0


def _step(element: int) -> Any:
    """Bytes of a vector of numbers."""
    return ir.Constant(_INT64, MOST_LANES * element)


_NormArguments = namedtuple(
    "_NormArguments", "counters rows width hidden added weight out stride eps"
)


@compiled(_NormArguments)
def norm_kernel(*, bfloat16: bool) -> Callable[[Any], None]:
    """hidden += added (0: nothing), then out = hidden / rms(hidden) * weight; eps: the bits of a
    float32. Rows of out are `stride` bytes apart.
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
        hidden, out = args.hidden + row * size, args.out + row * args.stride
        added = (args.added + row * size) * (args.added != 0)
        mean = add_squares(hidden, added, size) / np.float32(args.width)
        factor = np.float32(1) / np.sqrt(mean + float_of_bits(np.int32(args.eps)))
        scale(hidden, args.weight, factor, out, size)

    return over_rows(norm, ROWS_PER_UNIT)


def gate_product(
    builder: ir.IRBuilder, ops: Lanes, kind: GateKind, x: Any, up: Any, *, coarse: bool
) -> Any:
    """x sigmoid(y) * up. y is x for silu; gelu's form by tanh, x (1 + tanh(z)) / 2, is that of 2z.
    coarse: see `sigmoid`.
    """
    y = x if kind == "silu" else _twice_gelu_argument(builder, ops, x)
    return builder.fmul(builder.fmul(x, sigmoid(builder, ops, y, coarse=coarse)), up)


def sigmoid(builder: ir.IRBuilder, ops: Lanes, y: Any, *, coarse: bool) -> Any:
    """1 / (1 + e^-y), of e^-|y|, which never overflows (and is never less than 2^-100: right for y
    down to -1e20). coarse: for results that are rounded to bfloat16, whose error is fifty times as
    large.
    """
    minus = builder.fsub(ops.all(0), y)
    least = builder.select(builder.fcmp_ordered("<", y, minus), y, minus)
    power = ops.exp2_coarse(builder.fmul(least, ops.all(LOG2_E))) if coarse else ops.exp(least)
    above = builder.select(builder.fcmp_ordered(">=", y, ops.all(0)), ops.all(1), power)
    below = builder.fadd(ops.all(1), power)
    return ops.ratio_coarse(above, below) if coarse else builder.fdiv(above, below)


def _twice_gelu_argument(builder: ir.IRBuilder, ops: Lanes, x: Any) -> Any:
    """GELU_TWICE (x + GELU_CUBIC x^3)."""
    cubic = ops.all(GELU_CUBIC * GELU_TWICE)
    cubic = ops.multiply_add(builder.fmul(x, x), cubic, ops.all(GELU_TWICE))
    return builder.fmul(x, cubic)


_GateArguments = namedtuple("_GateArguments", "counters rows width gate_up out")


@compiled(_GateArguments)
def gate_kernel(kind: GateKind, *, bfloat16: bool, in_turns: bool) -> Callable[[Any], None]:
    """out = kind(gate) * up, of rows that hold both, one after the other or vectors in turns."""
    element = 2 if bfloat16 else 4

    @emitted(types.void, *[types.int64] * 4)
    def turns(builder: ir.IRBuilder, both: Any, _up: Any, out: Any, width: Any) -> None:
        ops, step = Lanes(builder, VECTOR_LANES), ir.Constant(_INT64, VECTOR_LANES)
        with cgutils.for_range_slice(builder, _ZERO, width, step, _INT64) as (index, _):
            at = offset(builder, both, index, 2 * element)
            x, y = (ops.load(at, n, bfloat16=bfloat16) for n in (0, VECTOR_LANES))
            made = gate_product(builder, ops, kind, x, y, coarse=bfloat16)
            ops.put(made, offset(builder, out, index, element), bfloat16=bfloat16)

    @emitted(types.void, *[types.int64] * 4)
    def one_after_other(builder: ir.IRBuilder, gate: Any, up: Any, out: Any, width: Any) -> None:
        for ops, index in vectors_and_rest(builder, width):
            x, y, into = (offset(builder, at, index, element) for at in (gate, up, out))
            x, y = (ops.load(at, 0, bfloat16=bfloat16) for at in (x, y))
            ops.put(
                gate_product(builder, ops, kind, x, y, coarse=bfloat16), into, bfloat16=bfloat16
            )

    made = turns if in_turns else one_after_other

    @inner
    def gate(args: _GateArguments, row: int) -> None:
        size = args.width * element
        both = args.gate_up + 2 * row * size
        made(both, both + size, args.out + row * size, args.width)

    return over_rows(gate, ROWS_PER_UNIT)


class Gate:
    """kind(gate) * up of rows that hold both, all gates first, or vectors of both in turns."""

    def __init__(self, options: TensorOptions, kind: GateKind = "silu") -> None:
        self.kind: GateKind = kind
        self._bfloat16 = options.dtype == torch.bfloat16
        self._worker: Worker | None = None
        self._turning: Worker | None = None
        self._on_gpu = row_kernel("gated", options.device.type) if kind == "silu" else None
        if options.known():
            self._worker = self._made(in_turns=False)

    def learn_turns(self) -> None:
        """Learn how rows are laid out, before a call with such rows."""
        self._turning = self._made(in_turns=True)

    def _made(self, *, in_turns: bool) -> Worker:
        return Worker(gate_kernel(self.kind, bfloat16=self._bfloat16, in_turns=in_turns))

    def __call__(
        self, gate_up: Tensor, out: Tensor | None = None, *, in_turns: bool = False
    ) -> Tensor:
        """(tokens, 2 x size), contiguous -> (tokens, size), new or, if compiled, in `out`."""
        worker = self._turning if in_turns else self._worker
        if worker is None:
            if self._on_gpu is not None and gate_up.dim() == 2 and gate_up.is_contiguous():
                return gated(self._on_gpu, gate_up)
            gate, up = gate_up.chunk(2, dim=-1)
            return GATES[self.kind](gate).mul_(up)
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, width)) if out is None else out
        arguments = worker.arguments
        arguments.rows, arguments.width = rows, width
        arguments.gate_up, arguments.out = gate_up.data_ptr(), out.data_ptr()
        worker(threads_for(rows, ROWS_PER_UNIT))
        return out


def gated(launch: Launch, gate_up: Tensor) -> Tensor:
    """silu(gate) * up, see `Gate`, of a GPU."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, width))
    grid = rows, -(-width // _GATES_AT_ONCE)
    launch(
        (width, aligned(gate_up)), grid, (gate_up, out), {"SIZE": width, "BLOCK": _GATES_AT_ONCE}
    )
    return out


class Gated:
    """A product and its gate."""

    def __init__(self, ungated: Callable[[Tensor], Tensor], gate: Gate) -> None:
        self.ungated, self.gate = ungated, gate

    def __call__(self, x: Tensor) -> Tensor:
        return self.gate(self.ungated(x))
