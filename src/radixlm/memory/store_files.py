"""The disk cache's files that hold blocks, slot by slot, each with a record of what it is."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from radixlm.core.errors import DiskStoreError
from radixlm.memory.block_records import record_bytes
from radixlm.memory.store_folder import MOMENT_SECONDS, locked_in_time

# Slots begin at pages, so that no write reads what is beside it.
_PAGE = 4096
# Bytes that are read and then summed while they are in the processor's cache.
_PIECE = 1 << 18
_MOST_PARTS = 512


class BlockFile:
    """A file of slots of one size. Each block is summed with its key, so that a block read from
    another's slot does not pass for it. All methods raise DiskStoreError.

    window_bytes: the last of a block, that may not be there: they have a sum of their own, behind
    that of the others.
    """

    def __init__(
        self, path: Path, block_tokens: int, block_bytes: int, window_bytes: int = 0
    ) -> None:
        self.path = path
        self.block_bytes = block_bytes
        self.window_bytes = window_bytes
        self.slot_bytes = slot_bytes(block_tokens, block_bytes)
        self._record_bytes = record_bytes(block_tokens)
        with _errors_of(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(path, flags, 0o600)
            os.fchmod(self._fd, 0o600)  # a copy of another folder's may be open to others
        try:
            with _errors_of(path):
                self._share()
        except DiskStoreError:
            os.close(self._fd)
            raise

    def _share(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise DiskStoreError(f"{self.path} is not a regular file")
        # Another start looks at what it holds, for a moment.
        if not locked_in_time(self._fd, fcntl.LOCK_SH, MOMENT_SECONDS):
            raise DiskStoreError(
                f"{self.path} is being changed by another process, `radixlm cache prune` or a "
                "start that mends it: try again when that has ended"
            )

    def check(self) -> None:
        """Raises where the file is not the one at its place any more: what is written is lost."""
        with _errors_of(self.path):
            if not os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
                raise DiskStoreError(f"{self.path} was replaced")

    def alone(self) -> bool:
        """Whether no other process has it open; from now on none can open it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def write(
        self, slot: int, key: bytes, parts: Sequence[memoryview], *, only_windows: bool = False
    ) -> bytes:
        """The sums of what was written. parts: a block, with window_bytes or without. only_windows:
        leave the bytes before those as they are, and out of the sums.
        """
        sums = b""
        with _errors_of(self.path):
            for at, own, nbytes in self._summed(slot, parts)[only_windows:]:
                total = xxhash.xxh3_128(key)
                for piece, wanted in _pieces(own, nbytes):
                    if os.pwritev(self._fd, piece, at) != wanted:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    for part in piece:
                        total.update(part)
                    at += wanted
                sums += total.digest()
        return sums

    def read(
        self, slot: int, key: bytes, parts: Sequence[memoryview], *, waits: bool = True
    ) -> bytes | None:
        """The sums of what was read into the parts, as `write` gives them; None where the file ends
        before. waits: for the disk; else only what the system holds in memory is read, and None may
        mean that it does not.
        """
        sums, flags = b"", 0 if waits else os.RWF_NOWAIT
        with _errors_of(self.path):
            for at, own, nbytes in self._summed(slot, parts):
                total = xxhash.xxh3_128(key)
                for piece, wanted in _pieces(own, nbytes):
                    try:
                        if os.preadv(self._fd, piece, at, flags) != wanted:
                            return None
                    except OSError as error:
                        if waits or error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                            raise
                        return None
                    for part in piece:
                        total.update(part)
                    at += wanted
                sums += total.digest()
        return sums

    def _summed(
        self, slot: int, parts: Sequence[memoryview]
    ) -> list[tuple[int, list[memoryview], int]]:
        """List the places in the file of what has a sum of its own, its parts, and their bytes.
        Raises ValueError for parts that are neither a block nor one without window_bytes.
        """
        first, more = self.block_bytes - self.window_bytes, self.window_bytes
        own, rest = _split(parts, first)
        found = [(slot * self.slot_bytes, own, first)]
        if rest:
            found.append((slot * self.slot_bytes + first, rest, more))
        return found

    def write_record(self, slot: int, record: bytes) -> None:
        """record: what `packed` of `block_records` gives."""
        with _errors_of(self.path):
            if os.pwrite(self._fd, record, self._record_at(slot)) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read_record(self, slot: int) -> bytes:
        """Read as many bytes of a record as there are."""
        with _errors_of(self.path):
            return os.pread(self._fd, self._record_bytes, self._record_at(slot))

    def restore_record(self, slot: int, record: bytes = b"") -> None:
        """Leave the record that was there before, or none of a block that is deleted. Where the
        disk does not let us, an index that is made anew has it once more: what is read of it is
        compared as ever.
        """
        with suppress(OSError):
            os.pwrite(self._fd, record.ljust(self._record_bytes, b"\0"), self._record_at(slot))

    def _record_at(self, slot: int) -> int:
        return slot * self.slot_bytes + self.block_bytes

    def move(self, slot: int, target: int) -> None:
        """Copy a block with its record, whatever they are, to another slot."""
        with _errors_of(self.path):
            for at in range(0, self.block_bytes + self._record_bytes, _PIECE):
                size = min(_PIECE, self.block_bytes + self._record_bytes - at)
                piece = os.pread(self._fd, size, slot * self.slot_bytes + at)
                os.pwrite(self._fd, piece.ljust(size, b"\0"), target * self.slot_bytes + at)

    def used_slots(self) -> Iterator[int]:
        """Slots that hold anything; what was never written, or is cut off, is skipped."""
        at = 0
        with _errors_of(self.path):
            while True:
                try:
                    at = os.lseek(self._fd, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:
                        return
                    raise
                yield at // self.slot_bytes
                at = (at // self.slot_bytes + 1) * self.slot_bytes

    def slots(self) -> int:
        """How many blocks the file is long enough for."""
        with _errors_of(self.path):
            size = os.fstat(self._fd).st_size
        whole, rest = divmod(size, self.slot_bytes)
        return whole + (rest >= self.block_bytes)

    def sync(self) -> None:
        with _errors_of(self.path):
            os.fdatasync(self._fd)

    def truncate(self, slots: int) -> None:
        with _errors_of(self.path):
            os.ftruncate(self._fd, slots * self.slot_bytes)

    def close(self) -> None:
        os.close(self._fd)


def slot_bytes(block_tokens: int, block_bytes: int) -> int:
    """The bytes of a block with its record, in whole pages."""
    return -(-(block_bytes + record_bytes(block_tokens)) // _PAGE) * _PAGE


def _pieces(parts: Sequence[memoryview], nbytes: int) -> Iterator[tuple[list[memoryview], int]]:
    """Lists of some _PIECE bytes, and how many exactly. Raises ValueError for parts that are not of
    nbytes together.
    """
    if sum(part.nbytes for part in parts) != nbytes:
        raise ValueError(f"the parts of a block have to be of {nbytes} bytes together")
    piece, size = [], 0
    for part in parts:
        for cut in (part,) if part.nbytes <= _PIECE else _cuts(part):
            piece.append(cut)
            size += cut.nbytes
            if size >= _PIECE or len(piece) == _MOST_PARTS:
                yield piece, size
                piece, size = [], 0
    if piece:
        yield piece, size


def _split(parts: Sequence[memoryview], nbytes: int) -> tuple[list[memoryview], list[memoryview]]:
    """The first nbytes of some parts, and the rest."""
    first, rest = list[memoryview](), list[memoryview]()
    for part in parts:
        if nbytes:
            first.append(part[:nbytes])
        if part.nbytes > nbytes:
            rest.append(part[nbytes:])
        nbytes -= min(nbytes, part.nbytes)
    return first, rest


def _cuts(part: memoryview) -> Iterator[memoryview]:
    for start in range(0, part.nbytes, _PIECE):
        yield part[start : start + _PIECE]


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Makes what the system says an error of ours."""
    try:
        yield
    except OSError as error:
        text = f"the disk cache's {path}: {error.strerror or error}"
        raise DiskStoreError(text) from None
