"""Where requests leave checkpoints of states, and that each goes on from the right one."""

from __future__ import annotations

import random

import pytest

from radixlm.cache.components.states import StateSlots
from radixlm.core.request import RequestOutput
from tests.engines import EACH_ORDER, Bench, make_request

LONG = [number * 7 % 60 for number in range(100)]


def bench(**settings: object) -> Bench:
    given: dict[str, object] = {"capacity": 512, "budget": 64, "states": 16, **settings}
    return Bench(**given)  # type: ignore[arg-type]


def ends(made: Bench) -> list[int]:
    """How many tokens there are before each checkpoint."""
    [states] = made.cache.components
    assert isinstance(states, StateSlots)
    return sorted(node.end for node in states.at)


def serve(made: Bench, *prompts: list[int], max_tokens: int = 4) -> list[RequestOutput]:
    """Requests that come together, in their order."""
    requests = [make_request(str(n), key, max_tokens) for n, key in enumerate(prompts)]
    for request in requests:
        made.core.add(request)
    outputs = made.run()
    for request in requests:
        assert list(outputs[request.request_id].token_ids) == made.expected(request)
    return [outputs[request.request_id] for request in requests]


def test_before_the_last_token_and_at_the_end() -> None:
    made = bench()
    serve(made, LONG)
    assert ends(made) == [64, 99, 103]
    assert serve(made, LONG)[0].cached_tokens == 99


def test_every_so_many_tokens_while_it_decodes_too() -> None:
    made = bench(checkpoint_interval=32, states=32)
    serve(made, LONG, max_tokens=40)
    assert ends(made) == [32, 64, 96, 99, 128, 139]


def test_where_those_that_wait_part_from_it() -> None:
    """40 and 70 are shared with two that wait; 45 is too near to 40, so it is computed again."""
    made = bench()
    found = serve(made, LONG, [*LONG[:70], 1], [*LONG[:40], 2, 2], [*LONG[:45], 3])
    assert {40, 70} <= set(ends(made))
    assert [output.cached_tokens for output in found] == [0, 70, 40, 40]


def test_where_the_tree_parts_from_it_for_the_next() -> None:
    made = bench()
    serve(made, LONG)
    assert serve(made, [*LONG[:50], 1, 1])[0].cached_tokens == 0
    assert serve(made, [*LONG[:50], 2, 2])[0].cached_tokens == 50


def test_one_that_comes_while_its_leader_computes() -> None:
    made = bench(budget=16)
    made.core.add(make_request("a", LONG))
    made.step()
    made.core.add(make_request("b", [*LONG[:60], 1]))
    assert made.run()["b"].cached_tokens == 60


def test_in_whole_pages() -> None:
    made = bench(page_size=4, checkpoint_interval=32)
    serve(made, [*LONG, 1, 2], [*LONG[:51], 5, 5, 5])
    assert [end % 4 for end in ends(made)] == [0] * len(ends(made))
    assert {32, 48, 64, 96, 100} <= set(ends(made))


def test_a_retracted_request_goes_on_where_it_was() -> None:
    made = bench(capacity=150, states=4)
    serve(made, LONG[:50], [1, *LONG[:50]], max_tokens=40)
    counters = made.scheduler.counters
    assert counters.retractions
    assert counters.readmitted_cached >= 49 * counters.retractions


def test_checkpoints_take_no_steps() -> None:
    for states in (0, 16):
        made = bench(states=states, checkpoint_interval=16)
        serve(made, LONG)
        assert made.core.stats().steps == 2 + 3


def test_without_a_cache_each_has_its_own_state() -> None:
    made = bench(enabled=False, states=4)
    assert [each.cached_tokens for each in serve(made, LONG, LONG, LONG[:40])] == [0, 0, 0]
    assert made.cache.components[0].usage().free == 4


@EACH_ORDER
@pytest.mark.parametrize("seed", range(8))
def test_random_requests(policy: str, seed: int) -> None:
    """Whatever is retracted, aborted or evicted, a state is that of the tokens before it."""
    draw = random.Random(seed)
    made = bench(
        policy=policy,
        capacity=draw.choice((120, 200)),
        states=draw.choice((2, 3, 5, 12)),
        budget=draw.choice((8, 32, 64)),
        checkpoint_interval=draw.choice((0, 8, 24)),
        page_size=draw.choice((1, 1, 2)),
        max_running=draw.choice((2, 8)),
        pin_budget=20,
    )
    keys, requests, aborted = [LONG[:30]], {}, set()
    outputs: dict[str, list[RequestOutput]] = {}
    for number in range(60):
        if draw.random() < 0.7:
            old = draw.choice(keys[-6:])
            key = old[: draw.randint(1, len(old))] + draw.choices(range(3), k=draw.randint(1, 20))
            keys.append(key[:70])
            request = make_request(str(number), keys[-1], draw.randint(1, 12))
            requests[request.request_id] = request
            made.core.add(request)
        if requests and draw.random() < 0.1:
            name = draw.choice(list(requests))
            aborted.add(name)
            made.core.abort(name)
        for output in made.step():
            outputs.setdefault(output.request_id, []).append(output)
    for name, output in made.run().items():
        outputs.setdefault(name, []).append(output)
    for name in requests.keys() - aborted:
        found = RequestOutput.joined(outputs[name])
        assert list(found.token_ids) == made.expected(requests[name])
    usage = made.cache.components[0].usage()
    assert (usage.private, usage.locked) == (0, 0)


def test_towards_the_end_of_a_new_prompt_and_at_its_last_chunk_alone_where_more_is_known() -> None:
    made = bench(capacity=2_048, budget=512, states=32)
    new = [number * 11 % 61 for number in range(700)]
    serve(made, new)
    assert ends(made) == [128, 384, 448, 512, 576, 640, 699, 703]
    serve(made, [*new, *range(300)])
    assert ends(made)[-4:] == [703, 960, 999, 1003]


@pytest.mark.parametrize("shared", [150, 160])
def test_the_second_of_some_that_share_a_prefix_finds_it_wherever_it_ends(shared: int) -> None:
    """vllm #45238: a prefix shorter by some tokens, and 63 of 64 requests found nothing."""
    made = bench(capacity=4_096, budget=512, states=64)
    prefix = [number * 7 % 60 for number in range(shared)]
    found = [
        serve(made, [*prefix, *[place * 7 % 59 for place in range(number, number + 70)]])[0]
        for number in range(64)
    ]
    cached = [output.cached_tokens for output in found]
    assert cached[0] == 0
    assert all(each >= 128 for each in cached[1:])
    assert cached[2:].count(shared) >= 60


@pytest.mark.parametrize("suffix", [1, 2, 40, 63, 64, 65, 129, 200])
def test_of_a_shared_prompt_all_but_a_chunk_is_found_whatever_follows(suffix: int) -> None:
    """sglang #22935: with 64 tokens and more after it nothing was found."""
    made = bench(capacity=4_096, budget=512, states=64)
    prefix = [number * 13 % 60 for number in range(1_000)]
    serve(made, [*prefix, *suffix * [3]])
    assert (serve(made, [*prefix, *suffix * [4]])[0].cached_tokens or 0) > 1_000 - 64
