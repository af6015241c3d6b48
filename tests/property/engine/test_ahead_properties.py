"""Steps launched while others are under way, over two memories: the tokens of steps that wait."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.cache.components.window_slots import WindowSize
from tests.engines import Bench, make_request
from tests.invariants import check


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    page_size=st.sampled_from([1, 1, 4]),
    budget=st.integers(2, 20),
    window=st.sampled_from([1, 3, 7]),
    spare=st.sampled_from([0, 2, 30]),
    reserve=st.sampled_from([0, 4]),
)
def test_right_tokens_in_windows(
    seed: int, page_size: int, budget: int, window: int, spare: int, reserve: int
) -> None:
    """Requests come, stop and are aborted while steps are under way; window slots are short."""
    random, size = Random(seed), WindowSize(window, 0, budget, 1)
    size = size._replace(capacity=size.least(page_size) + spare * page_size)
    bench = Bench(
        max(48, size.least(page_size) + 2 * page_size),
        page_size=page_size,
        budget=budget,
        vocab_size=3,
        windows=size,
        reserve=reserve,
        overlap=True,
    )
    bench.flat = lambda row: row.stop % 7 == 0
    tokens: dict[str, list[int]] = {}
    requests = {}
    for index in range(random.randint(1, 8)):
        name, prompt = f"r{index}", [random.randint(0, 1)] * random.randint(1, 13)
        stops = frozenset({2}) if index % 3 == 0 else frozenset[int]()
        requests[name] = make_request(name, prompt, random.randint(1, 12), stop_token_ids=stops)
        bench.core.add(requests[name])
        tokens[name] = []
        for _ in range(random.choice([0, 1, 3])):
            for output in bench.step():
                tokens[output.request_id] += output.token_ids
        if random.random() < 0.2 and bench.core.abort(name):
            del requests[name]
    for name, output in bench.run(2_000).items():
        tokens[name] += output.token_ids
    for name, request in requests.items():
        assert tokens[name] == bench.expected(request)
    assert bench.core.stats().leaks == 0
    check(bench.scheduler)
