"""A step's numbers on their way to the device: one copy for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Waits for numbers of the device, and gives them on the CPU.
Fetched: TypeAlias = Callable[[], Tensor]
# Bytes: kernels know that numbers begin at multiples of it. Memory that is taken first: 256 rows
# with penalties have 100,000.
_ALIGNMENT, _LEAST = 16, 1 << 18


class NoPlaceError(Exception):
    """A step has more numbers than there is room for in memory of a fixed size."""


class Sending:
    """Numbers that are sent as they come; on the CPU, where a step's numbers are, nothing is.

    tokens: of a step, for which there is room, whichever it has; 0: it has room for its own.
    """

    tokens = 0

    def __init__(self, device: torch.device) -> None:
        self.device, self._is_here = device, device.type == "cpu"

    def begin(self) -> None:
        """Begin a step: what was put before is not needed any more."""

    def put(self, numbers: npt.NDArray[Any], room: int = 0, fill: int = 0) -> Tensor:  # noqa: ARG002
        """The same numbers on the device, from `send` on and until `begin`. room: at least as many
        are there, the others are `fill`. numbers: writable, on the CPU the same memory.
        """
        made = torch.from_numpy(numbers)
        return made if self._is_here else made.to(self.device)

    def after(self, work: Callable[[], object]) -> None:
        """Have this done as soon as the numbers are there."""
        work()

    def send(self) -> None:
        """Send what was put."""

    def fetch(self, numbers: Tensor) -> Fetched:
        """Have numbers copied to the CPU once they are there, which nothing is to change."""
        return numbers.cpu


class Staging(Sending):
    """Pinned memory, and as much on the device.

        put(a), put(b), put(c), send()      host    | a  | b | c   |
                                            device  | a  | b | c   |    one copy, not waited for

    What does not fit goes to more memory, which takes a copy of its own once: the next step has it
    all there. What is put after `send` goes behind the rest, with the next one.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._work: list[Callable[[], object]] = []
        self._sent: torch.cuda.Event | None = None
        self._take(_LEAST)

    def begin(self) -> None:
        """See `Sending`. Waits for the last copy, not for what is computed after it."""
        if self._sent is not None:
            self._sent.synchronize()
        self._work.clear()
        self._first = self._used = 0

    def put(self, numbers: npt.NDArray[Any], room: int = 0, fill: int = 0) -> Tensor:  # noqa: ARG002
        """See `Sending`."""
        stop = self._used + numbers.nbytes
        if stop > self._host.numel():
            self._copy()
            self._take(2 * stop)
            stop = numbers.nbytes
        flat = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
        self._bytes[self._used : stop] = flat
        made = self._there[self._used : stop].view(_dtype_of(numbers)).view(numbers.shape)
        self._used = -(-stop // _ALIGNMENT) * _ALIGNMENT
        return made

    def after(self, work: Callable[[], object]) -> None:
        """See `Sending`."""
        self._work.append(work)

    def send(self) -> None:
        """See `Sending`."""
        self._copy()
        for work in self._work:
            work()
        self._work.clear()

    def fetch(self, numbers: Tensor) -> Fetched:
        """See `Sending`. What is launched later is not waited for."""
        if self.device.type != "cuda":
            return super().fetch(numbers)
        here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        here.copy_(numbers, non_blocking=True)
        there = torch.cuda.current_stream(self.device).record_event()

        def waited() -> Tensor:
            there.synchronize()
            return here

        return waited

    def _copy(self) -> None:
        some = slice(self._first, self._used)
        if self._used > self._first:
            self._there[some].copy_(self._host[some], non_blocking=True)
            if self.device.type == "cuda":
                self._sent = torch.cuda.current_stream(self.device).record_event(self._sent)
        self._first = self._used

    def _take(self, nbytes: int) -> None:
        pinned = self.device.type == "cuda"
        self._host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
        self._there = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        self._bytes = self._host.numpy()
        self._first = self._used = 0  # of the bytes that are to be sent


def ranges(firsts: Sequence[int], counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """(sum of counts,) numbers that follow each other from each of `firsts` on, as many as its
    count says, one after the other.

    >>> ranges([7, 3], [1, 2])
    array([7, 3, 4])
    >>> ranges([7, 3], [1, 1])
    array([7, 3])
    """
    if counts.count(1) == len(counts):  # where all decode an array for each would take long
        return np.array(firsts, dtype=np.int64)
    both = zip(firsts, counts, strict=True)
    return np.concatenate([np.arange(first, first + count) for first, count in both])


def _dtype_of(numbers: npt.NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=numbers.dtype)).dtype


def staging_for(device: torch.device) -> Sending:
    """Make that of a runner."""
    return Sending(device) if device.type == "cpu" else Staging(device)
