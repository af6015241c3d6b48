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
from torch import Tensor

from radixlm.kernels.amx import TILE_UNITS, has_tiles
from radixlm.kernels.huge_pages import huge_pages
from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker, team
from radixlm.kernels.strips import UNIT_BYTES, VECTOR_LANES, widen
from radixlm.kernels.vectors import inner, processor_has, take_unit, thread_number
from radixlm.products.compiled import GateKind
from radixlm.products.panel_strips import (
    FEW_SUMS,
    LEAST_WIDENED,
    make_vector_rows,
    widened_size,
    widens_rows,
)
from radixlm.products.tile_products import TILE_VECTORS, make_tile_rows

Form = Literal["tiles", "vectors"]
# Vectors of a panel.
_STRIP_VECTORS = 3
# Rows of a unit; fewer where threads would have fewer units than this.
_ROWS_PER_UNIT, _LEAST_ROWS_PER_UNIT = 256, 32
_UNITS_PER_THREAD, _LEAST_UNITS = 2, 4
# Panels of a unit of tiles. With few rows, which wait for memory, threads have more units.
_PANELS_PER_UNIT = 16
_FEW_ROWS, _FEW_ROWS_UNITS = 64, 8
# They stay in the second cache, beside their rows.
_CACHED_BYTES = 768 << 10
# Of widened rows and panels a unit has these.
_WIDENED_BYTES, _WIDENED_PANELS = 1 << 20, 8


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
        most = {"tiles": _PANELS_PER_UNIT, "vectors": FEW_SUMS // vectors}
        self._most = {form: min(most[form], fit) for form in forms}
        self._team = team()
        self._kernel = functools.partial(
            product_kernel, vectors=vectors, pairs=pairs, halves=dtype == torch.bfloat16
        )
        self._units = inputs // numbers
        self._widens = widens_rows(pairs=pairs)
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
        if not self._widens or form == "tiles" or rows < LEAST_WIDENED:
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
        multiply = make_vector_rows(vectors, pairs=pairs, halves=halves, gate=gate)
    lanes, own_size = vectors * VECTOR_LANES, inner(widened_size)
    widens = form == "vectors" and widens_rows(pairs=pairs)
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
