"""Requests that have ended, to a file: a trace that `radixlm sim` replays. Never any text."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Full, Queue
from typing import BinaryIO

import numpy as np

from radixlm.core.errors import ConfigError, reason_of
from radixlm.core.reports import counter
from radixlm.formats.private_files import open_private
from radixlm.formats.trace_lines import PrefixHasher, Recorded, header, trace_line
from radixlm.server.config.server_config import ServerConfig

# Requests that wait to be written; more are dropped, and counted: nobody waits for the disk.
MOST_WAITING = 512
_SECONDS_TO_END = 5.0

_logger = logging.getLogger("radixlm.server")


@dataclass(slots=True)
class RecorderCounts:
    """Totals, so far."""

    requests: int = counter("recorded_requests", "Requests written to --record-trace.")
    dropped: int = counter(
        "recorded_dropped_requests", "Requests left out: too many at once, or no room in the file."
    )


class Recorder:
    """Writes to a file, after what is there, until it is as long as it may be or the disk fails.
    `note` never waits: there is a thread that writes.

    file: open for this user alone, and closed at the end. size: bytes that are in it. hashed: ids
    say how far prompts begin alike, and not what they say. Names of namespaces and tenants never
    are what requests called them.
    """

    def __init__(self, file: BinaryIO, size: int, *, hashed: bool, limit_bytes: int) -> None:
        self.counts = RecorderCounts()
        self._file, self._size = file, size
        self._hasher = PrefixHasher(secrets.token_bytes(32))
        self._hashed = hashed
        self._limit = limit_bytes
        self._full = False
        self._counting = threading.Lock()
        self._waiting: Queue[Recorded | None] = Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="radixlm-recorder", daemon=True)
        self._thread.start()

    def note(self, request: Recorded) -> None:
        """Have a request written; its answer may be empty, which is left out."""
        if not request.answer.size:
            return
        try:
            self._waiting.put_nowait(request)
        except Full:
            self._drop()

    def close(self) -> None:
        """Write what waits, and end; a disk that does not answer is not waited for."""
        with contextlib.suppress(Full, OSError):
            self._waiting.put(None, timeout=_SECONDS_TO_END)
            self._thread.join(_SECONDS_TO_END)
            if not self._thread.is_alive():
                self._file.close()

    def _run(self) -> None:
        self._write(header(hashed=self._hashed))
        while (request := self._waiting.get()) is not None:
            if not self._full and self._write(trace_line(self._named(request))):
                self.counts.requests += 1
            else:
                self._drop()

    def _drop(self) -> None:
        with self._counting:  # both threads do
            self.counts.dropped += 1

    def _named(self, request: Recorded) -> Recorded:
        """The line as it is written."""
        hasher = self._hasher
        named = replace(
            request, namespace=hasher.name(request.namespace), tenant=hasher.name(request.tenant)
        )
        if not self._hashed:
            return named
        size = request.prompt.size
        ids = hasher.ids(np.concatenate((request.prompt, request.answer)))
        return replace(named, prompt=ids[:size], answer=ids[size:])

    def _write(self, line: bytes) -> bool:
        """Whether there was room for it; where there is none, nothing is written any more."""
        if self._size + len(line) > self._limit:
            return self._end(f"it has the {self._limit:,} bytes of --record-trace-mb")
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            return self._end(error.strerror or str(error))
        self._size += len(line)
        return True

    def _end(self, reason: str) -> bool:
        self._full = True
        _logger.warning("nothing is recorded in %s any more: %s", self._file.name, reason)
        return False


@contextlib.contextmanager
def recording(settings: ServerConfig) -> Iterator[Recorder | None]:
    """The recorder that is asked for, closed at the end. Raises ConfigError for a file that can not
    be written, or that others may read.
    """
    if settings.record_trace is None:
        yield None
        return
    path = Path(settings.record_trace)
    try:
        file = open_private(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--record-trace {path}: {reason_of(error)}") from None
    recorder = Recorder(
        file,
        file.tell(),
        hashed=settings.record_trace_hashed,
        limit_bytes=int(settings.record_trace_mb * 1e6),
    )
    with contextlib.closing(recorder):
        yield recorder
