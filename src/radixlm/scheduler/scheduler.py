"""Who computes how many tokens in the next step, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping

from radixlm.cache import RadixCache
from radixlm.core.batch import Remap, ScheduledBatch, ScheduledRow, StepResult
from radixlm.core.errors import CacheError, InvalidRequestError
from radixlm.core.events import Arrived, EventSink, Finished, Retracted, Scheduled, ignore
from radixlm.core.keys import Slots
from radixlm.core.request import FinishReason, Request, TokenLogprob
from radixlm.scheduler.memory import MemoryGuard
from radixlm.scheduler.orders import AdmissionOrder
from radixlm.scheduler.progress import Counters, Progress
from radixlm.scheduler.sharing import InFlight
from radixlm.scheduler.state import RequestState

Scheduling = dict[str, tuple[RequestState, Slots]]


class Scheduler:
    """Continuous batching over the radix cache: `schedule` says what a step computes, `update`
    takes what came of it. There are no phases, only requests with more or fewer tokens to compute.

    A step has one budget of `chunked_prefill_size` tokens. Running requests come first, oldest
    first: one token for each that decodes, the rest for chunks of prompts; what is left admits
    waiting ones, in the policy's order. No more requests run than the budget has tokens, so every
    request that decodes moves in every step; a prompt may wait for older prompts' chunks.

    When the pool is full, the youngest running request is retracted: what it computed is committed
    first, so only what gets evicted meanwhile is computed again. The oldest one always goes on,
    and alone it always fits (it was checked when submitted), so there is no livelock.

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
        sink: EventSink = ignore,
    ) -> None:
        self._cache = cache
        self._order = order
        self._budget = chunked_prefill_size
        self._guard = MemoryGuard(cache, schedule_conservativeness)
        self._sink = sink
        self._waiting: dict[str, RequestState] = {}
        self._running: dict[str, RequestState] = {}
        self._free_rows = list(range(min(max_running_requests, chunked_prefill_size)))[::-1]
        self._arrivals = 0
        self.counters = Counters()

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequestError for an id that is in use."""
        if request.request_id in self._waiting or request.request_id in self._running:
            raise InvalidRequestError(
                f"a request with the id {request.request_id!r} is under way", param="request_id"
            )
        if self._cache.round_up(request.key.size + request.max_tokens) > self._cache.capacity:
            raise InvalidRequestError(
                f"{request.key.size} + {request.max_tokens} tokens can never fit the pool of "
                f"{self._cache.capacity}",
                param="prompt",
            )
        self._arrivals += 1
        self._waiting[request.request_id] = RequestState(request, self._arrivals)
        self._sink(Arrived(request.request_id, request.key.size))

    def abort(self, request_id: str) -> Progress | None:
        """End a request, wherever it is; None when there is none of that id."""
        state = self._running.get(request_id) or self._waiting.get(request_id)
        if state is None:
            return None
        self.counters.aborted += 1
        self._finish(state, FinishReason.ABORT)
        return _progress(state, None, FinishReason.ABORT)

    def schedule(self) -> ScheduledBatch:
        """Choose what the next step computes; gives slots, admits, and retracts where needed."""
        in_flight = InFlight(self._cache.page_size)
        retractions = self.counters.retractions
        parts, budget = self._continue_running(in_flight)
        if self.counters.retractions == retractions:
            self._admit(parts, budget, in_flight)
        leases = {state.lease: name for name, (state, _) in parts.items() if state.lease}
        ordered = self._cache.depth_first(leases)
        return ScheduledBatch(tuple(_row(*parts[leases[lease]]) for lease in ordered))

    def update(
        self, batch: ScheduledBatch, result: StepResult, stops: Mapping[str, str]
    ) -> list[Progress]:
        """Take the results of a step. `stops`: the stop string that a request's text now holds."""
        news = []
        for index, row in enumerate(batch.rows):
            state = self._running[row.request.request_id]
            state.computed = row.stop
            self.counters.computed_tokens += row.n_new
            if index in result.prompt_logprobs:
                given = len(state.prompt_logprobs) - row.start
                state.prompt_logprobs.extend(result.prompt_logprobs[index][max(given, 0) :])
            if row.start < state.prefill_end:
                self._commit(state)
            token = result.tokens[index]
            if token is not None:
                stop = stops.get(row.request.request_id)
                news.append(self._take(state, token, stop, result.logprobs.get(index)))
        return news

    def _continue_running(self, in_flight: InFlight) -> tuple[Scheduling, int]:
        """Give every running request its part, oldest first; return the budget that is left."""
        parts: Scheduling = {}
        decoding = sum(1 for state in self._running.values() if state.pending == 1)
        budget = self._budget - decoding
        for name, state in list(self._running.items()):
            if state.lease is None:
                continue  # retracted for an older one just now
            n_new = 1 if state.pending == 1 else min(state.pending, budget)
            if n_new < 1:
                continue
            slots = self._extend(state, n_new)
            if slots is None:
                continue
            parts[name] = (state, slots)
            if state.pending > 1:
                budget -= n_new
            if state.computed < state.prefill_end:
                in_flight.add(state)
        return parts, budget

    def _extend(self, state: RequestState, n_new: int) -> Slots | None:
        """Slots for a running request, at the expense of the youngest; None if that is itself."""
        while state.lease is not None:
            slots = state.lease.extend(n_new)
            if slots is not None:
                return slots
            self._retract(next(reversed(self._running.values())))
        return None

    def _retract(self, state: RequestState) -> None:
        self._commit(state)
        self._sink(Retracted(state.request.request_id, state.computed))
        self._leave(state)
        state.computed = 0
        self.counters.retractions += 1
        self._waiting[state.request.request_id] = state

    def _admit(self, parts: Scheduling, budget: int, in_flight: InFlight) -> None:
        if not self._waiting or budget < 1 or not self._free_rows:
            return
        self._guard.begin(self._running.values())
        for state in self._order.sort(self._waiting.values(), self._cached_length):
            if budget < 1 or not self._free_rows:
                return
            match = self._cache.match(
                state.known, state.request.namespace, max_match=state.max_match
            )
            if self._cache.enabled and in_flight.is_worth_waiting(state, match.length):
                continue
            if not self._guard.admits(state, match):
                return
            slots = self._start(state, budget)
            if slots is None:
                return
            parts[state.request.request_id] = (state, slots)
            budget -= slots.size
            self._guard.reserve(state)
            in_flight.add(state)

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
            state.cached_tokens = lease.cached
            self.counters.prompt_tokens += state.prompt_length
            self.counters.cached_tokens += lease.cached
        state.lease = lease
        state.computed = lease.cached
        state.prefill_end = state.n_tokens
        state.row = self._free_rows.pop()
        state.remaps = [Remap(0, lease.slots[: lease.cached].copy())] if lease.cached else []
        name = state.request.request_id
        self._running[name] = self._waiting.pop(name)
        self._sink(Scheduled(name, lease.cached, state.prompt_length, again))
        return slots

    def _take(
        self, state: RequestState, token: int, stop: str | None, logprob: TokenLogprob | None
    ) -> Progress:
        """Append a sampled token and end the request where it ends."""
        first = state.output_tokens == 0
        state.append(token)
        self.counters.output_tokens += 1
        reason: FinishReason | None = None
        matched: str | int | None = None
        if token in state.request.stop_token_ids:
            reason, matched = FinishReason.STOP, token
        elif stop is not None:
            reason, matched = FinishReason.STOP, stop
        elif state.room == 0:
            reason = FinishReason.LENGTH
        if reason is not None:
            self.counters.finished += 1
            self._finish(state, reason)
        prompt_logprobs = tuple(state.prompt_logprobs) if first else ()
        return _progress(state, token, reason, matched, logprob, prompt_logprobs)

    def _finish(self, state: RequestState, reason: FinishReason) -> None:
        name = state.request.request_id
        if state.lease is not None:
            self._commit(state)
            self._leave(state)
        else:
            del self._waiting[name]
        self._sink(Finished(name, reason.value, state.output_tokens))

    def _leave(self, state: RequestState) -> None:
        """Give back the lease and the row of a running request."""
        if state.lease is None:
            raise CacheError(f"request {state.request.request_id} does not run")
        state.lease.release()
        state.lease = None
        state.remaps = []
        self._free_rows.append(state.row)
        del self._running[state.request.request_id]

    def _commit(self, state: RequestState) -> None:
        if state.lease is None:
            return
        remap = state.lease.commit(state.computed)
        if remap is not None:
            state.remaps.append(remap)

    def _cached_length(self, state: RequestState) -> int:
        namespace = state.request.namespace
        return self._cache.match(state.known, namespace, max_match=state.max_match).length


def _row(state: RequestState, slots: Slots) -> ScheduledRow:
    if state.lease is None:
        raise CacheError(f"request {state.request.request_id} was scheduled without a lease")
    stop = state.computed + slots.size
    remaps, state.remaps = tuple(state.remaps), []
    return ScheduledRow(
        request=state.request,
        row=state.row,
        tokens=state.tokens[:stop],
        start=state.computed,
        prompt_length=state.prompt_length,
        new_slots=slots,
        remaps=remaps,
        segments=state.lease.segments(),
        samples=stop == state.n_tokens,
    )


def _progress(
    state: RequestState,
    token: int | None,
    reason: FinishReason | None,
    matched: str | int | None = None,
    logprob: TokenLogprob | None = None,
    prompt_logprobs: tuple[TokenLogprob, ...] = (),
) -> Progress:
    return Progress(
        request_id=state.request.request_id,
        token=token,
        prompt_tokens=state.prompt_length,
        cached_tokens=state.cached_tokens or 0,
        finish_reason=reason,
        matched_stop=matched,
        logprob=logprob,
        prompt_logprobs=prompt_logprobs,
    )
