"""Products with weights in panels on the CPU, compiled: for one token as for thousands.

    outputs    0 .. 47  48 .. 95  ...     a panel: what 48 outputs read, in the order in which they
              +--------+--------+--       read it, unit after unit (see `kernels.strips`)
    unit 0    | panel  | panel  |
         1    |        |        |         a few rows of x meet a panel; their sums stay in
         ...  +--------+--------+--       registers, a panel (55 KB at 576 inputs) in the cache

There are two forms, and both read the same panels: `vectors`, 8 rows of 48 outputs at a time (4 of
24 with AVX2), and `tiles`, 32 rows by AMX; where there is AMX a panel of bfloat16 has 32 outputs. A
row's sums do not depend on the rows beside it. A *gated* product's panels have a vector of gates
and one of what they multiply; only silu(gate) * up is written.
A unit of work is a few panels and up to 256 rows; threads take one after the other from a counter.
Where the last panel overlaps the one before, two of them write the same numbers.
Where the processor does not multiply pairs of bfloat16, many rows meet them *widened*: a thread
widens its rows and then panel after panel into memory of its own, once for all of a unit's rows.
"""

from __future__ import annotations

import copy
import functools
from collections import namedtuple
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from torch import Tensor

from radixlm.kernels.amx import TILE_UNITS, has_tiles
from radixlm.kernels.huge_pages import huge_pages
from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker, team
from radixlm.kernels.strips import UNIT_BYTES, VECTOR_LANES, Strip, widen, widen_pairs
from radixlm.kernels.vectors import (
    Lanes,
    emitted,
    has_bfloat16,
    inner,
    offset,
    prefetch_line,
    processor_has,
    take_unit,
    thread_number,
)
from radixlm.products.compiled import GateKind, gate_product
from radixlm.products.tile_products import TILE_VECTORS, make_tile_rows

Form = Literal["tiles", "vectors"]
# Vectors of a panel; sums of a strip, such that they stay in registers.
_STRIP_VECTORS, _SUMS = 3, 24 if processor_has("avx512f") else 12
# The same of a strip of so few rows that memory is what it waits for. One row has them by meeting
# several panels at once: a sum waits for the product before it.
_FEW_SUMS = 6
# Rows of a unit; fewer where threads would have fewer units than this.
_ROWS_PER_UNIT, _LEAST_ROWS_PER_UNIT = 256, 32
_UNITS_PER_THREAD, _LEAST_UNITS = 2, 4
# Panels of a unit of tiles. With few rows, which wait for memory, threads have more units.
_PANELS_PER_UNIT = 16
_FEW_ROWS, _FEW_ROWS_UNITS = 64, 8
# They stay in the second cache, beside their rows.
_CACHED_BYTES = 768 << 10
# As few rows do not pay for widening a panel. Of widened rows and panels a unit has these.
_LEAST_WIDENED, _WIDENED_BYTES, _WIDENED_PANELS = 8, 1 << 20, 8
# A panel is fetched this far ahead of where it is read.
_AHEAD_BYTES = 2048
_INT64 = ir.IntType(64)


def forms_of(weight: Tensor, *, gated: bool = False) -> tuple[Form, ...]:
    """The forms that know a weight (out, in) here; none: it cannot be laid out in panels.

    gated: its first half are gates of the second.
    """
    outputs, inputs = weight.shape
    if gated and outputs // 2 % VECTOR_LANES:
        return ()
    if weight.device.type != "cpu" or not team().is_whole or not processor_has("fma"):
        return ()
    if outputs < _STRIP_VECTORS * VECTOR_LANES:
        return ()
    if weight.dtype == torch.float32:
        return ("vectors",)
    if weight.dtype != torch.bfloat16 or inputs % 2:
        return ()
    tiles = has_tiles() and inputs // 2 % TILE_UNITS == 0
    return ("tiles", "vectors") if tiles else ("vectors",)


def _widens(*, pairs: bool) -> bool:
    """Whether rows are widened before they meet a panel: nothing multiplies its pairs."""
    return pairs and not has_bfloat16()


