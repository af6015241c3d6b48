"""Carries out one stream's steps, on the executor's loop; their results are Values."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from radixlm.core.errors import ProgramError
from radixlm.core.futures import fail, settle
from radixlm.lang.backend import Session, side_by_side
from radixlm.lang.choices import ChoicesDecision, mean_logprob
from radixlm.lang.ir import Expr, Gen, Params, ScopeBegin, ScopeEnd, Select, Text
from radixlm.lang.transcript import Answer, Transcript

_TRIES = 3


class Value(Future[Any]):
    """A step's result, and its text as it grows. One thread writes it; any thread may read.

    meta: what the backend says of it, from the first piece on. in_scope: it is the text of a scope
    that the program has not left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.meta: Any = None
        self.in_scope = False
        self._text = ""
        # "more", where somebody waits for it. Waking who waits for the result for each piece would
        # cost more than the piece. A dict's methods are atomic.
        self._waited: dict[str, Future[None]] = {}

    def grow(self, text: str) -> None:
        self._text += text
        self._wake()

    def settle(self, result: Any, meta: Any = None) -> None:
        """Set the result. Does nothing when there is one, or an error."""
        if self.done():
            return
        if isinstance(result, str):
            self._text = result
        if meta is not None:
            self.meta = meta
        settle(self, result)
        self._wake()

    def fail(self, error: ProgramError) -> None:
        """There will be no result. Does nothing when there is one, or an error."""
        if not self.done():
            fail(self, error)
            self._wake()

    def pieces(self) -> Iterator[str]:
        """The text as it grows. Raises ProgramError when its step fails."""
        for piece in self._steps():
            if isinstance(piece, str):
                yield piece
            else:
                piece.result()

    async def apieces(self) -> AsyncIterator[str]:
        """The pieces in a coroutine."""
        for piece in self._steps():
            if isinstance(piece, str):
                yield piece
            else:
                await done(piece)

    def _steps(self) -> Iterator[str | Future[None]]:
        """The pieces of the text, and what to wait for between them."""
        place = 0
        while True:
            more, over = self._waited.setdefault("more", Future()), self.done()
            if piece := self._text[place:]:
                place += len(piece)
                yield piece
            elif over:
                self.result()
                return
            else:
                yield more

    def _wake(self) -> None:
        more = self._waited.pop("more", None)
        if more is not None:
            settle(more, None)


async def done(future: Future[Any]) -> None:
    """Wait until it has a result or an error. Being cancelled leaves it as it is."""
    loop, there = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
            loop.call_soon_threadsafe(there.set)

    future.add_done_callback(wake)
    await there.wait()


@dataclass(frozen=True, slots=True)
class Style:
    """How a program is run. defaults: for what its gens leave open; nothing of it is open.

    streams: whether texts are shown as they come.
    spec_tokens: how many tokens to ask for at once where calls cost.
    """

    defaults: Params
    streams: bool = False
    spec_tokens: int | None = None


class Interpreter:
    """said: what the steps so far have written. grow: is called with each new piece of its text."""

    def __init__(
        self, session: Session, said: Transcript, style: Style, grow: Callable[[str], None]
    ) -> None:
        self.said = said
        self._session = session
        self._style = style
        self._grow = grow
        self._shown = 0
        self._scopes: dict[str, tuple[int, Value]] = {}

    async def perform(self, expr: Expr, value: Value) -> None:
        """Raises ValueError, RadixLMError. value: where the step's result goes."""
        match expr:
            case ScopeBegin(name):
                self._scopes[name] = len(self.said.text), value
            case ScopeEnd(name):
                start, scoped = self._scopes.pop(name)
                scoped.settle(self.said.text[start:])
            case Gen():
                await self._gen(self.params_of(expr), value)
            case Select():
                await self._select(expr, value)
            case _:
                self.said.apply(expr)
        self._show()

    async def catch_up(self) -> None:
        """Perform the steps that were put off. Here there are none."""

    def params_of(self, gen: Gen) -> Params:
        """The parameters with nothing left open."""
        params = gen.params.over(self._style.defaults)
        return replace(params, stop=(*(params.stop or ()), *self.said.roles.stops))

    def take(self, answer: Answer, value: Value) -> None:
        self.said.take(answer)
        value.settle(answer.text, answer.meta)
        self._show()

    async def answer(self, params: Params, value: Value | None = None) -> Answer:
        """value: its text grows as the answer does; None where there are several at a time."""
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
                    self._shown += len(fresh)
                    self._grow(fresh)
                if stops.matched is not None:
                    meta["finish_reason"] = {"type": "stop", "matched": stops.matched}
                    cut = True
                    break
        return Answer(text, meta, tuple(tokens), cut)

    def _show(self) -> None:
        """Grow by what is said and not shown yet."""
        fresh = self.said.text[self._shown :]
        if fresh:
            self._shown += len(fresh)
            self._grow(fresh)

    async def _gen(self, params: Params, value: Value) -> None:
        if (params.n or 1) == 1:
            self.take(await self.answer(params, value), value)
            return
        answers = await side_by_side([self.answer(params) for _ in range(params.n or 1)])
        self.said.take(answers[0])
        value.settle([answer.text for answer in answers], [answer.meta for answer in answers])

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


