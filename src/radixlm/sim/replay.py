"""Sessions through an engine's core on a virtual clock, and what came of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import inf

from radixlm.core.config import EngineConfig
from radixlm.core.errors import InvalidRequestError
from radixlm.core.misses import MissReason
from radixlm.core.request import GenerateRequest, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineCore, Limits
from radixlm.sim.bounds import History
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.costs import Costs
from radixlm.sim.sim_disk import DiskSize
from radixlm.sim.sim_machine import Alone, ByTokens, Machine, MachineRouting

# Where a token stands for many, a step has room for as many requests all the same.
LEAST_BUDGET = 64
_PARAMS = SamplingParams(ignore_eos=True)
_SIZES = ("kv_tokens", "max_pinned_tokens", "context_length")


def scaled(config: EngineConfig, scale: int) -> EngineConfig:
    """The same sizes in tokens that each stand for `scale`."""
    if scale == 1:
        return config
    sizes = {name: max(size // scale, 2) for name in _SIZES if (size := getattr(config, name))}
    budget = max(config.chunked_prefill_size // scale, LEAST_BUDGET)
    interval = config.state_checkpoint_interval // scale
    return replace(config, **sizes, chunked_prefill_size=budget, state_checkpoint_interval=interval)


@dataclass(frozen=True, slots=True, eq=False)
class _UnderWay:
    """place: of the call in its session."""

    session: TraceSession
    place: int
    arrived: float

    @property
    def call(self) -> TraceCall:
        return self.session.calls[self.place]


@dataclass(slots=True)
class Times:
    """The times of calls that ended, in seconds: from arrival to the first token, between tokens,
    and from arrival to the first step.
    """

    first: array[float] = field(default_factory=lambda: array("d"))
    between: array[float] = field(default_factory=lambda: array("d"))
    queued: array[float] = field(default_factory=lambda: array("d"))


class Replay:
    """One run of a trace, from `run` on; then its figures can be read. Raises ConfigError for a
    config that the cache refuses.

    config: of each replica; kv_tokens is needed, the model is not read. users: how many sessions
    without a time go on at once. scale: tokens that one of a prompt stands for. problems: gets the
    calls that the engine refuses. disk: a tier below the pool. replicas: how many; routing: which
    of them takes a call. done: called after each call. calls: that were answered. generated: tokens
    of their answers. cached: tokens that each found, in the order of their first tokens.
    no_state_tokens: of prompts, cached but computed again as no state is kept. history: what was
    asked for, in order.
    """

    def __init__(
        self,
        config: EngineConfig,
        costs: Costs,
        problems: Problems,
        *,
        users: int = 8,
        scale: int = 1,
        disk: DiskSize | None = None,
        replicas: int = 1,
        routing: Callable[[Sequence[Machine]], MachineRouting] | None = None,
        done: Callable[[], object] = lambda: None,
    ) -> None:
        config = scaled(config, scale)
        self.times = Times()
        self.calls = self.generated = self.no_state_tokens = 0
        self.cached: list[int] = []
        self._problems = problems
        self._users = users
        self._done = done
        self._most = config.max_queued_requests * replicas
        self.machines = [
            Machine(config, costs, self._next_event, scale=scale, disk=disk)
            for _ in range(replicas)
        ]
        self.routing = (routing or (Alone if replicas == 1 else ByTokens))(self.machines)
        self.history = History(self.machines[0].core.cache.page_size)
        self._numbers = count()
        # Calls that are going to come: time, number, session, place.
        self._due: list[tuple[float, int, TraceSession, int]] = []
        # Machines with work: when their last step ends, place, what it gives then.
        self._busy: list[tuple[float, int, Sequence[RequestOutput]]] = []
        self._under_way: dict[str, _UnderWay] = {}
        self._first_tokens: dict[str, float] = {}
        self._coming: Iterator[TraceSession] = iter(())
        self._next: TraceSession | None = None
        self._open = 0
        self._now = 0.0
        self._knows_next_time = False

    @property
    def core(self) -> EngineCore:
        """The only replica's."""
        (machine,) = self.machines
        return machine.core

    @property
    def capacity(self) -> int:
        """The capacity of all replicas."""
        return sum(machine.core.cache.capacity for machine in self.machines)

    @property
    def seconds(self) -> float:
        """Seconds from the trace's begin to the last answer."""
        return max(machine.clock.now() for machine in self.machines)

    def run(self, sessions: Iterable[TraceSession]) -> None:
        """All of them, to the last answer. Those with times must come in their order."""
        self._coming = iter(sessions)
        self._next = next(self._coming, None)
        self._look_ahead()
        while self._busy or self._due:
            if self._due and (not self._busy or self._due[0][0] <= self._busy[0][0]):
                self._arrive()
                continue
            self._step()

    def _step(self) -> None:
        """A machine's step ends: what it gave is known now, and the next one begins."""
        _, place, outputs = heappop(self._busy)
        machine = self.machines[place]
        for output in outputs:
            self._take(machine, output)
        self.routing.stepped(machine)
        if machine.core.has_work:
            outputs = machine.step()
            heappush(self._busy, (machine.clock.now(), place, outputs))

    def _next_event(self) -> float:
        """The earliest time at which a call comes, or another machine steps."""
        return min((events[0][0] for events in (self._due, self._busy) if events), default=inf)

    def _look_ahead(self) -> None:
        """Know the next session with a time, or as many without as there are users."""
        while (session := self._next) is not None:
            if session.at is None:
                if self._open >= self._users:
                    return
                self._open += 1
                self._push(self._now, session, 0)
            else:
                if self._knows_next_time:
                    return
                self._knows_next_time = True
                self._push(session.at, session, 0)
            self._next = next(self._coming, None)

    def _push(self, at: float, session: TraceSession, place: int) -> None:
        heappush(self._due, (at, next(self._numbers), session, place))

    def _arrive(self) -> None:
        at, number, session, place = heappop(self._due)
        if place == 0 and session.at is not None:
            self._knows_next_time = False
            self._look_ahead()
        under_way = _UnderWay(session, place, at)
        name, call = str(number), session.calls[place]
        self._now = at
        if len(self._under_way) >= self._most:
            self._refuse(under_way, f"more than --max-queued-requests {self._most}")
            return
        for each in self.machines:
            each.rest(at)
        machine = self.routing.choose(name, call)
        machine.runner.answers[name] = call.answer
        try:
            request = _request(name, call, machine.limits)
            machine.core.add(request, waited=machine.clock.now() - at)
        except InvalidRequestError as error:
            machine.runner.forget(name)
            self.routing.ended(name, None)
            self._refuse(under_way, str(error))
            return
        self._under_way[name] = under_way
        index = self.machines.index(machine)
        if all(busy != index for _, busy, _ in self._busy):
            heappush(self._busy, (machine.clock.now(), index, []))

    def _refuse(self, under_way: _UnderWay, why: str) -> None:
        self._problems.add(under_way.call.where, "the engine refuses it", why)
        self._go_on(under_way)

    def _take(self, machine: Machine, output: RequestOutput) -> None:
        name, now = output.request_id, machine.clock.now()
        under_way = self._under_way[name]
        if output.queued is not None:
            self.times.queued.append(output.queued)
            self._first_tokens[name] = now
            self.routing.began(name)
            call = under_way.call
            held, running = output.cached_tokens, len(self._first_tokens)
            self.cached.append(held)
            if output.miss is not None and output.miss.reason is MissReason.NO_STATE:
                self.no_state_tokens += output.miss.evicted
                held += output.miss.evicted
            self.history.note(call.prompt, call.answer, call.namespace, held, running)
            if machine.disk is not None and output.miss is not None:
                namespace = call.namespace.packed()
                machine.disk.losses.asked(call.prompt, namespace, output.miss)
        if not output.finished:
            return
        first, tokens = self._first_tokens.pop(name), under_way.call.answer.size
        self.times.first.append(first - under_way.arrived)
        if tokens > 1:
            self.times.between.append((now - first) / (tokens - 1))
        self.calls += 1
        self.generated += tokens
        self._now = now
        del self._under_way[name]
        machine.runner.forget(name)
        self.routing.ended(name, tokens)
        self._go_on(under_way)

    def _go_on(self, under_way: _UnderWay) -> None:
        """A call has ended: its session's next one is due, or another session may begin."""
        self._done()
        session, place = under_way.session, under_way.place + 1
        if place < len(session.calls):
            self._push(self._now + session.calls[place].gap, session, place)
        elif session.at is None:
            self._open -= 1
            self._look_ahead()


def _request(name: str, call: TraceCall, limits: Limits) -> GenerateRequest:
    """The request of a call. Where its answer may have had more tokens, its last one ends it, as an
    end of text does. Raises RequestTooLargeError.
    """
    tokens, last = call.answer.size, int(call.answer[-1])
    ends = call.max_tokens > tokens and last not in call.answer[:-1]
    most = call.max_tokens if ends else tokens
    params = limits.fitted(call.prompt, replace(_PARAMS, max_tokens=most, min_tokens=tokens))
    return GenerateRequest(
        name,
        call.prompt,
        _PARAMS,
        max_tokens=limits.resolve_max_tokens(call.prompt, params),
        stop_token_ids=frozenset({last} if ends else ()),
        namespace=call.namespace,
        priority=call.priority,
        tenant=call.tenant,
        breakpoints=call.breakpoints,
        hint=call.hint,
    )
