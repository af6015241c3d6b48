"""Blocks of the pool's tokens as bytes in one order: of each layer keys, values, scales, each token
after token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.core.errors import ConfigError
from radixlm.core.keys import Slots
from radixlm.memory.pools import KVPool

# Where the first row begins. numpy's own memory begins 16 bytes behind a page, to which an AMD EPYC
# (Zen 4) copies what a file holds at 2.7 GB/s instead of 6.3.
_PAGE = 4096
# Runs of slots that a block may lie in, to be read and written where it lies.
_MOST_RUNS = 4


class PoolBlocks:
    """Blocks of `block_tokens` tokens in a pool. One thread at a time.

    nbytes: of a block. Raises ConfigError for one that the pool does not hold.
    """

    def __init__(self, pool: KVPool, block_tokens: int) -> None:
        if block_tokens > pool.capacity:
            raise ConfigError(
                f"--disk-block-tokens {block_tokens} is more than the {pool.capacity} tokens of "
                "the pool, from which a block is written as a whole: give less, or more --kv-tokens"
            )
        self.block_tokens = block_tokens
        self._device = pool.device
        self._rows = [
            part.view(torch.uint8).flatten(1)  # (capacity, bytes of a token)
            for layer in range(pool.n_layers)
            for part in pool.parts(layer)
        ]
        self._widths = [rows.shape[1] for rows in self._rows]
        self.nbytes = block_tokens * sum(self._widths)
        on_cpu = self._device.type == "cpu"
        self._memory = [rows.numpy().data.cast("B") for rows in self._rows] if on_cpu else []
        on_gpu = self._device.type == "cuda"
        # Copies pass what is computed.
        self._stream = torch.cuda.Stream(self._device) if on_gpu else None
        try:
            [self._staged] = self.rows(1)
        except (MemoryError, RuntimeError) as error:
            raise ConfigError(
                f"no memory for a block of {self.nbytes} bytes (--disk-block-tokens "
                f"{block_tokens}): {error}"
            ) from None

    def rows(self, count: int) -> Tensor:
        """(count, nbytes) uint8 on the host, a row for a block: pinned where the pool is on a GPU,
        so that it can copy them; else handed out by the system when they are first written.
        """
        if self._stream is not None:
            with torch.cuda.device(self._device):  # memory is pinned by the thread's own GPU
                return torch.empty((count, self.nbytes), dtype=torch.uint8, pin_memory=True)
        memory = np.zeros(count * self.nbytes + _PAGE, dtype=np.uint8)
        start = -memory.ctypes.data % _PAGE
        rows = memory[start : start + count * self.nbytes]
        return torch.from_numpy(rows.reshape(count, self.nbytes))

    def source(self, slots: Slots) -> Sequence[memoryview]:
        """The bytes of a block in its order, until the next call."""
        parts = self._in_place(slots)
        if parts is None:
            self._pack(slots, self._staged)
            parts = [self._staged.numpy().data]
        return parts

    def place(self, slots: Slots) -> Sequence[memoryview] | None:
        """See Carrier."""
        return self._in_place(slots)

    def target(self) -> Sequence[memoryview]:
        """Where to put a block's bytes in their order; then call `land`. Never the pool itself:
        what a disk brings late would come where something else is by then.
        """
        return [self._staged.numpy().data]

    def land(self, slots: Slots) -> None:
        self.unpack(self._staged, slots)

    def pack(self, slots: Slots, into: Tensor) -> None:
        """Copy a block out of the pool. into: one of `rows`. Returns when it is there."""
        parts = self._in_place(slots)
        if parts is None:
            self._pack(slots, into)
            return
        for part, place in zip(parts, _cut(into, parts), strict=True):
            place[:] = np.frombuffer(part, dtype=np.uint8)

    def unpack(self, payload: Tensor, slots: Slots) -> None:
        """Copy a block into the pool. payload: as `into` of `pack`. Returns when it is there."""
        parts = self._in_place(slots)
        if parts is None:
            self._unpack(payload, slots)
            return
        for part, place in zip(parts, _cut(payload, parts), strict=True):
            np.frombuffer(part, dtype=np.uint8)[:] = place

    def _pack(self, slots: Slots, into: Tensor) -> None:
        with self._copying():
            index = torch.tensor(slots, dtype=torch.int64, device=self._device)
            packed = torch.cat([rows[index].flatten() for rows in self._rows])
            into.copy_(packed, non_blocking=True)

    def _unpack(self, payload: Tensor, slots: Slots) -> None:
        sizes = [self.block_tokens * width for width in self._widths]
        with self._copying():
            index = torch.tensor(slots, dtype=torch.int64, device=self._device)
            parts = payload.to(self._device, non_blocking=True).split(sizes)
            for rows, part, width in zip(self._rows, parts, self._widths, strict=True):
                rows.index_copy_(0, index, part.view(self.block_tokens, width))

    @contextmanager
    def _copying(self) -> Iterator[None]:
        """Inside, a GPU works beside what it computes, after what was begun before; at the end that
        work is done.
        """
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()

    def _in_place(self, slots: Slots) -> list[memoryview] | None:
        """The block where it lies; None where that is on a device, or in too many runs of slots."""
        if not self._memory:
            return None
        ends = [0, *(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), slots.size]
        if len(ends) > _MOST_RUNS + 1:
            return None
        starts = slots[ends[:-1]].tolist()
        runs = [
            (at, at + stop - start)
            for at, start, stop in zip(starts, ends[:-1], ends[1:], strict=True)
        ]
        return [
            rows[start * width : stop * width]
            for rows, width in zip(self._memory, self._widths, strict=True)
            for start, stop in runs
        ]


def _cut(row: Tensor, parts: Sequence[memoryview]) -> Iterator[npt.NDArray[np.uint8]]:
    """A block in as many pieces as it has parts."""
    memory, at = row.numpy(), 0
    for part in parts:
        yield memory[at : at + part.nbytes]
        at += part.nbytes
