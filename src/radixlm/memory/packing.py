"""Blocks of the pool's tokens as bytes in one order: of each layer keys, values, scales, each token
after token; layers with window slots behind the others.
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
from radixlm.core.moves import NO_SLOT, NO_WINDOWS, STATE_SLOTS, StateBlocks
from radixlm.memory.pools import KVPool
from radixlm.memory.state_pool import StatePool
from radixlm.memory.stores import in_windows

# Where the first row begins. numpy's own memory begins 16 bytes behind a page, to which an AMD EPYC
# (Zen 4) copies what a file holds at 2.7 GB/s instead of 6.3.
_PAGE = 4096
# Runs of slots that a block may lie in, to be read and written where it lies.
_MOST_RUNS = 4


class _Layers:
    """Layers of a pool that have the same slots, as bytes. width: of a token in all of them."""

    def __init__(self, pool: KVPool, layers: Sequence[int]) -> None:
        self._device = pool.device
        self._rows = [
            part.view(torch.uint8).flatten(1)  # (slots, bytes of a token)
            for layer in layers
            for part in pool.parts(layer)
        ]
        self._widths = [rows.shape[1] for rows in self._rows]
        self.width = sum(self._widths)
        on_cpu = pool.device.type == "cpu"
        self._memory = [rows.numpy().data.cast("B") for rows in self._rows] if on_cpu else []

    def in_place(self, slots: Slots) -> list[memoryview] | None:
        """Tokens where they lie; None where that is on a device, or in too many runs of slots."""
        if not self._memory:
            return None if self._rows else []
        ends = [0, *(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), slots.size]
        if len(ends) > _MOST_RUNS + 1 or (slots == NO_SLOT).any():
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

    def gather(self, slots: Slots) -> Tensor:
        """(tokens * width,) uint8 on the pool's device, in a block's order."""
        index = torch.tensor(slots, dtype=torch.int64, device=self._device)
        return torch.cat([rows[index].flatten() for rows in self._rows])

    def scatter(self, payload: Tensor, slots: Slots) -> None:
        """The reverse; the first tokens may have NO_SLOT, and are left out. payload: on the pool's
        device.
        """
        first = int(np.argmax(slots != NO_SLOT))
        index = torch.tensor(slots[first:], dtype=torch.int64, device=self._device)
        parts = payload.split([slots.size * width for width in self._widths])
        for rows, part, width in zip(self._rows, parts, self._widths, strict=True):
            rows.index_copy_(0, index, part.view(slots.size, width)[first:])


class _StateRows:
    """States as blocks of `nbytes`: of each layer the convolution's, then each layer's matrices; in
    the last block zeros behind them. width: of a token, as if blocks had such. count: blocks of a
    state. state_bytes: of a state.
    """

    def __init__(self, pool: StatePool | None, block_tokens: int, width: int) -> None:
        parts = [] if pool is None else pool.parts()
        self._rows = [part.view(torch.uint8).flatten(1) for part in parts]  # (states, bytes)
        self._ends = np.cumsum([rows.shape[1] for rows in self._rows], dtype=np.int64).tolist()
        self.state_bytes = self._ends[-1] if parts else 0
        self.width, self._nbytes = width, width * block_tokens
        self.count = -(-self.state_bytes // self._nbytes) if self._nbytes else 0

    def in_place(self, slots: Slots) -> list[memoryview] | None:
        """A block where it lies; None where that is on a device, or a state ends in it."""
        parts = list(self._parts(slots))
        whole = sum(part.numel() for part in parts) == self._nbytes
        if not whole or parts[0].device.type != "cpu":
            return None
        return [part.numpy().data for part in parts]

    def gather(self, slots: Slots) -> Tensor:
        """(nbytes,) uint8 on the pool's device."""
        parts = list(self._parts(slots))
        rest = self._nbytes - sum(part.numel() for part in parts)
        return torch.cat([*parts, parts[0].new_zeros(rest)])

    def scatter(self, payload: Tensor, slots: Slots) -> None:
        """The reverse. payload: on the pool's device."""
        for part in self._parts(slots):
            part.copy_(payload[: part.numel()])
            payload = payload[part.numel() :]

    def _parts(self, slots: Slots) -> Iterator[Tensor]:
        """The bytes of a block, from each layer's rows that it has some of."""
        state, number = divmod(int(slots[0]) - STATE_SLOTS, self.count)
        first, stop = number * self._nbytes, (number + 1) * self._nbytes
        for rows, end in zip(self._rows, self._ends, strict=True):
            start = end - rows.shape[1]
            if start < stop and first < end:
                yield rows[state, max(first - start, 0) : stop - start]


_Section = _Layers | _StateRows


