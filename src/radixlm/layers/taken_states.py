"""States of tokens between layers, taken on a step's way through them: what a draft head reads."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from torch import Tensor

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker, threads_for
from radixlm.kernels.vectors import MOST_LANES, Lanes, emitted, inner, over_rows
from radixlm.products.compiled import ROWS_PER_UNIT, TensorOptions

_INT64 = ir.IntType(64)
_Arguments = namedtuple("_Arguments", "counters rows width hidden added out stride")


@compiled(_Arguments)
def sum_kernel(*, bfloat16: bool) -> Callable[[Any], None]:
    """out = hidden + added, rows of out `stride` bytes apart."""
    element = 2 if bfloat16 else 4

    @emitted(types.void, *[types.int64] * 4)
    def add(builder: ir.IRBuilder, hidden: Any, added: Any, out: Any, size: Any) -> None:
        ops, step = Lanes(builder, MOST_LANES), ir.Constant(_INT64, MOST_LANES * element)
        zero = ir.Constant(_INT64, 0)
        with cgutils.for_range_slice(builder, zero, size, step, _INT64) as (at, _):
            parts = [
                ops.load(builder.add(side, at), 0, bfloat16=bfloat16) for side in (hidden, added)
            ]
            ops.put(builder.fadd(*parts), builder.add(out, at), bfloat16=bfloat16)

    @inner
    def sum_up(args: _Arguments, row: int) -> None:
        size = args.width * element
        add(args.hidden + row * size, args.added + row * size, args.out + row * args.stride, size)

    return over_rows(sum_up, ROWS_PER_UNIT)


class TakenStates:
    """The states after some layers, side by side.

    layers: rising. size: of a state. few: most tokens of steps whose states are always in the same
    memory, as calls that are made again need it.
    """

    def __init__(self, layers: Sequence[int], size: int, few: int, options: TensorOptions) -> None:
        self._places = {layer: place for place, layer in enumerate(layers)}
        self._size, self._options = size, options
        self._kept = options.empty(few, len(layers) * size)
        self.rows = self._kept[:0]
        self._worker: Worker | None = None
        if options.known(size):
            self._worker = Worker(sum_kernel(bfloat16=options.dtype == torch.bfloat16))

    def begin(self, tokens: int) -> None:
        """Begin a step; its states will be in `rows`, (tokens, layers x size)."""
        whole = self._kept.shape[1]
        many = tokens > self._kept.shape[0]
        self.rows = self._options.empty(tokens, whole) if many else self._kept[:tokens]

    def take(self, layer: int, hidden: Tensor, part: Tensor | None) -> None:
        """Take hidden + part, if they are wanted after this layer."""
        place = self._places.get(layer)
        if place is None:
            return
        out = self.rows[:, place * self._size : (place + 1) * self._size]
        if part is None:
            out.copy_(hidden)
        elif self._worker is None:
            torch.add(hidden, part, out=out)
        else:
            arguments = self._worker.arguments
            arguments.rows, arguments.width = hidden.shape
            arguments.hidden, arguments.added = hidden.data_ptr(), part.data_ptr()
            arguments.out, arguments.stride = out.data_ptr(), out.stride(0) * out.element_size()
            self._worker(threads_for(hidden.shape[0], ROWS_PER_UNIT))
