"""Drafts, right ones, garbage and another tenant's text: the right tokens, and no trace of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.cache.components.window_slots import WindowSize
from radixlm.core.request import GenerateRequest, Namespace
from radixlm.drafts.draft import Draft
from tests.engines import Bench, make_request
from tests.invariants import check

CAPACITY = 64
# No answer and no prompt of the others has this token.
SECRET = 9


class Dreamer:
    """Drafts the truth up to a place, and then garbage: tokens of its own, and a secret one.

    answers: what each prompt is answered with; some drafts are right by it.
    """

    def __init__(self, seed: int, answers: dict[tuple[int, ...], list[int]]) -> None:
        self._random = Random(seed)
        self._answers = answers

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        if self._random.random() < 0.2:
            return None
        truth: list[int] = []
        for prompt, answer in self._answers.items():
            whole = [*prompt, *answer]
            if whole[: len(tokens)] == list(tokens):
                truth = whole[len(tokens) :]
        right = self._random.randrange(most + 1)
        garbage = [self._random.choice((0, 1, 2, SECRET)) for _ in range(most)]
        tokens = (*truth[:right], *garbage)[: self._random.randint(1, most)]
        return Draft(tokens, "dreams", 3)


def requests_of(seed: int, count: int) -> list[GenerateRequest]:
    random = Random(seed)
    return [
        make_request(
            f"r{index}",
            [random.randrange(2) for _ in range(random.randint(1, 12))],
            random.randint(1, 14),
            stop_token_ids=frozenset({2}) if index % 3 == 0 else frozenset(),
            namespace=Namespace(cache_salt=random.choice(["", "", "x"])),
            priority=random.randrange(2),
            tenant=random.choice(["", "b"]),
        )
        for index in range(count)
    ]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 8),
    page_size=st.sampled_from([1, 4]),
    budget=st.integers(4, 30),
    reserve=st.sampled_from([0, 4]),
    window=st.sampled_from([0, 0, 5]),
)
def test_answers_are_the_same_and_nothing_is_left_of_drafts(
    seed: int, count: int, page_size: int, budget: int, reserve: int, window: int
) -> None:
    """With them and without: the same tokens, the same things cached, the same retractions, and in
    every step the law, and no token of a draft in the tree that was not drawn.
    """
    answers: dict[tuple[int, ...], list[int]] = {}
    size = WindowSize.of(window, 0.01, CAPACITY, page_size, budget) if window else None
    bench = Bench(
        CAPACITY,
        page_size=page_size,
        budget=budget,
        reserve=reserve,
        vocab_size=3,
        windows=size,
        drafts=[Dreamer(seed, answers)],
    )
    requests = requests_of(seed, count)
    for request in requests:
        answers[tuple(request.key.tolist())] = bench.expected(request)
        bench.core.add(request)
    given = {request.request_id: [] for request in requests}
    steps = 0
    while bench.core.has_work:
        for output in bench.step():
            given[output.request_id] += output.token_ids
        steps += 1
        assert steps < 500
        for node in bench.cache.tree.nodes():
            assert SECRET not in np.frombuffer(node.edge, np.int32)
        for state in bench.scheduler.running:
            assert state.running_lease.length == state.computed < state.n_tokens
    check(bench.scheduler)
    assert given == {request.request_id: bench.expected(request) for request in requests}
    assert bench.cache.usage().private == bench.cache.usage().locked == 0
