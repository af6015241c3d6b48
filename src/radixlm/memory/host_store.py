"""Blocks of keys and values in host memory: what the pool on a device had to give up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from radixlm.core.keys import Slots
from radixlm.core.moves import NO_WINDOWS, News, StoredPath
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.stores import Block, in_windows


class BlockSlots(NamedTuple):
    """The slots of a block's tokens, as in a Transfer."""

    slots: Slots
    windows: Slots = NO_WINDOWS


class _HeldBlock:
    """A block, and those that go on from it. row: of the memory. windows: whether the part of
    layers with a window is there.
    """

    __slots__ = ("after", "row", "windows")

    def __init__(self, row: int) -> None:
        self.row = row
        self.windows = False
        self.after: dict[bytes, _HeldBlock] = {}


class HostStore:
    """A Store that forgets with the process, and its own Carrier: between a block's row and its
    slots lies nothing.

        memory    (capacity, nbytes) uint8: a row for each block, see `PoolBlocks.rows`
        root -> block -> block ...    by namespace and tokens: whole paths are compared

    capacity: blocks. nbytes, block_bytes: of one. damaged: see Store; nobody else writes here.
    found: the row that `land` copies.
    """

    def __init__(self, blocks: PoolBlocks, capacity: int) -> None:
        """Raises RuntimeError, MemoryError or ValueError where there is not that much memory."""
        self.capacity = capacity
        self.block_tokens = blocks.block_tokens
        self.block_bytes = self.nbytes = blocks.nbytes
        self._blocks = blocks
        self._memory = blocks.rows(capacity)
        self._free = list(range(capacity))[::-1]
        self._root = _HeldBlock(-1)
        self.found = -1

    @property
    def damaged(self) -> int:
        return 0

    def __len__(self) -> int:
        return self.capacity - len(self._free)

    def source(self, slots: Slots, windows: Slots = NO_WINDOWS) -> BlockSlots:
        """See Carrier."""
        return BlockSlots(slots, windows)

    place = source  # nothing lies between

    def target(self, windows: Slots = NO_WINDOWS) -> BlockSlots:
        """See Carrier: there is nothing between."""
        return BlockSlots(NO_WINDOWS, windows)

    def land(self, slots: Slots, windows: Slots = NO_WINDOWS) -> None:
        """See Carrier: what a reader has found last is copied."""
        self._blocks.unpack(self._memory[self.found], slots, windows)

    def put(self, blocks: Iterable[Block[BlockSlots]]) -> int:
        """See Store."""
        count = 0
        last: Block[BlockSlots] | None = None
        held: _HeldBlock | None = None
        with ExitStack() as undo:
            for block in blocks:
                path, start = StoredPath(*block[:2]), block.tokens.size - self.block_tokens
                follows = last is not None and last.namespace == block.namespace
                if last is None or not (
                    follows and np.array_equal(last.tokens, path.tokens[:start])
                ):
                    held = self.find(path, start)
                if held is not None:
                    held = self._put(held, self.name(path, start), block.parts, undo)
                if held is None:
                    break
                count, last = count + 1, block
            undo.pop_all()
        return count

    def _put(
        self, parent: _HeldBlock, name: bytes, at: BlockSlots, undo: ExitStack
    ) -> _HeldBlock | None:
        """None: there is no room."""
        held = parent.after.get(name)
        if held is None and self._free:
            held = parent.after[name] = _HeldBlock(self._free.pop())
            undo.callback(self._delete, parent, name)
            self._blocks.pack(at.slots, self._memory[held.row], at.windows)
            held.windows = in_windows(at.windows)
        elif held is not None and in_windows(at.windows) and not held.windows:
            undo.callback(setattr, held, "windows", False)
            self._blocks.pack_windows(at.windows, self._memory[held.row])
            held.windows = True
        return held

    def reader(self, path: StoredPath, start: int) -> HostReader:
        """See Store."""
        return HostReader(self, path, start)

    def delete(self, paths: Sequence[StoredPath]) -> int:
        """See Store."""
        before = len(self)
        for path in paths:
            start = path.tokens.size - self.block_tokens
            parent = self.find(path, start)
            if parent is not None:
                self._delete(parent, self.name(path, start))
        return before - len(self)

    def _delete(self, parent: _HeldBlock, name: bytes) -> None:
        first = parent.after.pop(name, None)
        gone = [] if first is None else [first]
        while gone:
            held = gone.pop()
            self._free.append(held.row)
            gone += held.after.values()

    def index(self) -> Iterator[StoredPath]:
        """The paths that are stored when it begins: none."""
        return iter(())

    def news(self) -> News:
        """Nobody else writes here."""
        return News()

    def close(self) -> None:
        """The memory goes with the store."""

    def name(self, path: StoredPath, start: int) -> bytes:
        """The name that tells a block from others that follow the same one."""
        own = path.tokens[start : start + self.block_tokens].tobytes()
        return own if start else path.namespace + own

    def find(self, path: StoredPath, end: int) -> _HeldBlock | None:
        """The block that ends there, the root at 0; None where it is not stored."""
        held: _HeldBlock | None = self._root
        for start in range(0, end, self.block_tokens):
            held = None if held is None else held.after.get(self.name(path, start))
        return held


class HostReader:
    """The blocks of a path, one after the other, from one on."""

    def __init__(self, store: HostStore, path: StoredPath, start: int) -> None:
        self._store = store
        self._path = path
        self._at = start
        self._held = store.find(path, start)
        self.lacks_windows = False

    def next(self, into: BlockSlots) -> bool:
        """See Reader."""
        name = self._store.name(self._path, self._at)
        self._held = None if self._held is None else self._held.after.get(name)
        if self._held is None:
            return False
        self.lacks_windows = in_windows(into.windows) and not self._held.windows
        if self.lacks_windows:
            return False
        self._at += self._store.block_tokens
        self._store.found = self._held.row
        return True

    def at_hand(self) -> None:
        """See Reader: what is found needs no reading."""
