"""Several gens' answers from one call, for backends where each call costs.

in a chat:     assistant( "Name:" gen("name", stop="\\n") "\\nAge:" gen("age") )
               one call for the whole message, which must come out in this form
in plain text: gen("name", stop="\\n") "\\nAge:" gen("age")
               the first asks for more than it needs; as long as what the program says is what
               the model would have said, the next takes its answer from that
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from radixlm.lang.backend import Session
from radixlm.lang.interpreter import Interpreter, Style, Value
from radixlm.lang.ir import Expr, Gen, Params, ScopeBegin, ScopeEnd, Text
from radixlm.lang.transcript import Answer, Transcript

_TRIES = 3


def interpreter_for(
    session: Session, said: Transcript, style: Style, grow: Callable[[str], None]
) -> Interpreter:
    """One that prefetches where that is asked for and calls cost."""
    kind: type[Interpreter] = Interpreter
    if session.calls_cost and style.spec_tokens:
        kind = TurnPrefetch if session.answers_turns else TextPrefetch
    return kind(session, said, style, grow)


class TextPrefetch(Interpreter):
    """Keeps what the model said beyond what it was asked for. A gen without a stop takes no part:
    the text does not show where it ends.
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
    """Puts off the steps of an assistant's message until it ends, or is read."""

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
        """What is known of the answer, and each gen's text in it."""
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
