"""Layers with a window have slots of their own: what is given up, found again, and never missing.

The runner checks in every step that each new token's whole window is where it is said to be.
"""

from __future__ import annotations

import random

import pytest

from radixlm.cache.components.window_slots import WindowSize
from radixlm.core.request import GenerateRequest, Namespace
from tests.engines import Bench, make_request

WINDOW = 96


def windows(capacity: int, *, window: int = WINDOW, step: int = 16) -> WindowSize:
    size = WindowSize(window, capacity, step)
    assert size.least(1) <= capacity
    return size


def tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(200), k=count)


def run(bench: Bench, requests: list[GenerateRequest]) -> int:
    """Run them; returns how many of their tokens were cached."""
    for request in requests:
        bench.core.add(request)
    outputs = bench.run()
    for request in requests:
        assert list(outputs[request.request_id].token_ids) == bench.expected(request)
    assert bench.core.stats().leaks == 0
    return sum(output.cached_tokens for output in outputs.values())


def in_use(bench: Bench) -> int:
    stats = bench.core.stats()
    return stats.swa_private + stats.swa_locked


class TestMemory:
    def test_prompts_of_five_windows_hold_one_each(self) -> None:
        bench = Bench(4_000, max_running=4, windows=windows(2_000))
        for n in range(4):
            bench.core.add(make_request(f"r{n}", tokens(5 * WINDOW, n), max_tokens=WINDOW))
        most = 0
        while bench.core.has_work:
            bench.step()
            most = max(most, in_use(bench))
        assert 4 * WINDOW <= most <= 1.1 * 4 * WINDOW
        assert in_use(bench) == 0

    def test_room_for_windows_and_ends_is_enough_for_the_next_turns(self) -> None:
        """4 prompts of five windows one after the other, each asked again with more."""
        ends = int(1.1 * WINDOW * (1 + 4))
        bench = Bench(4_000, max_running=1, windows=windows(ends))
        prompts = [tokens(5 * WINDOW, n) for n in range(4)]
        run(bench, [make_request(f"a{n}", each, 1) for n, each in enumerate(prompts)])
        assert bench.core.stats().swa_evicted_tokens > 4 * 3 * WINDOW
        again = [make_request(f"b{n}", [*each, 7], 1) for n, each in enumerate(prompts)]
        assert run(bench, again) == 4 * 5 * WINDOW

    def test_an_answer_longer_than_its_window_frees_what_is_out_of_sight(self) -> None:
        bench = Bench(1_000, max_running=1, windows=windows(200))
        bench.core.add(make_request("r", tokens(10, 0), 400))
        most = 0
        while bench.core.has_work:
            bench.step()
            most = max(most, in_use(bench))
        assert most <= 1.1 * WINDOW
        assert bench.core.stats().retractions == 0


