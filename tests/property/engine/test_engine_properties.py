"""Whatever arrives, is aborted or runs out of memory: the right tokens, no slot lost, an end."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.core.config import SchedulePolicy
from radixlm.core.request import Breakpoint, FinishReason, GenerateRequest, Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from tests.engines import ORDERS, Bench, make_request
from tests.invariants import check

CAPACITY = 48
PIN_BUDGET = 16  # what is left has room for the largest request, in whole pages
LONGEST_PAUSE = 4


@dataclass(frozen=True)
class Plan:
    """One request of a run: what it is, when it arrives, when (if ever) it is aborted.

    scored: with log-probabilities of its prompt, so that it takes nothing from the cache.
    marks: after so many tokens of its prompt it has breakpoints.
    """

    prompt: list[int]
    max_tokens: int
    salt: str
    priority: int
    tenant: str
    scored: bool
    marks: set[int]
    arrives: int
    aborted: int | None


plans = st.builds(
    Plan,
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=14),
    max_tokens=st.integers(1, 16),
    salt=st.sampled_from(["", "", "", "x"]),
    priority=st.sampled_from([0, 0, 1, 2]),
    tenant=st.sampled_from(["", "", "b"]),
    scored=st.sampled_from([False, False, False, True]),
    marks=st.sets(st.integers(1, 14), max_size=3),
    arrives=st.integers(0, 6),
    aborted=st.one_of(st.none(), st.none(), st.integers(0, 12)),
)


RUNS = given(
    plans=st.lists(plans, min_size=1, max_size=10),
    page_size=st.sampled_from([1, 4, 16]),
    policy=st.sampled_from(ORDERS),
    budget=st.integers(1, 20),
    conservativeness=st.sampled_from([0.0, 1.0]),
    max_wait_admissions=st.sampled_from([1, 2, 1_000]),
    reserve=st.sampled_from([0, 4]),
    enabled=st.booleans(),
    overlap=st.booleans(),
)


def right_tokens_and_no_slot_lost(
    plans: list[Plan],
    page_size: int,
    policy: SchedulePolicy,
    budget: int,
    conservativeness: float,
    max_wait_admissions: int,
    reserve: int,
    enabled: bool,
    overlap: bool,
) -> None:
    bench = Bench(
        CAPACITY,
        overlap=overlap,
        page_size=page_size,
        policy=policy,
        budget=budget,
        conservativeness=conservativeness,
        max_wait_admissions=max_wait_admissions,
        reserve=reserve,
        enabled=enabled,
        vocab_size=3,
        pin_budget=PIN_BUDGET,
    )
    bench.flat = lambda row: row.stop % 5 == 0
    requests = [_request(index, plan) for index, plan in enumerate(plans)]
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    ends: dict[str, FinishReason | None] = {}
    step = 0
    while step < 8 or bench.core.has_work:
        for plan, request in zip(plans, requests, strict=True):
            if plan.arrives == step:
                bench.core.add(request)
            if plan.aborted == step:
                last = bench.core.abort(request.request_id)
                if last is not None:
                    ends[request.request_id] = last.finish_reason
                check(bench.cache)
        for output in _step_with_progress(bench, budget):
            tokens[output.request_id] += output.token_ids
            if output.finished:
                ends[output.request_id] = output.finish_reason
        if not any(plan.scored for plan in plans):
            _check_what_is_known_of_waiting(bench)
        step += 1
        assert step < 2_000, "no end: a livelock"

    usage = bench.cache.usage()
    assert usage.private == 0
    assert usage.locked == bench.cache.tree.pinned_size <= PIN_BUDGET
    assert usage.free + usage.evictable + usage.locked == CAPACITY
    assert not bench.core.outputs.to_pin
    check(bench.scheduler)
    if not enabled:
        assert usage.free == CAPACITY
    for request in requests:
        expected = bench.expected(request)
        given_tokens = tokens[request.request_id]
        end = ends[request.request_id]
        if end is FinishReason.ABORT:
            assert given_tokens == expected[: len(given_tokens)]
        else:
            assert given_tokens == expected
            stopped = expected[-1] in request.stop_token_ids
            assert end is (FinishReason.STOP if stopped else FinishReason.LENGTH)


test_right_tokens_and_no_slot_lost = settings(max_examples=60, deadline=None)(
    RUNS(right_tokens_and_no_slot_lost)
)
test_right_tokens_and_no_slot_lost_at_length = pytest.mark.slow(
    settings(max_examples=250, deadline=None)(RUNS(right_tokens_and_no_slot_lost))
)


def _step_with_progress(bench: Bench, budget: int) -> list[RequestOutput]:
    """While there is work, every step computes something, within its budget; who decodes gets its
    token in every step in which nobody gives way, and does not pause for long where tenants take
    turns; and the conservation law holds. All rows may have ended of a step that is launched ahead.
    """
    scheduler, busy = bench.scheduler, bench.core.has_work and not bench.launched
    tenants = len(scheduler.fairness)
    computed, retractions = scheduler.counters.computed_tokens, scheduler.counters.retractions
    decoding = [(s, s.n_tokens) for s in scheduler.running if s.pending == 1]
    outputs = bench.step()
    assert sum(bench.cache.usage()) == CAPACITY
    assert busy <= scheduler.counters.computed_tokens - computed <= budget
    if scheduler.counters.retractions == retractions:
        now = scheduler.turns.step
        moved = [state.n_tokens == before + 1 for state, before in decoding]
        assert all(moved) or tenants > 1
        assert all(now - state.moved <= LONGEST_PAUSE for state, _ in decoding)
    return outputs


def _check_what_is_known_of_waiting(bench: Bench) -> None:
    """What a request that waits (and does not follow) is ranked by never lies below what the cache
    holds of it; and whoever is followed runs. (A scored request computes what is being computed
    already: then those who follow the one are not told of the other.)
    """
    for state in bench.scheduler.waiting:
        if state.follows is None:
            namespace, limit = state.request.namespace, state.max_match
            match = bench.cache.match(state.known, namespace, max_match=limit)
            assert state.cached >= match.length, state.request.request_id
        else:
            assert state.follows.lease is not None, state.request.request_id
            assert state.follows.computing, state.request.request_id


def _request(index: int, plan: Plan) -> GenerateRequest:
    scored = SamplingParams(max_tokens=plan.max_tokens, temperature=0, prompt_logprobs=0)
    return make_request(
        f"r{index}",
        plan.prompt,
        plan.max_tokens,
        params=scored if plan.scored else None,
        stop_token_ids=frozenset({2}) if index % 3 == 0 else frozenset(),
        namespace=Namespace(cache_salt=plan.salt),
        priority=plan.priority,
        tenant=plan.tenant,
        breakpoints=tuple(Breakpoint(end, 60.0) for end in plan.marks if end <= len(plan.prompt)),
    )


@st.composite
def equally_long_prompts(draw: st.DrawFn) -> list[list[int]]:
    """Of equal length, so that no order of computing them is better than another."""
    length = draw(st.integers(1, 30))
    prompt = st.lists(st.integers(0, 1), min_size=length, max_size=length)
    return draw(st.lists(prompt, min_size=1, max_size=12))


@settings(max_examples=80, deadline=None)
@given(
    prompts=equally_long_prompts(),
    budget=st.integers(4, 40),
    page_size=st.sampled_from([1, 4]),
    policy=st.sampled_from(ORDERS),
)
def test_a_shared_prefix_is_computed_once(
    prompts: list[list[int]], budget: int, page_size: int, policy: SchedulePolicy
) -> None:
    """With room for everything, however the prompts arrive and are chunked: each distinct prefix
    is computed once, and of each request what can not be shared (last token, torn page).
    """
    bench = Bench(4_096, page_size=page_size, budget=budget, max_running=12, policy=policy)
    for index, prompt in enumerate(prompts):
        bench.core.add(make_request(f"r{index}", prompt, 1))
    bench.run()
    assert bench.scheduler.counters.computed_tokens == _fewest(prompts, page_size)


def _fewest(prompts: list[list[int]], page_size: int) -> int:
    """Replay: each request finds what all earlier ones left."""
    seen: set[tuple[int, ...]] = set()
    total = 0
    for prompt in prompts:
        usable = (len(prompt) - 1) - (len(prompt) - 1) % page_size
        hit = 0
        while hit + page_size <= usable and tuple(prompt[: hit + page_size]) in seen:
            hit += page_size
        total += len(prompt) - hit
        whole = len(prompt) - len(prompt) % page_size
        seen.update(tuple(prompt[:end]) for end in range(page_size, whole + 1, page_size))
    return total
