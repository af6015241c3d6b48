"""The small operations between products, each one pass over memory, compiled for the CPU.

torch takes several passes for each, and each pass its own parallel stretch. Numbers are computed
as float32 whatever their type.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from radixlm.kernels.jit import Kernel, compiled
from radixlm.kernels.openmp import team
from radixlm.kernels.vectors import MOST_LANES, Lanes, fetch_add, floats, words

# The workers' first arguments, int64 each: a counter, how many rows there are, and of one row the
# numbers; then addresses.
_TAKEN, _ROWS, _WIDTH, _FIRST = range(4)
_ROWS_PER_UNIT = 4


def known(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether there is compiled code for rows of `width` numbers here."""
    types_known = dtype in (torch.float32, torch.bfloat16)
    return device.type == "cpu" and types_known and width % MOST_LANES == 0 and team().is_whole


class _Call:
    """A worker with its arguments; `addresses` of them are given with each call. One at a time."""

    def __init__(self, worker: Kernel, addresses: int) -> None:
        self._worker = worker  # to be kept: its code goes with it
        self._address = worker.address
        self._team = team()
        self._arguments = (ctypes.c_int64 * (_FIRST + addresses))()
        self._at = ctypes.addressof(self._arguments)

    def __call__(self, rows: int, width: int, *values: int) -> None:
        self._arguments[:] = [0, rows, width, *values]
        threads = self._team.size if rows > _ROWS_PER_UNIT else 1
        self._team.run(self._address, self._at, threads)


class AddNorm:
    """hidden += added, then hidden / rms(hidden) * weight, for rows of one size. The weight may be
    filled later, but not replaced.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._call = _Call(_norm_worker(bfloat16=weight.dtype == torch.bfloat16), 5)
        self._weight = weight
        self._eps = np.float32(eps).view(np.int32).item()

    def __call__(self, hidden: Tensor, added: Tensor | None) -> Tensor:
        """hidden, added: (tokens, size), contiguous; hidden is changed. -> (tokens, size), new."""
        out = torch.empty_like(hidden)
        plus = 0 if added is None else added.data_ptr()
        addresses = (hidden.data_ptr(), plus, self._weight.data_ptr(), out.data_ptr())
        self._call(hidden.shape[0], hidden.shape[1], *addresses, self._eps)
        return out


class Gate:
    """silu(gate) * up of rows that hold both, one after the other."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._call = _Call(_gate_worker(bfloat16=dtype == torch.bfloat16), 2)

    def __call__(self, gate_up: Tensor) -> Tensor:
        """(tokens, 2 x size), contiguous -> (tokens, size), new."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, width))
        self._call(rows, width, gate_up.data_ptr(), out.data_ptr())
        return out


class Rotate:
    """Rotary position embedding of the first heads of rows that hold several, in place."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._call = _Call(_rotate_worker(bfloat16=dtype == torch.bfloat16), 4)

    def __call__(self, x: Tensor, heads: int, table: Tensor) -> None:
        """x: (tokens, at least `heads` heads, head_dim), contiguous but for the stride of tokens;
        table: (tokens, head_dim), cos before sin, contiguous.
        """
        tokens, _, head_dim = x.shape
        stride = x.stride(0) * x.element_size()
        self._call(tokens, head_dim, x.data_ptr(), stride, heads, table.data_ptr())


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _add_squares(_context: Any, _hidden: Any, _added: Any, bfloat16: Any) -> Any:
    """hidden += added (address 0: nothing) for 16 numbers; the sum of their squares."""
    halves = bool(bfloat16.literal_value)

    def build(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        hidden, added, _ = args
        ops = Lanes(builder, MOST_LANES)
        x = ops.load(hidden, 0, bfloat16=halves)
        squares = cgutils.alloca_once(builder, x.type)
        builder.store(x, squares)
        with builder.if_then(builder.icmp_signed("!=", added, ir.Constant(ir.IntType(64), 0))):
            total = builder.fadd(x, ops.load(added, 0, bfloat16=halves))
            ops.put(total, hidden, bfloat16=halves)
            builder.store(total, squares)
        x = builder.load(squares)
        return ops.sum(builder.fmul(x, x))

    return types.float32(types.int64, types.int64, bfloat16), build


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _scale(_context: Any, _x: Any, _weight: Any, _factor: Any, _out: Any, bfloat16: Any) -> Any:
    """out = x * factor * weight for 16 numbers."""
    halves = bool(bfloat16.literal_value)

    def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        x, weight, factor, out, _ = args
        ops = Lanes(builder, MOST_LANES)
        scaled = builder.fmul(ops.load(x, 0, bfloat16=halves), ops.spread(factor))
        ops.put(builder.fmul(scaled, ops.load(weight, 0, bfloat16=halves)), out, bfloat16=halves)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, types.int64, bfloat16), build


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _silu_times(_context: Any, _gate: Any, _up: Any, _out: Any, bfloat16: Any) -> Any:
    """out = gate / (1 + e^-gate) * up for 16 numbers, of e^-|gate|, which never overflows (and is
    never less than 2^-100: right for gates down to -1e20).
    """
    halves = bool(bfloat16.literal_value)

    def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        gate, up, out, _ = args
        ops = Lanes(builder, MOST_LANES)
        x = ops.load(gate, 0, bfloat16=halves)
        minus = builder.fsub(ops.all(0), x)
        power = ops.exp(builder.select(builder.fcmp_ordered("<", x, minus), x, minus))
        above = builder.fcmp_ordered(">=", x, ops.all(0))
        part = builder.fdiv(
            builder.select(above, ops.all(1), power), builder.fadd(ops.all(1), power)
        )
        made = builder.fmul(builder.fmul(x, part), ops.load(up, 0, bfloat16=halves))
        ops.put(made, out, bfloat16=halves)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, bfloat16), build


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _turn(_context: Any, _low: Any, _high: Any, _cos: Any, _sin: Any, bfloat16: Any) -> Any:
    """Turn 16 pairs (low, high) by their angles, in place."""
    halves = bool(bfloat16.literal_value)

    def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        ops = Lanes(builder, MOST_LANES)
        low, high, cos, sin = (ops.load(arg, 0, bfloat16=halves) for arg in args[:4])
        turned = builder.fsub(builder.fmul(low, cos), builder.fmul(high, sin))
        ops.put(turned, args[0], bfloat16=halves)
        turned = builder.fadd(builder.fmul(high, cos), builder.fmul(low, sin))
        ops.put(turned, args[1], bfloat16=halves)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64, bfloat16), build