class TestReuse:
    def test_a_quarter_of_the_pool_hits_nearly_as_often(self) -> None:
        """vllm #48435 falls to 0. 12 chats that share a system prompt, 4 turns each in turn; of
        other layers they fill 3,047 slots.
        """

        def hits(size: WindowSize | None) -> int:
            bench, system, cached = Bench(12_000, budget=64, windows=size), tokens(300, 99), 0
            chats = [[*system, *tokens(60, chat)] for chat in range(12)]
            for turn in range(4):
                for number, chat in enumerate(chats):
                    name = f"{turn}-{number}"
                    cached += run(bench, [make_request(name, chat, 20)])
                    answer = bench.expected(make_request(name, chat, 20))
                    chat += [*answer, *tokens(30, 100 * turn + number)]
            assert bench.core.stats().evicted_tokens == 0
            return cached

        everything = hits(None)
        assert everything > 0
        assert hits(windows(760, window=48, step=64)) >= 0.9 * everything

    def test_a_prefix_that_was_inside_is_computed_again_once(self) -> None:
        """Where prompts part is an end as well, once that is known."""
        bench = Bench(8_000, max_running=1, windows=windows(WINDOW * 4))
        shared = tokens(4 * WINDOW, 0)
        cached = [
            run(bench, [make_request(f"r{n}", [*shared, n, *tokens(4 * WINDOW, n)], 1)])
            for n in range(1, 5)
        ]
        assert cached[2:] == [len(shared)] * 2

    def test_a_match_may_end_a_few_tokens_before_an_end(self) -> None:
        """sglang #34729: kept too short to reach. An answer's last tokens come back changed."""
        bench = Bench(8_000, max_running=1, windows=windows(WINDOW * 3))
        first, spare = tokens(3 * WINDOW, 0), WINDOW // 32
        run(bench, [make_request("a", first, 1)])
        run(bench, [make_request("b", tokens(3 * WINDOW, 1), 1)])  # the first one's inside goes
        assert bench.core.stats().swa_evicted_tokens > 0
        cut = len(first) - spare
        assert run(bench, [make_request("c", [*first[:cut], 201, 202], 1)]) == cut

    def test_namespaces_do_not_share_windows(self) -> None:
        """sglang #26747."""
        bench, prompt = Bench(2_000, windows=windows(600)), tokens(150, 0)
        run(bench, [make_request("a", prompt, namespace=Namespace(adapter_id="one"))])
        again = make_request("b", prompt, namespace=Namespace(adapter_id="two"))
        assert run(bench, [again]) == 0

    def test_nothing_is_left_after_a_flush(self) -> None:
        """sglang #26792: stale after weights change."""
        bench, prompt = Bench(2_000, windows=windows(600)), tokens(150, 0)
        run(bench, [make_request("a", prompt)])
        bench.core.flush()
        assert bench.core.stats().swa_free == 600
        assert run(bench, [make_request("b", prompt)]) == 0


class TestShort:
    def test_short_windows_retract(self) -> None:
        bench = Bench(2_000, windows=windows(2 * WINDOW))
        requests = [make_request(f"r{n}", tokens(8, n), WINDOW) for n in range(6)]
        run(bench, requests)
        assert bench.scheduler.counters.retractions > 0
        assert bench.core.stats().evicted_tokens == 0

    def test_with_reserves_few_are_admitted_and_none_is_retracted(self) -> None:
        bench = Bench(2_000, windows=windows(3 * WINDOW), conservativeness=2.0)
        requests = [make_request(f"r{n}", tokens(8, n), WINDOW) for n in range(6)]
        run(bench, requests)
        assert bench.scheduler.counters.retractions == 0

    def test_a_shared_window_is_soon_out_of_sight(self) -> None:
        """All begin with one window, and each needs its own before it ends."""
        bench = Bench(2_000, max_running=16, windows=windows(100, window=24), conservativeness=1.0)
        heads = [tokens(24, 98), tokens(24, 99)]
        requests = [
            make_request(f"r{n}", [*heads[n // 8], *tokens(1 + n, n)], 32) for n in range(16)
        ]
        run(bench, requests)
        assert bench.scheduler.counters.retractions == 0

    @pytest.mark.parametrize("page", [1, 4])
    @pytest.mark.parametrize(
        "policy",
        ["lpm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fcfs", "priority"))],
    )
    def test_whatever_comes_every_token_is_right(self, policy: str, page: int) -> None:
        draw = random.Random(page)
        for window in (1, 7, 40):
            least = WindowSize(window, 0, 16).least(page)
            size = WindowSize(window, (least + 40) // page * page, 16)
            bench = Bench(400, page_size=page, policy=policy, windows=size)
            heads = [tokens(50, n) for n in range(3)]
            requests = [
                make_request(
                    f"{n}",
                    [*draw.choice(heads)[: draw.randint(1, 50)], *tokens(draw.randint(1, 40), n)],
                    draw.randint(1, 60),
                    priority=draw.randrange(3),
                )
                for n in range(40)
            ]
            run(bench, requests)
            assert bench.core.stats().swa_evicted_tokens > 0
