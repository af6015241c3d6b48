"""Whatever runs beside it, and whatever is drafted, an answer that follows a grammar is what it
would be alone, step by step; nothing is lost.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.core.config import SchedulePolicy
from radixlm.core.grammar import Grammar
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.drafts.draft import Draft
from tests.engines import ORDERS, Bench, make_request

CAPACITY = 64
GRAMMARS = (
    None,
    Grammar.regex("[ab]cdefg[hi]jklmnop[qr]?"),
    Grammar.regex("(ab|cd)*"),
    Grammar.regex("abcdefghijklmnop"),
    Grammar.json_schema({"enum": [{"a": 1, "b": True}, {"a": 1, "c": None}, [1]]}),
)


@dataclass(frozen=True)
class Plan:
    prompt: list[int]
    max_tokens: int
    grammar: Grammar | None
    stop: str
    arrives: int
    aborted: int | None


plans = st.builds(
    Plan,
    prompt=st.lists(st.integers(1, 2), min_size=1, max_size=12),
    max_tokens=st.integers(1, 24),
    grammar=st.sampled_from(GRAMMARS),
    stop=st.sampled_from(["", "", "fg", "n"]),
    arrives=st.integers(0, 4),
    aborted=st.one_of(st.none(), st.none(), st.integers(0, 8)),
)


RUNS = given(
    plans=st.lists(plans, min_size=1, max_size=7),
    page_size=st.sampled_from([1, 4, 16]),
    policy=st.sampled_from(ORDERS),
    budget=st.integers(1, 20),
    jump_forward=st.booleans(),
    conservativeness=st.sampled_from([0.0, 1.0]),
    drafts=st.booleans(),
)


class Guesses:
    """Drafts how answers go on that are known, with some tokens wrong, in any namespace."""

    def __init__(self, texts: list[list[int]]) -> None:
        self._texts, self._random = texts, Random(len(texts))

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        size = len(tokens)
        known = [text[size:][:most] for text in self._texts if text[:size] == list(tokens)]
        draft = [self._random.choice([t, t, t, t, 7]) for t in max(known, key=len, default=[])]
        return Draft(tuple(draft), "guesses", 4) if draft else None


def each_answer_is_what_it_would_be_alone(
    plans: list[Plan],
    page_size: int,
    policy: SchedulePolicy,
    budget: int,
    jump_forward: bool,
    conservativeness: float,
    drafts: bool,
) -> None:
    requests = [_request(index, plan) for index, plan in enumerate(plans)]
    answers = [_alone(request) for request in requests]
    texts = [[*r.key.tolist(), *a.token_ids] for r, a in zip(requests, answers, strict=True)]
    bench = Bench(
        CAPACITY,
        page_size=page_size,
        policy=policy,
        budget=budget,
        jump_forward=jump_forward,
        conservativeness=conservativeness,
        drafts=[Guesses(texts)] if drafts else (),
    )
    parts: dict[str, list[RequestOutput]] = {request.request_id: [] for request in requests}
    step = 0
    while step < 10 or bench.core.has_work:
        for plan, request in zip(plans, requests, strict=True):
            if plan.arrives == step:
                bench.core.add(request)
            if plan.aborted == step and (last := bench.core.abort(request.request_id)):
                parts[request.request_id].append(last)
        busy, before = bench.core.has_work, bench.scheduler.counters.computed_tokens
        for output in bench.step():
            parts[output.request_id].append(output)
        assert busy <= bench.scheduler.counters.computed_tokens - before <= budget
        assert sum(bench.cache.usage()) == CAPACITY
        step += 1
        assert step < 2_000, "no end: a livelock"

    assert bench.core.stats().leaks == 0
    for request, alone in zip(requests, answers, strict=True):
        output = RequestOutput.joined(parts[request.request_id])
        if output.finish_reason is FinishReason.ABORT:
            assert alone.token_ids[: len(output.token_ids)] == output.token_ids
        else:
            assert output.token_ids == alone.token_ids
            assert output.text == alone.text
            assert output.finish_reason is alone.finish_reason
            assert output.matched_stop == alone.matched_stop


test_each_answer_is_what_it_would_be_alone = settings(max_examples=12, deadline=None)(
    RUNS(each_answer_is_what_it_would_be_alone)
)
test_each_answer_is_what_it_would_be_alone_at_length = pytest.mark.slow(
    settings(max_examples=120, deadline=None)(RUNS(each_answer_is_what_it_would_be_alone))
)


def _alone(request: GenerateRequest) -> RequestOutput:
    bench = Bench(256, jump_forward=False)
    bench.core.add(request)
    return bench.run()[request.request_id]


def _request(index: int, plan: Plan) -> GenerateRequest:
    stop = (plan.stop,) if plan.stop else ()
    return make_request(
        f"r{index}",
        plan.prompt,
        plan.max_tokens,
        params=SamplingParams(max_tokens=plan.max_tokens, temperature=0, stop=stop),
        stop_token_ids=frozenset({0}) if plan.grammar else frozenset(),
        grammar=plan.grammar,
    )