class PatternStops:
    """Finds the first place where the text ends with what a pattern matches, whatever pieces it
    comes in. A character costs time in proportion to the text before it.

    matched: the pattern that ended it, None as long as none did.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._text = ""
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        """The part of the piece that belongs to the answer.

        >>> PatternStops(["[.!]"]).feed("Yes. No.")
        'Yes.'
        """
        start = len(self._text)
        self._text += piece
        for end in range(start + 1, len(self._text) + 1) if self._patterns else ():
            for pattern in self._patterns:
                if pattern.search(self._text, 0, end):
                    self.matched = pattern.pattern
                    return self._text[start:end]
        return piece


def interpreter_for(
    session: Session, said: Transcript, style: Style, grow: Callable[[str], None]
) -> Interpreter:
    """One that prefetches where that is asked for and calls cost."""
    kind: type[Interpreter] = Interpreter
    if session.calls_cost and style.spec_tokens:
        kind = TurnPrefetch if session.answers_turns else TextPrefetch
    return kind(session, said, style, grow)


class TextPrefetch(Interpreter):
    """Several gens' answers from one call, in plain text, for backends where each call costs.

        gen("name", stop="\\n") "\\nAge:" gen("age")

    The first asks for more than it needs; as long as what the program says is what the model would
    have said, the next takes its answer from that. A gen without a stop takes no part: the text
    does not show where it ends.
    """

    _ahead = ""

    async def perform(self, expr: Expr, value: Value) -> None:
        ahead, self._ahead = self._ahead, ""
        match expr:
            case Text(text) if ahead.startswith(text):
                self._ahead = ahead[len(text) :]
            case Gen() if _is_plain(params := self.params_of(expr)) and params.stop:
                if await self._taken(ahead, params, params.stop, value):
                    return
        await super().perform(expr, value)

    async def _taken(self, ahead: str, params: Params, stops: Sequence[str], value: Value) -> bool:
        if not ahead:
            most = max(params.max_new_tokens or 0, self._style.spec_tokens or 0)
            answer = await self.answer(replace(params, max_new_tokens=most, stop=()))
            ahead = answer.text
        end = _first_stop(ahead, stops)
        if end is None:
            return False
        self._ahead = ahead[end:]
        self.take(Answer(ahead[:end]), value)
        return True


class TurnPrefetch(Interpreter):
    """A prefetch as TextPrefetch, in a chat: it puts off the steps of an assistant's message until
    it ends, or is read, for one call for the whole message, which must come out in this form:

        assistant( "Name:" gen("name", stop="\\n") "\\nAge:" gen("age") )
    """

    _common: Params | None = None  # of all its gens

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._steps: list[tuple[Expr, Value]] = []

    async def perform(self, expr: Expr, value: Value) -> None:
        if self.said.role == "assistant" and isinstance(expr, Text | Gen | ScopeBegin | ScopeEnd):
            if isinstance(expr, Gen):
                self._agree(self.params_of(expr))
            self._steps.append((expr, value))
            return
        await self.catch_up()
        await super().perform(expr, value)

    async def catch_up(self) -> None:
        """Raises ValueError when the model does not keep to the form, in three tries."""
        steps, common = self._steps, self._common
        self._steps, self._common = [], None
        meta: Mapping[str, Any] = {}
        texts: Iterator[str] = iter(())
        if common is not None:
            meta, texts = await self._asked(common, [expr for expr, _ in steps])
        for expr, value in steps:
            if isinstance(expr, Gen):
                self.take(Answer(next(texts), meta), value)
            else:
                await super().perform(expr, value)

    async def _asked(
        self, common: Params, exprs: Sequence[Expr]
    ) -> tuple[Mapping[str, Any], Iterator[str]]:
        """The state of the answer, and each gen's text in it."""
        parts = [expr for expr in exprs if isinstance(expr, Text | Gen)]
        for _ in range(_TRIES):
            answer = await self.answer(common)
            texts = self._matched(answer.text, parts)
            if texts is not None:
                return answer.meta, iter(texts)
        raise ValueError(
            f"the model's answer has not the form of this message, in {_TRIES} tries; "
            f"the last one was {answer.text!r:.200}"
        )

    def _agree(self, params: Params) -> None:
        if not _is_plain(params):
            raise ValueError("n, regex, json_schema and dtype do not go with num_api_spec_tokens")
        common = replace(params, max_new_tokens=self._style.spec_tokens, stop=())
        if self._common not in (None, common):
            raise ValueError(
                "with num_api_spec_tokens, all gens of a message have the same parameters but "
                "for stop and max_tokens"
            )
        self._common = common

    def _matched(self, text: str, parts: Sequence[Text | Gen]) -> list[str] | None:
        """The text of each gen, None when the whole does not have the parts' form. An answer that
        has no stop ends where the next part's text begins.
        """
        found: list[str] = []
        for part, following in zip_longest(parts, parts[1:]):
            if isinstance(part, Text):
                if not text.startswith(part.text):
                    return None
                text = text.removeprefix(part.text)
                continue
            stops = self.params_of(part).stop
            if not stops and isinstance(following, Text) and following.text:
                stops = (following.text,)
            end = _first_stop(text, stops or ())
            if end is None and following is not None:
                return None
            found.append(text[:end])
            text = "" if end is None else text[end:]
        return found


def _is_plain(params: Params) -> bool:
    return (params.n or 1) == 1 and params.regex is None and params.json_schema is None


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    found = [place for stop in stops if (place := text.find(stop)) >= 0]
    return min(found, default=None)
