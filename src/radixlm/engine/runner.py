"""The seam between the loop and the tensors."""

from __future__ import annotations

from typing import Protocol

from radixlm.core.batch import ScheduledBatch, StepResult


class Runner(Protocol):
    """Computes one step. It holds no request state: the batch carries all it needs."""

    def execute(self, batch: ScheduledBatch) -> StepResult: ...
