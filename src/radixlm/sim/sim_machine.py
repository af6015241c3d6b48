"""One simulated replica: an engine's core, its clock, its disk, and a runner that only knows what a
step costs. And how a fleet of them is routed: by the router that serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from radixlm.cache import make_policy
from radixlm.core.batch import ScheduledBatch, ScheduledRow, StepResult
from radixlm.core.clock import VirtualClock
from radixlm.core.config import EngineConfig
from radixlm.core.keys import Key
from radixlm.core.reports import TreeQuery
from radixlm.core.request import RequestOutput
from radixlm.engine import Limits
from radixlm.engine.watching import Scene, SceneChange
from radixlm.engine.wiring import make_cache, make_core, resolve_pin_budget
from radixlm.routing import Router, TreeFeed
from radixlm.scheduler.memory_guard import LINGER_STEPS
from radixlm.sim.calls import TraceCall
from radixlm.sim.costs import Costs
from radixlm.sim.sim_disk import DiskSize, SimDisk

# A context without a limit, and all token ids that there can be.
_ANY = 2**31


class Machine:
    """Steps by its own clock.

    config: in tokens that each stand for `scale`; kv_tokens is needed, and the model carries states
    where max_mamba_cache_size is given. coming: when something comes
    from outside, by the clock. disk: None without one.
    """

    def __init__(
        self,
        config: EngineConfig,
        costs: Costs,
        coming: Callable[[], float],
        *,
        scale: int = 1,
        disk: DiskSize | None = None,
    ) -> None:
        capacity, budget = config.kv_tokens or 0, config.chunked_prefill_size
        self.clock = VirtualClock()
        self.runner = CostRunner(costs, self.clock, self, budget=budget, scale=scale)
        self._coming = coming
        self._overhead = costs.overhead
        self._rested = True
        context = config.context_length or _ANY
        pins = resolve_pin_budget(config, capacity, context)
        policy = make_policy(config.eviction_policy)
        states = config.max_mamba_cache_size or 0
        cache = make_cache(config, policy, capacity, pins, self.clock, states=states)
        self.limits = Limits(context, cache.largest_request, _ANY)
        self.disk = SimDisk(self.clock, config, disk, scale) if disk is not None else None
        tiering = None if self.disk is None else self.disk.tiering
        # Answers are made up, so no draft of them would be right.
        plain = replace(config, speculative_algorithm="off", draft_corpus=None)
        self.core = make_core(plain, cache, self.runner, None, tiering=tiering, clock=self.clock)

    def next_arrival(self) -> float:
        """The time of what comes next, by the clock; infinite where nothing is known."""
        due = self._coming()
        return due if self.disk is None else min(due, self.disk.next_read)

    def step(self) -> Sequence[RequestOutput]:
        """The next one; where there was nothing to do before, it begins later."""
        if self._rested:
            self.clock.advance(self._overhead)
            self._rested = False
        if self.disk is not None:
            self.disk.work()
        outputs = self.core.step()
        if self.core.stuck and self.disk is not None:
            self._wait(min(self.next_arrival(), self.disk.until))
        return outputs

    def rest(self, until: float) -> None:
        """Let the time pass where there is nothing to do."""
        if not self.core.has_work:
            self._rested = True
            if until > self.clock.now():
                self._wait(until)

    def _wait(self, until: float) -> None:
        """Wait: nothing is computed meanwhile; the disk works."""
        while self.disk is not None and self.disk.until < until:
            self.clock.advance(max(self.disk.until - self.clock.now(), 0.0))
            self.disk.work()
        self.clock.advance(max(until - self.clock.now(), 0.0))


_TICKET = 1


class MachineRouting(Protocol):
    """A way to choose the machine that takes a call. `began`: it has its first token; `ended`:
    after that many tokens, None where it was refused.
    """

    def choose(self, name: str, call: TraceCall, /) -> Machine: ...
    def began(self, name: str) -> None: ...
    def ended(self, name: str, answer_tokens: int | None) -> None: ...
    def stepped(self, machine: Machine) -> None: ...


class Alone:
    """There is one machine."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        (self._machine,) = machines

    def choose(self, _name: str, _call: TraceCall, /) -> Machine:
        return self._machine

    def began(self, name: str) -> None: ...
    def ended(self, name: str, answer_tokens: int | None) -> None: ...
    def stepped(self, machine: Machine) -> None: ...


class ByTokens:
    """The product's router, fed by viewers of the machines' trees, as late as in a server."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.router = Router()
        self._machines = {f"replica-{n}": machine for n, machine in enumerate(machines)}
        self._names = {machine: name for name, machine in self._machines.items()}
        self._feeds = {machine: TreeFeed(name) for name, machine in self._machines.items()}
        for name, machine in self._machines.items():
            self.router.join(name, machine.core.cache.capacity)
            machine.core.watching.watch(_TICKET, TreeQuery(), follow=True)

    def choose(self, name: str, call: TraceCall, /) -> Machine:
        for machine in self._feeds:
            if machine.core.watching.seconds_left() == 0.0:
                self.stepped(machine)  # one that has nothing to do tells what is due, too
        choice = self.router.choose(
            name, call.namespace, call.prompt, max_tokens=call.max_tokens or None
        )
        return self._machines[choice.replica]

    def began(self, name: str) -> None:
        self.router.began(name)

    def ended(self, name: str, answer_tokens: int | None) -> None:
        self.router.ended(name, answer_tokens)

    def stepped(self, machine: Machine) -> None:
        for update in machine.core.watching.turn(machine.core.stats()):
            news = update.news
            if isinstance(news, Scene | SceneChange) and news.tree is not None:
                fed = self._feeds[machine].take(news.tree)
                if fed is not None:
                    self.router.take(self._names[machine], fed)


class CostRunner:
    """Answers with what the trace says, and lets the clock advance by what a step costs.

    While requests only decode, and none comes in between, their next tokens are given ahead: so one
    step stands for as many as there are of them, and costs as much. A request's last token never is
    given ahead, so that it ends when it would.

    answers: by request, there before it is added. budget: tokens of a step. scale: tokens that one
    token of a prompt stands for.
    """

    def __init__(
        self, costs: Costs, clock: VirtualClock, machine: Machine, *, budget: int, scale: int = 1
    ) -> None:
        self.answers: dict[str, Key] = {}
        self._costs = costs
        self._clock = clock
        self._machine = machine
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
        core = self._machine.core
        if core.waiting and (computes_prompts or self._alike <= LINGER_STEPS):
            return 0
        if not all(row.samples for row in rows):
            return 0
        # With half of what there is nobody is retracted that would not be.
        count = min(self._budget, core.cache.available) // (2 * len(rows)) - 1
        left = (
            self.answers[row.request.request_id].size + row.prompt_length - row.stop for row in rows
        )
        count = min(count, *(each - 2 for each in left))
        if count < 1:
            return 0
        context = sum(row.stop for row in rows) * self._scale
        cost = self._costs.step((), 0, len(rows), context)
        until = self._machine.next_arrival() - self._clock.now()
        return count if cost * count <= until else max(int(until / cost), 0)
