"""Rank 0's side of the other ranks: it starts them, gives each step's batch to them, and watches.

    rank 0                                          another rank, a process of its own
    start                 -- what to load -->       beats from now on
    loaded                <-- room for tokens --
    join                  -- size of the pool -->   makes its pool, joins the group
                          <-- bytes of it --
    LeadingRunner.execute -- the batch, in bytes -> computes the same layers, see `follow`

When one dies or does not beat any more, the reason is kept, all are killed, so that rank 0 does not
wait for them, and who asked for it is called: once.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.errors import CheckpointError, ConfigError, EngineDeadError, ModelError
from radixlm.core.processes import START, import_path
from radixlm.memory.pools import KVPool, ReqToTokenPool
from radixlm.runner.batch_wire import packed, unpacked
from radixlm.runner.model_runner import Model, ModelRunner
from radixlm.runner.rank_channel import Channel
from radixlm.runner.rank_group import RankGroup

_logger = logging.getLogger("radixlm.runner")
_TICK_SECONDS = 0.5
# Ticks without a beat, after the first one: while this process itself is stopped none are counted.
_MOST_SILENT = 20
_SECONDS_TO_KNOW = 5.0
_SECONDS_TO_END = 3.0
_BATCH, _SOUND, _SOUND_IN_WINDOWS = b"b", b"s", b"w"
_COUNT = struct.Struct("<q")
_ERRORS: Mapping[str, type[ConfigError | ModelError]] = {
    kind.__name__: kind for kind in (ConfigError, CheckpointError)
}


class Rank:
    """One of the others: its process, what is said to it, and its heart."""

    def __init__(self, rank: int, size: int, main: str) -> None:
        """main: `module:function` that the process runs, see `Channel` and `beat`."""
        self.name = f"rank {rank} of {size}"
        (own, its), (self.heart, its_heart) = socket.socketpair(), socket.socketpair()
        self.channel, self.silent = Channel(own), -1
        self.heart.setblocking(False)
        handles = its.fileno(), its_heart.fileno()
        with its, its_heart:
            self.process = subprocess.Popen(  # noqa: S603 - our own
                [sys.executable, "-P", "-c", START, main, *map(str, handles), *import_path()],
                cwd=os.sep,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=handles,
                start_new_session=True,  # Ctrl-C is for this process
            )
        self.name += f" (process {self.process.pid})"

    def look(self) -> str:
        """The reason why it can not go on; empty while it can. Once a tick."""
        try:
            alive = self.heart.recv(1 << 12) != b""
        except BlockingIOError:
            self.silent += self.silent >= 0
            stopped = self.silent > _MOST_SILENT
            seconds = _MOST_SILENT * _TICK_SECONDS
            return f"{self.name} has not answered for {seconds:g} s" if stopped else ""
        except OSError:
            alive = False
        self.silent = 0
        return "" if alive else self.ended()

    def ended(self) -> str:
        """How, in words."""
        try:
            code = self.process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return f"{self.name} does not beat any more"
        if code < 0:
            return f"{self.name} was ended by signal {-code}"
        return f"{self.name} ended with status {code}; the log above says why"

    def last_error(self) -> Mapping[str, Any] | None:
        """The error that a rank which has ended said, and nobody heard."""
        with suppress(EOFError, OSError):
            while True:
                if "error" in (said := self.channel.heard()):
                    return said
        return None


class RankProcesses:
    """All but this one, from their start to `stop`. Raises ConfigError and ModelError of theirs
    while they load. kv_bytes: of their pools, once they have joined.
    """

    def __init__(
        self, size: int, device: torch.device, main: str, settings: Mapping[str, Any]
    ) -> None:
        """settings: JSON, for each; with its own number and the place where they meet."""
        self.group = RankGroup(0, size, device)
        self.kv_bytes = 0
        self._folder = tempfile.TemporaryDirectory(prefix="radixlm-ranks-")  # for the user alone
        self._reason, self._lost, self._stopping = "", threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._when_lost: Callable[[str], None] = _nobody
        self._watcher = threading.Thread(target=self._watch, name="radixlm-ranks", daemon=True)
        self._others: list[Rank] = []
        self._first_lost: Rank | None = None
        try:
            for rank in range(1, size):
                self._others.append(Rank(rank, size, main))
                own = {"rank": rank, "size": size, "folder": self._folder.name}
                self._others[-1].channel.say(**settings, **own)
        except OSError as error:
            self.stop()
            raise ConfigError(f"--tp-size {size}: a rank can not be started: {error}") from None
        self._watcher.start()

    def loaded(self) -> int:
        """How many tokens each has room for, at least. Returns when all have loaded."""
        return min(int(self._heard(other)["tokens"]) for other in self._others)

    def join(self, *, capacity: int, longest: int, window_capacity: int | None = None) -> None:
        """capacity, window_capacity: slots of every rank's pool; None: layers with a window have
        no slots of their own. longest: tokens of a request.
        """
        for other in self._others:
            try:
                other.channel.say(
                    capacity=capacity, longest=longest, window_capacity=window_capacity
                )
            except OSError:
                raise self._failed(other) from None
        self.kv_bytes = sum(int(self._heard(other)["kv_bytes"]) for other in self._others)
        try:
            self.group.join(Path(self._folder.name))
        except RuntimeError as error:
            self._lost.wait(_SECONDS_TO_KNOW)
            raise ConfigError(f"ranks can not be joined: {self._reason or error}") from None

    def watch(self, when_lost: Callable[[str], None]) -> None:
        """when_lost: is called with the reason, from another thread, if one is lost."""
        with self._lock:
            self._when_lost = when_lost
            if self._lost.is_set():
                when_lost(self._reason)

    def send(self, batch: ScheduledBatch) -> None:
        message = _BATCH + packed(batch)
        for other in self._others:
            other.channel.send(message)

    def sound(self, slots: Tensor, *, in_windows: bool = False) -> int:
        """The least `KVPool.sound` of the others' pools."""
        asked = _SOUND_IN_WINDOWS if in_windows else _SOUND
        message = asked + slots.to(torch.int64).cpu().numpy().tobytes()
        for other in self._others:
            other.channel.send(message)
        return min(int(*_COUNT.unpack(other.channel.receive())) for other in self._others)

    def check(self) -> None:
        """Raises EngineDeadError where one is lost: on GPUs what waits for it does not fail."""
        if self._lost.is_set():
            raise EngineDeadError(self._reason)

    def failure(self, error: Exception) -> EngineDeadError:
        """The reason why a step failed: a rank's end, where one has come to it."""
        if self._lost.wait(_SECONDS_TO_KNOW):
            return EngineDeadError(self._reason)
        _logger.error("a step over all ranks failed", exc_info=error)
        return EngineDeadError(f"a step over all ranks failed: {type(error).__name__}: {error}")

    def stop(self) -> None:
        """End them: at once where they wait, else after some seconds."""
        self._stopping.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        for other in self._others:
            other.channel.close()
            other.heart.close()
        for other in self._others:
            with suppress(subprocess.TimeoutExpired):
                other.process.wait(_SECONDS_TO_END)
            other.process.kill()
            other.process.wait()
        self._folder.cleanup()

    def _heard(self, other: Rank) -> Mapping[str, Any]:
        """The next message of a rank that starts."""
        try:
            said = other.channel.heard()
        except (EOFError, OSError):
            raise self._failed(other) from None
        if "error" in said:
            raise _error_of(other, said)
        return said

    def _failed(self, other: Rank) -> ConfigError | ModelError:
        """The reason why the start has failed, when one is gone: this one may have been killed for
        another.
        """
        if not self._lost.wait(_SECONDS_TO_KNOW) or self._first_lost is None:
            return ConfigError(f"{other.ended()}, while it started")
        for each in (self._first_lost, *self._others):
            if (said := each.last_error()) is not None:
                return _error_of(each, said)
        return ConfigError(f"{self._first_lost.ended()}, while it started")

    def _watch(self) -> None:
        lost: dict[Rank, str] = {}
        while not lost:
            if self._stopping.wait(_TICK_SECONDS):
                return
            lost = {other: reason for other in self._others if (reason := other.look())}
        # Of several, some have failed for another; what a signal has ended did not.
        first = min(lost, key=lambda rank: (rank.process.returncode or 0) >= 0)
        with self._lock:
            # Known before others fail for it: what is computed from now on is not to be trusted.
            self._first_lost = first
            self._reason = f"{lost[first]}; no step can be computed without it"
            self._lost.set()
            for other in self._others:
                other.process.kill()
            self.group.abort()
            self._when_lost(self._reason)


