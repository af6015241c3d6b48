"""The disk cache's folder, and the files in it that hold blocks, slot by slot."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import xxhash

from radixlm.core.errors import ConfigError, DiskStoreError

# Slots begin at pages, so that no write reads what is beside it.
_PAGE = 4096
# Bytes that are read and then summed while they are in the processor's cache.
_PIECE = 1 << 18
_MOST_PARTS = 512
_MOUNTS = Path("/proc/self/mountinfo")
# Locks and the order of writes are not to be relied on there.
_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"smb3", "smbfs", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs"}
    | {"fuse.mount-s3", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"}
)


def private_folder(folder: Path, mounts: Path = _MOUNTS) -> None:
    """Make the folder, or check that nobody else can write into it.

    Raises ConfigError for a file, a link, another user's, one that others may write or that we may
    not, a network's.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except FileExistsError:
        raise ConfigError(f"the disk cache {folder} is no folder; name another one") from None
    except OSError as error:
        raise ConfigError(f"the disk cache {folder} cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"the disk cache {folder} is a link; name the folder itself")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"the disk cache {folder} belongs to user {found.st_uid}, not to you")
    if found.st_mode & 0o022:
        raise ConfigError(f"others can write into the disk cache {folder}: chmod go-w {folder}")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        raise ConfigError(
            f"the disk cache {folder} may not be written: chmod u+rwx {folder}, or name a folder "
            "on a file system that is not read-only"
        )
    kind = file_system(folder, mounts)
    if kind in _NETWORK:
        raise ConfigError(
            f"the disk cache {folder} lies on a network file system ({kind}), where writes of "
            "several machines can mix; name a folder on a local disk"
        )


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str:
    """Its kind, by the system's list of mounts; empty where there is none."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    path, kind, longest = folder.resolve(), "", -1
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        place = fields[4].encode().decode("unicode_escape")  # a space is \040
        if path.is_relative_to(place) and len(place) >= longest:  # of two in one place the later
            kind, longest = after.split()[0], len(place)
    return kind


class BlockFile:
    """A file of slots of one size. Each block is summed with its key, so that a block read from
    another's slot does not pass for it. All methods raise DiskStoreError.
    """

    def __init__(self, path: Path, block_bytes: int) -> None:
        self.path = path
        self.block_bytes = block_bytes
        self.slot_bytes = slot_bytes(block_bytes)
        with _errors_of(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise DiskStoreError(f"{path} is not a regular file")
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise DiskStoreError(f"{path} is being changed by `radixlm cache prune`") from None
        except DiskStoreError:
            os.close(self._fd)
            raise

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

    def write(self, slot: int, key: bytes, parts: Sequence[memoryview]) -> bytes:
        """The sum of what was written. parts: of block_bytes together."""
        total, at = xxhash.xxh3_128(key), slot * self.slot_bytes
        with _errors_of(self.path):
            for piece, wanted in _pieces(parts, self.block_bytes):
                if os.pwritev(self._fd, piece, at) != wanted:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                for part in piece:
                    total.update(part)
                at += wanted
        return total.digest()

    def read(
        self, slot: int, key: bytes, parts: Sequence[memoryview], *, waits: bool = True
    ) -> bytes | None:
        """The sum of what was read into the parts; None where the file ends before. waits: for the
        disk; else only what the system holds in memory is read, and None may mean that it does not.
        """
        total, at = xxhash.xxh3_128(key), slot * self.slot_bytes
        flags = 0 if waits else os.RWF_NOWAIT
        with _errors_of(self.path):
            for piece, wanted in _pieces(parts, self.block_bytes):
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
        return total.digest()

    def sync(self) -> None:
        with _errors_of(self.path):
            os.fdatasync(self._fd)

    def truncate(self, slots: int) -> None:
        with _errors_of(self.path):
            os.ftruncate(self._fd, slots * self.slot_bytes)

    def close(self) -> None:
        os.close(self._fd)


def slot_bytes(block_bytes: int) -> int:
    return -(-block_bytes // _PAGE) * _PAGE


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
