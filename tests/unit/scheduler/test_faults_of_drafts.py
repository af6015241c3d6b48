"""Faults that others had with drafts, by their numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.config import EngineConfig
from radixlm.core.grammar import Grammar
from radixlm.core.sampling import SamplingParams
from radixlm.drafts.draft import Draft
from radixlm.engine.wiring import make_core
from radixlm.structured_output import MaskFiller
from tests.engines import Bench, byte_tokenizer, make_request
from tests.invariants import check

PROMPT = range(1, 40)
FORCED = Grammar.regex("[ab]: one two three four five six[cd]")


class Half:
    """Drafts an answer, of each draft the second half wrong."""

    def __init__(self, whole: Sequence[int]) -> None:
        self._whole = list(whole)

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        follows = self._whole[len(tokens) :][:most]
        draft = [*follows[:4], *(255 - token for token in follows[4:])]
        return Draft(tuple(draft), "half", 4) if draft else None


@pytest.mark.parametrize("page_size", [1, 16])
def test_drafts_cost_no_part_of_a_hit(page_size: int) -> None:
    """vllm #38182, #53670: with a drafter, each hit was a block shorter. The same prompt again, and
    a chat's next turn, find as much as without drafts, and that is all there can be.
    """
    found = []
    answer = Bench(256).expected(make_request("a", PROMPT, 30))
    again = [*PROMPT, *answer, *range(100, 120)]
    for drafts in ((), [Half([*PROMPT, *answer])]):
        bench = Bench(256, page_size=page_size, drafts=drafts, budget=64)
        cached = []
        for key in (PROMPT, PROMPT, again):
            bench.core.add(make_request("a", key, 30 if key is PROMPT else 1))
            cached.append(bench.run()["a"].cached_tokens)
        assert bool(bench.core.stats().accepted_tokens) == bool(drafts)
        found.append(cached)
    whole = [size - size % page_size for size in (len(PROMPT) - 1, len(PROMPT) + 29)]
    assert found == [[0, *whole]] * 2


@pytest.mark.parametrize("algorithm", ["off", "auto"])
def test_a_model_with_states_finds_what_it_found(algorithm: str) -> None:
    """vllm #54360: with any drafter, hybrid models found nothing, or a block less."""
    bench = Bench(256, states=8, budget=64)
    config = EngineConfig(speculative_algorithm=algorithm)
    core = make_core(config, bench.cache, bench.checked, byte_tokenizer(), masks=MaskFiller(256))
    bench.core, bench.scheduler = core, core.scheduler
    for cached in (0, len(PROMPT) - 1):
        core.add(make_request("a", PROMPT, 30, grammar=FORCED))
        output = bench.run()["a"]
        assert output.cached_tokens == cached
    assert core.stats().accepted_of["grammar"][1] > 20
    again = [*PROMPT, *output.token_ids[:-1], 7]
    core.add(make_request("next", again, 1))
    assert bench.run()["next"].cached_tokens == len(again) - 1


def test_no_state_is_kept_that_has_read_what_does_not_count() -> None:
    """vllm #57128, #48375: a state that had read rejected tokens was left where others found it,
    and they went on from it. Here the answer ends among tokens that are computed already.
    """
    bench = Bench(256, states=8, budget=64)
    stopped = SamplingParams(max_tokens=40, temperature=0, stop=("thr",))
    bench.core.add(make_request("a", PROMPT, 40, params=stopped, grammar=FORCED))
    output = bench.run()["a"]
    assert output.matched_stop == "thr"
    drafted, right = bench.core.stats().accepted_of["grammar"]
    assert 5 < right < drafted - 5
    check(bench.cache)
    usage = bench.cache.states.usage() if bench.cache.states else None
    assert usage is not None
    assert usage.private == usage.locked == 0
    for more in ([7], [*byte_tokenizer().encode("ee four").tolist(), 7]):
        bench.core.add(make_request("b", [*PROMPT, *output.token_ids, *more], 4))
        assert len(bench.run()["b"].token_ids) == 4  # CheckedStates looks at each state


def test_a_draft_that_is_cut_short_loses_the_state_and_nothing_else() -> None:
    """Numbers that are not finite end a draft, also one that is certain: it goes on from the last
    checkpoint.
    """
    alone = Bench(256, jump_forward=False)
    alone.core.add(make_request("a", PROMPT, 40, grammar=FORCED))
    wanted = alone.run()["a"].token_ids
    bench = Bench(256, states=8, budget=64)
    execute, cut = bench.checked.execute, []

    def cuts_once(batch: ScheduledBatch) -> StepResult:
        result = execute(batch)
        if not result.more.get(0) or cut:
            return result
        cut.append(True)
        return StepResult(result.tokens, more={0: result.more[0][:3]})

    bench.checked.execute = cuts_once  # type: ignore[method-assign]
    bench.core.add(make_request("a", PROMPT, 40, grammar=FORCED))
    assert bench.run()["a"].token_ids == wanted
    assert cut
    assert bench.core.stats().retractions == 1
    assert bench.core.stats().leaks == 0
