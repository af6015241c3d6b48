"""The disk cache's folder: whose it is, who uses it, and what is set aside in it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from radixlm.core.errors import ConfigError, DiskStoreError
from radixlm.memory.store_schema import COMPANIONS, FILE

_MOUNTS = Path("/proc/self/mountinfo")
# Locks and the order of writes are not to be relied on there.
_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"smb3", "smbfs", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs"}
    | {"fuse.mount-s3", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"}
)
# Times that a damaged index is kept, for those who want to look at it.
MOST_ASIDE = 3
_ASIDE = f"{FILE}.damaged-"
# A process that repairs the folder is waited for, seconds.
WAIT_SECONDS = 60.0
# Another one that starts at the same moment lets go in less.
MOMENT_SECONDS = 2.0


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
    """The kind of a folder's file system, by the system's list of mounts; empty where there is
    none.
    """
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


class FolderLock:
    """Says that this process uses a folder, until `close`: nobody repairs it meanwhile. Raises
    DiskStoreError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise DiskStoreError(f"the disk cache {folder}: {error.strerror}") from None
        try:
            self.share()
        except BaseException:
            self.close()
            raise

    def share(self) -> None:
        """Let others use the folder, too."""
        if not self._take(fcntl.LOCK_SH, WAIT_SECONDS):
            raise DiskStoreError(
                f"the disk cache {self._folder} is being repaired by another process: start again "
                "when that has ended"
            )

    def alone(self) -> bool:
        """Whether nobody else uses the folder; nobody can from now on, until `share`."""
        if self._take(fcntl.LOCK_EX, MOMENT_SECONDS):
            return True
        self.share()
        return False

    def _take(self, kind: int, seconds: float) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            return locked_in_time(self._fd, kind, seconds)
        except OSError as error:
            raise DiskStoreError(f"the disk cache {self._folder}: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._fd)


def locked_in_time(descriptor: int, kind: int, seconds: float) -> bool:
    """Whether a lock of flock(2) could be had within these seconds. Raises OSError."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                raise
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        else:
            return True


def set_aside(
    folder: Path, most_bytes: int, names: Sequence[str] = (FILE, *COMPANIONS)
) -> Path | None:
    """Give files another name, by default the index and what SQLite keeps beside it; where the
    first lies now, None where it was deleted. Of what was set aside the newest stays: MOST_ASIDE
    times, of most_bytes together.
    """
    numbers = [_number(each) for each in _aside(folder)]
    place = folder / f"{_ASIDE}{max(numbers, default=0) + 1}"
    try:
        for name in names:
            if os.path.lexists(folder / name):
                (folder / name).rename(Path(f"{place}{_ending(name)}"))
        left, kept = most_bytes, set[int]()
        for number in sorted({*numbers, _number(place)}, reverse=True):
            own = [each for each in _aside(folder) if _number(each) == number]
            left -= sum(map(_bytes, own))
            if left < 0 or len(kept) == MOST_ASIDE:
                for each in own:
                    _remove(each)
            else:
                kept.add(number)
    except OSError as error:
        raise DiskStoreError(f"the disk cache {folder}: {error}") from None
    first = Path(f"{place}{_ending(names[0])}")
    return first if os.path.lexists(first) else None


def delete_aside(folder: Path) -> int:
    """Delete all that was set aside, and say how many bytes that gave back. Raises OSError."""
    there = _aside(folder)
    nbytes = sum(map(_bytes, there))
    for each in there:
        _remove(each)
    return nbytes


def _ending(name: str) -> str:
    return name.removeprefix(FILE) if name.startswith(FILE) else f"-{name}"


def bytes_beside(folder: Path) -> int:
    """The bytes of all that lies in the folder beside the index and the files of blocks."""
    names = {FILE, *COMPANIONS}
    try:
        return sum(
            _bytes(each)
            for each in folder.iterdir()
            if _number(each) or (each.name not in names and each.suffix != ".blocks")
        )
    except OSError as error:
        raise DiskStoreError(f"the disk cache {folder}: {error.strerror}") from None


def _aside(folder: Path) -> list[Path]:
    return [each for each in folder.glob(f"{_ASIDE}*") if _number(each)]


def _number(path: Path) -> int:
    """The number of what was set aside, the later the higher; 0 for what was not."""
    if not path.name.startswith(_ASIDE):
        return 0
    digits = path.name.removeprefix(_ASIDE).partition("-")[0]
    return int(digits) if digits.isdecimal() and len(digits) < 10 else 0


def _bytes(path: Path) -> int:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return found.st_size
    return sum(
        Path(root, name).lstat().st_size for root, _, names in os.walk(path) for name in names
    )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
