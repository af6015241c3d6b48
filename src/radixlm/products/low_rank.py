"""Low-rank products of many adapters in two calls, compiled for the CPU: x A^T B^T, each adapter's
on its own rows.

    rows     0 1 | 2 3 4 | 5         x        A^T            small        B^T
    adapter   a  |   b   | a         rows  x  ranks     ->   rows   x     outputs, added to what
                                                             float32      the model's product gave

First all products by A, then all by B. Both are in panels of 16 outputs, as the model's own weights
are in theirs (see `products`); a unit of work is panels of an adapter and up to 64 of its rows, and
threads take one after the other. A row's sums do not depend on the rows beside it.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from torch import Tensor

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker, team, threads_for
from radixlm.kernels.strips import UNIT_BYTES, VECTOR_LANES, Strip
from radixlm.kernels.vectors import (
    MOST_LANES,
    Lanes,
    emitted,
    inner,
    offset,
    prefetch_line,
    processor_has,
    take_unit,
    words,
)
from radixlm.products.compiled import TensorOptions
from radixlm.products.panel_strips import rows_until

_INT64 = ir.IntType(64)
_VECTORS = MOST_LANES // VECTOR_LANES
# Rows of a strip, such that sums stay in registers; of one for the few rows of a decoding step.
_TALL, _SHORT = (24 if processor_has("avx512f") else 12) // _VECTORS, 2
_ROWS_PER_UNIT = 64
# Panels of B of a unit: one of A is as many bytes with 512 inputs.
_UP_PANELS = 32
# A panel is fetched this far ahead of where it is read.
_AHEAD_BYTES = 1024
# Of a unit: its rows, the address of its panels, their outputs, and where these are written; of B
# also what it reads: ranks from a column of `small` on.
_ROW, _ROWS, _PANELS, _OUTPUTS, _INTO, _RANK, _FROM = range(7)
_WORDS = 7
Units = npt.NDArray[np.int64]


class LowRank(NamedTuple):
    """A term added to the outputs of a product from `start` on: x a^T b^T.

    a: (rank, in). b: (outputs, rank), with the adapter's scale in it.
    """

    start: int
    a: Tensor
    b: Tensor


def knows(a: Tensor) -> bool:
    """Whether there is compiled code for an A (rank, in) and its B."""
    pairs = a.dtype == torch.bfloat16
    fits = not pairs or a.shape[1] % 2 == 0
    return fits and processor_has("fma") and TensorOptions(a.dtype, a.device).known()


class Panels:
    """A and B of an adapter for one product, laid out for the kernel, which `knows` the parts.

    ranks: of all parts, rounded up to whole panels. inputs: units of A. units: of work, without
    rows, of A and of B, of which none has outputs on both sides of the `middle`.
    """

    def __init__(self, parts: Sequence[LowRank], middle: int = 0) -> None:
        a = torch.cat([part.a for part in parts])
        numbers = 2 if a.dtype == torch.bfloat16 else 1
        self.inputs = a.shape[1] // numbers
        # Compiled now, not in the first step that needs it: others are in it.
        bfloat16 = a.dtype == torch.bfloat16
        self.kernels = [low_rank_kernel(side, bfloat16=bfloat16) for side in ("a", "b")]
        self._down = _packed(a, numbers)
        self._ups = []
        self.ranks = self._down.shape[0] * MOST_LANES
        ups, column = [], 0
        for part in parts:
            outputs, rank = part.b.shape
            cut = min(max(middle - part.start, 0), outputs)
            for start, b in ((part.start, part.b[:cut]), (part.start + cut, part.b[cut:])):
                self._ups.append(_packed(b, 1))
                made = _units(self._ups[-1], b.shape[0], _UP_PANELS)
                made[:, _INTO] += start
                made[:, _RANK], made[:, _FROM] = rank, column
                ups.append(made)
            column += rank
        self.units = _units(self._down, self.ranks, 1), np.concatenate(ups)


def _packed(weight: Tensor, numbers: int) -> Tensor:
    """(out, in) -> panels (panels, in / numbers, 16 outputs, numbers); zeros fill the last one."""
    outputs, inputs = weight.shape
    count = -(-outputs // MOST_LANES)
    whole = weight.new_zeros((count * MOST_LANES, inputs))
    whole[:outputs] = weight
    cut = whole.view(count, MOST_LANES, inputs // numbers, numbers)
    return cut.transpose(1, 2).contiguous()


def _units(panels: Tensor, outputs: int, size: int) -> Units:
    """Units of `size` panels each, without rows."""
    first = np.arange(0, panels.shape[0], size, dtype=np.int64)
    made = np.zeros((len(first), _WORDS), dtype=np.int64)
    made[:, _PANELS] = panels.data_ptr() + first * panels.stride(0) * panels.element_size()
    made[:, _INTO] = first * MOST_LANES
    made[:, _OUTPUTS] = np.minimum(outputs - made[:, _INTO], size * MOST_LANES)
    return made


class LowRankProducts:
    """The terms that adapters add to one product, in steps whose rows belong to the same ones."""

    def __init__(self, runs: Sequence[tuple[Panels, int, int]], middle: int = 0) -> None:
        """runs: of each adapter its rows [start, stop). middle: not 0: of what the product gives
        vectors before the middle and after it stand in turns.
        """
        first = runs[0][0]
        width = 4 * max(panels.ranks for panels, _, _ in runs)
        self._runs = runs  # their memory
        self._bytes = width * max(stop for _, _, stop in runs)
        self._tables = [
            np.concatenate([_of_rows(its.units[side], *rows) for its, *rows in runs])
            for side in range(2)
        ]
        if middle:
            ups, lanes = self._tables[1], VECTOR_LANES
            second, low = ups[:, _INTO] >= middle, ups[:, _INTO] % middle
            ups[:, _INTO] = low // lanes * 2 * lanes + low % lanes + lanes * second
        self._step = VECTOR_LANES * (2 if middle else 1)
        self._workers = [
            Worker(
                kernel,
                table=table.ctypes.data,
                count=len(table),
                inputs=first.inputs,
                small_stride=width,
            )
            for kernel, table in zip(first.kernels, self._tables, strict=True)
        ]

    def __call__(self, x: Tensor, made: Tensor) -> None:
        """Add to what the product made of x: (rows, in), (rows, out), contiguous within a row."""
        small = team().scratch(self._bytes)
        for worker in self._workers:
            arguments = worker.arguments
            arguments.small, arguments.step = small, self._step * made.element_size()
            arguments.x, arguments.x_stride = x.data_ptr(), x.stride(0) * x.element_size()
            arguments.into, arguments.stride = made.data_ptr(), made.stride(0) * made.element_size()
            worker(threads_for(arguments.count, 1))


def _of_rows(units: Units, start: int, stop: int) -> Units:
    """An adapter's units for its rows, cut into blocks."""
    rows = np.arange(start, stop, _ROWS_PER_UNIT, dtype=np.int64)
    made = np.tile(units, (len(rows), 1))
    made[:, _ROW] = np.repeat(rows, len(units))
    made[:, _ROWS] = np.minimum(stop - made[:, _ROW], _ROWS_PER_UNIT)
    return made