class PoolBlocks:
    """Blocks of `block_tokens` tokens in a pool, and of states. One thread at a time.

        [ layers without window slots | layers with window slots )     a block's bytes

    The second part is packed and unpacked where a token has a window slot, else left out.

    nbytes: of a block. window_bytes: of its second part, 0 where all layers have the same slots.
    states: how these are stored. state_bytes: of one. Raises ConfigError for a block that the pool
    does not hold.
    """

    def __init__(
        self, pool: KVPool, block_tokens: int, state_pool: StatePool | None = None
    ) -> None:
        if block_tokens > pool.capacity:
            raise ConfigError(
                f"--disk-block-tokens {block_tokens} is more than the {pool.capacity} tokens of "
                "the pool, from which a block is written as a whole: give less, or more --kv-tokens"
            )
        self.block_tokens = block_tokens
        self._device = pool.device
        apart = frozenset[int]() if pool.windows is None else pool.windows.layers
        self._full = _Layers(pool, [n for n in range(pool.n_layers) if n not in apart])
        self._windows = _Layers(pool, sorted(apart))
        self.window_bytes = block_tokens * self._windows.width
        self.nbytes = block_tokens * self._full.width + self.window_bytes
        self._states = _StateRows(state_pool, block_tokens, self._full.width)
        self.state_bytes = self._states.state_bytes
        self.states = StateBlocks(block_tokens, self._states.count)
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

    def source(self, slots: Slots, windows: Slots = NO_WINDOWS) -> Sequence[memoryview]:
        """The bytes of a block in its order, until the next call."""
        parts = self.place(slots, windows)
        if parts is None:
            self.pack(slots, self._staged, windows)
            return self.target(windows)
        return parts

    def place(self, slots: Slots, windows: Slots = NO_WINDOWS) -> Sequence[memoryview] | None:
        """See Carrier."""
        found: list[memoryview] = []
        for layers, its in self._parts(slots, windows):
            parts = layers.in_place(its)
            if parts is None:
                return None
            found += parts
        return found

    def target(self, windows: Slots = NO_WINDOWS) -> Sequence[memoryview]:
        """The memory for a block's bytes in their order; then call `land`. Never the pool itself:
        what a disk brings late would come where something else is by then.
        """
        nbytes = self.nbytes if in_windows(windows) else self.nbytes - self.window_bytes
        return [self._staged.numpy()[:nbytes].data]

    def land(self, slots: Slots, windows: Slots = NO_WINDOWS) -> None:
        self.unpack(self._staged, slots, windows)

    def pack(self, slots: Slots, into: Tensor, windows: Slots = NO_WINDOWS) -> None:
        """Copy a block out of the pool. into: one of `rows`. Returns when it is there."""
        self._pack(self._parts(slots, windows), into)

    def pack_windows(self, windows: Slots, into: Tensor) -> None:
        """Copy its second part only, to where it belongs."""
        self._pack([(self._windows, windows)], into[self.nbytes - self.window_bytes :])

    def _pack(self, sections: Sequence[tuple[_Section, Slots]], into: Tensor) -> None:
        for layers, its in sections:
            payload, into = into[: its.size * layers.width], into[its.size * layers.width :]
            parts = layers.in_place(its)
            if parts is None:
                with self._copying():
                    payload.copy_(layers.gather(its), non_blocking=True)
                continue
            for part, place in zip(parts, _cut(payload, parts), strict=True):
                place[:] = np.frombuffer(part, dtype=np.uint8)

    def unpack(self, payload: Tensor, slots: Slots, windows: Slots = NO_WINDOWS) -> None:
        """Copy a block into the pool. payload: as `into` of `pack`. Returns when it is there."""
        for layers, its in self._parts(slots, windows):
            own, payload = payload[: its.size * layers.width], payload[its.size * layers.width :]
            parts = layers.in_place(its)
            if parts is None:
                with self._copying():
                    layers.scatter(own.to(self._device, non_blocking=True), its)
                continue
            for part, place in zip(parts, _cut(own, parts), strict=True):
                np.frombuffer(part, dtype=np.uint8)[:] = place

    def _parts(self, slots: Slots, windows: Slots) -> list[tuple[_Section, Slots]]:
        """A block's parts that are moved, with the tokens' slots there."""
        if slots[0] >= STATE_SLOTS:
            return [(self._states, slots)]
        second = [(self._windows, windows)] if in_windows(windows) else []
        return [(self._full, slots), *second]

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


def _cut(row: Tensor, parts: Sequence[memoryview]) -> Iterator[npt.NDArray[np.uint8]]:
    """A block in as many pieces as it has parts."""
    memory, at = row.numpy(), 0
    for part in parts:
        yield memory[at : at + part.nbytes]
        at += part.nbytes
