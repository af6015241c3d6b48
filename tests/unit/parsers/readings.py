"""Answers read whole and at cuts, for tests of parsers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from radixlm.parsers import Answered
from radixlm.parsers.call_format import CallFormat
from radixlm.parsers.harmony import HarmonyReader
from radixlm.parsers.one_call import Offered
from radixlm.parsers.reader import AnswerReader

TOOLS: Mapping[str, Any] = {
    "get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {},
}


def new_ids() -> Callable[[], str]:
    numbers = count()
    return lambda: f"id{next(numbers)}"


def parser_of(
    form: CallFormat | None,
    tools: Mapping[str, Any] = TOOLS,
    *,
    mends: bool = True,
    **more: Any,
) -> AnswerReader | HarmonyReader:
    offered = Offered(tools, mends=mends)
    if form is not None and form.channels:
        return HarmonyReader(offered, new_ids(), **more)
    return AnswerReader(form, offered, new_ids(), **more)


def joined(pieces: list[str], form: CallFormat | None, *, cut: bool, **more: Any) -> Answered:
    parser, answer = parser_of(form, **more), Answered()
    for piece in pieces:
        answer.add(parser.push(piece))
    return answer.add(parser.flush(cut=cut))


def read(form: CallFormat | None, text: str, *, cut: bool = False, **more: Any) -> Answered:
    """The answer, which must be the same whole and character by character."""
    answer = joined([text], form, cut=cut, **more)
    assert joined([*text], form, cut=cut, **more) == answer
    return answer