def _error_of(rank: Rank, said: Mapping[str, Any]) -> ConfigError | ModelError:
    return _ERRORS.get(said["kind"], ModelError)(f"{rank.name}: {said['error']}")


def _nobody(_reason: str) -> None:
    """Asked for it yet: what failed says so itself."""


class LeadingRunner:
    """Rank 0's steps, which the other ranks compute beside it (an engine's `Runner`)."""

    def __init__(self, runner: ModelRunner, ranks: RankProcesses) -> None:
        self._runner, self._ranks = runner, ranks

    def execute(self, batch: ScheduledBatch) -> StepResult:
        """Raises EngineDeadError where a rank is gone."""
        try:
            if batch.rows:
                self._ranks.send(batch)
            result = self._runner.execute(batch)
        except (RuntimeError, OSError, EOFError) as error:
            raise self._ranks.failure(error) from error
        self._ranks.check()
        return result


def leading(
    model: Model, pool: KVPool, table: ReqToTokenPool, device: torch.device, ranks: RankProcesses
) -> LeadingRunner:
    """Rank 0's runner, when the others have joined. What a failed request leaves is sound where it
    is in all pools.
    """
    window_capacity = None if pool.windows is None else pool.windows.capacity
    longest = table.table.shape[1]
    ranks.join(capacity=pool.capacity, longest=longest, window_capacity=window_capacity)

    def sound(slots: Tensor, *, in_windows: bool = False) -> int:
        own = pool.sound(slots, in_windows=in_windows)
        return min(own, ranks.sound(slots, in_windows=in_windows))

    return LeadingRunner(ModelRunner(model, pool, table, device, sound=sound), ranks)


def follow(channel: Channel, runner: ModelRunner, pool: KVPool) -> None:
    """Another rank's life: compute what rank 0 computes, until it is gone."""
    with torch.inference_mode():
        while (message := _next(channel)) is not None:
            if message[:1] == _BATCH:
                runner.compute(unpacked(message[1:]))
            else:
                slots = torch.frombuffer(bytearray(message[1:]), dtype=torch.int64)
                in_windows = message[:1] == _SOUND_IN_WINDOWS
                count = pool.sound(slots.to(pool.device), in_windows=in_windows)
                with suppress(OSError):
                    channel.send(_COUNT.pack(count))


def _next(channel: Channel) -> bytes | None:
    """None: rank 0 is gone."""
    try:
        return channel.receive()
    except (EOFError, OSError):
        return None
