"""Sessions through an engine's core on a virtual clock, and what came of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import inf

from radixlm.cache import make_policy
from radixlm.core.clock import VirtualClock
from radixlm.core.config import EngineConfig
from radixlm.core.errors import InvalidRequestError
from radixlm.core.request import GenerateRequest, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine.assembly import make_cache, make_core, resolve_pin_budget
from radixlm.sim.bounds import History
from radixlm.sim.calls import Call, Problems, Session
from radixlm.sim.cost_runner import CostRunner
from radixlm.sim.costs import Costs
from radixlm.sim.sim_disk import DiskSize, SimDisk

# Where a token stands for many, a step has room for as many requests all the same.
LEAST_BUDGET = 64
_PARAMS = SamplingParams(ignore_eos=True)


def scaled(config: EngineConfig, scale: int) -> EngineConfig:
    """The same sizes in tokens that each stand for `scale`."""
    if scale == 1:
        return config
    return replace(
        config,
        kv_tokens=max((config.kv_tokens or 0) // scale, 2),
        chunked_prefill_size=max(config.chunked_prefill_size // scale, LEAST_BUDGET),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _UnderWay:
    """place: of the call in its session."""

    session: Session
    place: int
    arrived: float

    @property
    def call(self) -> Call:
        return self.session.calls[self.place]


@dataclass(slots=True)
class Times:
    """Of calls that ended, in seconds: from arrival to the first token, between tokens, and from
    arrival to the first step.
    """

    first: array[float] = field(default_factory=lambda: array("d"))
    between: array[float] = field(default_factory=lambda: array("d"))
    queued: array[float] = field(default_factory=lambda: array("d"))


class Replay:
    """One run of a trace, from `run` on; then its figures can be read. Raises ConfigError for a
    config that the cache refuses.

    config: kv_tokens is needed; the model is not read. users: how many sessions without a time go
    on at once. scale: tokens that one of a prompt stands for. problems: gets the calls that the
    engine refuses. disk: a tier below the pool. done: called after each call. calls: that were
    answered. generated: tokens of their answers. history: what was asked for, in order.
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
        done: Callable[[], object] = lambda: None,
    ) -> None:
        config = scaled(config, scale)
        capacity = config.kv_tokens or 0
        self.clock = VirtualClock()
        self.times = Times()
        self.calls = self.generated = 0
        self._problems = problems
        self._users = users
        self._done = done
        self._overhead = costs.overhead
        self._most = config.max_queued_requests
        budget = config.chunked_prefill_size
        self._runner = CostRunner(costs, self.clock, self, budget=budget, scale=scale)
        pins = resolve_pin_budget(config, capacity, config.context_length or capacity)
        policy = make_policy(config.eviction_policy)
        cache = make_cache(config, policy, capacity, pins, self.clock)
        self._disk = SimDisk(self.clock, config, disk, scale) if disk is not None else None
        tiering = None if self._disk is None else self._disk.tiering
        self.history = History(cache.page_size)
        self.core = make_core(config, cache, self._runner, None, tiering=tiering, clock=self.clock)
        self._numbers = count()
        # Calls that are going to come: time, number, session, place.
        self._due: list[tuple[float, int, Session, int]] = []
        self._under_way: dict[str, _UnderWay] = {}
        self._first_tokens: dict[str, float] = {}
        self._coming: Iterator[Session] = iter(())
        self._next: Session | None = None
        self._open = 0
        self._knows_next_time = False

    @property
    def waiting(self) -> int:
        return self.core.waiting

    @property
    def room(self) -> int:
        return self.core.cache.available

    def next_arrival(self) -> float:
        due = self._due[0][0] if self._due else inf
        return due if self._disk is None else min(due, self._disk.next_read)

    def run(self, sessions: Iterable[Session]) -> None:
        """All of them, to the last answer. Those with times must come in their order."""
        self._coming = iter(sessions)
        self._next = next(self._coming, None)
        self._look_ahead()
        while self._due or self.core.has_work:
            idle = not self.core.has_work
            while self._due and self._due[0][0] <= self.clock.now():
                self._arrive()
            if self.core.has_work:
                if idle:
                    self.clock.advance(self._overhead)
                self._step()
            elif self._due:
                self._wait(self._due[0][0])

    def _step(self) -> None:
        if self._disk is not None:
            self._disk.work()
        for output in self.core.step():
            self._take(output)
        if self.core.stuck and self._disk is not None:
            self._wait(min(self.next_arrival(), self._disk.until))

    def _wait(self, until: float) -> None:
        """Nothing is computed meanwhile; the disk works."""
        while self._disk is not None and self._disk.until < until:
            self.clock.advance(max(self._disk.until - self.clock.now(), 0.0))
            self._disk.work()
        self.clock.advance(max(until - self.clock.now(), 0.0))

    def _look_ahead(self) -> None:
        """Know the next session with a time, or as many without as there are users."""
        while (session := self._next) is not None:
            if session.at is None:
                if self._open >= self._users:
                    return
                self._open += 1
                self._push(self.clock.now(), session, 0)
            else:
                if self._knows_next_time:
                    return
                self._knows_next_time = True
                self._push(session.at, session, 0)
            self._next = next(self._coming, None)

    def _push(self, at: float, session: Session, place: int) -> None:
        heappush(self._due, (at, next(self._numbers), session, place))

    def _arrive(self) -> None:
        at, number, session, place = heappop(self._due)
        if place == 0 and session.at is not None:
            self._knows_next_time = False
            self._look_ahead()
        under_way = _UnderWay(session, place, at)
        name, call = str(number), session.calls[place]
        self._runner.answers[name] = call.answer
        try:
            if len(self._under_way) >= self._most:
                raise InvalidRequestError(f"more than --max-queued-requests {self._most}")
            self.core.add(_request(name, call), waited=self.clock.now() - at)
        except InvalidRequestError as error:
            self._runner.forget(name)
            self._problems.add(call.where, "the engine refuses it", str(error))
            self._go_on(under_way)
            return
        self._under_way[name] = under_way

    def _take(self, output: RequestOutput) -> None:
        name, now = output.request_id, self.clock.now()
        under_way = self._under_way[name]
        if output.queued is not None:
            self.times.queued.append(output.queued)
            self._first_tokens[name] = now
            call = under_way.call
            self.history.note(call.prompt, call.answer, call.namespace)
        if not output.finished:
            return
        first, tokens = self._first_tokens.pop(name), under_way.call.answer.size
        self.times.first.append(first - under_way.arrived)
        if tokens > 1:
            self.times.between.append((now - first) / (tokens - 1))
        self.calls += 1
        self.generated += tokens
        del self._under_way[name]
        self._runner.forget(name)
        self._go_on(under_way)

    def _go_on(self, under_way: _UnderWay) -> None:
        """A call has ended: its session's next one is due, or another session may begin."""
        self._done()
        session, place = under_way.session, under_way.place + 1
        if place < len(session.calls):
            self._push(self.clock.now() + session.calls[place].gap, session, place)
        elif session.at is None:
            self._open -= 1
            self._look_ahead()


def _request(name: str, call: Call) -> GenerateRequest:
    """Where its answer may have had more tokens, its last one ends it, as an end of text does."""
    tokens, last = call.answer.size, int(call.answer[-1])
    ends = call.max_tokens > tokens and last not in call.answer[:-1]
    return GenerateRequest(
        name,
        call.prompt,
        _PARAMS,
        max_tokens=call.max_tokens if ends else tokens,
        stop_token_ids=frozenset({last} if ends else ()),
        namespace=call.namespace,
        priority=call.priority,
        tenant=call.tenant,
        breakpoints=call.breakpoints,
    )
