"""Who computes how many tokens in the next step, and what becomes of them."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import replace

from radixlm.cache import Match, RadixCache
from radixlm.core.batch import Failure, Remap, ScheduledBatch, StepResult
from radixlm.core.clock import Clock, WallClock
from radixlm.core.errors import CacheError, InvalidRequestError
from radixlm.core.events import Arrived, EventSink, Finished, Retracted, Scheduled, ignore
from radixlm.core.keys import Slots
from radixlm.core.request import FinishReason, GenerateRequest, TokenLogprob
from radixlm.scheduler.fairness import DecodeTurns, TokenFairness
from radixlm.scheduler.memory_guard import MemoryGuard, Retraction
from radixlm.scheduler.orders import AdmissionOrder
from radixlm.scheduler.progress import Counters, Progress, Taken, end_of, progress_of
from radixlm.scheduler.queue import WaitingQueue
from radixlm.scheduler.state import RequestState, scheduled_row
from radixlm.scheduler.waiting import WaitingRoom

Scheduling = dict[str, tuple[RequestState, Slots]]


class Scheduler:
    """Continuous batching over the radix cache: `schedule` says what a step computes, `update`
    takes what came of it. There are no phases, only requests with more or fewer tokens to compute.

    A step has one budget of `chunked_prefill_size` tokens. Running requests come first: one token
    for each that decodes, then what grammars have forced, the rest for chunks of prompts, in the
    order of their admission; what is left admits waiting ones (see WaitingRoom). Where tenants
    compete for what the decoding ones leave, the one that was served least is first, waiting or
    not. No more requests run than the budget has tokens, so every request that decodes moves in
    every step, and between two of its tokens no more than the budget is computed for others; a
    prompt moves in every step, too.

    When the pool is full, running requests are retracted (see Retraction): what they computed is
    committed first, so only what gets evicted meanwhile is computed again.

    Used by one thread; `abort` and `add` come between steps.
    """

    def __init__(
        self,
        cache: RadixCache,
        order: AdmissionOrder,
        *,
        chunked_prefill_size: int,
        max_running_requests: int,
        schedule_conservativeness: float = 1.0,
        max_wait_admissions: int = 1_000,
        preemption_threshold: int = 10,
        sink: EventSink = ignore,
        clock: Clock | None = None,
    ) -> None:
        self._cache = cache
        self._budget = chunked_prefill_size
        self._preemption_gap = preemption_threshold if order.by_priority else None
        self._guard = MemoryGuard(cache, schedule_conservativeness)
        self._retraction = Retraction(by_priority=order.by_priority)
        self._fairness = TokenFairness()
        self._turns = DecodeTurns(self._fairness, chunked_prefill_size)
        self._waiting = WaitingRoom(
            cache, order, WaitingQueue(order, self._fairness, max_wait_admissions)
        )
        self._running: dict[str, RequestState] = {}
        self._free_rows = list(range(min(max_running_requests, chunked_prefill_size)))[::-1]
        self._arrivals = 0
        self._sink = sink
        self._clock = clock or WallClock()
        self.counters = Counters()

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> Collection[RequestState]:
        """Those that run, in order of their admission; live, not a copy."""
        return self._running.values()

    @property
    def has_work(self) -> bool:
        return bool(len(self._waiting) or self._running)

    def add(self, request: GenerateRequest, *, waited: float = 0.0) -> None:
        """Queue a request, which came `waited` seconds ago. Raises InvalidRequestError for an id
        that is in use, or a size that can never fit.
        """
        name = request.request_id
        if self._waiting.get(name) is not None or name in self._running:
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
        self._fairness.enter(request.tenant)
        self._waiting.add(RequestState(request, self._arrivals, self._clock.now() - waited))
        self._sink(Arrived(name, request.key.size, request.namespace))

    def abort(self, request_id: str) -> Progress | None:
        """End a request, wherever it is; None when there is none of that id."""
        state = self._running.get(request_id) or self._waiting.get(request_id)
        if state is None:
            return None
        self.counters.aborted += 1
        self._finish(state, FinishReason.ABORT)
        return progress_of(state, (), FinishReason.ABORT)

    def schedule(self, held: Container[str] = ()) -> ScheduledBatch:
        """Choose what the next step computes; gives slots, admits, and retracts where needed.

        held: of those that decode, who is left out of this step.
        """
        parts: Scheduling = {}
        self._guard.next_step()
        self._turns.next_step()
        retractions = self.counters.retractions
        budget = self._decode(parts, held)
        prompts = self._prompts() if len(self._fairness) > 1 else []
        if prompts and self.counters.retractions == retractions:
            budget = self._admit(parts, budget, before=prompts[0])
        budget = self._continue_prompts(parts, budget)
        if self.counters.retractions == retractions:
            self._admit(parts, budget)
        leases = {state.lease: name for name, (state, _) in parts.items() if state.lease}
        ordered = self._cache.depth_first(leases)
        return ScheduledBatch(tuple(scheduled_row(*parts[leases[lease]]) for lease in ordered))

    def update(
        self, batch: ScheduledBatch, result: StepResult, taken: Mapping[str, Taken]
    ) -> list[Progress]:
        """Take the results of a step. `taken`: what the sampled tokens have become, by request;
        those that are not in there are taken as they are.
        """
        news = []
        for index, row in enumerate(batch.rows):
            state = self._running[row.request.request_id]
            state.computed = row.stop
            self.counters.computed_tokens += row.n_new
            if index in result.failed:
                news.append(self._fail(state, result.failed[index]))
                continue
            if index in result.prompt_logprobs:
                first = max(row.start + 1, row.request.params.first_prompt_logprob)
                given = state.next_prompt_logprob - first
                state.prompt_logprobs.extend(result.prompt_logprobs[index][given:])
            if row.start < state.prefill_end:
                self._commit(state)
            token = result.tokens[index]
            if token is not None:
                whole = taken.get(row.request.request_id) or Taken((token,))
                news.append(self._take(state, whole, result.logprobs.get(index)))
        return news

    def _decode(self, parts: Scheduling, held: Container[str]) -> int:
        """Give those that decode their tokens, and what grammars forced; return what is left."""
        running = self._running.items()
        decoding = [state for name, state in running if state.decodes and name not in held]
        if len(self._fairness) > 1 and (prompt := self._first_prompt()) is not None:
            decoding = self._turns.beside(prompt, decoding)
        budget = self._turns.left_of_budget(decoding)
        for state in decoding:
            given = self._continue(state, min(state.pending, 1 + budget), parts)
            budget -= max(given - 1, 0)
        return budget

    def _first_prompt(self) -> RequestState | None:
        """Whose prompt is the first of this step, running or to be admitted; None for nobody's."""
        first = next(iter(self._prompts()), None)
        found = self._waiting.next() if len(self._waiting) and self._free_rows else None
        if found is None or (first is not None and self._served(found[0]) >= self._served(first)):
            return first
        self._guard.begin(self._running.values())
        return found[0] if self._guard.admits(*found) else first

    def _continue_prompts(self, parts: Scheduling, budget: int) -> int:
        """Give running prompts their chunks, in their turns; return what is left."""
        for state in self._prompts():
            if budget < 1:
                break
            if state.request.request_id not in parts:
                budget -= self._continue(state, min(state.pending, budget), parts)
        return budget

    def _prompts(self) -> list[RequestState]:
        """Running requests that do not decode yet, those of the tenant that was served least
        first, of equals the first admitted.
        """
        prompts = [state for state in self._running.values() if not state.decodes]
        return sorted(prompts, key=self._served)

    def _served(self, state: RequestState) -> int:
        return self._fairness.served(state.request.tenant)

    def _continue(self, state: RequestState, n_new: int, parts: Scheduling) -> int:
        """Give a running request `n_new` tokens; how many it got: none if it had to give way."""
        slots = self._extend(state, n_new, parts)
        if slots is None:
            return 0
        self._give(state, slots, parts)
        return n_new

    def _give(self, state: RequestState, slots: Slots, parts: Scheduling) -> None:
        """Make `slots` the request's part of the step."""
        parts[state.request.request_id] = (state, slots)
        self._turns.moves(state)
        self._fairness.charge(state.request.tenant, slots.size)

    def _extend(self, state: RequestState, n_new: int, parts: Scheduling) -> Slots | None:
        """Slots for a running request, at others' expense; None if it had to give way itself."""
        while state.lease is not None:
            slots = state.lease.extend(n_new)
            if slots is not None:
                return slots
            victim = self._retraction.pick(self._running.values())
            if victim is None:
                raise CacheError(f"request {state.request.request_id} does not fit, though alone")
            self._guard.learn_from_retraction(self._running.values())
            self._retract(victim, parts)
        return None

    def _retract(self, state: RequestState, parts: Scheduling) -> None:
        self._commit(state)
        request = state.request
        self._sink(Retracted(request.request_id, state.computed, request.namespace))
        self._leave(state)
        parts.pop(request.request_id, None)
        state.computed = 0
        state.returned = True
        self.counters.retractions += 1
        self._waiting.add(state)

    def _admit(self, parts: Scheduling, budget: int, *, before: RequestState | None = None) -> int:
        """Admit who waits, as far as the budget goes; return what is left of it.

        before: only those whose tenant was served less than this one's.
        """
        if not len(self._waiting) or budget < 1:
            return budget
        if not self._free_rows and self._preemption_gap is None:
            return budget
        self._guard.begin(self._running.values())
        while budget > 0 and (found := self._waiting.next()) is not None:
            state, match = found
            if before is not None and self._served(state) >= self._served(before):
                break
            if not self._fits(state, match) and not self._preempt_for(state, parts):
                break
            slots = self._start(state, budget)
            if slots is None:
                break
            self._give(state, slots, parts)
            self._fairness.admit(state.request.tenant)
            budget -= slots.size
            self._guard.reserve(state)
        return budget

    def _fits(self, state: RequestState, match: Match) -> bool:
        return bool(self._free_rows) and self._guard.admits(state, match)

    def _preempt_for(self, state: RequestState, parts: Scheduling) -> bool:
        """Retract running requests of far lower priority until `state` fits, if that is enough."""
        if self._preemption_gap is None:
            return False
        priority = state.request.priority - self._preemption_gap
        lower = [s for s in self._running.values() if s.request.priority <= priority]
        match = self._waiting.match(state)
        if not lower or self._guard.needed(state, match) > self._guard.left_without(lower, match):
            return False
        while not self._fits(state, self._waiting.match(state)):
            victim = self._retraction.pick_below(self._running.values(), priority)
            if victim is None:
                return False
            self.counters.preemptions += 1
            self._retract(victim, parts)
            self._guard.begin(self._running.values())
        return True

    def _start(self, state: RequestState, budget: int) -> Slots | None:
        """Take a lease and the first slots; None, and nothing has changed, if there are none."""
        lease = self._cache.acquire(
            state.tokens,
            state.request.namespace,
            n_tokens=state.n_tokens,
            max_match=state.max_match,
            priority=state.request.priority,
        )
        slots = lease.extend(min(state.n_tokens - lease.cached, budget))
        if slots is None:
            lease.release()
            return None
        again = state.cached_tokens is not None
        if again:
            self.counters.readmitted_tokens += state.n_tokens
            self.counters.readmitted_cached += lease.cached
        else:
            state.cached_tokens, state.miss = lease.cached, lease.why()
            state.queued = self._clock.now() - state.arrived
            self.counters.admit(state.prompt_length, lease.cached, lease.expected)
        state.lease = lease
        state.computed = lease.cached
        state.prefill_end = state.n_tokens
        state.row = self._free_rows.pop()
        state.remaps = [Remap(0, lease.slots[: lease.cached].copy())] if lease.cached else []
        name = state.request.request_id
        self._waiting.start(state, lease.cached)
        self._running[name] = state
        namespace = state.request.namespace
        self._sink(Scheduled(name, lease.cached, state.prompt_length, again, namespace))
        return slots

    def _take(self, state: RequestState, taken: Taken, logprob: TokenLogprob | None) -> Progress:
        """Append the new tokens and end the request where it ends."""
        first = state.output_tokens == 0
        state.extend(taken.tokens)
        self.counters.output_tokens += len(taken.tokens)
        reason, matched = end_of(state, taken)
        if reason is not None:
            self.counters.finished += 1
            self._guard.learn_from_end(state)
            self._finish(state, reason)
        return replace(
            progress_of(state, taken.tokens, reason),
            matched_stop=matched,
            logprobs=() if logprob is None else (logprob,),
            prompt_logprobs=tuple(state.prompt_logprobs) if first else (),
            miss=state.miss if first else None,
            queued=state.queued if first else None,
            error=taken.error,
        )

    def _fail(self, state: RequestState, failure: Failure) -> Progress:
        """End a request whose numbers are none: what they spoiled is nobody's to find."""
        state.computed = failure.sound
        self.counters.finished += 1
        self._finish(state, FinishReason.ERROR)
        self._cache.discard(state.known, state.request.namespace, failure.sound)
        return replace(progress_of(state, (), FinishReason.ERROR), error=failure.reason)

    def _finish(self, state: RequestState, reason: FinishReason) -> None:
        name = state.request.request_id
        if state.lease is not None:
            self._commit(state)
            self._leave(state)
        else:
            self._waiting.drop(state)
        self._fairness.leave(state.request.tenant)
        self._sink(Finished(name, reason.value, state.output_tokens, state.request.namespace))

    def _leave(self, state: RequestState) -> None:
        """Give back the lease and the row of a running request."""
        if state.lease is None:
            raise CacheError(f"request {state.request.request_id} does not run")
        self._waiting.stop_computing(state, state.lease.committed)
        state.lease.release()
        state.lease = None
        state.remaps = []
        self._free_rows.append(state.row)
        del self._running[state.request.request_id]

    def _commit(self, state: RequestState) -> None:
        if state.lease is None:
            return
        before = state.lease.committed
        remap = state.lease.commit(state.computed)
        if remap is not None:
            state.remaps.append(remap)
        if state.lease.committed > before:
            self._waiting.committed(state, before, state.lease.committed)
        if state.computed >= state.prefill_end:
            self._waiting.stop_computing(state, state.lease.committed)
