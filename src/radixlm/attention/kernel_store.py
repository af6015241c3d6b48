"""Machine code on disk, so that only a machine's first start has to compile it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

# A model of one type has about ten.
_MOST_FILES = 256
_DIGEST_BYTES = hashlib.sha256().digest_size
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class KernelStore:
    """Files by key in a folder of this user's. Each is the digest of its content, then the content.

    What is read is run, so a folder or a file that anybody else could have written counts as not
    there; so does what is not whole, or can not be read. What can not be written is compiled again
    the next time. most: files; beyond that those go that were not used for longest.
    """

    def __init__(self, folder: Path, *, most: int = _MOST_FILES) -> None:
        self._folder = folder
        self._most = most

    def get(self, key: str) -> bytes | None:
        """What was put under this key, a file's name, or None."""
        try:
            if not _is_private(self._folder.stat()):
                return None
            with (self._folder / key).open("rb") as file:
                if not _is_private(os.fstat(file.fileno())):
                    return None
                found = file.read()
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(self._folder / key)
        digest, content = found[:_DIGEST_BYTES], found[_DIGEST_BYTES:]
        return content if digest == hashlib.sha256(content).digest() else None

    def put(self, key: str, content: bytes) -> None:
        """Keep it under this key. Readers see all of a file or none of it."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_private(self._folder.stat()):
                self._write(key, hashlib.sha256(content).digest() + content)
                self._drop_oldest()

    def _write(self, key: str, content: bytes) -> None:
        handle, name = tempfile.mkstemp(dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(name).replace(self._folder / key)
        except OSError:
            Path(name).unlink()
            raise

    def _drop_oldest(self) -> None:
        files = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in files[: -self._most]:
            path.unlink()


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE_BY_OTHERS
