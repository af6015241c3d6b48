"""Where compiled attention leaves what a token got from one read, and how that becomes its answer.

A token that is read for once has its answer at once. One that is read for several times (what it
has by itself, and what it shares; pieces of a long context) has a row of parts for each, and
`Merge` adds them up by their log-sum-exp (see `flash`):

    answers   (tokens, heads, head_dim)      in the type of the queries
    parts     (rows, heads, head_dim)        float32, normalized
    lse       (rows, heads)                  float32
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from radixlm.kernels.jit import Kernel, compiled
from radixlm.kernels.openmp import Team
from radixlm.kernels.vectors import FAST, MOST_LANES, Lanes, fetch_add, floats, words

# A row of parts that means: the token's answer.
ANSWER = -1

_Numbers = npt.NDArray[np.int64]

# The worker's arguments, int64 each.
_TAKEN, _TOKENS, _HEADS, _HEAD_DIM, _TOKEN, _FIRST, _ROWS, _PARTS, _LSE, _ANSWERS, _SIZE = range(11)


@intrinsic  # type: ignore[untyped-decorator]
def clear(_context: Any, _address: Any, _size: Any) -> Any:
    """clear(address, size): so many float32 zeros."""

    def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
        for ops, index in _vectors_and_rest(builder, args[1]):
            ops.store(ops.all(0), _at(builder, args[0], index, 4), 0)
        return target.get_dummy_value()

    return types.void(types.int64, types.int64), build


def make_put(*, bfloat16: bool) -> Callable[..., Any]:
    """put(numbers, factor, size, into): `size` float32 numbers times a factor."""
    element = 2 if bfloat16 else 4

    @intrinsic  # type: ignore[untyped-decorator]
    def put(_context: Any, _numbers: Any, _factor: Any, _size: Any, _into: Any) -> Any:
        def build(target: Any, builder: ir.IRBuilder, _signature: Any, args: Sequence[Any]) -> Any:
            numbers, factor, size, into = args
            for ops, index in _vectors_and_rest(builder, size):
                x = ops.load(_at(builder, numbers, index, 4), 0)
                made = builder.fmul(x, ops.spread(factor))
                ops.put(made, _at(builder, into, index, element), bfloat16=bfloat16)
            return target.get_dummy_value()

        return types.void(types.int64, types.float32, types.int64, types.int64), build

    return put  # type: ignore[no-any-return]


def _vectors_and_rest(builder: ir.IRBuilder, size: Any) -> Iterator[tuple[Lanes, Any]]:
    """Loops over so many numbers, for the caller to fill: in vectors, and the rest one by one."""
    zero = ir.Constant(ir.IntType(64), 0)
    whole = builder.and_(size, ir.Constant(ir.IntType(64), -MOST_LANES))
    for lanes, start, stop in ((MOST_LANES, zero, whole), (1, whole, size)):
        step = ir.Constant(ir.IntType(64), lanes)
        with cgutils.for_range_slice(builder, start, stop, step, ir.IntType(64)) as (index, _):
            yield Lanes(builder, lanes), index


def _at(builder: ir.IRBuilder, address: Any, index: Any, element: int) -> Any:
    return builder.add(address, builder.mul(index, ir.Constant(ir.IntType(64), element)))


class PartRows:
    """Hands out rows of parts to reads, and lists them by token.

    several: (tokens,) bool, of those that are read for more than once; to be set before a read of
    theirs asks for rows.
    """

    def __init__(self, tokens: int) -> None:
        self.several = np.zeros(tokens, dtype=np.bool_)
        self.count = 0
        self._tokens: list[_Numbers] = []

    def take(self, tokens: _Numbers) -> _Numbers:
        """One read's rows for these tokens, numbered upwards, or `ANSWER`."""
        rows = np.full(len(tokens), ANSWER, dtype=np.int64)
        having = tokens[self.several[tokens]]
        rows[self.several[tokens]] = self.count + np.arange(len(having))
        self._tokens.append(having)
        self.count += len(having)
        return rows

    def by_token(self) -> tuple[_Numbers, _Numbers, _Numbers]:
        """The tokens that have parts; where each one's rows begin (and the last one's end) in the
        third list, of rows.
        """
        tokens = np.concatenate(self._tokens)
        rows = np.argsort(tokens, kind="stable")
        having, first = np.unique(tokens[rows], return_index=True)
        return having, np.append(first, len(rows)), rows


class Merge:
    """Makes answers of one step's parts, on the team's threads. One call at a time.

    worker: made by `make_merge_worker`.
    """

    def __init__(
        self, worker: Kernel, team: Team, rows: PartRows, heads: int, head_dim: int
    ) -> None:
        self._worker = worker
        self._team = team
        self._keep = rows.by_token()
        self._parts = torch.empty((rows.count, heads, head_dim), dtype=torch.float32, device="cpu")
        self._lse = torch.empty((rows.count, heads), dtype=torch.float32, device="cpu")
        self._arguments = (ctypes.c_int64 * _SIZE)()
        self._arguments[_TOKENS] = len(self._keep[0])
        self._arguments[_HEADS : _HEAD_DIM + 1] = [heads, head_dim]
        self._arguments[_TOKEN : _ROWS + 1] = [array.ctypes.data for array in self._keep]
        self._arguments[_PARTS : _LSE + 1] = [self.parts, self.lse]

    @property
    def parts(self) -> int:
        """Their address."""
        return self._parts.data_ptr()

    @property
    def lse(self) -> int:
        """Its address."""
        return self._lse.data_ptr()

    def __call__(self, answers: Tensor) -> None:
        self._arguments[_TAKEN] = 0
        self._arguments[_ANSWERS] = answers.data_ptr()
        self._team.run(self._worker.address, ctypes.addressof(self._arguments), self._team.size)


@compiled
def make_merge_worker(*, bfloat16: bool) -> Callable[[int], None]:
    """The compiled worker for answers in this type, or float32."""
    put, element = make_put(bfloat16=bfloat16), 2 if bfloat16 else 4

    def worker(arguments: int) -> None:
        args = words(arguments)
        heads, size = args[_HEADS], args[_HEAD_DIM]
        tokens = words(args[_TOKEN])
        first = words(args[_FIRST])
        while True:
            index = fetch_add(arguments)
            if index >= args[_TOKENS]:
                break
            count = first[index + 1] - first[index]
            rows = words(args[_ROWS] + 8 * first[index])
            for head in range(heads):
                total = _added_up(args[_PARTS], args[_LSE], rows, count, heads, head, size)
                made = args[_PARTS] + 4 * (rows[0] * heads + head) * size
                into = args[_ANSWERS] + (tokens[index] * heads + head) * size * element
                put(made, np.float32(1) / total, size, into)

    return worker


@njit(**FAST)  # type: ignore[untyped-decorator]
def _added_up(parts: int, lse: int, rows: Any, count: int, heads: int, head: int, size: int) -> Any:
    """The first row of one head becomes the sum of all, weighted; returns the sum of weights."""
    top = floats(lse)[rows[0] * heads + head]
    for index in range(1, count):
        top = max(top, floats(lse)[rows[index] * heads + head])
    total = np.float32(0)
    into = floats(parts + 4 * (rows[0] * heads + head) * size)
    for index in range(count):
        at = rows[index] * heads + head
        weight = np.exp(floats(lse)[at] - top)
        total += weight
        part = floats(parts + 4 * at * size)
        for i in range(size):
            into[i] = weight * part[i] + (into[i] if index else np.float32(0))
    return total
