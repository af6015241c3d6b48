"""Products with quantized weights on the CPU, compiled: rows become signed bytes, sums are exact.
With floats of 8 or 4 bits rows stay as they are, see `float_strips`.

A panel is what 32 outputs read (16 with AVX2), in that order, and the next group after it:

    scales | offsets | unit 0  1  2  ...      scales, offsets: float16, of a group's outputs
                       +---+---+---+--        unit: four inputs of each output, in 8 bits; in 4 bits
                       |   |   |   |          two units share the bytes of one, in 5 or 6 the others
                                              follow those of as many units as fill bytes

    steps | scales of 8 or 16 groups, in bytes | units of these           where there are steps

    row    codes of a group . units  ->  int32  ->  float32 x both scales, added up group by group

A weight with one scale per output has one group, without scales in the panel. Each thread encodes
the rows of its unit of work itself: with few rows that is less than to wait for each other.
Since integers are added up exactly, and groups in their order, a row's bits depend neither on the
rows beside it nor on the form that computes it.
"""

from __future__ import annotations

import copy
import functools
from collections import namedtuple
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from radixlm.kernels.amx import has_tiles
from radixlm.kernels.bytes import has_byte_products, make_encode, turn_of
from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker, team
from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import MOST_LANES, inner, take_unit, thread_number
from radixlm.products.compiled import GateKind
from radixlm.products.float_strips import make_float_strip
from radixlm.products.panel_products import Form
from radixlm.products.quantized import MIDDLE, QuantizedWeight
from radixlm.products.quantized_panels import laid_out
from radixlm.products.quantized_strips import LINE, make_strip
from radixlm.products.quantized_tiles import knows_tiles, make_tile_rows
from radixlm.products.quantized_units import LANES, UNIT, StripKind, make_unpack

# Rows of a strip, such that its sums stay in registers, the most first.
_HEIGHTS = (8, 4, 1) if VECTOR_LANES == MOST_LANES else (4, 2, 1)
# Rows of a unit of work whose codes stay in the second cache.
_ROWS_PER_UNIT, _LEAST_ROWS_PER_UNIT, _CODES_BYTES = 192, 24, 512 << 10
_UNITS_PER_THREAD, _LEAST_UNITS = 4, 4
# Fewer rows do not pay for unpacking a panel.
_LEAST_UNPACKED = 32
# Of x. Of more inputs in a group the sums of bytes might not fit 32 bits.
DTYPES = torch.float32, torch.bfloat16
_MOST_INPUTS = 2**31 // (127 * 255)


def forms_of(weight: QuantizedWeight, *, gated: bool = False) -> tuple[Form, ...]:
    """The forms that know a weight (out, in) here, see `products.forms_of`."""
    outputs = weight.shape[0]
    if gated and outputs // 2 % VECTOR_LANES:
        return ()
    if weight.codes.device.type != "cpu" or not team().is_whole or not has_byte_products():
        return ()
    if outputs < LANES or weight.group % max(MOST_LANES, UNIT * turn_of(weight.bits)):
        return ()
    if weight.group > _MOST_INPUTS:
        return ()
    if not weight.are_bytes:
        return ("vectors",)
    tiles = has_tiles("amx-int8") and knows_tiles(weight.bits, _group_of(weight))
    return ("tiles", "vectors") if tiles else ("vectors",)


def _group_of(weight: QuantizedWeight) -> int:
    return 0 if weight.is_whole else weight.group


def kind_of(
    weight: QuantizedWeight, dtype: torch.dtype, result: torch.dtype, gate: GateKind | None = None
) -> StripKind:
    """The kind of product of a weight with rows of `dtype`."""
    group = _group_of(weight)
    return StripKind(
        weight.bits,
        group,
        weight.offsets is not None,
        weight.numbers,
        weight.block if group else 0,
        MIDDLE[8] if weight.numbers == "iq4" else weight.zero,
        dtype == torch.bfloat16,
        result == torch.bfloat16,
        gate,
    )


