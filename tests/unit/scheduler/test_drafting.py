"""Drafts in steps: how many are saved, and what drafts do not touch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import pytest

from radixlm.core.errors import CacheError
from radixlm.core.keys import as_key
from radixlm.core.request import FinishReason, GenerateRequest
from radixlm.drafts.draft import Draft, Sibling
from radixlm.scheduler import Drafting
from tests.engines import Bench, make_request

PROMPT = range(1, 9)


class Script:
    """Drafts what it was given, and wrong tokens where it was given none: of right ones some."""

    def __init__(self, right: int = 8, whole: Sequence[int] = ()) -> None:
        self.whole, self.right = list(whole), right
        self.asked: list[int] = []

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        self.asked.append(most)
        follows = self.whole[len(tokens) :][:most]
        wrong = [(token + 1) % 256 for token in follows[self.right :]]
        draft = (*follows[: self.right], *wrong)
        return Draft(draft, "script", 4) if draft else None


def bench_for(request: GenerateRequest, right: int = 8, **sizes: int) -> tuple[Bench, Script]:
    script = Script(right)
    bench = Bench(**{"capacity": 64, **sizes}, drafts=[script])
    script.whole = [*request.key.tolist(), *bench.expected(request)]
    bench.core.add(request)
    return bench, script


@pytest.mark.parametrize(("right", "steps"), [(8, 4), (2, 8), (0, 20)])
def test_a_step_gives_what_was_right_and_one_more(right: int, steps: int) -> None:
    """Of drafts of 8; the prompt's step has none, being more than a token."""
    request = make_request("a", PROMPT, 20)
    bench, script = bench_for(request, right)
    lengths = []
    while bench.core.has_work:
        lengths += [len(output.token_ids) for output in bench.step()]
    assert sum(lengths) == 20
    assert (lengths[0], len(lengths), max(lengths)) == (1, steps, right + 1)
    assert max(script.asked) == 8


def test_what_a_prediction_says_as_well_is_the_prediction_s() -> None:
    """The other source has matched more, and where they differ it is the other's."""
    answer = Bench(64).expected(make_request("a", PROMPT, 20))
    for predicted, sources in (
        (answer, {"prediction"}),
        ([*answer[:9], 0], {"prediction", "script"}),
    ):
        request = replace(make_request("a", PROMPT, 20), prediction=as_key(predicted))
        bench, script = bench_for(request)
        bench.run()
        assert script.asked
        assert bench.core.stats().accepted_of.keys() == sources


def test_no_more_is_accepted_of_a_prediction_than_it_has() -> None:
    answer = Bench(64).expected(make_request("a", PROMPT, 20))
    request = replace(make_request("a", PROMPT, 20), prediction=as_key(answer[:4]))
    bench, _ = bench_for(request)
    bench.run()
    drafted, accepted = bench.core.stats().accepted_of["prediction"]
    assert drafted == accepted == 3, "the first one was drawn by the prompt's step"


def test_no_draft_is_longer_than_what_may_be_generated() -> None:
    request = make_request("a", PROMPT, 4)
    bench, script = bench_for(request)
    assert bench.run()["a"].finish_reason is FinishReason.LENGTH
    assert script.asked == [2]


def test_an_answer_ends_at_a_stop_within_a_draft() -> None:
    request = make_request("a", PROMPT, 12)
    answer = Bench(64).expected(request)
    stop = answer[5]
    assert stop not in answer[:5]
    stopped = make_request("a", PROMPT, 12, stop_token_ids=frozenset({stop}))
    kept = []
    for drafts in ([Script(8, [*PROMPT, *answer])], []):
        bench = Bench(64, drafts=drafts)
        bench.core.add(stopped)
        output = bench.run()["a"]
        assert list(output.token_ids) == answer[:6]
        assert (output.finish_reason, output.matched_stop) == (FinishReason.STOP, stop)
        kept.append(bench.cache.usage())
    assert kept[0] == kept[1]


def test_drafts_evict_nothing() -> None:
    """Where only cached tokens could make room, there is none for a draft, which may be for tokens
    that never come.
    """
    answer = Bench(64).expected(make_request("a", PROMPT, 12))
    assert answer[9] not in answer[:9]
    request = make_request("a", PROMPT, 40, stop_token_ids=frozenset({answer[9]}))
    script, kept = Script(3), []
    for drafts in ([script], []):
        bench = Bench(49, drafts=drafts)
        bench.core.add(make_request("kept", range(100, 130), 1))
        bench.run()
        script.whole = [*PROMPT, *bench.expected(make_request("a", PROMPT, 40))]
        bench.core.add(request)
        bench.run()
        assert bench.cache.tree.stats.evicted_tokens == 0
        kept.append(bench.cache.usage())
    assert kept[0] == kept[1]
    assert len(script.asked) < 8, "no draft"


def test_a_step_with_a_prompt_has_no_drafts() -> None:
    request = make_request("a", PROMPT, 20)
    bench, script = bench_for(request)
    bench.step()
    bench.core.add(make_request("b", range(100, 130), 1))
    bench.step()
    assert script.asked == []
    bench.run()
    assert script.asked


def test_no_draft_crosses_the_length_at_which_keys_turn_in_another_way() -> None:
    request = make_request("a", PROMPT, 20)
    script = Script()
    bench = Bench(64)
    script.whole = [*PROMPT, *bench.expected(request)]
    bench.scheduler.drafting = Drafting([script], 8, short_length=12)
    bench.core.add(request)
    bench.step()
    bench.step()
    assert script.asked == [3]


def test_lent_slots_are_free_again() -> None:
    bench = Bench(64, reserve=4)
    lease = bench.cache.acquire([1, 2, 3])
    lease.extend(3)
    reserve, free = lease.reserve, bench.cache.usage().free
    assert lease.extend(6, lent=True) is not None
    assert bench.cache.usage().free == free - 6 + reserve
    lease.shrink(4)
    assert (lease.length, bench.cache.usage().free) == (4, free - 1 + reserve)
    with pytest.raises(CacheError, match="5 tokens"):
        lease.shrink(5)
    assert lease.extend(100, lent=True) is None
    lease.release()


@pytest.mark.parametrize(("rows", "steps"), [(3, 6), (1, 13), (0, 21)])
def test_a_sibling_goes_on_where_the_draft_is_wrong(rows: int, steps: int) -> None:
    """Of three requests whose drafts are all wrong, with siblings right for three tokens."""
    request = make_request("a", PROMPT, 20)
    bench, script = bench_for(request, right=0, capacity=256, budget=64)
    propose = script.propose

    def with_sibling(namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        draft, right = propose(namespace, tokens, most), script.whole[len(tokens) :][:most][:3]
        return draft and draft._replace(sibling=Sibling(0, tuple(right), 4))

    for name in "bc":
        bench.core.add(make_request(name, PROMPT, 20))
    script.propose = with_sibling  # type: ignore[method-assign]
    bench.scheduler.drafting = Drafting([script], 8, sibling_rows=range(8, 8 + rows))
    expected, given = bench.expected(request), list[int]()
    count = 0
    while bench.core.has_work:
        given += [
            t for output in bench.step() if output.request_id == "a" for t in output.token_ids
        ]
        count += 1
    assert (given, count) == (expected, steps)
    assert bench.cache.usage().private == 0
