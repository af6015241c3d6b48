"""Memory for weights in huge pages: a step reads all of them, and the processor fetches ahead no
further than to a page's end, which is 4 KB else."""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_HUGE, _LINE = 2 << 20, 64
# A mapping has room for many weights, so that small ones share their pages.
_MAPPING = 32 << 20


class HugePages:
    """Room for tensors, cut off one mapping after the other. Any thread may ask.

    A mapping goes with the last tensor in it: what is here should stay about as long. Where the
    system has no huge pages, these are ordinary ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest = torch.empty(0, dtype=torch.uint8)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor on the CPU that begins with a cache line."""
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            room = self._room(size)
        return room.view(dtype).view(*shape)

    def _room(self, size: int) -> Tensor:
        end = -(-size // _LINE) * _LINE
        if end > _MAPPING // 2:
            return _mapped(end)[:size]
        if end > len(self._rest):
            self._rest = _mapped(_MAPPING)
        room, self._rest = self._rest[:size], self._rest[end:]
        return room


def _mapped(size: int) -> Tensor:
    """A mapping of at least that many bytes, all 0, that begins with a huge page."""
    size = -(-size // _HUGE) * _HUGE
    made = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if advice := getattr(mmap, "MADV_HUGEPAGE", None):
        with contextlib.suppress(OSError):  # a system that was built without them
            made.madvise(advice)
    whole = torch.frombuffer(made, dtype=torch.uint8)
    first = -whole.data_ptr() % _HUGE
    return whole[first : first + size]


@functools.cache
def huge_pages() -> HugePages:
    """The room of this process."""
    return HugePages()