@compiled
def _norm_worker(*, bfloat16: bool) -> Callable[[int], None]:
    element = 2 if bfloat16 else 4

    def norm(arguments: int) -> None:
        args = words(arguments)
        rows, width = args[_ROWS], args[_WIDTH]
        eps = floats(arguments + 8 * (_FIRST + 4))[0]
        while True:
            begin = fetch_add(arguments) * _ROWS_PER_UNIT
            if begin >= rows:
                break
            for row in range(begin, min(begin + _ROWS_PER_UNIT, rows)):
                start = row * width * element
                hidden, added, out = (
                    args[_FIRST] + start,
                    args[_FIRST + 1],
                    args[_FIRST + 3] + start,
                )
                if added != 0:
                    added += start
                squares = np.float32(0)
                for at in range(0, width * element, MOST_LANES * element):
                    squares += _add_squares(hidden + at, added + at * (added != 0), bfloat16)
                factor = np.float32(1) / np.sqrt(squares / np.float32(width) + eps)
                for at in range(0, width * element, MOST_LANES * element):
                    _scale(hidden + at, args[_FIRST + 2] + at, factor, out + at, bfloat16)

    return norm


@compiled
def _gate_worker(*, bfloat16: bool) -> Callable[[int], None]:
    element = 2 if bfloat16 else 4

    def gate(arguments: int) -> None:
        args = words(arguments)
        rows, size = args[_ROWS], args[_WIDTH] * element
        while True:
            begin = fetch_add(arguments) * _ROWS_PER_UNIT
            if begin >= rows:
                break
            for row in range(begin, min(begin + _ROWS_PER_UNIT, rows)):
                both, out = args[_FIRST] + 2 * row * size, args[_FIRST + 1] + row * size
                for at in range(0, size, MOST_LANES * element):
                    _silu_times(both + at, both + size + at, out + at, bfloat16)

    return gate


@compiled
def _rotate_worker(*, bfloat16: bool) -> Callable[[int], None]:
    element = 2 if bfloat16 else 4

    def rotate(arguments: int) -> None:
        args = words(arguments)
        rows, size = args[_ROWS], args[_WIDTH] * element
        half = size // 2
        while True:
            begin = fetch_add(arguments) * _ROWS_PER_UNIT
            if begin >= rows:
                break
            for row in range(begin, min(begin + _ROWS_PER_UNIT, rows)):
                cos = args[_FIRST + 3] + row * size
                for head in range(args[_FIRST + 2]):
                    low = args[_FIRST] + row * args[_FIRST + 1] + head * size
                    for at in range(0, half, MOST_LANES * element):
                        _turn(low + at, low + half + at, cos + at, cos + half + at, bfloat16)

    return rotate