class QuantizedProduct:
    """x times the transposed weight, plus the bias. One call at a time.

    weight: (out, in), one that some form knows; bias: (out,). dtype: of x, one of `DTYPES`.
    result: of the product, the same or float32. form_for: the form for a number of rows. gate:
    the result is gate(first half) * second, half as wide.
    """

    def __init__(
        self,
        weight: QuantizedWeight,
        bias: Tensor | None,
        dtype: torch.dtype,
        result: torch.dtype,
        form_for: Callable[[int], Form],
        *,
        gate: GateKind | None = None,
    ) -> None:
        if dtype not in DTYPES or result not in (dtype, torch.float32):
            raise ValueError(f"no rows of {dtype} with results of {result}")
        outputs, self._inputs = weight.shape
        self.outputs = outputs // 2 if gate else outputs
        self.result = result
        kind, forms = kind_of(weight, dtype, result, gate), forms_of(weight)
        self._panels, self._ends = laid_out(weight, bias, kind)
        self._groups = weight.scales.shape[1]
        self._form_for = form_for
        self._team = team()
        self._ready, self._room = (-1, 0), 0
        self._kind = kind
        self._workers = self._workers_of(forms)

    def _workers_of(self, forms: Iterable[Form]) -> dict[Form, Worker]:
        return {
            form: Worker(
                quantized_kernel(form, self._kind),
                inputs=self._inputs,
                outputs=self.outputs,
                groups=self._groups,
                panels=self._panels.data_ptr(),
                panel_bytes=self._panels.stride(0),
                ends=self._ends.data_ptr(),
            )
            for form in forms
        }

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """(tokens, in) -> (tokens, out). x: strided over tokens. out: where that is to be, if not
        in new memory.
        """
        rows = x.shape[0]
        made = x.new_empty((rows, self.outputs), dtype=self.result) if out is None else out
        if x.stride(1) != 1:
            x = x.contiguous()
        self.prepared(x, made, self._team.scratch(self.room(rows)))()
        return made

    @functools.cached_property
    def _whole(self) -> QuantizedProduct:
        """The product of a gated one without its gate, with the same panels."""
        made = copy.copy(self)
        made.outputs, made._kind = 2 * self.outputs, self._kind._replace(gate=None)
        made._workers, made._ready = made._workers_of(self._workers), (-1, 0)
        return made

    def ungated(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The product of a gated one without its gate, (tokens, in) -> (tokens, 2 x out): a vector
        of gates and one of what they multiply in turns.
        """
        return self._whole(x, out)

    @property
    def parts(self) -> tuple[Tensor, Tensor, StripKind, tuple[int, int, int]]:
        """The panels, their ends, their kind and the weight's shape, see `QuantizedRows`."""
        return self._panels, self._ends, self._kind, (self.outputs, self._inputs, self._groups)

    def room(self, rows: int) -> int:
        """Bytes of scratch that a call of that many rows takes."""
        if (rows, self._team.size) != self._ready:
            self._prepare(rows, self._team.size)
        return self._room

    def prepared(self, x: Tensor, out: Tensor, scratch: int) -> Worker:
        """A call that computes the product when it is made, after `room` of as many rows. x:
        contiguous within a token. scratch: the address of that much.
        """
        worker = self._worker
        arguments = worker.arguments
        arguments.x, arguments.x_stride = x.data_ptr(), x.stride(0) * x.element_size()
        arguments.into, arguments.stride = out.data_ptr(), out.stride(0) * out.element_size()
        arguments.scratch = -(-scratch // LINE) * LINE
        return worker

    def _prepare(self, rows: int, threads: int) -> None:
        """Prepare for calls with that many rows and threads, until there are others."""
        height, width = _unit(rows, self._panels.shape[0], self._inputs, threads)
        if self._kind.are_bytes:
            row_bytes = row_size(self._inputs, self._groups)
            own = own_size(height, row_bytes, self._inputs, unpacks_panels(self._kind))
            self._room = threads * own + LINE
        self._ready = rows, threads
        self._worker = self._workers[self._form_for(rows)]
        arguments = self._worker.arguments
        arguments.rows, arguments.height, arguments.width = rows, height, width


def unpacks_panels(kind: StripKind) -> bool:
    """Whether many rows meet a panel whose codes are bytes, made once for all of them."""
    return kind.are_bytes and kind.bits < 8


def own_size(height: int, row_bytes: int, inputs: int, unpacks: bool) -> int:
    """Bytes of a thread's encoded rows, and of a panel's codes where they are unpacked."""
    return height * row_bytes + unpacks * inputs * LANES


def row_size(inputs: int, groups: int) -> int:
    """Bytes of an encoded row: its codes, then a scale and a sum for each group."""
    return -(-(inputs + 8 * groups) // LINE) * LINE


@functools.lru_cache(maxsize=1 << 14)
def _unit(rows: int, panels: int, inputs: int, threads: int) -> tuple[int, int]:
    """Rows and panels of a unit of work."""
    height = min(_ROWS_PER_UNIT, max(_CODES_BYTES // inputs, _LEAST_ROWS_PER_UNIT))
    while height > _LEAST_ROWS_PER_UNIT and panels * -(-rows // height) < _LEAST_UNITS * threads:
        height //= 2
    height = max(min(height, rows), 1)
    wanted = threads * _UNITS_PER_THREAD
    width = max(panels * -(-rows // max(height, 1)) // wanted, 1)
    return height, min(width, panels)


_Arguments = namedtuple(
    "_Arguments",
    "counters rows inputs outputs groups x x_stride panels panel_bytes ends into stride scratch "
    "height width",
)


@compiled(_Arguments)
def quantized_kernel(form: Form, kind: StripKind) -> Callable[[Any], None]:
    """The kernel of a form for weights of a kind. panels, ends: as `laid_out` makes them; outputs:
    of the result, whose rows begin `stride` bytes after each other. height, width: rows and panels
    of a unit. scratch: room for each thread's encoded rows.
    """
    encoded_size, size_of_own = inner(row_size), inner(own_size)
    multiply = make_tile_rows(kind) if form == "tiles" else _make_rows(kind)
    unpacks = form == "vectors" and unpacks_panels(kind)
    multiply_many = _make_unpacked_rows(kind) if unpacks else multiply
    encode, are_floats = _make_encode_rows(kind), not kind.are_bytes
    columns = LANES // 2 if kind.gate else LANES

    def product(args: _Arguments) -> None:
        height, width = args.height, args.width
        panels = -(-args.outputs // columns)
        across = -(-panels // width)
        count = across * -(-args.rows // height)
        row_bytes = encoded_size(args.inputs, args.groups)
        own = size_of_own(height, row_bytes, args.inputs, unpacks)
        codes = args.scratch + thread_number(args.counters) * own
        encoded, unit = -1, take_unit(args.counters)
        while unit < count:
            begin, first = unit // across * height, unit % across * width
            rows = min(height, args.rows - begin)
            if are_floats:
                codes, row_bytes = args.x + begin * args.x_stride, args.x_stride
            elif begin != encoded:
                encode(args, begin, rows, codes, row_bytes)
                encoded = begin
            last = min(first + width, panels)
            if rows >= _LEAST_UNPACKED:
                multiply_many(args, begin, rows, first, last, codes, row_bytes)
            else:
                multiply(args, begin, rows, first, last, codes, row_bytes)
            unit = take_unit(args.counters)

    return product


def _make_encode_rows(kind: StripKind) -> Any:
    """encode(args, begin, rows, codes, row_bytes): rows of x as signed bytes."""
    element = 2 if kind.bfloat16 else 4
    encode_group = make_encode(bfloat16=kind.bfloat16, floats=bool(kind.group))

    @inner
    def encode(args: Any, begin: int, rows: int, codes: int, row_bytes: int) -> None:
        group = args.inputs // args.groups
        for row in range(rows):
            x, into = args.x + (begin + row) * args.x_stride, codes + row * row_bytes
            scales = into + args.inputs
            sums = scales + 4 * args.groups
            for g in range(args.groups):
                at = x + g * group * element
                encode_group(at, group, into + g * group, scales + 4 * g, sums + 4 * g)

    return encode


def _make_unpacked_rows(kind: StripKind) -> Any:
    """multiply(args, begin, rows, first, last, codes, row_bytes): as `_make_rows`, but a panel's
    codes are unpacked once for all rows, behind the rows' own.
    """
    tall, low = _HEIGHTS[:2]
    most, some = (make_strip(kind, height, unpacked=True) for height in (tall, low))
    element, columns = 2 if kind.halves else 4, LANES // 2 if kind.gate else LANES
    unpack = make_unpack(kind)

    @inner
    def multiply(
        args: Any, begin: int, rows: int, first: int, last: int, codes: int, row_bytes: int
    ) -> None:
        sizes = row_bytes, args.inputs, args.groups, args.stride
        units = codes + args.height * row_bytes
        for number in range(first, last):
            column = min(number * columns, args.outputs - columns)
            panel = args.panels + number * args.panel_bytes
            ends = args.ends + number * 2 * LANES * 4
            unpack(panel, args.inputs, units)
            for row in range(0, rows, tall):
                x, into = codes + row * row_bytes, args.into + (begin + row) * args.stride
                into, beyond = into + column * element, rows - row - 1
                if beyond >= low:
                    most(x, beyond, panel, ends, into, units, sizes)
                else:
                    some(x, beyond, panel, ends, into, units, sizes)

    return multiply


def _make_rows(kind: StripKind) -> Any:
    """multiply(args, begin, rows, first, last, codes, row_bytes): encoded rows times panels."""
    make_one = make_strip if kind.are_bytes else make_float_strip
    most, some, one = (make_one(kind, height) for height in _HEIGHTS)
    tall, middle = _HEIGHTS[:2]
    element, columns = 2 if kind.halves else 4, LANES // 2 if kind.gate else LANES

    @inner
    def multiply(
        args: Any, begin: int, rows: int, first: int, last: int, codes: int, row_bytes: int
    ) -> None:
        stride = args.stride
        sizes = row_bytes, args.inputs, args.groups, stride
        for number in range(first, last):
            column = min(number * columns, args.outputs - columns)
            panel = args.panels + number * args.panel_bytes
            ends = args.ends + number * 2 * LANES * 4
            row = 0
            while row < rows:
                x, into = codes + row * row_bytes, args.into + (begin + row) * stride
                into, beyond = into + column * element, rows - row - 1
                if beyond >= middle:
                    most(x, beyond, panel, ends, into, sizes)
                    row += tall
                elif beyond:
                    some(x, beyond, panel, ends, into, sizes)
                    row += middle
                else:
                    one(x, beyond, panel, ends, into, sizes)
                    row += 1

    return multiply
