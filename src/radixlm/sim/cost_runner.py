"""The runner that only knows what a step costs, and what a trace answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from radixlm.core.batch import ScheduledBatch, ScheduledRow, StepResult
from radixlm.core.clock import VirtualClock
from radixlm.core.keys import Key
from radixlm.scheduler.memory_guard import LINGER_STEPS
from radixlm.sim.costs import Costs


class World(Protocol):
    """The surroundings that a runner may know. room: slots that may be had. next_arrival: by the
    clock, infinite where none is known.
    """

    @property
    def waiting(self) -> int: ...
    @property
    def room(self) -> int: ...
    def next_arrival(self) -> float: ...


class CostRunner:
    """Answers with what the trace says, and lets the clock advance by what a step costs.

    While requests only decode, and none comes in between, their next tokens are given ahead: so one
    step stands for as many as there are of them, and costs as much. A request's last token never is
    given ahead, so that it ends when it would.

    answers: by request, there before it is added. budget: tokens of a step. scale: tokens that one
    token of a prompt stands for.
    """

    def __init__(
        self, costs: Costs, clock: VirtualClock, world: World, *, budget: int, scale: int = 1
    ) -> None:
        self.answers: dict[str, Key] = {}
        self._costs = costs
        self._clock = clock
        self._world = world
        self._budget = budget
        self._scale = scale
        # Tokens of each request that were computed before: after a retraction they are a prompt's.
        self._reached: dict[str, int] = {}
        self._before: list[str] = []
        self._alike = 0

    def forget(self, request_id: str) -> None:
        """A request has ended."""
        del self.answers[request_id]
        self._reached.pop(request_id, None)

    def execute(self, batch: ScheduledBatch) -> StepResult:
        rows = batch.rows
        computes_prompts = self._spend(rows)
        tokens = tuple(
            int(self.answers[row.request.request_id][row.stop - row.prompt_length])
            if row.samples
            else None
            for row in rows
        )
        ahead = self._ahead(rows, computes_prompts=computes_prompts)
        if not ahead:
            return StepResult(tokens)
        known = {}
        for place, row in enumerate(rows):
            at = row.stop - row.prompt_length + 1
            known[place] = tuple(self.answers[row.request.request_id][at : at + ahead].tolist())
        return StepResult(tokens, known=known)

    def _spend(self, rows: Sequence[ScheduledRow]) -> bool:
        """Let the step's time pass; whether some of it was for prompts."""
        parts: list[tuple[int, int]] = []
        ahead: list[int] = []
        sampled, context, scale = 0, 0.0, self._scale
        for row in rows:
            start, stop, name = row.start, row.stop, row.request.request_id
            first = max(start, row.prompt_length, self._reached.get(name, 0))
            self._reached[name] = max(stop, first)
            if stop > first:
                ahead.append(stop - first)
                context += first * scale
            if (new := min(first, stop) - start) > 0:
                parts.append((new * scale, start * scale))
                sampled += row.samples
        seconds = self._costs.step(parts, sampled, len(ahead), context)
        self._clock.advance(seconds + self._later_steps(ahead, context))
        return bool(parts)

    def _later_steps(self, ahead: list[int], context: float) -> float:
        """Seconds of the steps after the first one that this step stands for. ahead: tokens that
        each row computes one after the other; context: what they read in the first.
        """
        seconds, done = 0.0, 1
        for count in sorted(set(ahead)):
            rows = sum(each >= count for each in ahead)
            if (steps := count - done) > 0:
                read = context * rows / len(ahead) + rows * (done + (steps - 1) / 2)
                seconds += steps * self._costs.step((), 0, rows, read)
                done += steps
        return seconds

    def _ahead(self, rows: Sequence[ScheduledRow], *, computes_prompts: bool) -> int:
        """How many tokens of each row come in any case, after the one that is sampled now, before
        anything else does.
        """
        names = [row.request.request_id for row in rows]
        self._alike = self._alike + 1 if names == self._before else 0
        self._before = names
        world = self._world
        if world.waiting and (computes_prompts or self._alike <= LINGER_STEPS):
            return 0
        if not all(row.samples for row in rows):
            return 0
        # With half of what there is nobody is retracted that would not be.
        count = min(self._budget, world.room) // (2 * len(rows)) - 1
        left = (
            self.answers[row.request.request_id].size + row.prompt_length - row.stop for row in rows
        )
        count = min(count, *(each - 2 for each in left))
        if count < 1:
            return 0
        context = sum(row.stop for row in rows) * self._scale
        cost = self._costs.step((), 0, len(rows), context)
        until = world.next_arrival() - self._clock.now()
        return count if cost * count <= until else max(int(until / cost), 0)
