"""Compiled workers on the threads that torch has already."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from radixlm.kernels.jit import Kernel

# OpenMP's omp_pause_hard.
_HARD = 2
# More sleeping threads than this are not worth having, see `Team.doze`.
_MOST_DOZING = 64


class Team:
    """torch's own OpenMP threads. A second pool would compete with them for the processors.

    Where torch uses no such library (on macOS it does not), a worker runs on the caller alone.
    """

    def __init__(self) -> None:
        # Of this process: what torch itself calls.
        self._process = process = ctypes.CDLL(None)
        self._pause = getattr(process, "omp_pause_resource_all", None)
        self._parallel = getattr(process, "GOMP_parallel", None)
        if self._parallel is not None:
            address, number = ctypes.c_void_p, ctypes.c_uint
            self._parallel.argtypes = (address, address, number, number)
            self._parallel.restype = None
        self._awake: threading.Event | None = None
        self._scratches = [torch.empty(0, dtype=torch.uint8)]
        self.calls: list[KernelCall] | None = None

    @property
    def meeting(self) -> int:
        """The address of a function that returns when all threads of a worker have called it; 0
        where a worker has one.
        """
        if self._parallel is None:
            return 0
        return ctypes.cast(self._process.GOMP_barrier, ctypes.c_void_p).value or 0

    @contextmanager
    def recorded(self) -> Iterator[list[KernelCall]]:
        """The calls of workers that are made meanwhile; only for the thread that computes."""
        calls: list[KernelCall] = []
        self.calls = calls
        try:
            yield calls
        finally:
            self.calls = None

    def scratch(self, size: int) -> int:
        """The address of memory for what one call of a worker keeps: at least `size` bytes, which
        stay where they are.
        """
        if self._scratches[-1].numel() < size:
            self._scratches.append(torch.empty(2 * size, dtype=torch.uint8))
        return self._scratches[-1].data_ptr()

    @property
    def is_whole(self) -> bool:
        """Whether a worker runs on as many threads as torch's own operations."""
        return self.size == torch.get_num_threads()

    @property
    def size(self) -> int:
        """Threads that a worker may run on."""
        return 1 if self._parallel is None else torch.get_num_threads()

    def leave(self) -> None:
        """End the threads that torch keeps for the calling one; the next thread to compute gets new
        ones.

        With more threads than processors OpenMP lets all of them sleep between two calls, and to
        wake them takes longer than most calls: 30 us.
        """
        if self._pause is not None:
            self._pause(_HARD)

    def doze(self, wanted: bool) -> None:
        """Whether threads that wait for each other sleep at once, instead of spinning for a moment:
        for when other processes want their processors. Only for the thread that computes.

        OpenMP has no call for it, but does so by itself while it has more threads than processors:
        a thread of ours holds a team of idle ones until it is released.
        """
        if wanted == (self._awake is not None) or self._parallel is None:
            return
        if self._awake is not None:
            self._awake.set()
            self._awake = None
            return
        # Two at least: with one alone OpenMP counts none, and below that it takes any number.
        spare = max(self._process.omp_get_num_procs() - self.size + 2, 2)
        if spare <= _MOST_DOZING:
            self._awake = threading.Event()
            threading.Thread(
                target=self._hold, args=(spare, self._awake), name="radixlm-doze", daemon=True
            ).start()

    def _hold(self, threads: int, until: threading.Event) -> None:
        nothing = ctypes.cast(self._process.getpid, ctypes.c_void_p).value
        self._process.GOMP_parallel(nothing, None, threads, 0)
        until.wait()
        self.leave()

    def run(self, worker: int, arguments: int, threads: int) -> None:
        """Call the function at address `worker` with the address `arguments` on each thread."""
        if self._parallel is None:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(worker)(arguments)
        else:
            self._parallel(worker, arguments, threads, 0)


@functools.cache
def team() -> Team:
    """The one of this process: torch has only one."""
    return Team()


def threads_for(rows: int, rows_per_unit: int) -> int | None:
    """The number of threads for a worker: one unit of work needs one thread."""
    return None if rows > rows_per_unit else 1


class KernelCall(NamedTuple):
    """A call of a worker, with what its arguments were, as bytes."""

    worker: Worker
    arguments: bytes
    threads: int


class Worker:
    """A kernel with its arguments, on the team's threads. One call at a time.

    arguments: int64 each, strides in bytes; what is at addresses is the caller's to keep.
    """

    def __init__(self, kernel: Kernel, **arguments: int) -> None:
        self._kernel = kernel  # to be kept: its code goes with it
        self._team = team()
        self.arguments: Any = kernel.arguments(**arguments)
        self._at = ctypes.addressof(self.arguments)

    @property
    def code(self) -> int:
        """The address of its kernel."""
        return self._kernel.address

    @property
    def address(self) -> int:
        """The address of its arguments, with nothing of their work done yet."""
        self.arguments.units_taken = self.arguments.threads_seen = 0
        return self._at

    @property
    def fields(self) -> list[str]:
        """The values of its arguments, counters included."""
        return [name for name, _ in self.arguments._fields_]

    def __call__(self, threads: int | None = None) -> None:
        """threads: as many as the team has unless given."""
        threads = threads or self._team.size
        if self._team.calls is not None:
            self._team.calls.append(KernelCall(self, bytes(self.arguments), threads))
        self._team.run(self._kernel.address, self.address, threads)
