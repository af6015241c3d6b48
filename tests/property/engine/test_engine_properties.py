"""Whatever arrives, is aborted or runs out of memory: the right tokens, no slot lost, an end."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.core.request import FinishReason, Namespace, Request
from tests.engines import Bench, make_request

CAPACITY = 48


@dataclass(frozen=True)
class Plan:
    """One request of a run: what it is, when it arrives, when (if ever) it is aborted."""

    prompt: list[int]
    max_tokens: int
    salt: str
    arrives: int
    aborted: int | None


plans = st.builds(
    Plan,
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=14),
    max_tokens=st.integers(1, 16),
    salt=st.sampled_from(["", "", "", "x"]),
    arrives=st.integers(0, 6),
    aborted=st.one_of(st.none(), st.none(), st.integers(0, 12)),
)


@settings(max_examples=150, deadline=None)
@given(
    plans=st.lists(plans, min_size=1, max_size=10),
    page_size=st.sampled_from([1, 4, 16]),
    policy=st.sampled_from(["fcfs", "lpm"]),
    budget=st.integers(1, 20),
    conservativeness=st.sampled_from([0.0, 1.0]),
    enabled=st.booleans(),
)
def test_right_tokens_and_no_slot_lost(
    plans: list[Plan],
    page_size: int,
    policy: str,
    budget: int,
    conservativeness: float,
    enabled: bool,
) -> None:
    bench = Bench(
        CAPACITY,
        page_size=page_size,
        policy=policy,  # type: ignore[arg-type]
        budget=budget,
        conservativeness=conservativeness,
        enabled=enabled,
        vocab_size=3,
    )
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
                bench.cache.check()
        for output in bench.step():
            tokens[output.request_id] += output.token_ids
            if output.finished:
                ends[output.request_id] = output.finish_reason
        step += 1
        assert step < 2_000, "no end: a livelock"

    usage = bench.cache.usage()
    assert usage.private == usage.locked == 0
    assert usage.free + usage.evictable == CAPACITY
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


def _request(index: int, plan: Plan) -> Request:
    return make_request(
        f"r{index}",
        plan.prompt,
        plan.max_tokens,
        stop_token_ids=frozenset({2}) if index % 3 == 0 else frozenset(),
        namespace=Namespace(cache_salt=plan.salt),
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
    policy=st.sampled_from(["fcfs", "lpm"]),
)
def test_a_shared_prefix_is_computed_once(
    prompts: list[list[int]], budget: int, page_size: int, policy: str
) -> None:
    """With room for everything, however the prompts arrive and are chunked: each distinct prefix
    is computed once, and of each request what can not be shared (last token, torn page).
    """
    bench = Bench(4_096, page_size=page_size, budget=budget, max_running=12, policy=policy)  # type: ignore[arg-type]
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
