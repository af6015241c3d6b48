"""How many threads compute a step, and whether they spin: all, unless other processes want them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.clock import Clock, WallClock
from radixlm.kernels.openmp import Team, team

_TASKS, _ALL = Path("/proc/self/task"), Path("/proc/stat")
_WINDOW_SECONDS = 0.1
# Without a step for this long it was idle: how long its threads waited says nothing.
_IDLE_SECONDS = 0.5
# Of all threads together, seconds in a second that they were ready and had no processor, as far as
# other processes ran meanwhile: HTTP's thread and the engine's get in each other's way, too. One
# busy process beside two spinning threads makes it 0.6, and half of that when they sleep.
_CROWDED, _CALM = 0.25, 0.1
# Before anything was computed nobody has waited. Processors that others used meanwhile, of those
# that this process will want: so much is taken for a crowd, so that its first request does not
# spin against them until they are noticed.
_TAKEN = 0.5
# What others do for a moment is no crowd: this much of the past counts.
_MEMORY_SECONDS = 0.3
# It has to be calm for this long, at first and at most: a try costs a tenth of a second where the
# crowd is still there.
_FIRST_PATIENCE, _MOST_PATIENCE = 0.5, 30.0
# Work of a layer, in seconds of one thread, below which a second thread costs more than it brings
# while others want its processor: threads meet five times a layer, each time one may have to wait
# for its turn.
_WORTH_A_THREAD = 1e-3
# Of what steps of a size were found to take, this much is the last one's.
_NEWEST = 0.25


def seconds_waited() -> Mapping[str, float]:
    """The seconds by thread of this process in which it was ready to run without a processor. Empty
    where the kernel does not count them.
    """
    waited = {}
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        try:
            _, delay, _ = (task / "schedstat").read_text(encoding="ascii").split()
        except (OSError, ValueError):  # the thread has ended
            continue
        waited[task.name] = int(delay) / 1e9
    return waited


def seconds_of_others() -> float:
    """Processor time of all processes but this one; infinite without /proc."""
    try:
        with _ALL.open(encoding="ascii") as lines:
            ticks = [int(word) for word in next(lines).split()[1:8]]
    except (OSError, ValueError, StopIteration):
        return math.inf
    idle, waiting_for_disks = ticks[3:5]
    return (sum(ticks) - idle - waiting_for_disks) / os.sysconf("SC_CLK_TCK") - time.process_time()


class Crowd:
    """Looked at before each step. A crowd is noticed within a fifth of a second, or a step that
    takes longer; that it has gone is believed the later the more often it came back at once.

    spare: processors that this process leaves to others.
    """

    def __init__(
        self,
        waited: Callable[[], Mapping[str, float]] = seconds_waited,
        others: Callable[[], float] = seconds_of_others,
        clock: Clock | None = None,
        *,
        spare: int = 0,
    ) -> None:
        self._spare = spare
        self._waited = waited
        self._others = others
        self._clock = clock or WallClock()
        self._crowded, self._share, self._tried = False, 0.0, False
        self._looked = self._stepped = self._clock.now()
        self._before, self._others_before = waited(), others()
        self._changed = self._crowded_last = -math.inf
        self._patience = _FIRST_PATIENCE

    def look(self) -> bool:
        """Whether there is one. Most calls cost no more than reading the clock."""
        now = self._clock.now()
        passed = now - self._looked
        if passed >= _WINDOW_SECONDS:
            before, self._before, self._looked = self._before, self._waited(), now
            others, self._others_before = self._others_before, self._others()
            theirs = self._others_before - others
            if now - self._stepped < _IDLE_SECONDS:
                gone_by = [at - before.get(task, 0.0) for task, at in self._before.items()]
                # Infinity less itself is no number: then the first of both is taken.
                self._decide(min(sum(gone_by), theirs) / passed, passed, now)
            elif not theirs / passed >= _CROWDED:  # while this one was idle, so were they
                self._crowded, self._share = False, 0.0
            elif not self._tried and theirs / passed >= self._spare + _TAKEN:
                self._crowded, self._share = True, _CROWDED
                self._changed = self._crowded_last = now
        return self._crowded

    def stepped(self) -> None:
        """A step has just ended."""
        self._stepped, self._tried = self._clock.now(), True

    def _decide(self, share: float, passed: float, now: float) -> None:
        self._share += min(passed / _MEMORY_SECONDS, 1) * (share - self._share)
        if self._share > _CALM:
            self._crowded_last = now
        if not self._crowded and self._share > _CROWDED:
            again = now - self._changed < 2 * _FIRST_PATIENCE
            self._patience = min(2 * self._patience, _MOST_PATIENCE) if again else _FIRST_PATIENCE
            self._crowded, self._changed = True, now
        elif self._crowded and now - self._crowded_last >= self._patience:
            self._crowded, self._changed = False, now


class Steps(Protocol):
    def execute(self, batch: ScheduledBatch) -> StepResult: ...


class PacedRunner:
    """A runner on the CPU whose threads give way to other processes (a runner itself).

    Alone on its processors it uses all threads, and they wait for each other awake. In a crowd they
    sleep at once, and steps with little work, known by what others of their size took, get one.
    One thread's: the engine's.
    """

    def __init__(
        self,
        runner: Steps,
        layers: int,
        *,
        threads: int,
        crowd: Crowd | None = None,
        own_team: Team | None = None,
        seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        self._runner = runner
        self._most = threads
        self._crowd = crowd or Crowd(spare=(os.cpu_count() or threads) - threads)
        self._team = own_team or team()
        self._seconds = seconds
        self._small = _WORTH_A_THREAD * layers
        # What steps took one thread, by how many bits their number of tokens has.
        self._taken: dict[int, float] = {}

    def execute(self, batch: ScheduledBatch) -> StepResult:
        size = batch.n_tokens.bit_length()
        threads = self._threads_for(size)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        began = self._seconds()
        result = self._runner.execute(batch)
        taken = threads * (self._seconds() - began)
        self._taken[size] = taken + (1 - _NEWEST) * (self._taken.get(size, taken) - taken)
        self._crowd.stepped()
        return result

    def _threads_for(self, size: int) -> int:
        if self._most == 1:
            return 1
        crowded = self._crowd.look()
        self._team.doze(crowded)
        # Steps of a size that is new count as much work.
        alone = crowded and self._taken.get(size, self._small) < self._small
        return 1 if alone else self._most
