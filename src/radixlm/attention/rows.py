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
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import carray, cfunc, njit, types
from torch import Tensor

from radixlm.attention.team import Team
from radixlm.attention.vectors import FAST, as_pointer, bits_of_float, fetch_add

# A row of parts that means: the token's answer.
ANSWER = -1

_Numbers = npt.NDArray[np.int64]

# The worker's arguments, int64 each.
_TAKEN, _TOKENS, _HEADS, _HEAD_DIM, _TOKEN, _FIRST, _ROWS, _PARTS, _LSE, _ANSWERS, _SIZE = range(11)


# Slices in compiled code read better than loops, but take numba half a second each.
@njit(**FAST)  # type: ignore[untyped-decorator]
def clear(address: int, numbers: int) -> None:
    """Write zeros."""
    made = carray(as_pointer(address), (numbers,), np.float32)
    for i in range(numbers):
        made[i] = 0


@njit(**FAST)  # type: ignore[untyped-decorator]
def put(numbers: int, factor: float, size: int, into: int, element: int) -> None:
    """Write `size` float32 numbers times a factor, as bfloat16 when an element has 2 bytes."""
    read = carray(as_pointer(numbers), (size,), np.float32)
    if element == 2:
        halves = carray(as_pointer(into), (size,), np.uint16)
        for i in range(size):
            bits = bits_of_float(read[i] * factor)
            halves[i] = np.uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    else:
        plain = carray(as_pointer(into), (size,), np.float32)
        for i in range(size):
            plain[i] = read[i] * factor


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

    def __init__(self, worker: Any, team: Team, rows: PartRows, heads: int, head_dim: int) -> None:
        self._worker = worker
        self._team = team
        self._keep = rows.by_token()
        self._parts = torch.empty((rows.count, heads, head_dim), dtype=torch.float32)
        self._lse = torch.empty((rows.count, heads), dtype=torch.float32)
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


@functools.cache
def make_merge_worker(element: int) -> Any:
    """The compiled worker for answers whose numbers have so many bytes."""

    @cfunc(types.void(types.CPointer(types.int64)), **FAST)  # type: ignore[untyped-decorator]
    def worker(arguments: Any) -> None:
        args = carray(arguments, (_SIZE,))
        heads, size = args[_HEADS], args[_HEAD_DIM]
        tokens = carray(as_pointer(args[_TOKEN]), (args[_TOKENS],), np.int64)
        first = carray(as_pointer(args[_FIRST]), (args[_TOKENS] + 1,), np.int64)
        while True:
            index = fetch_add(args.ctypes.data)
            if index >= args[_TOKENS]:
                break
            count = first[index + 1] - first[index]
            rows = carray(as_pointer(args[_ROWS] + 8 * first[index]), (count,), np.int64)
            for head in range(heads):
                total = _added_up(args[_PARTS], args[_LSE], rows, count, heads, head, size)
                made = args[_PARTS] + 4 * (rows[0] * heads + head) * size
                into = args[_ANSWERS] + (tokens[index] * heads + head) * size * element
                put(made, np.float32(1) / total, size, into, element)

    return worker


@njit(**FAST)  # type: ignore[untyped-decorator]
def _added_up(parts: int, lse: int, rows: Any, count: int, heads: int, head: int, size: int) -> Any:
    """The first row of one head becomes the sum of all, weighted; returns the sum of weights."""
    top = _number(lse, rows[0] * heads + head)
    for index in range(1, count):
        top = max(top, _number(lse, rows[index] * heads + head))
    total = np.float32(0)
    into = carray(as_pointer(parts + 4 * (rows[0] * heads + head) * size), (size,), np.float32)
    for index in range(count):
        at = rows[index] * heads + head
        weight = np.exp(_number(lse, at) - top)
        total += weight
        part = carray(as_pointer(parts + 4 * at * size), (size,), np.float32)
        for i in range(size):
            into[i] = weight * part[i] + (into[i] if index else 0)
    return total


@njit(**FAST)  # type: ignore[untyped-decorator]
def _number(address: int, index: int) -> Any:
    return carray(as_pointer(address + 4 * index), (1,), np.float32)[0]
