"""Must show 5: prompts that arrive together and share everything are computed once."""

from __future__ import annotations

import pytest

from radixlm.core.config import SchedulePolicy
from tests.engines import ORDERS, Bench, make_request

N_REQUESTS = 32


def _prompt_tokens_computed(
    policy: SchedulePolicy, *, length: int, budget: int, page_size: int = 1
) -> int:
    bench = Bench(8_192, policy=policy, budget=budget, page_size=page_size, max_running=N_REQUESTS)
    requests = [make_request(f"r{n}", range(length), 4) for n in range(N_REQUESTS)]
    for request in requests:
        bench.core.add(request)
    outputs = bench.run()
    for request in requests:
        assert list(outputs[request.request_id].token_ids) == bench.expected(request)
    counters = bench.scheduler.counters
    decoded = counters.output_tokens - N_REQUESTS  # the first of each comes of its prompt
    return counters.computed_tokens - decoded


@pytest.mark.parametrize("policy", ORDERS)
def test_one_prompt_and_the_last_token_of_the_others(policy: SchedulePolicy) -> None:
    """Whatever the order, in one step or in chunks that do not divide the prompt."""
    length = 100
    best = length + N_REQUESTS - 1
    one_step, chunks = (
        _prompt_tokens_computed(policy, length=length, budget=budget) for budget in (512, 33)
    )
    print(f"{policy:24} {one_step:5} in chunks {chunks:5} bound {best:5}")
    assert one_step == chunks == best


@pytest.mark.parametrize("policy", ORDERS)
def test_with_pages_the_torn_page_of_each_is_its_own(policy: SchedulePolicy) -> None:
    computed = _prompt_tokens_computed(policy, length=70, budget=48, page_size=16)
    assert computed == 70 + (N_REQUESTS - 1) * 6
