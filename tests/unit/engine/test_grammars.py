"""Answers that follow a grammar: what is forced is not asked for, and every end is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import Grammar
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.drafts.draft import Draft
from radixlm.engine import EngineCore
from radixlm.testing.fake_runner import FakeRunner
from tests.engines import Bench, byte_tokenizer, constraint, make_request
from tests.invariants import check

ALL_FORCED = Grammar.regex("abcdefghij")
CHOICES = Grammar.regex("[ab]: one[cd]: two[ef]\\.")


def _run(
    grammar: Grammar,
    max_tokens: int = 40,
    *,
    jump_forward: bool = True,
    budget: int = 16,
    stop_token_ids: frozenset[int] = frozenset({0}),
    **params: object,
) -> tuple[RequestOutput, int]:
    """One request's output, and the steps it took."""
    bench = Bench(256, jump_forward=jump_forward, budget=budget)
    bench.core.add(
        make_request(
            "r",
            [7, 8],
            max_tokens,
            params=SamplingParams(max_tokens=max_tokens, temperature=0, **params),  # type: ignore[arg-type]
            stop_token_ids=stop_token_ids,
            grammar=grammar,
        )
    )
    output = bench.run()["r"]
    assert bench.cache.usage().private == bench.cache.usage().locked == 0
    return output, bench.core.stats().steps


def test_what_is_forced_is_not_asked_for() -> None:
    output, steps = _run(CHOICES)
    slow, slow_steps = _run(CHOICES, jump_forward=False)
    assert replace(output, pieces=slow.pieces) == slow
    assert output.finish_reason is FinishReason.STOP
    assert output.matched_stop is None
    assert byte_tokenizer().decode(output.token_ids) == output.text
    assert len(output.token_ids) == slow_steps == 14
    assert steps == 4  # one for each choice, one for the end


def test_what_ends_an_answer_is_not_computed() -> None:
    bench = Bench(256)
    bench.core.add(make_request("r", [7, 8], 40, grammar=ALL_FORCED))
    output = bench.run()["r"]
    assert output.text == "abcdefghij"
    assert bench.core.stats().computed_tokens == 2 + 9
    assert bench.core.stats().output_tokens == 10
    assert bench.core.stats().accepted_of == {"grammar": (8, 8)}


def test_what_is_forced_is_found_again_in_the_cache() -> None:
    """Across the seams: it comes back as the tokens that the tokenizer makes of the text."""
    bench = Bench(256)
    bench.core.add(make_request("r", [7, 8], 40, grammar=CHOICES))
    text = bench.run()["r"].text
    again = [7, 8, *byte_tokenizer().encode(text).tolist()]
    bench.core.add(make_request("again", again, 1))
    assert bench.run()["again"].cached_tokens == 2 + len(text) - 1


def test_forced_tokens_are_computed_in_parts_and_hold_up_nobody() -> None:
    bench = Bench(256, budget=4, max_running=4)
    bench.core.add(make_request("jumps", [7, 8], 40, grammar=Grammar.regex("[ab]cdefghijklm[xy]")))
    bench.core.add(make_request("plain", [9], 12))
    moved = []
    while bench.core.has_work:
        before = bench.scheduler.counters.computed_tokens
        outputs = {output.request_id: output for output in bench.step()}
        assert bench.scheduler.counters.computed_tokens - before <= 4
        moved.append("plain" in outputs)
    assert all(moved[:12])


@pytest.mark.parametrize("limit", [1, 4, 9])
@pytest.mark.parametrize("jump_forward", [True, False])
def test_an_answer_is_cut_at_its_length(limit: int, jump_forward: bool) -> None:
    output, _ = _run(ALL_FORCED, limit, jump_forward=jump_forward)
    assert output.text == "abcdefghij"[:limit]
    assert len(output.token_ids) == limit
    assert output.finish_reason is FinishReason.LENGTH


def test_an_answer_that_is_whole_with_its_last_token_was_not_cut() -> None:
    assert _run(ALL_FORCED, 10)[0].finish_reason is FinishReason.STOP


