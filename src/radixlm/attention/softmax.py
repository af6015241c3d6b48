"""Softmax of a block of scores in place, causal if need be, with its log-sum-exp: compiled.

torch's gives no log-sum-exp, wants a mask to be added first, and computes what the mask hides.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit, types
from torch import Tensor

from radixlm.attention.direct import FAST, exponentials
from radixlm.attention.team import Team
from radixlm.attention.vectors import (
    as_pointer,
    bits_of_float,
    fetch_add,
    float_of_bits,
    narrow,
    widen,
)

# The worker's arguments, int64 each.
_THREADS_SEEN, _UNITS_TAKEN, _ROWS, _COLUMNS, _STEP, _SCORES, _LSE, _SCRATCH, _SIZE = range(9)
_ROWS_PER_UNIT = 8


class Softmax:
    """Runs on the team's threads. One call at a time: it has scratch of its own."""

    def __init__(self, team: Team, dtype: torch.dtype) -> None:
        self._team = team
        self._worker = _make_worker(bfloat16=dtype == torch.bfloat16)
        self._address = self._worker.address
        self._scratch = torch.empty(0, dtype=torch.float32)
        self._arguments = (ctypes.c_int64 * _SIZE)()

    def __call__(self, scores: Tensor, step: int, lse: Tensor | None) -> None:
        """Turn scores into weights.

        scores: (rows, columns), contiguous. step: 0, or rows that see equally many columns: the
        last `step` see all, those above them one less, and so on; what a row does not see is 0.
        lse: (rows,) float32, contiguous, is written if it is wanted.
        """
        threads = self._team.size
        rows, columns = scores.shape
        if self._scratch.numel() < threads * columns:
            self._scratch = torch.empty(threads * columns, dtype=torch.float32)
        addresses = [scores.data_ptr(), 0 if lse is None else lse.data_ptr()]
        scratch = self._scratch.data_ptr()
        self._arguments[:] = [0, 0, rows, columns, step, *addresses, scratch]
        self._team.run(self._address, ctypes.addressof(self._arguments), threads)


@njit(**FAST)  # type: ignore[untyped-decorator]
def _float32_row(address: int, seen: int, columns: int, _scratch: int) -> Any:
    """Scores to weights, in place; the log-sum-exp."""
    row = carray(as_pointer(address), (columns,), np.float32)
    top, total = exponentials(address, seen)
    factor = np.float32(1) / total
    for t in range(seen):
        row[t] *= factor
    for t in range(seen, columns):
        row[t] = 0
    return top + np.log(total)


@njit(**FAST)  # type: ignore[untyped-decorator]
def _bfloat16_row(address: int, seen: int, columns: int, scratch: int) -> Any:
    """The same by way of float32 scratch."""
    row = carray(as_pointer(address), (columns,), np.uint16)
    weights = carray(as_pointer(scratch), (columns,), np.float32)
    whole = seen - seen % 16
    for t in range(0, whole, 16):
        widen(address + 2 * t, scratch + 4 * t)
    for t in range(whole, seen):
        weights[t] = float_of_bits(np.int32(row[t]) << np.int32(16))
    top, total = exponentials(scratch, seen)
    factor = np.float32(1) / total
    for t in range(0, whole, 16):
        narrow(scratch + 4 * t, factor, address + 2 * t)
    for t in range(whole, seen):
        bits = bits_of_float(weights[t] * factor)
        row[t] = np.uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    for t in range(seen, columns):
        row[t] = 0
    return top + np.log(total)


@functools.cache
def _make_worker(*, bfloat16: bool) -> Any:
    one_row = _bfloat16_row if bfloat16 else _float32_row
    element = 2 if bfloat16 else 4

    @cfunc(types.void(types.CPointer(types.int64)), **FAST)  # type: ignore[untyped-decorator]
    def worker(arguments: Any) -> None:
        args = carray(arguments, (_SIZE,))
        rows, columns, step = args[_ROWS], args[_COLUMNS], args[_STEP]
        first = args.ctypes.data
        scratch = args[_SCRATCH] + fetch_add(first + 8 * _THREADS_SEEN) * columns * 4
        while True:
            begin = fetch_add(first + 8 * _UNITS_TAKEN) * _ROWS_PER_UNIT
            if begin >= rows:
                break
            for row in range(begin, min(begin + _ROWS_PER_UNIT, rows)):
                seen = columns if step == 0 else columns - (rows - 1 - row) // step
                lse = one_row(args[_SCORES] + row * columns * element, seen, columns, scratch)
                if args[_LSE] != 0:
                    carray(as_pointer(args[_LSE] + 4 * row), (1,), np.float32)[0] = lse

    return worker
