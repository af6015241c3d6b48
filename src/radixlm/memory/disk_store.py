"""The disk cache: blocks of keys and values in files, that outlive the process.

Layout and reasons: docs/adr/0030-the-disk-store.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from radixlm.core.errors import ConfigError, DiskStoreError
from radixlm.core.moves import News, StoredPath
from radixlm.memory.block_records import Record, packed
from radixlm.memory.store_files import BlockFile
from radixlm.memory.store_folder import bytes_beside, private_folder
from radixlm.memory.store_identity import StoreIdentity
from radixlm.memory.store_index import LOG_BYTES, ROW_BYTES, StoreIndex
from radixlm.memory.store_labels import Label, write_label
from radixlm.memory.store_repair import open_repaired
from radixlm.memory.store_rows import Identity, Room, Row, blocks_path, key_after, keys_of
from radixlm.memory.stores import Block

_logger = logging.getLogger("radixlm.memory")

# What SQLite keeps of the index to undo a transaction.
_JOURNAL_BYTES = 1 << 20
# Of the limit, what may be damaged indexes that were set aside.
_SHARE_ASIDE = 1 / 16
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


class _Written(NamedTuple):
    """A block whose bytes are in its slot. record: what was there before; empty for none."""

    row: Row
    born: int
    record: bytes = b""


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
        beside = bytes_beside(index.path.parent)
        tokens = 8 * identity.block_tokens  # a row of the table, one of the log for a while
        room = limit_bytes - others - beside - LOG_BYTES
        self.capacity = max(0, room) // (file.slot_bytes + tokens + ROW_BYTES)
        blocks = others + self.capacity * file.slot_bytes
        self.room = Room(blocks, limit_bytes - beside - _JOURNAL_BYTES)
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
        strict: bool = False,
    ) -> DiskStore:
        """A damaged index is set aside, and one made from the blocks; strict: it is an error.

        Raises ConfigError for a folder that cannot be used, or a limit that leaves no room;
        DiskStoreError where the disk fails, or another process uses what is damaged.
        """
        private_folder(folder)
        digest = identity.digest(block_tokens, block_bytes)
        label = Label(digest, identity.described(), block_tokens, block_bytes)
        most_aside = int(limit_bytes * _SHARE_ASIDE)
        index, repaired = open_repaired(folder, most_aside, label, strict=strict)
        if text := str(repaired):
            _logger.warning("%s: %s", folder, text)
        try:
            row = index.enrol(*label)
            path = blocks_path(folder, row)
            write_label(path, label)
            file = BlockFile(path, block_tokens, block_bytes, row.window_bytes)
        except BaseException:
            index.close()
            raise
        store = cls(index, file, row, limit_bytes)
        if not store.capacity:
            store.close()
            raise ConfigError(
                f"a disk cache of {limit_bytes / 1e9:.3g} GB has no room for a block of "
                f"{block_bytes / 1e6:.3g} MB beside other models' {store.room.blocks / 1e9:.3g} "
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
        room for it. blocks: each is asked for when those before it are written. An error, theirs
        as well, leaves what was stored before.
        """
        self._file.check()
        written: list[_Written] = []

        def undo() -> None:
            for row, _, record in written:
                self._file.restore_record(row.slot, record)

        with self._index.writing(undo):
            count, before = 0, None
            keys: list[bytes] = []
            for block in blocks:
                keys = self._keys_after(before, keys, block)
                if not self._put(block, keys, written):
                    break
                count, before = count + 1, block
            # Not before: the end of `blocks` may say that what was written is not theirs.
            for row, born, _ in written:
                record = Record(row.parent, row.namespace, row.tokens, row.sum, born)
                whole = packed(self._identity.digest, self.block_tokens, record)
                self._file.write_record(row.slot, whole)
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

    def _put(self, block: StoredBlock, keys: list[bytes], written: list[_Written]) -> bool:
        *_, parent, key = keys
        first = len(keys) == 2
        if key in self._unreadable:
            self.drop(key)
            self._unreadable.discard(key)
        known = self._index.row(self._identity, key)
        if known is not None:
            self._add_windows(block, key, known, written)
            return True
        if not first and self._index.row(self._identity, parent) is None:
            return False
        tokens = block.tokens[-self.block_tokens :].tobytes()
        namespace = block.namespace if first else b""
        needed = ROW_BYTES + 2 * len(tokens) + len(namespace)
        slot = self._index.take_slot(self._identity, self.room, needed)
        if slot is None:
            return False
        total = self._file.write(slot, key, block.parts)
        row = Row(parent, namespace, tokens, slot, total)
        written.append(_Written(row, self._index.add(self._identity, key, row)))
        return True

    def _add_windows(
        self, block: StoredBlock, key: bytes, row: Row, written: list[_Written]
    ) -> None:
        """A block that is stored without those of layers with a window gets them."""
        if row.is_sound and self.lacks(row, block.parts):
            record = self._file.read_record(row.slot)
            sums = row.sum + self._file.write(row.slot, key, block.parts, only_windows=True)
            row = row._replace(sum=sums)
            written.append(_Written(row, self._index.replace(self._identity, key, row), record))

    def reader(self, path: StoredPath, start: int) -> DiskReader:
        """Reads the blocks of a path one by one; start: where the first begins."""
        return DiskReader(self, path, start // self.block_tokens)

    def find(self, path: StoredPath, keys: Sequence[bytes], number: int) -> Row | None:
        """Find the index's row of the block `number` of a path, whose `keys_of` are given; None
        where it is not stored, or that is damaged.
        """
        parent, key = keys[number : number + 2]
        row = self._index.row(self._identity, key)
        if row is None or key in self._unreadable:
            return None
        size = self.block_tokens
        tokens = path.tokens[number * size : (number + 1) * size].tobytes()
        namespace = b"" if number else path.namespace
        if (row.parent, row.namespace, row.tokens) != (parent, namespace, tokens):
            self._lose(key, row)
            return None
        return row

    def read(self, path: StoredPath, keys: Sequence[bytes], number: int, into: Parts) -> bool:
        """Read the block `number` into these parts. False: it is not stored, and `into` may hold
        anything.
        """
        key = keys[number + 1]
        for _ in range(_TRIES):
            row = self.find(path, keys, number)
            if row is None or self.lacks(row, into):
                return False
            if self.fetch(row, key, into):
                return True
            # Another process may have given the slot to another block meanwhile.
            if self._index.row(self._identity, key) == row:
                self._lose(key, row)
                return False
        return False

    def fetch(self, row: Row, key: bytes, into: Parts, *, waits: bool = True) -> bool:
        """Read the bytes of a row. False: they are not what was written, or less than is asked for,
        or, where it does not wait for the disk, not in the system's memory.
        """
        if not row.is_sound or self.lacks(row, into):
            return False
        found = self._file.read(row.slot, key, into, waits=waits)
        if found is None or row.sum[: len(found)] != found:
            return False
        self.stats.read_blocks += 1
        return True

    def lacks(self, row: Row, into: Parts) -> bool:
        """Whether more is to be read than is stored: those of layers with a window, too."""
        windows = row.sums == 1 and self._file.window_bytes > 0
        return windows and sum(part.nbytes for part in into) == self.block_bytes

    def _lose(self, key: bytes, row: Row) -> None:
        """A damaged block: deleted, so that it is written again; if need be only forgotten."""
        self.stats.damaged += 1
        try:
            with self._index.writing():
                lost = self.drop(key)
            then = f"{lost} blocks are deleted, and computed again"
        except DiskStoreError as error:
            self._unreadable.add(key)
            then = f"it is computed again, and cannot be deleted: {error}"
        _logger.warning("a damaged block in %s, slot %s: %s", self._file.path, row.slot, then)

    def drop(self, key: bytes) -> int:
        """Delete a block and all that go on from it; how many. Within the index's `writing`."""
        slots = self._index.drop(self._identity, key)
        there = self._file.slots()
        for slot in slots:
            if slot is not None and slot < there:
                self._file.restore_record(slot)
        return len(slots)

    def sound(self, key: bytes, into: Parts, *, delete: bool = False) -> bool | None:
        """Whether a block is as it was written, and a path leads to it; None where it is not stored
        any more. delete: one that is not. What seems damaged is looked at once more while nobody
        writes: another process may have given its slot away meanwhile.
        """
        if self._sound(key, into):
            return True
        with self._index.writing():
            sound = self._sound(key, into)
            if sound is False and delete:
                self.drop(key)
        return sound

    def _sound(self, key: bytes, into: Parts) -> bool | None:
        row = self._index.row(self._identity, key)
        if row is None:
            return None
        if row.sums == 1:
            into = [part[: self.block_bytes - self._file.window_bytes] for part in into]
        whole = self._index.path_of(self._identity, key) is not None
        return whole and self.fetch(row, key, into)

    def delete(self, paths: Sequence[StoredPath]) -> int:
        """Delete blocks and all that go on from them; how many."""
        with self._index.writing():
            keys = [keys_of(self._identity, path.namespace, path.tokens)[-1] for path in paths]
            return sum(self.drop(key) for key in keys)

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
        """Report what other processes changed since the last call, or since the store was opened.
        Where that is more than is logged, all that is stored, and no deleted blocks: those are
        found when they are read.
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
        return keys_of(self._identity, path.namespace, path.tokens)

    def close(self) -> None:
        self._file.close()
        self._index.close()


class DiskReader:
    """The blocks of a path, one after the other, from one on. Those before it are compared in the
    index, so that the whole path is.
    """

    def __init__(self, store: DiskStore, path: StoredPath, number: int) -> None:
        self._store = store
        self._path = path
        self._keys = store.keys(path)
        self._number = number
        self._compared = False
        self.lacks_windows = False

    def next(self, into: Parts) -> bool:
        """See Reader of `stores`."""
        if not self._begun():
            return False
        if self._store.read(self._path, self._keys, self._number, into):
            self._number += 1
            return True
        row = self._store.find(self._path, self._keys, self._number)
        self.lacks_windows = row is not None and self._store.lacks(row, into)
        return False

    def at_hand(self) -> Callable[[Parts], bool] | None:
        """See Reader of `stores`."""
        row = self._store.find(self._path, self._keys, self._number) if self._begun() else None
        return None if row is None else lambda into: self._fetch(row, into)

    def _fetch(self, row: Row, into: Parts) -> bool:
        if not self._store.fetch(row, self._keys[self._number + 1], into, waits=False):
            return False
        self._number += 1
        return True

    def _begun(self) -> bool:
        """Whether there is a next block on the path, and those before it are stored."""
        if self._number + 1 >= len(self._keys):
            return False
        if not self._compared:
            before = range(self._number)
            self._compared = all(self._store.find(self._path, self._keys, at) for at in before)
        return self._compared