def _make_down(height: int, *, pairs: bool) -> Any:
    """down(x, x_stride, last, panel, units, into, stride): rows at x times a panel of A."""
    step = MOST_LANES * UNIT_BYTES

    @emitted(types.void, *[types.int64] * 7)
    def down(builder: ir.IRBuilder, *values: Any) -> None:
        x, x_stride, last, panel, units, into, stride = values
        sums = Strip(builder, height, _VECTORS, pairs=pairs, lanes=VECTOR_LANES)
        x_rows = rows_until(builder, x, x_stride, last, height)
        with cgutils.for_range(builder, units) as loop:
            ahead = offset(builder, panel, loop.index, step)
            prefetch_line(builder, builder.add(ahead, ir.Constant(_INT64, _AHEAD_BYTES)))
            sums.add(x_rows, panel, ir.Constant(_INT64, step), loop.index)
        sums.store(rows_until(builder, into, stride, last, height))

    return down


def _make_up(height: int, lanes: int, vectors: int, *, bfloat16: bool) -> Any:
    """up(small, small_stride, last, panel, ranks, into, stride, step): to `vectors` x `lanes`
    numbers of rows at `into`, `step` bytes apart, those of small times a panel of B, or a part.
    """
    element = 2 if bfloat16 else 4

    @emitted(types.void, *[types.int64] * 8)
    def up(builder: ir.IRBuilder, *values: Any) -> None:
        small, small_stride, last, panel, ranks, into, stride, step = values
        ops = Lanes(builder, lanes)
        factors = rows_until(builder, small, small_stride, last, height)
        places = [
            [offset(builder, row, step, v) for v in range(vectors)]
            for row in rows_until(builder, into, stride, last, height)
        ]
        sums = [
            [cgutils.alloca_once_value(builder, ops.load(at, 0, bfloat16=bfloat16)) for at in row]
            for row in places
        ]
        with cgutils.for_range(builder, ranks) as loop:
            at = offset(builder, panel, loop.index, MOST_LANES * element)
            weights = [ops.load(at, v * lanes, bfloat16=bfloat16) for v in range(vectors)]
            for address, row in zip(factors, sums, strict=True):
                factor = ops.load_one(offset(builder, address, loop.index, 4), 0)
                for weight, total in zip(weights, row, strict=True):
                    made = ops.multiply_add(factor, weight, builder.load(total))
                    builder.store(made, total)
        for row, totals in zip(places, sums, strict=True):
            for at, total in zip(row, totals, strict=True):
                ops.put(builder.load(total), at, bfloat16=bfloat16)

    return up