def test_a_stop_string_ends_it_among_forced_tokens() -> None:
    output, _ = _run(ALL_FORCED, stop=("ef",))
    assert output.text == "abcd"
    assert output.matched_stop == "ef"
    assert byte_tokenizer().decode(output.token_ids) == "abcdef"


def test_a_stop_token_ends_it_among_forced_tokens() -> None:
    [token] = byte_tokenizer().encode("e").tolist()
    output, _ = _run(ALL_FORCED, stop_token_ids=frozenset({0, token}))
    assert output.text == "abcd"
    assert output.matched_stop == token
    assert output.token_ids[-1] == token
    assert len(output.token_ids) == 5


def test_an_answer_may_end_where_the_grammar_lets_it() -> None:
    output, _ = _run(Grammar.regex("(ab)*"), 200)
    if output.finish_reason is FinishReason.STOP:
        assert output.matched_stop == 0
    assert output.text.replace("ab", "") in ("", "a")


def test_the_guesses_of_others_go_along_a_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right ones save steps; of those that it forbids none is computed, and what it forces after
    them is.
    """
    asked, steps = [], []
    grammar = Grammar.regex("[a-f]{5}, one[g-l]{6}")
    answer: list[int] = []

    class Knows:
        def propose(self, _namespace: object, tokens: Sequence[int], most: int) -> Draft | None:
            follows = answer[len(tokens) - 2 :][:most]
            return Draft((*follows[:2], 7, 7)[:most], "knows", 4) if follows else None

    execute = FakeRunner.execute

    def spy(runner: FakeRunner, batch: ScheduledBatch) -> StepResult:
        asked.extend(row.draft for row in batch.rows if row.drafted)
        return execute(runner, batch)

    monkeypatch.setattr(FakeRunner, "execute", spy)
    for drafts in ((), (Knows(),)):
        bench = Bench(256, drafts=drafts)
        bench.core.add(make_request("r", [7, 8], 40, grammar=grammar))
        output = bench.run()["r"]
        assert not answer or list(output.token_ids) == answer
        answer = list(output.token_ids)
        steps.append(bench.core.stats().steps)
    assert steps[1] < steps[0] / 2 + 1
    assert all(7 not in draft for draft in asked)
    # On a busy machine the first step may come before its guide.
    assert any(answer[at : at + 2] in asked for at in range(1, 4))
    assert answer[4:10] in asked  # a letter, and what is forced after it


def test_a_dead_end_is_one_requests_error() -> None:
    """A vocabulary of 70 tokens has no `{`, which comes behind a choice."""
    bench = Bench(256, vocab_size=70)
    for name, regex in (("bad", "[AB]{1}\\{"), ("good", "[AB]{3}")):
        request = make_request(name, [1, 2], 40)
        bench.core.add(replace(request, constraint=constraint(Grammar.regex(regex), 70)))
    outputs = bench.run()
    assert outputs["bad"].finish_reason is FinishReason.ERROR
    assert "can not be followed any further" in (outputs["bad"].error or "")
    assert outputs["good"].finish_reason is FinishReason.STOP
    assert bench.core.stats().leaks == 0


def test_an_abort_among_forced_tokens() -> None:
    bench = Bench(256, budget=4)
    bench.core.add(make_request("r", [7, 8], 40, grammar=Grammar.regex("[ab]cdefghijklm[xy]")))
    bench.step()
    [state] = bench.scheduler.running
    bench.step()
    assert (state.pending, state.output_tokens) == (1, 5)
    last = bench.core.abort("r")
    assert last is not None
    assert last.finish_reason is FinishReason.ABORT
    check(bench.cache)
    assert bench.core.stats().leaks == 0


def test_an_engine_without_masks_takes_no_grammar() -> None:
    bench = Bench()
    core = EngineCore(bench.scheduler, bench.cache, bench.runner, byte_tokenizer())
    with pytest.raises(InvalidRequestError, match="follows no grammars"):
        core.add(make_request("r", [1], 4, grammar=ALL_FORCED))
    assert not core.has_work
