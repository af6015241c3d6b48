"""A grammar that takes long holds up those who follow it, and nobody else."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from radixlm.core.grammar import Grammar
from radixlm.core.request import FinishReason
from radixlm.core.sampling import SamplingParams
from radixlm.engine import output_processor as continuation
from radixlm.engine.output_processor import BUDGET
from radixlm.structured_output import Matcher
from radixlm.structured_output.matcher import LONGEST_CUT, MAX_FORCED
from tests.engines import Bench, constraint, make_request

LETTERS = Grammar.regex("[ab]{8}")


class _Always:
    """A weight that is what it is, however long something took."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.step = self.mask = 0.0


class _Recorded:
    """A grammar's constraint whose one matcher can be seen."""

    def __init__(self, grammar: Grammar) -> None:
        self.only = constraint(grammar).matcher()

    def matcher(self) -> Matcher:
        return self.only


def _add(bench: Bench, name: str, params: SamplingParams | None = None) -> Matcher:
    """Queue a request that follows LETTERS; its matcher."""
    recorded = _Recorded(LETTERS)
    request = make_request(name, [7, ord(name[0])], 8, params=params)
    bench.core.add(replace(request, constraint=recorded))
    return recorded.only


@pytest.mark.parametrize(("seconds", "at_a_time"), [(0.0, 4), (BUDGET, 1), (0.4 * BUDGET, 3)])
def test_a_step_has_a_budget_for_grammars(seconds: float, at_a_time: int) -> None:
    bench = Bench(256)
    matchers = [_add(bench, name) for name in "abcd"]
    bench.core.add(make_request("plain", [9], 12))
    bench.step()
    bench.step()
    for matcher in matchers:
        matcher.weight = _Always(seconds)  # type: ignore[assignment]
    moved = [{output.request_id for output in bench.step()} for _ in range(5)]
    assert all("plain" in names for names in moved)
    assert [len(names - {"plain"}) for names in moved[:4]] == [at_a_time] * 4
    assert set.union(*moved) == {*"abcd", "plain"}  # each in its turn
    outputs = bench.run()
    assert all(outputs[name].finish_reason is FinishReason.STOP for name in "abcd")


def test_who_waits_says_the_same() -> None:
    def answers(weight: object) -> list[tuple[int, ...]]:
        bench = Bench(256)
        params = SamplingParams(max_tokens=8, temperature=1, seed=3)
        for name in "abcd":
            matcher = _add(bench, name, params)
            if weight is not None:
                matcher.weight = weight
        outputs = bench.run()
        return [outputs[name].token_ids for name in "abcd"]

    assert answers(None) == answers(_Always(1.0))


def test_what_is_forced_does_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long grammars take, who moves takes all that is forced."""
    seconds = itertools.count()
    monkeypatch.setattr(continuation, "thread_time", lambda: float(next(seconds)))
    bench = Bench(256, budget=64)
    for name in "abcd":
        bench.core.add(make_request(name, [7, ord(name)], 8, grammar=Grammar.regex("[ab]forced")))
    texts = []
    while bench.core.has_work:
        texts += [output.text for output in bench.step()]
    assert sorted(text for text in texts if len(text) > 1) == ["forced"] * 4


def test_of_a_long_forced_text_only_the_beginning_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its length: no step works on more than it can take."""
    asked: list[int] = []
    forced = Matcher.forced

    def spy(self: Matcher) -> list[int]:
        found = forced(self)
        asked.append(len(found))
        return found

    monkeypatch.setattr(Matcher, "forced", spy)
    bench = Bench(8_000, budget=512)
    text = "y" * 5_000
    bench.core.add(make_request("r", [7, 8], 2, grammar=Grammar.json_schema({"const": text})))
    assert bench.run()["r"].text == '"y'
    bench.core.add(make_request("all", [7, 8], 6_000, grammar=Grammar.json_schema({"const": text})))
    output = bench.run()["all"]
    assert output.text == f'"{text}"'
    assert max(asked) <= LONGEST_CUT
    assert bench.core.stats().steps <= 2 * len(text) // MAX_FORCED


class _Panic(BaseException):
    """As pyo3's, which is no Exception."""


@pytest.mark.parametrize("where", ["accept", "mask"])
def test_a_matcher_that_breaks_ends_its_own_request(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(256)
    _, bad = (_add(bench, name) for name in ("good", "bad"))

    def broken(*_: object) -> bool:
        raise _Panic("so much for that")

    if where == "accept":
        forced = Matcher.forced
        monkeypatch.setattr(
            Matcher, "forced", lambda self: broken() if self is bad else forced(self)
        )
    else:
        bad.state = None  # type: ignore[assignment]
    outputs = bench.run()
    assert outputs["good"].text.strip("ab") == ""
    assert outputs["good"].finish_reason is FinishReason.STOP
    assert outputs["bad"].finish_reason is FinishReason.ERROR
    assert bench.cache.usage().private == bench.cache.usage().locked == 0
