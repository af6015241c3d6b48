"""Answers that go on where they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from radixlm.core.errors import EngineDeadError
from radixlm.core.keys import as_key
from radixlm.core.misses import MissReason, MissReport
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.routing.resuming import Sent, repeatable

MISS = MissReport(3, 0, MissReason.NEW, 0)


def output(said: str) -> RequestOutput:
    """A letter is a token; steps that are joined in one output have a - between them, and the last
    output ends with a dot.
    """
    steps = said.removesuffix(".").split("-")
    text = "".join(steps)
    return RequestOutput(
        "r",
        text=text.lower(),
        token_ids=tuple(map(ord, text)),
        finish_reason=FinishReason.STOP if said.endswith(".") else None,
        pieces=tuple((len(step), len(step)) for step in steps),
    )


def shown(sent: Sent, run: list[str]) -> list[str]:
    sent.begin_again()
    rests = [rest for rest in map(sent.rest, map(output, run)) if rest is not None]
    for rest in rests:
        assert rest.text.upper() == "".join(map(chr, rest.token_ids))
        assert "".join(piece.text for piece in rest.as_it_came()) == rest.text
    return [rest.text + "." * rest.finished for rest in rests]


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        ([["A", "B-C", "D"], ["A-B", "C-D-E", "F."]], [["a", "bc", "d"], ["e", "f."]]),
        ([["A", "B"], ["A"], ["A", "B", "C."]], [["a", "b"], [], ["c."]]),
        ([["A", "B"], ["A-B."]], [["a", "b"], ["."]]),
        ([[], ["A."]], [[], ["a."]]),
    ],
)
def test_an_answer_goes_on_where_it_was(runs: list[list[str]], wanted: list[list[str]]):
    sent = Sent()
    assert [shown(sent, run) for run in runs] == wanted


@pytest.mark.parametrize(
    ("first", "again"),
    [(["A", "B"], ["A", "X", "C."]), (["A", "B"], ["A."]), (["A"], ["AB-C."])],
)
def test_another_answer_is_an_error(first: list[str], again: list[str]):
    sent = Sent()
    shown(sent, first)
    with pytest.raises(EngineDeadError, match="is gone, and another one computes another answer"):
        shown(sent, again)


@pytest.mark.parametrize(
    ("again", "reported"),
    [
        (["A", "B", "C", "D."], [None, None, "other", None]),
        (["A-B-C", "D."], ["other", None]),
        (["A", "B."], [None, "other"]),
    ],
)
def test_the_report_is_of_who_computed_the_answer(again: list[str], reported: list[str | None]):
    def asked(replica: str, run: list[str]) -> list[RequestOutput | None]:
        sent.begin_again()
        first = replace(output(run[0]), miss=replace(MISS, replica=replica))
        return [sent.rest(each) for each in (first, *map(output, run[1:]))]

    sent = Sent()
    begun = asked("first", ["A", "B"])
    rests = asked("other", again)
    assert [rest and rest.miss and rest.miss.replica for rest in rests] == reported
    whole = RequestOutput.joined(part for part in (*begun, *rests) if part is not None)
    assert whole.miss is not None
    assert whole.miss.replica == "other"


def test_a_request_draws_the_same_again():
    def request(seed: int | None) -> GenerateRequest:
        return GenerateRequest("r", as_key([1]), SamplingParams(temperature=1.0, seed=seed))

    assert repeatable(request(7)).params.seed == 7
    seeds = {repeatable(request(None)).params.seed for _ in range(3)}
    assert len(seeds - {None}) == 3
