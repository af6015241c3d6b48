"""Whatever is in host memory or on disk, comes late or not at all: the right tokens, no slot lost,
an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.cache.components.window_slots import WindowSize
from radixlm.core.config import DiskWritePolicy
from radixlm.core.request import Namespace
from radixlm.engine.tiering import SECONDS_TO_ANSWER
from tests.disk_bench import BLOCK, DiskBench
from tests.engines import ORDERS, make_request
from tests.invariants import check

CAPACITY = 48
PROMPTS = st.builds(
    lambda first, second, cut: ([first] * 13 + [second] * 13)[:cut],
    st.integers(0, 1),
    st.integers(0, 1),
    st.integers(1, 26),
)


@dataclass(frozen=True)
class Plan:
    """A request, or something that happens to cache and disk, before a step.

    what: of the second kind; which: the block that is lost. waits: steps until then.
    """

    prompt: list[int]
    max_tokens: int
    salt: str
    priority: int
    aborted: int | None
    what: str
    which: int
    waits: int


PLANS = st.builds(
    Plan,
    prompt=PROMPTS,
    max_tokens=st.integers(1, 12),
    salt=st.sampled_from(["", "", "", "x"]),
    priority=st.sampled_from([0, 0, 2]),
    aborted=st.one_of(st.none(), st.none(), st.integers(0, 6)),
    what=st.sampled_from(
        ["", "flush", "flush", "flush", "lose", "stall", "hang", "go on", "break", "time"]
    ),
    which=st.integers(0, 50),
    waits=st.sampled_from([0, 1, 3, 30, 30]),
)


RUNS = given(
    plans=st.lists(PLANS, min_size=1, max_size=14),
    page_size=st.sampled_from([1, 1, 4]),
    policy=st.sampled_from(ORDERS),
    write=st.sampled_from([*get_args(DiskWritePolicy), "all"]),
    budget=st.integers(1, 20),
    conservativeness=st.sampled_from([0.0, 1.0]),
    reserve=st.sampled_from([0, 4]),
    room=st.sampled_from([3 * BLOCK, 8 * BLOCK, 4_096]),
    host=st.sampled_from([0, 3 * BLOCK, 8 * BLOCK]),
    moves=st.integers(1, 4),
    window=st.sampled_from([0, 1, 3, 7]),
)


def right_tokens_and_no_slot_lost(
    plans: list[Plan], moves: int, window: int, **options: Any
) -> None:
    capacity = CAPACITY
    if window:
        page, step = options["page_size"], options["budget"]
        size = WindowSize(window, 0, step, BLOCK)
        options["windows"] = size._replace(capacity=size.least(page))
        capacity = max(CAPACITY, size.least(page) + 2 * page)
    bench = DiskBench(capacity, moves=moves, vocab_size=3, **options)
    requests = {}
    tokens: dict[str, list[int]] = {}

    def step() -> None:
        bench.time.advance(0.01)
        for output in bench.step():
            tokens[output.request_id] += output.token_ids

    for index, plan in enumerate(plans):
        happen(bench, plan)
        name = f"r{index}"
        requests[name] = make_request(
            name,
            plan.prompt,
            plan.max_tokens,
            namespace=Namespace(cache_salt=plan.salt),
            priority=plan.priority,
        )
        tokens[name] = []
        bench.core.add(requests[name])
        for number in range(plan.waits):
            if plan.aborted == number and bench.core.abort(name):
                tokens.pop(name)
                plan = Plan([], 0, "", 0, None, "", 0, 0)
            step()
    left = 3_000
    while bench.core.has_work:
        left -= 1
        assert left, "no end: a livelock"
        if left == 1_000:
            bench.moves = 1  # what is locked for the disk is given back by it alone
        step()
    bench.settle()
    for name, given_tokens in tokens.items():
        assert given_tokens == bench.expected(requests[name])
    usage = bench.cache.usage()
    assert (usage.private, usage.locked) == (0, 0)
    if bench.cache.windows is not None:
        assert bench.cache.windows.usage()[1:3] == (0, 0)
    for tier in bench.cache.tiers:
        stored = tier.usage()
        assert (stored.private, stored.locked) == (0, 0)
    check(bench.scheduler)


test_right_tokens_and_no_slot_lost = settings(max_examples=20, deadline=None)(
    RUNS(right_tokens_and_no_slot_lost)
)
test_right_tokens_and_no_slot_lost_at_length = pytest.mark.slow(
    settings(max_examples=120, deadline=None)(RUNS(right_tokens_and_no_slot_lost))
)


def happen(bench: DiskBench, plan: Plan) -> None:
    match plan.what:
        case "flush":
            bench.core.flush()
        case "lose" if bench.disk.blocks or bench.host.blocks:
            place = bench.disk if bench.disk.blocks and plan.which % 2 == 0 else bench.host
            names = list(place.blocks)
            if names:
                del place.blocks[names[plan.which // 2 % len(names)]]
        case "stall":
            bench.moves = 0
        case "hang":
            bench.moves = 0
            for _ in range(3):
                bench.tiering.turn()
                bench.time.advance(SECONDS_TO_ANSWER)
        case "go on":
            bench.moves = 2
        case "break":
            bench.disk.broken = "" if bench.disk.broken else "no room left"
        case "time":
            bench.time.advance(100)
