"""Carries out one stream's steps, on the executor's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from radixlm.lang.api_prefetch import Speculation, TextSpeculation, TurnSpeculation
from radixlm.lang.backend import Session
from radixlm.lang.choices import ChoicesDecision, mean_logprob
from radixlm.lang.ir import (
    Expr,
    Gen,
    PatternStops,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    Text,
)
from radixlm.lang.params import Params
from radixlm.lang.transcript import Answer, Transcript
from radixlm.lang.values import Value

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Style:
    """How a program is run. defaults: for what its gens leave open; nothing of it is open.

    streams: whether texts are told as they come.
    spec_tokens: how much to ask for at once where calls cost.
    """

    defaults: Params
    streams: bool = False
    spec_tokens: int | None = None


class Performer:
    """told: is called with each new piece of the state's text."""

    def __init__(
        self, session: Session, said: Transcript, style: Style, told: Callable[[str], None]
    ) -> None:
        self.said = said
        self._session = session
        self._style = style
        self.told = told
        self._scopes: dict[str, tuple[int, Value]] = {}
        self._speculation: Speculation | None = None
        if session.calls_cost and style.spec_tokens:
            make = TurnSpeculation if session.answers_turns else TextSpeculation
            self._speculation = make(self, style.spec_tokens)

    async def perform(self, expr: Expr, value: Value) -> None:
        """Raises ValueError, RadixLMError. value: where the step's result goes."""
        if self._speculation is not None and await self._speculation.takes(expr, value):
            return
        await self.do(expr, value)

    async def do(self, expr: Expr, value: Value) -> None:
        """`perform`, but at once."""
        start = len(self.said.text)
        match expr:
            case Text(text):
                self.said.write(text)
            case RoleBegin(role):
                self.said.begin(role)
            case RoleEnd(role):
                self.said.end(role)
            case ScopeBegin(name):
                self._scopes[name] = start, value
            case ScopeEnd(name):
                first, scoped = self._scopes.pop(name)
                scoped.settle(self.said.text[first:])
            case Gen():
                await self._gen(expr, value)
                return
            case Select():
                await self._select(expr, value)
        self.told(self.said.text[start:])

    async def catch_up(self) -> None:
        """Do what was put off."""
        if self._speculation is not None:
            await self._speculation.catch_up()

    def params_of(self, gen: Gen) -> Params:
        """With nothing left open."""
        params = gen.params.over(self._style.defaults)
        return replace(params, stop=(*(params.stop or ()), *self.said.roles.stops))

    def take(self, answer: Answer, value: Value) -> None:
        """Say an answer that nothing was told of yet."""
        self._take(answer, value)
        self.told(answer.text)

    def write(self, text: str) -> None:
        """Say this."""
        self.said.write(text)
        self.told(text)

    def _take(self, answer: Answer, value: Value) -> None:
        self.said.take(answer)
        value.settle(answer.text, answer.meta)

    async def _gen(self, gen: Gen, value: Value) -> None:
        params = self.params_of(gen)
        if (params.n or 1) == 1:
            self._take(await self.answer(params, value), value)
            return
        answers = await side_by_side([self.answer(params) for _ in range(params.n or 1)])
        self.said.take(answers[0])
        self.told(answers[0].text)
        value.settle([answer.text for answer in answers], [answer.meta for answer in answers])

    async def answer(self, params: Params, value: Value | None = None) -> Answer:
        """value: is told as it grows; None where there are several at a time."""
        stops = PatternStops(params.stop_regex or ())
        streams = bool(params.stop_regex) or (self._style.streams and value is not None)
        text = ""
        tokens: list[int] = []
        meta: dict[str, Any] = {}
        cut = False
        async with aclosing(self._session.answer(self.said, params, stream=streams)) as pieces:
            async for piece in pieces:
                fresh = stops.feed(piece.text)
                text += fresh
                tokens += piece.token_ids
                cut = piece.cut
                meta = dict(piece.meta or meta)
                if value is not None:
                    value.meta = meta
                    value.grow(fresh)
                    self.told(fresh)
                if stops.matched is not None:
                    meta["finish_reason"] = {"type": "stop", "matched": stops.matched}
                    cut = True
                    break
        return Answer(text, meta, tuple(tokens), cut)

    async def _select(self, select: Select, value: Value) -> None:
        choices, method = list(select.choices), select.method
        scores = await self._session.score(
            self.said, choices, alone=method.requires_unconditional_logprobs
        )
        decision: ChoicesDecision = method(
            choices=choices,
            normalized_prompt_logprobs=[mean_logprob(tokens) for tokens in scores.tokens],
            input_token_logprobs=scores.tokens,
            output_token_logprobs=[[] for _ in choices],
            unconditional_token_logprobs=scores.alone,
        )
        self.said.write(decision.decision)
        value.settle(decision.decision, decision.meta_info)


async def side_by_side(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order. When one fails the others are cancelled, and are over, before that
    error is raised.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
