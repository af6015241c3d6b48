"""The disk cache: blocks of keys and values in files, that outlive the process.

Layout and reasons: docs/adr/0030-the-disk-store.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from radixlm.core.errors import ConfigError, DiskStoreError
from radixlm.core.moves import News, StoredPath
from radixlm.memory.store_files import BlockFile, private_folder
from radixlm.memory.store_identity import StoreIdentity
from radixlm.memory.store_index import Identity, Row, StoreIndex, key_after, keys_of
from radixlm.memory.stores import Block

_logger = logging.getLogger("radixlm.memory")

# What the index needs for a block beside its tokens, and its log of changes.
_ROW_BYTES, _LOG_BYTES = 512, 8 << 20
_TRIES = 3
Parts = Sequence[memoryview]
# parts: the block's bytes, in their order.
StoredBlock = Block[Parts]


@dataclass
class StoreStats:
    """Since the store was opened. damaged: blocks that were found so, and are never read again."""

    read_blocks: int = 0
    written_blocks: int = 0
    damaged: int = 0


class DiskStore:
    """Blocks of one identity in a folder that several processes may share.

    Used by one thread at a time. Every method raises DiskStoreError when the disk fails; what was
    stored before is as it was.

    capacity: blocks for which there is room, other identities' left where they are.
    """

    def __init__(
        self, index: StoreIndex, file: BlockFile, identity: Identity, limit_bytes: int
    ) -> None:
        self._index = index
        self._file = file
        self._identity = identity
        others = index.used_bytes() - identity.slots * file.slot_bytes
        tokens = 8 * identity.block_tokens  # a row of the table, one of the log for a while
        room = limit_bytes - others - _LOG_BYTES
        self.capacity = max(0, room) // (file.slot_bytes + tokens + _ROW_BYTES)
        self.limit_bytes = others + self.capacity * file.slot_bytes
        self.block_tokens = identity.block_tokens
        self.block_bytes = identity.block_bytes
        self.stats = StoreStats()
        # Damaged ones that the disk did not let us delete.
        self._unreadable: set[bytes] = set()

    @classmethod
    def open(
        cls,
        folder: Path,
        identity: StoreIdentity,
        *,
        block_tokens: int,
        block_bytes: int,
        limit_bytes: int,
    ) -> DiskStore:
        """Raises ConfigError for a folder that cannot be used, another layout, or a limit that
        leaves no room; DiskStoreError for a damaged index.
        """
        private_folder(folder)
        index = StoreIndex(folder)
        try:
            digest = identity.digest(block_tokens, block_bytes)
            row = index.enrol(digest, identity.described(), block_tokens, block_bytes)
            file = BlockFile(blocks_path(folder, row), block_bytes)
        except BaseException:
            index.close()
            raise
        store = cls(index, file, row, limit_bytes)
        if not store.capacity:
            store.close()
            raise ConfigError(
                f"a disk cache of {limit_bytes / 1e9:.3g} GB has no room for a block of "
                f"{block_bytes / 1e6:.3g} MB beside other models' {store.limit_bytes / 1e9:.3g} "
                f"GB: raise --disk-cache-gb, or delete those (`radixlm cache ls {folder}`)"
            )
        others = len(index.identities()) - 1
        if others:
            _logger.info(
                "%s has blocks of %d other models or settings, which are left alone "
                "(`radixlm cache ls %s`)",
                folder,
                others,
                folder,
            )
        return store

    @property
    def damaged(self) -> int:
        return self.stats.damaged

    def __len__(self) -> int:
        return self._index.count(self._identity)

    def put(self, blocks: Iterable[StoredBlock]) -> int:
        """Store blocks, each after those before it on its path; all are on disk at the end. Returns
        how many, from the first on, are stored now: the next one's parent is not, or there is no
        room for it. blocks: each is asked for when those before it are written.
        """
        self._file.check()
        with self._index.writing():
            count, before = 0, None
            keys: list[bytes] = []
            for block in blocks:
                keys = self._keys_after(before, keys, block)
                if not self._put(block, keys):
                    break
                count, before = count + 1, block
            self._file.sync()
        self.stats.written_blocks += count
        return count

    def _keys_after(
        self, before: StoredBlock | None, keys: list[bytes], block: StoredBlock
    ) -> list[bytes]:
        """The block's keys; those of the one before are used where it goes on from there."""
        own = block.tokens[-self.block_tokens :]
        if (
            before is not None
            and before.namespace == block.namespace
            and np.array_equal(before.tokens, block.tokens[: -self.block_tokens])
        ):
            return [*keys, key_after(keys[-1], own.tobytes())]
        return keys_of(self._identity, block.namespace, block.tokens)

    def _put(self, block: StoredBlock, keys: list[bytes]) -> bool:
        *_, parent, key = keys
        first = len(keys) == 2
        if key in self._unreadable:
            self._index.drop(self._identity, key)
            self._unreadable.discard(key)
        if self._index.row(self._identity, key) is not None:
            return True
        if not first and self._index.row(self._identity, parent) is None:
            return False
        slot = self._index.take_slot(self._identity, self.limit_bytes)
        if slot is None:
            return False
        total = self._file.write(slot, key, block.parts)
        tokens = block.tokens[-self.block_tokens :].tobytes()
        namespace = block.namespace if first else b""
        self._index.add(self._identity, key, Row(parent, namespace, tokens, slot, total))
        return True

    def get(self, path: StoredPath, into: Parts) -> bool:
        """Read a block into these parts. False: it is not stored, and `into` may hold anything."""
        start = path.tokens.size - self.block_tokens
        return self.reader(path, start).next(into)

    def reader(self, path: StoredPath, start: int) -> Reader:
        """Reads the blocks of a path one by one; start: where the first begins."""
        return Reader(self, path, start // self.block_tokens)

    def read(
        self, path: StoredPath, keys: Sequence[bytes], number: int, into: Parts | None
    ) -> bool:
        """As `get`, for the block `number` of a path, whose `keys_of` are given. into: None
        compares only what the index says.
        """
        parent, key = keys[number : number + 2]
        size = self.block_tokens
        tokens = path.tokens[number * size : (number + 1) * size].tobytes()
        for _ in range(_TRIES):
            row = self._index.row(self._identity, key)
            if row is None or key in self._unreadable:
                return False
            namespace = b"" if number else path.namespace
            sound = (row.parent, row.namespace, row.tokens) == (parent, namespace, tokens)
            if sound and into is None:
                return True
            if sound and into is not None and self._sum(row, key, into) == row.sum:
                self.stats.read_blocks += 1
                return True
            # Another process may have given the slot to another block meanwhile.
            if self._index.row(self._identity, key) == row:
                self._lose(key, row)
                return False
        return False

    def _sum(self, row: Row, key: bytes, into: Parts) -> bytes | None:
        if not isinstance(row.slot, int) or not 0 <= row.slot < 2**31:
            return None
        return self._file.read(row.slot, key, into)

    def _lose(self, key: bytes, row: Row) -> None:
        """A damaged block: deleted, so that it is written again; if need be only forgotten."""
        self.stats.damaged += 1
        try:
            with self._index.writing():
                lost = self._index.drop(self._identity, key)
            then = f"{lost} blocks are deleted, and computed again"
        except DiskStoreError as error:
            self._unreadable.add(key)
            then = f"it is computed again, and cannot be deleted: {error}"
        _logger.warning("a damaged block in %s, slot %s: %s", self._file.path, row.slot, then)

    def sound(self, key: bytes, into: Parts) -> bool:
        """Whether a block is as it was written, and a path leads to it. Changes nothing."""
        row = self._index.row(self._identity, key)
        whole = row is not None and self._index.path_of(self._identity, key) is not None
        return row is not None and whole and self._sum(row, key, into) == row.sum

    def delete(self, paths: Sequence[StoredPath]) -> int:
        """Delete blocks and all that go on from them; how many."""
        with self._index.writing():
            keys = [keys_of(self._identity, *path)[-1] for path in paths]
            return sum(self._index.drop(self._identity, key) for key in keys)

    def index(self) -> Iterator[StoredPath]:
        """The longest paths that are stored; every prefix of whole blocks is stored too. Blocks
        that no path leads to are deleted.
        """
        for key in self._index.keys(self._identity, leaves=True):
            path = self._index.path_of(self._identity, key)
            if path is not None:
                yield path
            elif (row := self._index.row(self._identity, key)) is not None:
                self._lose(key, row)

    def news(self) -> News:
        """What other processes changed since the last call, or since the store was opened. Where
        that is more than is logged, all that is stored, and no deleted blocks: those are found
        when they are read.
        """
        keys = self._index.changes(self._identity)
        if keys is None:
            return News(added=tuple(self.index()))
        rows = {key: self._index.row(self._identity, key) for key in keys}
        parents = {row.parent for row in rows.values() if row is not None}
        added = [key for key, row in rows.items() if row is not None and key not in parents]
        gone = [key for key, row in rows.items() if row is None]
        return News(self._paths(added), self._paths(gone, logged=True))

    def _paths(self, keys: Sequence[bytes], *, logged: bool = False) -> tuple[StoredPath, ...]:
        found = (self._index.path_of(self._identity, key, logged=logged) for key in keys)
        return tuple(path for path in found if path is not None)

    def keys(self, path: StoredPath) -> list[bytes]:
        return keys_of(self._identity, *path)

    def close(self) -> None:
        self._file.close()
        self._index.close()


class Reader:
    """The blocks of a path, one after the other, from one on. Those before it are compared in the
    index, so that the whole path is.
    """

    def __init__(self, store: DiskStore, path: StoredPath, number: int) -> None:
        self._store = store
        self._path = path
        self._keys = store.keys(path)
        self._number = number
        self._compared = False

    def next(self, into: Parts) -> bool:
        """Read the next block; False: it is not stored, nor is what follows."""
        if self._number + 1 >= len(self._keys):
            return False
        if not self._compared:
            if not all(self._read(number, None) for number in range(self._number)):
                return False
            self._compared = True
        if not self._read(self._number, into):
            return False
        self._number += 1
        return True

    def _read(self, number: int, into: Parts | None) -> bool:
        return self._store.read(self._path, self._keys, number, into)


def blocks_path(folder: Path, identity: Identity) -> Path:
    return folder / f"{identity.digest[:32]}.blocks"
