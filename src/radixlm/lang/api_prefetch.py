"""Several gens' answers from one call, for backends where each call costs.

in a chat:     assistant( "Name:" gen("name", stop="\\n") "\\nAge:" gen("age") )
               one call for the whole message, which must come out in this form
in plain text: gen("name", stop="\\n") "\\nAge:" gen("age")
               the first asks for more than it needs; as long as what the program says is what
               the model would have said, the next takes its answer from that
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from radixlm.lang.ir import Expr, Gen, ScopeBegin, ScopeEnd, Text
from radixlm.lang.params import Params
from radixlm.lang.transcript import Answer, Transcript
from radixlm.lang.values import Value

_TRIES = 3


class Speaker(Protocol):
    """What carries out the steps: a Performer."""

    said: Transcript

    async def do(self, expr: Expr, value: Value) -> None: ...

    def params_of(self, gen: Gen) -> Params: ...

    async def answer(self, params: Params) -> Answer: ...

    def take(self, answer: Answer, value: Value) -> None: ...

    def write(self, text: str) -> None: ...


class Speculation(Protocol):
    async def takes(self, expr: Expr, value: Value) -> bool:
        """Whether a step is done, or put off, here."""
        ...

    async def catch_up(self) -> None:
        """Do what was put off."""
        ...


class TextSpeculation:
    """Keeps what the model said beyond what it was asked for. A gen without a stop takes no part:
    where it ends can not be told from text.
    """

    def __init__(self, speaker: Speaker, tokens: int) -> None:
        self._speaker = speaker
        self._tokens = tokens
        self._ahead = ""

    async def takes(self, expr: Expr, value: Value) -> bool:
        match expr:
            case Text(text):
                goes_on = self._ahead.startswith(text)
                self._ahead = self._ahead[len(text) :] if goes_on else ""
                return False
            case Gen() if _is_plain(params := self._speaker.params_of(expr)) and params.stop:
                return await self._gen(params, value)
        self._ahead = ""
        return False

    async def catch_up(self) -> None:
        """Nothing is put off."""

    async def _gen(self, params: Params, value: Value) -> bool:
        if not self._ahead:
            most = max(params.max_new_tokens or 0, self._tokens)
            answer = await self._speaker.answer(replace(params, max_new_tokens=most, stop=()))
            self._ahead = answer.text
        end = _first_stop(self._ahead, params.stop or ())
        if end is None:
            self._ahead = ""
            return False
        text, self._ahead = self._ahead[:end], self._ahead[end:]
        self._speaker.take(Answer(text), value)
        return True


class _Part(NamedTuple):
    """Of a message: a text, or an answer up to one of `stops`; that of a later part may follow."""

    text: str | None
    stops: Sequence[str] = ()
    value: Value | None = None


class _Scope(NamedTuple):
    """Begins, or ends, between two parts."""

    expr: ScopeBegin | ScopeEnd
    value: Value


class TurnSpeculation:
    """Puts off what an assistant's message is made of until it ends, or is read from."""

    def __init__(self, speaker: Speaker, tokens: int) -> None:
        self._speaker = speaker
        self._tokens = tokens
        self._parts: list[_Part | _Scope] = []
        self._params: Params | None = None

    async def takes(self, expr: Expr, value: Value) -> bool:
        if self._speaker.said.role != "assistant":
            return False
        match expr:
            case Text(text):
                self._parts.append(_Part(text))
                return True
            case Gen():
                self._add(self._speaker.params_of(expr), value)
                return True
            case ScopeBegin() | ScopeEnd():
                self._parts.append(_Scope(expr, value))
                return True
        await self.catch_up()
        return False

    async def catch_up(self) -> None:
        """Raises ValueError when the model does not keep to the form, in three tries."""
        steps, params = self._parts, self._params
        self._parts, self._params = [], None
        parts = [step for step in steps if isinstance(step, _Part)]
        meta, found = await self._asked(params, parts)
        texts = iter(found)
        for step in steps:
            if isinstance(step, _Scope):
                await self._speaker.do(step.expr, step.value)
            elif step.value is None:
                self._speaker.write(next(texts))
            else:
                self._speaker.take(Answer(next(texts), meta), step.value)

    async def _asked(
        self, params: Params | None, parts: Sequence[_Part]
    ) -> tuple[Mapping[str, Any], list[str]]:
        """The text of each part, and what is known of the answer; params: None without a gen."""
        if params is None:
            return {}, [part.text or "" for part in parts]
        for _ in range(_TRIES):
            answer = await self._speaker.answer(params)
            found = _matched(answer.text, parts)
            if found is not None:
                return answer.meta, found
        raise ValueError(
            f"the model's answer has not the form of this message, in {_TRIES} tries; "
            f"the last one was {answer.text!r:.200}"
        )

    def _add(self, params: Params, value: Value) -> None:
        if not _is_plain(params):
            raise ValueError("n, regex, json_schema and dtype do not go with num_api_spec_tokens")
        common = replace(params, max_new_tokens=self._tokens, stop=())
        if self._params not in (None, common):
            raise ValueError(
                "with num_api_spec_tokens, all gens of a message have the same parameters but "
                "for stop and max_tokens"
            )
        self._params = common
        self._parts.append(_Part(None, params.stop or (), value))


def _is_plain(params: Params) -> bool:
    return (params.n or 1) == 1 and params.regex is None and params.json_schema is None


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    found = [place for stop in stops if (place := text.find(stop)) >= 0]
    return min(found, default=None)


def _matched(text: str, parts: Sequence[_Part]) -> list[str] | None:
    """The text of each part, None when the whole has not their form. An answer that has no stop
    ends where the next part's text begins.
    """
    found: list[str] = []
    for place, part in enumerate(parts):
        if part.text is not None:
            if not text.startswith(part.text):
                return None
            end: int | None = len(part.text)
        else:
            behind = parts[place + 1].text if place + 1 < len(parts) else None
            end = _first_stop(text, part.stops or ([behind] if behind else []))
            if end is None and place + 1 < len(parts):
                return None
        end = len(text) if end is None else end
        found.append(text[:end])
        text = text[end:]
    return found
