"""The paper's workloads against a client without an engine: what they ask, and what it needs."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from radixlm.bench.programs import (
    MARGIN,
    BenchRequest,
    Bound,
    CompletedRequest,
    Draw,
    DryClient,
    Reply,
    WorkloadPlan,
    best_possible,
    run_all,
)
from radixlm.bench.workloads import WORKLOADS

VOCAB = 6_144


class Recorder:
    """Answers with tokens beyond the vocabulary, so that they are known wherever they turn up."""

    def __init__(self) -> None:
        self.asked: list[BenchRequest] = []
        self.replies: list[list[int]] = []

    async def ask(self, ask: BenchRequest) -> Reply:
        first = VOCAB + 1_000 * len(self.asked)
        reply = list(range(first, first + ask.out))
        self.asked.append(ask)  # no copy: a program must leave a prompt alone that it has sent
        self.replies.append(reply)
        logprob = -float(len(self.asked) % 3)
        await asyncio.sleep(0)
        return Reply(reply, logprob)


def record(name: str, *, seed: int = 0, scale: float = 1.0) -> Recorder:
    recorder = Recorder()
    programs = WORKLOADS[name].programs(VOCAB, seed=seed, scale=scale)
    asyncio.run(run_all(recorder, programs))
    return recorder


# Prompt and answer lengths of the workloads' shapes, with how many requests have them.
SHAPES = {
    "mmlu-few-shot": {(720, 2): 64},
    "hellaswag-few-shot": {(1_880, 1): 96},
    "react-agent": {(900 + 120 * n + 60 * (n - 1), 60): 8 for n in range(1, 7)},
    "generative-agents": {(500, 40): 32},
    "tree-of-thought": {
        (600, 50): 3, (680, 4): 3, (650, 50): 9, (730, 4): 9, (700, 50): 27, (780, 4): 27,
    },
    "skeleton-of-thought": {(100, 80): 8, (188, 60): 48},
    "llm-judge": {(908, 60): 64, (900 + 4 * 68, 60): 16},
    "json-decoding": {(360, 120): 32},
    "multi-turn-short": {(128 * n + 8 * (n - 1), 8): 16 for n in range(1, 9)},
    "multi-turn-long": {(128 * n + 128 * (n - 1), 128): 16 for n in range(1, 5)},
    "rag": {(940, 40): 32},
    "batch-same-prompt": {(2_100, 16): 100},
    "no-sharing": {(1_000, 16): 32},
    "warm-prefix": {(1_032, 8): 16},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_the_shapes_are_the_table(name: str) -> None:
    asked = record(name).asked
    assert Counter((len(ask.prompt), ask.out) for ask in asked) == SHAPES[name]
    assert all(ask.scored == (20 if name == "hellaswag-few-shot" else 0) for ask in asked)


def test_tree_search_grows_by_ninety_tokens_a_node_and_goes_back() -> None:
    asked = record("tree-search").asked
    lengths = [len(ask.prompt) for ask in asked]
    assert len(asked) == 200
    assert {ask.out for ask in asked} == {30}
    assert {(length - 1_560) % 90 for length in lengths} == {0}
    assert len({tuple(ask.prompt[:1_500]) for ask in asked}) == 1
    assert max(lengths) >= 1_560 + 4 * 90
    assert any(later < earlier for earlier, later in pairwise(lengths))


def test_every_workload_is_here() -> None:
    assert {*SHAPES, "tree-search"} == set(WORKLOADS)


@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_seeds_give_equal_prompts(name: str) -> None:
    first, again, other = (record(name, seed=seed, scale=0.1) for seed in (7, 7, 8))
    assert first.asked == again.asked
    assert first.asked[0].prompt != other.asked[0].prompt


def test_workloads_do_not_share_content() -> None:
    starts = {tuple(record(name, scale=0.01).asked[0].prompt[:50]) for name in WORKLOADS}
    assert len(starts) == len(WORKLOADS)


DEPENDENT = {
    "react-agent",
    "tree-of-thought",
    "tree-search",
    "skeleton-of-thought",
    "llm-judge",
    "multi-turn-short",
    "multi-turn-long",
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_later_prompts_contain_earlier_answers(name: str) -> None:
    recorder = record(name, scale=0.2)
    whole = set()
    for ask in recorder.asked:
        found = {(token - VOCAB) // 1_000 for token in ask.prompt if token >= VOCAB}
        for index in found:
            text = ",".join(map(str, ask.prompt))
            assert ",".join(map(str, recorder.replies[index])) in text
        whole |= found
    assert bool(whole) == (name in DEPENDENT)


def test_a_merge_reads_all_four_judgements() -> None:
    recorder = record("llm-judge", scale=1 / 16)
    *judgements, merge = recorder.asked
    assert len(judgements) == 4
    given = [token for token in merge.prompt if token >= VOCAB]
    assert given == [token for reply in recorder.replies[:4] for token in reply]


def test_the_likeliest_ending_is_the_answer() -> None:
    [program] = WORKLOADS["hellaswag-few-shot"].programs(VOCAB, seed=0, scale=0.01)
    recorder = Recorder()
    answer = asyncio.run(program(recorder))
    # The recorder's log-probabilities are -1, -2, 0, -1.
    assert answer == recorder.asked[2].prompt[-20:]


def test_documents_stand_in_a_stable_order() -> None:
    prompts = [ask.prompt for ask in record("rag").asked]
    documents = [[tuple(p[300 + 200 * n : 500 + 200 * n]) for n in range(3)] for p in prompts]
    places: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for first, second, third in documents:
        places.setdefault(first, set()).update((second, third))
        places.setdefault(second, set()).add(third)
    assert len({part for row in documents for part in row}) <= 12
    assert all(first not in places.get(later, ()) for first in places for later in places[first])


def test_scale_changes_counts_not_lengths() -> None:
    assert len(record("mmlu-few-shot", scale=0.25).asked) == 16
    assert len(record("mmlu-few-shot", scale=0.001).asked) == 1
    assert len(record("tree-of-thought", scale=2).asked) == 2 * 78
    assert len(record("warm-prefix", scale=0.2).asked) == 1 + 3
    assert len(record("tree-search", scale=0.1).asked) == 20


def finished(prompt: list[int], answer: list[int], scored: int = 0) -> CompletedRequest:
    return CompletedRequest(BenchRequest(prompt=prompt, out=len(answer), scored=scored), answer)


def test_bound_of_identical_prompts_is_all_but_the_last_token() -> None:
    assert best_possible([finished([1, 2, 3, 4], [9])] * 3) == Bound(12, 6)


def test_bound_of_a_chat_knows_the_answers_but_not_their_last_token() -> None:
    turns = [finished([1, 2, 3], [7, 8]), finished([1, 2, 3, 7, 8, 4], [5, 5])]
    assert best_possible(turns) == Bound(9, 4)


def test_bound_without_sharing_is_nothing() -> None:
    bound = best_possible([finished([n, n, n], [1]) for n in range(5)])
    assert (bound.prompt, bound.cached, bound.hit_rate) == (15, 0, 0.0)
    assert best_possible([]).hit_rate == 0.0


def test_bound_of_scored_prompts_ends_before_what_is_scored() -> None:
    """The log-probability of token 4 needs the logits of token 3."""
    prompts = [[1, 2, 3, 4, 5, 6, ending] for ending in (7, 8, 8)]
    assert best_possible([finished(prompt, [0], scored=3) for prompt in prompts]) == Bound(21, 6)


def test_bound_takes_a_beginning_before_what_goes_on() -> None:
    """In the other order its last token would be computed twice."""
    long_first = [finished([1, 2, 3, 4], [9]), finished([1, 2], [9])]
    assert best_possible(long_first) == Bound(6, 2)


def test_bound_counts_only_what_is_measured() -> None:
    warm = finished([1, 2, 3, 4, 5], [6])._replace(counted=False)
    assert best_possible([finished([1, 2, 3], [4]), warm]) == Bound(3, 2)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_no_order_beats_the_bound(order: int) -> None:
    """Computed one after the other, in any order, nothing finds more than the bound says."""
    recorder = record("hellaswag-few-shot", scale=0.1)
    extra = [finished([1, 2, 3], [4, 5]), finished([1, 2, 3], [4, 5]), finished([1, 2], [3])]
    requests = [*map(CompletedRequest, recorder.asked, recorder.replies), *extra]
    bound = best_possible(requests)
    known: set[tuple[int, ...]] = set()
    cached = 0
    for index in np.random.default_rng(order).permutation(len(requests)):
        ask, answer, _ = requests[index]
        hits = (n for n in range(ask.reusable, 0, -1) if tuple(ask.prompt[:n]) in known)
        cached += next(hits, 0)
        text = ask.prompt + answer[:-1]
        known.update(tuple(text[:n]) for n in range(1, len(text) + 1))
    assert 0 < cached <= bound.cached


def test_plan_counts_shared_tokens_once() -> None:
    assert WORKLOADS["batch-same-prompt"].plan(VOCAB, seed=0, scale=0.1) == WorkloadPlan(
        requests=10, distinct=2_000 + 10 * 116, largest=2_116, at_once=21_160
    )
    chats = WORKLOADS["multi-turn-short"].plan(VOCAB, seed=0, scale=1 / 16)
    assert chats == WorkloadPlan(requests=8, distinct=8 * 136, largest=8 * 136, at_once=8 * 136)


def test_pool_is_a_share_of_the_distinct_tokens_but_fits_the_largest() -> None:
    plan = WorkloadPlan(requests=10, distinct=10_000, largest=2_000, at_once=30_000)
    assert plan.pool_tokens(0.3) == 3_000
    assert plan.pool_tokens(0.01) == 2_000 + MARGIN
    assert plan.pool_tokens(None) >= 40_000


def test_a_dry_run_has_everything_of_a_stage_under_way() -> None:
    client = DryClient(Draw(VOCAB, 0))
    asyncio.run(run_all(client, WORKLOADS["llm-judge"].programs(VOCAB, seed=0, scale=1.0)))
    plan = client.plan()
    assert plan.at_once == 64 * 968
    assert plan.requests == 80
