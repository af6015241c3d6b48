"""The scheduler: which requests compute how many tokens in the next step, and what becomes of
them.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping

from radixlm.core.batch import Failure, NewTokens, Remap, ScheduledBatch, StepResult
from radixlm.core.clock import Clock, WallClock
from radixlm.core.errors import InvalidRequestError
from radixlm.core.keys import Slots
from radixlm.core.reports import Arrived, EventSink, Finished, Retracted, Scheduled
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput, TokenLogprob
from radixlm.scheduler.drafting import NO_GUIDES, Drafting, Guides
from radixlm.scheduler.fairness import DecodeTurns
from radixlm.scheduler.memory_guard import MemoryGuard, Retraction
from radixlm.scheduler.promises import Promises
from radixlm.scheduler.restoring import Tiers
from radixlm.scheduler.state import Counters, RequestState
from radixlm.scheduler.step_plan import Plan
from radixlm.scheduler.stops import Checkpoints
from radixlm.scheduler.waiting import WaitingRoom

Parts = dict[RequestState, Slots]


class Scheduler:
    """Continuous batching over the radix cache: `schedule` says what a step computes, `update`
    takes what came of it. There are no phases, only requests with more or fewer tokens to compute.

    A step has one budget of `chunked_prefill_size` tokens. Running requests come first: one token
    for each that decodes, then what grammars force, the rest for chunks of prompts, in the
    order of their admission; what is left admits waiting ones (see WaitingRoom). Where tenants
    compete for it, the one that was served least is first, waiting or not. No more requests run
    than the budget has tokens, so each of them moves in every step, and between two tokens of one
    no more than the budget is computed for others.

    Room is made before anything is given: when what running requests need does not fit, some are
    retracted (see Retraction), which commits what they computed, and nobody is admitted in it.

    Used by one thread; `abort` and `add` come between steps. tiers: restore what requests of `room`
    share, where there is a store. short_length: see `Namespace.of_length`. checkpoint_interval: see
    `Checkpoints`. drafting: what drafts tokens.
    """

    def __init__(
        self,
        room: WaitingRoom,
        *,
        chunked_prefill_size: int,
        max_running_requests: int,
        schedule_conservativeness: float = 1.0,
        preemption_threshold: int = 10,
        tiers: Tiers | None = None,
        short_length: int | None = None,
        checkpoint_interval: int = 0,
        drafting: Drafting | None = None,
        sink: EventSink = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._cache = room.cache
        self._budget = chunked_prefill_size
        by_priority = room.order.by_priority
        self._preemption_gap = preemption_threshold if by_priority else None
        self._guard = MemoryGuard(room.cache, schedule_conservativeness)
        self._retraction = Retraction(by_priority=by_priority)
        self.fairness = room.fairness
        self.turns = DecodeTurns(self.fairness, chunked_prefill_size)
        self.waiting_room = room
        self._running: dict[str, RequestState] = {}
        self._free_rows = list(range(min(max_running_requests, chunked_prefill_size)))[::-1]
        self._arrivals = 0
        self._sink = sink
        self._clock = clock or WallClock()
        self.counters = Counters()
        self.tiers = tiers
        self._short_length = short_length
        self.drafting = drafting or Drafting((), 0)
        self.checkpoints = Checkpoints(room, checkpoint_interval)
        self.promises = Promises()
        self._foresees = tiers is None and room.cache.states is None

    @property
    def running(self) -> Collection[RequestState]:
        """The requests that run, in order of their admission; live, not a copy."""
        return self._running.values()

    @property
    def waiting(self) -> Collection[RequestState]:
        """The requests that wait, in order of their arrival; live, not a copy."""
        return self.waiting_room.states

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self._running)

    def add(self, request: GenerateRequest, *, waited: float = 0.0) -> None:
        """Queue a request, which came `waited` seconds ago. Raises InvalidRequestError for an id
        that is in use, or a size that can never fit.
        """
        name = request.request_id
        if self.waiting_room.get(name) is not None or name in self._running:
            raise InvalidRequestError(
                f"a request with the id {name!r} is under way", param="request_id"
            )
        most = self._cache.largest_request
        if self._cache.round_up(request.key.size + request.max_tokens) > most:
            raise InvalidRequestError(
                f"{request.key.size} + {request.max_tokens} tokens can never fit the pool, which "
                f"holds {most} beside what may be pinned",
                param="prompt",
            )
        self._arrivals += 1
        self.fairness.enter(request.tenant)
        self.waiting_room.add(RequestState(request, self._arrivals, self._clock.now() - waited))
        self._sink(Arrived(name, request.key.size, request.namespace))

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request, wherever it is; None when it is not under way."""
        if (state := self._running.get(request_id) or self.waiting_room.get(request_id)) is None:
            return None
        self.counters.requests_aborted += 1
        self._finish(state, FinishReason.ABORT)
        return state.output(reason=FinishReason.ABORT)

    def schedule(
        self, held: Container[str] = (), guides: Guides = NO_GUIDES, *, ahead: bool = False
    ) -> ScheduledBatch:
        """Choose what the next step computes; gives slots, admits, and retracts where needed.

        held: decoding requests that are left out. guides: of those that have one. ahead: nobody is
        retracted, nothing is drafted.
        """
        self._guard.next_step()
        self.turns.next_step()
        plan, crowded = self._plan(held, guides, admits=True), False
        while not self._guard.has_room(plan.tokens()):
            if ahead:
                return ScheduledBatch(())
            if self.tiers is not None and self.tiers.give_way(alone=len(self._running) == 1):
                return ScheduledBatch(())
            self._guard.learn_from_retraction(self._running.values())
            self._retract(self._retraction.pick(self._running.values()))
            plan, crowded = self._plan(held, guides, admits=False), True
        parts: Parts = {}
        for state, n_new in plan.decoding:
            self._give(state, state.running_lease.extend(n_new), parts)
        budget = plan.budget
        if not crowded and plan.prompts and len(self.fairness) > 1:
            budget = self._admit(parts, budget, before=plan.prompts[0])
        for state in plan.prompts:
            if budget > 0 and state.lease is not None:
                budget -= self._give(state, state.lease.extend(min(state.pending, budget)), parts)
        if not crowded:
            budget = self._admit(parts, budget)
            if not ahead:
                self.drafting.add(parts, budget)
        states = {state.running_lease: state for state in parts}
        ordered = [states[lease] for lease in self._cache.depth_first(states)]
        for state in ordered if self.checkpoints.active else ():
            self.checkpoints.mark(state, min(state.computed + parts[state].size, state.n_tokens))
        rows = tuple(self.drafting.row_of(state, parts[state]) for state in ordered)
        self.promises.begin(rows, ordered)
        computed = self._cache.components if rows else ()  # nobody computes an empty batch
        moves = [move for component in computed for move in component.take_moves().items()]
        return ScheduledBatch(rows, **dict(moves))

    def schedule_ahead(self, batch: ScheduledBatch) -> ScheduledBatch:
        """Choose what comes after a batch under way; no rows if its tokens have to be known."""
        foreseen = self._foresees and all(state.foreseen for state in self._running.values())
        preempts = self._preemption_gap is not None and self.waiting
        if preempts or not foreseen or not self.drafting.idle(batch.rows):
            return ScheduledBatch(())
        with self.promises.promised(batch.rows) as complete:
            return self.schedule(complete, ahead=True)

    def update(
        self, batch: ScheduledBatch, result: StepResult, grown: Mapping[str, NewTokens]
    ) -> list[RequestOutput]:
        """Take the results of a step; what is new of each request that got a token or ended.

        grown: what sampled tokens have become, by request; all others are taken as they are.
        """
        self.drafting.computed(batch)
        news = []
        for index, row, state in self.promises.end(batch.rows):
            if index in result.failed and self.drafting.spoiled(state):
                if state.running_lease.lost:
                    self._retract(state)
                continue
            state.computed = row.known
            self.counters.computed_tokens += row.n_new
            if index in result.failed:
                news.append(self._fail(state, result.failed[index]))
                continue
            if index in result.prompt_logprobs:
                state.take_prompt_logprobs(row.start, result.prompt_logprobs[index])
            if row.start < state.prefill_end or row.checkpoints:
                self._commit(state)
            drawn = result.drawn(index)
            new = grown.get(row.request.request_id) or NewTokens(drawn)
            if row.drafted:
                accepted = self.drafting.settle(state, drawn, new, self.counters)
                self.fairness.charge(state.request.tenant, accepted)
            state.running_lease.pass_by(state.computed)
            if drawn:
                self.drafting.heard(state, result.ahead.get(index, ()), row.known + len(drawn))
                news.append(self._take(state, new, result.logprobs.get(index, ())))
            elif index in result.flat:
                state.foreseen = False
                self._retract(state)
        return news

    def _plan(self, held: Container[str], guides: Guides, *, admits: bool) -> Plan:
        """Plan which running requests go on in this step, which may admit others, or not."""
        self.drafting.begin(guides)
        prompts = self._prompts()
        decoding = [s for name, s in self._running.items() if s.decodes and name not in held]
        first = self._first_prompt(prompts, admits=admits) if len(self.fairness) > 1 else None
        if first is not None:
            decoding = self.turns.beside(first, decoding)
        budget = self.turns.left_of_budget(decoding)
        return Plan.of(decoding, prompts, budget, self.drafting.force)

    def _prompts(self) -> list[RequestState]:
        """Running requests that do not decode yet, the least served tenants' first, then by age."""
        return sorted((s for s in self._running.values() if not s.decodes), key=self._served)

    def _first_prompt(self, prompts: list[RequestState], *, admits: bool) -> RequestState | None:
        """The first prompt of this step, running or to be admitted; None if there is none."""
        first = prompts[0] if prompts else None
        state = self._next(before=first) if admits and self.waiting and self._free_rows else None
        if state is None:
            return first
        self._guard.begin(self._running.values())
        return state if self._fits(state) else first

    def _next(self, before: RequestState | None) -> RequestState | None:
        """The next to be admitted; with `before`, if its tenant was served less."""
        state = self.waiting_room.next()
        if state is None or before is None or self._served(state) < self._served(before):
            return state
        return None

    def _served(self, state: RequestState) -> int:
        return self.fairness.served(state.request.tenant)

    def _give(self, state: RequestState, slots: Slots | None, parts: Parts) -> int:
        """Make `slots` its part of the step; return how many. None: an admission took the room."""
        if slots is None:
            return 0
        parts[state] = slots
        state.moved = self.turns.step
        self.fairness.charge(state.request.tenant, min(slots.size, state.pending))
        return slots.size

    def _retract(self, state: RequestState) -> None:
        self._commit(state)
        self._sink(Retracted(state.request.request_id, state.computed, state.namespace))
        self._leave(state)
        state.come_back(self._short_length)
        self.counters.retractions += 1
        self.waiting_room.add(state)

    def _admit(self, parts: Parts, budget: int, *, before: RequestState | None = None) -> int:
        """Admit waiting requests, as far as the budget goes; return what is left of that. before:
        only those whose tenant was served less than this one's.
        """
        full = not self._free_rows and self._preemption_gap is None
        if budget < 1 or full or not self.waiting:
            return budget
        self._guard.begin(self._running.values())
        while budget > 0 and (state := self._next(before)) is not None:
            if not self._fits(state) and not self._preempt_for(state, parts):
                break
            if self.tiers is not None and self.tiers.begin(state, self._budget - budget):
                continue
            if self.tiers is not None and not self._running and self.tiers.waits(state):
                break
            if (slots := self._start(state, budget)) is None:
                if self.tiers is not None and not self._running:
                    self.tiers.give_way(alone=True)  # copies lock what it needs of windows
                break
            budget -= self._give(state, slots, parts)
            self.fairness.admit(state.request.tenant)
            self._guard.reserve(state)
        return budget

    def _fits(self, state: RequestState) -> bool:
        return bool(self._free_rows) and self._guard.admits(state, self.waiting_room.match(state))

    def _preempt_for(self, state: RequestState, parts: Parts) -> bool:
        """Retract running requests of far lower priority until `state` fits, if that is enough."""
        if self._preemption_gap is None:
            return False
        priority = state.request.priority - self._preemption_gap
        lower = [s for s in self._running.values() if s.request.priority <= priority]
        if not lower or not self._guard.would_admit(state, self.waiting_room.match(state), lower):
            return False
        while not self._fits(state):
            if (victim := self._retraction.pick_below(self._running.values(), priority)) is None:
                return False
            self.counters.preemptions += 1
            parts.pop(victim, None)
            self._retract(victim)
            self._guard.begin(self._running.values())
        return True

    def _start(self, state: RequestState, budget: int) -> Slots | None:
        """Take a lease and the first slots; None, and nothing has changed, if there are none."""
        lease = self._cache.acquire(
            state.tokens,
            state.namespace,
            n_tokens=state.n_tokens,
            max_match=state.max_match,
            priority=state.request.priority,
            match=self.waiting_room.match(state),
        )
        lease.hint = state.request.hint
        state.computed = state.kept = lease.cached
        state.prefill_end = state.n_tokens
        state.branch = self.waiting_room.match(state).agreed.length
        slots = lease.extend(min(state.pending, budget))
        if slots is None:
            state.computed = 0
            lease.release(used=False)
            return None
        if not (again := state.cached_tokens is not None):
            state.cached_tokens, state.miss = lease.cached, lease.why()
            if self.tiers is not None:
                state.miss = self.tiers.reported(state, state.miss)
            state.queued = self._clock.now() - state.arrived
        self.counters.admit(state, lease, again=again)
        state.lease = lease
        state.row = self._free_rows.pop()
        state.remaps = [Remap(0, lease.slots[: lease.cached].copy())] if lease.cached else []
        name, prompt = state.request.request_id, state.prompt_length
        self.waiting_room.start(state, lease.cached)
        self._running[name] = state
        self._sink(Scheduled(name, lease.cached, prompt, again, state.namespace))
        return slots

    def _take(
        self, state: RequestState, new: NewTokens, logprobs: tuple[TokenLogprob, ...]
    ) -> RequestOutput:
        """Append the new tokens and end the request where it ends."""
        first = state.output_tokens == 0
        state.extend(new.tokens)
        self.drafting.took(state, new.tokens)
        self.counters.output_tokens += len(new.tokens)
        reason, matched = state.end_by(new)
        if reason is not None:
            self.counters.requests_finished += 1
            self._guard.learn_from_end(state)
            self._finish(state, reason)
        elif state.outgrows(self._short_length) or state.running_lease.lost:
            self._retract(state)  # all its keys turn in another way now, or its state is gone
        return state.output(new, reason, matched, logprobs, first=first)

    def _fail(self, state: RequestState, failure: Failure) -> RequestOutput:
        """End a request whose numbers are not finite; what they spoiled leaves the cache."""
        state.computed = failure.sound
        self.counters.requests_finished += 1
        self._finish(state, FinishReason.ERROR)
        if self.tiers is not None:
            self.tiers.discard(state.known, state.namespace, failure.sound)
        self._cache.discard(state.known, state.namespace, failure.sound)
        return state.output(NewTokens((), error=failure.reason), FinishReason.ERROR)

    def _finish(self, state: RequestState, reason: FinishReason) -> None:
        name = state.request.request_id
        if state.lease is not None:
            self._commit(state)
            self._leave(state)
        else:
            self.waiting_room.drop(state)
        self.fairness.leave(state.request.tenant)
        self._sink(Finished(name, reason.value, state.output_tokens, state.request.namespace))

    def _leave(self, state: RequestState) -> None:
        """Give back the lease and the row of a running request."""
        lease = state.running_lease
        self.waiting_room.stop_computing(state, lease.committed)
        self.checkpoints.leave(state)
        lease.release()
        state.lease = None
        state.remaps = []
        self._free_rows.append(state.row)
        del self._running[state.request.request_id]

    def _commit(self, state: RequestState) -> None:
        lease = state.running_lease
        before = lease.committed
        if (remap := lease.commit(state.computed)) is not None:
            state.remaps.append(remap)
        if lease.committed > before:
            self.waiting_room.committed(state, before, lease.committed)
        if state.computed >= state.prefill_end:
            self.waiting_room.stop_computing(state, lease.committed)
