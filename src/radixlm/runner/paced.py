"""Threads for a step: as many as it is worth, and none that spins on a processor others want."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from radixlm.attention.team import Team, team
from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.runner.crowd import Crowd

# Work of a layer, in seconds of one thread, below which a second thread costs more than it brings
# while others want its processor: threads meet five times a layer, each time one may have to wait
# for its turn.
_WORTH_A_THREAD = 1e-3
# Of what steps of a size were found to take, this much is the last one's.
_NEWEST = 0.25


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
        self._crowd = crowd or Crowd()
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
        # Of a size that there was none of yet: as if it were much.
        alone = crowded and self._taken.get(size, self._small) < self._small
        return 1 if alone else self._most