_Arguments = namedtuple(
    "_Arguments", "counters table count inputs x x_stride small small_stride into stride step"
)


def _make_down_unit(*, pairs: bool) -> Any:
    """down_unit(args, unit): its address."""
    tall, short = (_make_down(height, pairs=pairs) for height in (_TALL, _SHORT))

    @inner
    def down_unit(args: _Arguments, unit: int) -> None:
        its = words(unit)
        x, into = args.x + its[_ROW] * args.x_stride, args.small + its[_ROW] * args.small_stride
        panel, into = its[_PANELS], into + 4 * its[_INTO]
        row, last = 0, its[_ROWS] - 1
        while row <= last:
            here, there = x + row * args.x_stride, into + row * args.small_stride
            if last - row < _SHORT:
                short(here, args.x_stride, last - row, panel, args.inputs, there, args.small_stride)
                row += _SHORT
            else:
                tall(here, args.x_stride, last - row, panel, args.inputs, there, args.small_stride)
                row += _TALL

    return down_unit


def _make_up_unit(*, bfloat16: bool) -> Any:
    """up_unit(args, unit): its address."""
    element = 2 if bfloat16 else 4
    tall, short = (
        _make_up(height, VECTOR_LANES, _VECTORS, bfloat16=bfloat16) for height in (_TALL, _SHORT)
    )
    single = _make_up(1, 1, 1, bfloat16=bfloat16)

    @inner
    def panel_rows(args: _Arguments, its: Any, small: int, panel: int, into: int) -> None:
        row, last, from_, to = 0, its[_ROWS] - 1, args.small_stride, args.stride
        while row <= last:
            here, there = small + row * from_, into + row * to
            if last - row < _SHORT:
                short(here, from_, last - row, panel, its[_RANK], there, to, args.step)
                row += _SHORT
            else:
                tall(here, from_, last - row, panel, its[_RANK], there, to, args.step)
                row += _TALL

    @inner
    def up_unit(args: _Arguments, unit: int) -> None:
        its = words(unit)
        small = args.small + its[_ROW] * args.small_stride + 4 * its[_FROM]
        into = args.into + its[_ROW] * args.stride + its[_INTO] * element
        panel_bytes = its[_RANK] * MOST_LANES * element
        panel, whole = its[_PANELS], its[_OUTPUTS] // MOST_LANES
        for _ in range(whole):
            panel_rows(args, its, small, panel, into)
            panel, into = panel + panel_bytes, into + _VECTORS * args.step
        for lane in range(its[_OUTPUTS] % MOST_LANES):
            at = lane * element
            for row in range(its[_ROWS]):
                here, there = small + row * args.small_stride, into + at + row * args.stride
                single(here, 0, 0, panel + at, its[_RANK], there, 0, 0)

    return up_unit


@compiled(_Arguments)
def low_rank_kernel(side: Literal["a", "b"], *, bfloat16: bool) -> Callable[[Any], None]:
    """A kernel that multiplies by A, from x to `small`, float32, or by B, from there into the
    result. table: `count` units. inputs: units of x.
    """
    one = _make_down_unit(pairs=bfloat16) if side == "a" else _make_up_unit(bfloat16=bfloat16)

    def low_rank(args: _Arguments) -> None:
        unit = take_unit(args.counters)
        while unit < args.count:
            one(args, args.table + unit * _WORDS * 8)
            unit = take_unit(args.counters)

    return low_rank
