"""Calls of workers in one go: those that were taken down while they were made once, made again; and
those that do not need each other's results.

    the first time   norm | product | place | attend | product | ...    each one started from Python
    then             norm . product . place . attend . product . ...    one start; threads meet (.)

A start costs 5 us of Python, and a small model's step of one token makes hundreds that take 10.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from radixlm.kernels.jit import COUNTERS, compiled
from radixlm.kernels.openmp import KernelCall, Worker, team
from radixlm.kernels.vectors import emitted, thread_number, words

_INT64 = ir.IntType(64)
# Of a call: its code, its arguments, its threads.
_ENTRY = 3


class Chain:
    """Makes recorded calls again, on addresses that must still hold what they held.

    calls: as `Team.recorded` gives them, on a team of the same size. renewed: workers among them,
    whose arguments of these names change from time to time.
    """

    def __init__(
        self, calls: Sequence[KernelCall], renewed: Sequence[tuple[Worker, Collection[str]]]
    ) -> None:
        arguments = [np.frombuffer(call.arguments, dtype=np.int64) for call in calls]
        table = _ENTRY * len(calls)
        starts = table + np.cumsum([0, *(each.size for each in arguments)])
        self._words = np.concatenate([np.zeros(table, dtype=np.int64), *arguments])
        entries = self._words[:table].reshape(-1, _ENTRY)
        entries[:, 0] = [call.worker.code for call in calls]
        entries[:, 1] = self._words.ctypes.data + 8 * starts[:-1]
        entries[:, 2] = [call.threads for call in calls]
        self._counters = (starts[:-1, None] + np.arange(len(COUNTERS))).ravel()
        self._renewed = []
        for worker, names in renewed:
            fields = np.array([worker.fields.index(name) for name in names])
            at = [
                start for start, call in zip(starts, calls, strict=False) if call.worker is worker
            ]
            self._renewed.append((fields, np.array(at)[:, None] + fields))
        self._calls = calls  # their code goes with them
        self._worker = Worker(
            chain_kernel(), calls=self._words.ctypes.data, count=len(calls), meet=team().meeting
        )

    def __call__(self, workers: Sequence[Worker]) -> None:
        """workers: what is new of the renewed ones, in their order."""
        self._words[self._counters] = 0
        for worker, (fields, places) in zip(workers, self._renewed, strict=True):
            self._words[places] = np.frombuffer(worker.arguments, dtype=np.int64)[fields]
        self._worker()


class Together:
    """Makes calls that do not need each other's results: a thread that finds no work left in one
    goes on with the next.
    """

    def __init__(self) -> None:
        self._worker = Worker(chain_kernel(), calls=0, count=0, meet=0)

    def __call__(self, workers: Sequence[Worker]) -> None:
        """Compute a unit of work; memory that it keeps meanwhile is its own."""
        threads = team().size
        calls = np.array([(each.code, each.address, threads) for each in workers], dtype=np.int64)
        self._worker.arguments.calls, self._worker.arguments.count = calls.ctypes.data, len(calls)
        self._worker()


@emitted(types.void, types.int64, types.int64)
def _call(builder: ir.IRBuilder, code: Any, arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [_INT64])
    builder.call(builder.inttoptr(code, kind.as_pointer()), [arguments])


@emitted(types.void, types.int64)
def _meet(builder: ir.IRBuilder, code: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [])
    builder.call(builder.inttoptr(code, kind.as_pointer()), [])


_Arguments = namedtuple("_Arguments", "counters calls count meet")


@compiled(_Arguments)
def chain_kernel() -> Callable[[Any], None]:
    """calls: (count, 3) addresses of code and arguments, and threads. meet: the address of a
    function that all threads have called when it returns; 0: there is one thread, or they need not
    meet.
    """

    def chain(args: _Arguments) -> None:
        number, entries = thread_number(args.counters), words(args.calls)
        for at in range(0, _ENTRY * args.count, _ENTRY):
            if number < entries[at + 2]:
                _call(entries[at], entries[at + 1])
            if args.meet:
                _meet(args.meet)

    return chain