class PanelProduct:
    """x times the transposed weight, plus the bias. One call at a time.

    weight: (out, in), one that some form knows; bias: (out,). dtype: of the result, the weight's or
    float32, which sums are in any case. form_for: the form for a number of rows. gate: the result
    is gate(first half) * second, half as wide.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        form_for: Callable[[int], Form],
        *,
        gate: GateKind | None = None,
    ) -> None:
        outputs, inputs = weight.shape
        self.outputs = outputs // 2 if gate else outputs
        self.result = dtype
        self._form_for = form_for
        forms, pairs = forms_of(weight, gated=gate is not None), weight.dtype == torch.bfloat16
        vectors = TILE_VECTORS if gate or "tiles" in forms else _STRIP_VECTORS
        if gate:
            order = torch.arange(outputs).view(2, -1, VECTOR_LANES).transpose(0, 1).flatten()
            weight, bias = weight[order], None if bias is None else bias[order]
        lanes, numbers = vectors * VECTOR_LANES, 2 if pairs else 1
        self._panels, self._bias = _packed(weight, bias, lanes, numbers)
        fit = max(_CACHED_BYTES * self._panels.shape[0] // self._panels.nbytes, 1)
        most = {"tiles": _PANELS_PER_UNIT, "vectors": _FEW_SUMS // vectors}
        self._most = {form: min(most[form], fit) for form in forms}
        self._team = team()
        self._kernel = functools.partial(
            product_kernel, vectors=vectors, pairs=pairs, halves=dtype == torch.bfloat16
        )
        self._units = inputs // numbers
        self._widens = _widens(pairs=pairs)
        self._workers = self._workers_of(forms, gate)

    def _workers_of(self, forms: Iterable[Form], gate: GateKind | None) -> dict[Form, Worker]:
        return {
            form: Worker(
                self._kernel(form, gate=gate),
                units=self._units,
                outputs=self.outputs,
                panels=self._panels.data_ptr(),
                bias=self._bias.data_ptr(),
            )
            for form in forms
        }

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """(tokens, in) -> (tokens, out). x: strided over tokens. out: where that is to be, if not
        in new memory.
        """
        made = x.new_empty((x.shape[0], self.outputs), dtype=self.result) if out is None else out
        if x.stride(1) != 1:
            x = x.contiguous()
        self.prepared(x, made, self._team.scratch(self.room(x.shape[0])))()
        return made

    @functools.cached_property
    def _whole(self) -> PanelProduct:
        """The product of a gated one without its gate, with the same panels."""
        made = copy.copy(self)
        made.outputs = 2 * self.outputs
        made._workers = made._workers_of(self._workers, None)
        return made

    def ungated(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The product of a gated one without its gate, (tokens, in) -> (tokens, 2 x out): a vector
        of gates and one of what they multiply in turns.
        """
        return self._whole(x, out)

    def room(self, rows: int) -> int:
        """Bytes of scratch that a call of that many rows takes."""
        form = self._form_for(rows)
        if not self._widens or form == "tiles":
            return 0
        height, _ = self._unit(rows, form)
        return self._team.size * widened_size(height, self._panels.shape[2], self._units)

    def _unit(self, rows: int, form: Form) -> tuple[int, int]:
        """Rows and panels of a unit of work."""
        panels, threads = self._panels.shape[0], self._team.size
        if not self._widens or form == "tiles" or rows < _LEAST_WIDENED:
            return _unit(rows, panels, self._most[form], threads)
        most = max(_WIDENED_BYTES // (2 * self._units * UNIT_BYTES), _LEAST_ROWS_PER_UNIT)
        return min(rows, most), min(-(-panels // (_LEAST_UNITS * threads)), _WIDENED_PANELS)

    def prepared(self, x: Tensor, out: Tensor, scratch: int) -> Worker:
        """A call that computes the product when it is made. x: contiguous within a token. scratch:
        the address of `room` for its rows.
        """
        rows = x.shape[0]
        form = self._form_for(rows)
        worker = self._workers[form]
        arguments = worker.arguments
        arguments.rows, arguments.scratch = rows, scratch
        arguments.height, arguments.width = self._unit(rows, form)
        arguments.x, arguments.x_stride = x.data_ptr(), x.stride(0) * x.element_size()
        arguments.into, arguments.stride = out.data_ptr(), out.stride(0) * out.element_size()
        return worker


def gates_first(made: Tensor) -> Tensor:
    """All gates, then all that they multiply, of vectors of both in turns."""
    pairs = made.view(made.shape[0], -1, 2, VECTOR_LANES)
    return pairs.transpose(1, 2).reshape(made.shape)


@functools.lru_cache(maxsize=1 << 14)
def _unit(rows: int, panels: int, most: int, threads: int) -> tuple[int, int]:
    """Rows and panels of a unit. most: panels."""
    height = _ROWS_PER_UNIT
    while height > _LEAST_ROWS_PER_UNIT and panels * -(-rows // height) < _LEAST_UNITS * threads:
        height //= 2
    wanted = threads * (_FEW_ROWS_UNITS if rows <= _FEW_ROWS else _UNITS_PER_THREAD)
    width = min(max(panels * -(-rows // height) // wanted, 1), most)
    return height, -(-panels // -(-panels // width))


def _packed(weight: Tensor, bias: Tensor | None, lanes: int, numbers: int) -> tuple[Tensor, Tensor]:
    """Panels (panels, units, lanes, numbers of a unit) and each one's bias, float32. The last one
    ends with the last output, and so may begin within the one before it.
    """
    outputs, inputs = weight.shape
    count, whole = -(-outputs // lanes), outputs // lanes
    panels = huge_pages().zeros((count, inputs // numbers, lanes, numbers), weight.dtype)
    biases = torch.zeros((count, lanes), dtype=torch.float32, device="cpu")
    last = slice(-1, None), slice(-lanes, None)
    for part, rows in ((slice(whole), slice(whole * lanes)), last):
        cut = weight[rows].view(-1, lanes, inputs // numbers, numbers)
        panels[part].copy_(cut.transpose(1, 2))
        if bias is not None:
            biases[part].copy_(bias[rows].view(-1, lanes))
    return panels, biases


def _make_vector_rows(vectors: int, *, pairs: bool, halves: bool, gate: GateKind | None) -> Any:
    """rows(args, begin, count, first, last, ahead, scratch): see `product_kernel`."""
    lanes, element, height = vectors * VECTOR_LANES, 2 if halves else 4, _SUMS // vectors
    columns, low = lanes // 2 if gate else lanes, _FEW_SUMS // vectors
    bias_bytes = lanes * UNIT_BYTES
    make = functools.partial(_make_vector_strip, vectors, halves=halves, gate=gate)
    tall, short = (make(each, pairs=pairs) for each in (height, low))
    one = make(1, panels=low, pairs=pairs)
    wide = make(height, pairs=False)
    widens = _widens(pairs=pairs)

    @inner
    def rows(
        args: Any, begin: int, count: int, first: int, last: int, _ahead: int, scratch: int
    ) -> None:
        units, x, x_stride = args.units, args.x + begin * args.x_stride, args.x_stride
        stride, panel_bytes = args.stride, units * lanes * UNIT_BYTES
        widened = widens and count >= _LEAST_WIDENED
        if widens:
            x, x_stride = scratch, 2 * units * UNIT_BYTES
        if count == 1:
            whole = min(last, args.outputs // columns)
            while first + low <= whole:
                weights, bias = args.panels + first * panel_bytes, args.bias + first * bias_bytes
                into = args.into + begin * stride + first * columns * element
                one(x, 0, 0, weights, units, bias, into, 0)
                first += low
        for panel in range(first, last):
            column = min(panel * columns, args.outputs - columns)
            weights = args.panels + panel * panel_bytes
            bias = args.bias + panel * bias_bytes
            if widened:
                place = scratch + args.height * x_stride
                widen_pairs(weights, units, lanes, place)
                weights = place
            for row in range(0, count, height):
                at, beyond = x + row * x_stride, count - 1 - row
                into = args.into + (begin + row) * stride + column * element
                if widened:
                    wide(at, x_stride, beyond, weights, 2 * units, bias, into, stride)
                elif beyond < low:
                    short(at, x_stride, beyond, weights, units, bias, into, stride)
                else:
                    tall(at, x_stride, beyond, weights, units, bias, into, stride)

    return rows


def widened_size(height: int, lanes: int, units: int) -> int:
    """Bytes of a thread's widened rows and panel."""
    return 2 * units * UNIT_BYTES * (height + lanes)


def _make_vector_strip(
    vectors: int, height: int, *, panels: int = 1, pairs: bool, halves: bool, gate: GateKind | None
) -> Any:
    """strip(x, x_stride, last, panel, units, bias, into, stride): `height` rows at x times some
    panels; rows beyond the `last` one are that one again, and leave the same result in the same
    place.

    pairs: units are pairs of bfloat16 numbers; halves: results are bfloat16.
    """
    panel_row = vectors * VECTOR_LANES * UNIT_BYTES
    result_row = panel_row // (2 if halves else 1) // (2 if gate else 1)

    @emitted(types.void, *[types.int64] * 8)
    def strip(builder: ir.IRBuilder, *values: Any) -> None:
        def through(ops: Lanes, row: list[Any]) -> list[Any]:
            return [gate_product(builder, ops, gate, *row, coarse=halves)] if gate else row

        x, x_stride, last, panel, units, bias, into, stride = values
        widened = _widens(pairs=pairs)
        make = functools.partial(Strip, pairs=pairs, lanes=VECTOR_LANES, widened=widened)
        sums = [make(builder, height, vectors) for _ in range(panels)]
        starts = [panel]
        for n, each in enumerate(sums):
            each.take_one(builder.add(bias, ir.Constant(_INT64, n * panel_row)))
            starts.append(offset(builder, starts[n], units, panel_row))
        x_rows = rows_until(builder, x, x_stride, last, height)
        with cgutils.for_range(builder, units) as loop:
            for start, _ in zip(starts, sums, strict=False):
                ahead = builder.add(start, ir.Constant(_INT64, _AHEAD_BYTES))
                ahead = offset(builder, ahead, loop.index, panel_row)
                for line in range(0, panel_row, 64):
                    prefetch_line(builder, builder.add(ahead, ir.Constant(_INT64, line)))
            for start, each in zip(starts, sums, strict=False):
                each.add(x_rows, start, ir.Constant(_INT64, panel_row), loop.index)
        rows = rows_until(builder, into, stride, last, height)
        for n, each in enumerate(sums):
            places = [builder.add(row, ir.Constant(_INT64, n * result_row)) for row in rows]
            each.store(places, bfloat16=halves, join=through)

    return strip


def rows_until(
    builder: ir.IRBuilder, address: Any, stride: Any, last: Any, count: int
) -> list[Any]:
    """The addresses of `count` rows; those beyond the `last` one are that one again."""
    made = []
    for row in range(count):
        number = ir.Constant(_INT64, row)
        place = builder.select(builder.icmp_signed("<", number, last), number, last)
        made.append(builder.add(address, builder.mul(stride, place)))
    return made


_Arguments = namedtuple(
    "_Arguments",
    "counters rows units outputs x x_stride panels bias into stride scratch height width",
)


@compiled(_Arguments)
def product_kernel(
    form: Form, vectors: int, *, pairs: bool, halves: bool, gate: GateKind | None
) -> Callable[[Any], None]:
    """The kernel of a form. vectors: of a panel. outputs: of the result, whose rows begin `stride`
    bytes after each other. height, width: rows and panels of a unit. Of one, `rows` computes
    `count` rows from `begin` on times the panels [first, last); what is read after them is `ahead`.
    scratch: the thread's own memory.
    """
    if form == "tiles":
        multiply = make_tile_rows(halves=halves, gate=gate)
    else:
        multiply = _make_vector_rows(vectors, pairs=pairs, halves=halves, gate=gate)
    lanes, own_size = vectors * VECTOR_LANES, inner(widened_size)
    widens = form == "vectors" and _widens(pairs=pairs)
    columns = lanes // 2 if gate else lanes

    def product(args: _Arguments) -> None:
        height, width = args.height, args.width
        panels, row_bytes = -(-args.outputs // columns), 2 * args.units * UNIT_BYTES
        across, panel_bytes = -(-panels // width), args.units * lanes * UNIT_BYTES
        count = across * -(-args.rows // height)
        own = own_size(height, lanes, args.units)
        scratch = args.scratch + thread_number(args.counters) * own
        widened, unit = -1, take_unit(args.counters)
        while unit < count:
            begin, first = unit // across * height, unit % across * width
            unit = take_unit(args.counters)
            later = unit % across * width if unit < count else first
            last, ahead = min(first + width, panels), args.panels + later * panel_bytes
            rows = min(height, args.rows - begin)
            if widens and begin != widened:
                for row in range(rows):
                    x, into = args.x + (begin + row) * args.x_stride, scratch + row * row_bytes
                    widen(x, 2 * args.units, into)
                widened = begin
            multiply(args, begin, rows, first, last, ahead, scratch)

    return product
