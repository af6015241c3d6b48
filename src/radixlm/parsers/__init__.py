"""Answers taken apart: the text itself, the model's reasoning, and the tools it calls.

A parser reads an answer's text as it comes and gives events; a whole answer is its events joined.
So what is streamed and what is sent whole cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self


class TextDelta(NamedTuple):
    """A further piece of the answer itself."""

    text: str


class ReasoningDelta(NamedTuple):
    """A further piece of the model's reasoning."""

    text: str


class ToolCallBegun(NamedTuple):
    """The answer calls tool `name`; `call` counts the answer's calls from 0."""

    call: int
    id: str
    name: str


class ToolArguments(NamedTuple):
    """A further piece of a call's arguments, which joined are the text of a JSON object."""

    call: int
    delta: str


class ToolCallEnded(NamedTuple):
    """A call's arguments are whole, and valid JSON; or not `whole`, but those that have come: the
    answer was cut off there, or goes on with text that is not JSON.
    """

    call: int
    whole: bool = True


AnswerEvent = TextDelta | ReasoningDelta | ToolCallBegun | ToolArguments | ToolCallEnded


class AnswerParser(Protocol):
    """Reads one answer. Whatever the pieces the text comes in, the joined events are the same.

    It raises nothing, and loses no text but the markers of calls and reasoning, and spaces that
    touch them. A call's events follow each other, from its begin to its end.
    """

    def push(self, text: str) -> list[AnswerEvent]:
        """Take the next `text`; return the events that are certain with it."""

    def flush(self, *, cut: bool = False) -> list[AnswerEvent]:
        """The rest, when the answer has ended. Nothing may be pushed afterwards.

        cut: it did not come to its own end.
        """


class PlainParser:
    """All text is the answer itself."""

    def push(self, text: str) -> list[AnswerEvent]:
        return [TextDelta(text)] if text else []

    def flush(self, *, cut: bool = False) -> list[AnswerEvent]:  # noqa: ARG002
        return []


class ToolCall(NamedTuple):
    """arguments: the text of a JSON object; the beginning of one, where the call was cut."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Answered:
    """A whole answer: its events joined.

    >>> Answered().add([TextDelta("It is "), TextDelta("5.")]).text
    'It is 5.'
    """

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    _open: list[ToolCall] = field(default_factory=list)

    def add(self, events: Iterable[AnswerEvent]) -> Self:
        """Join further events of the same answer."""
        for event in events:
            match event:
                case TextDelta(text):
                    self.text += text
                case ReasoningDelta(text):
                    self.reasoning += text
                case ToolCallBegun(_, call_id, name):
                    self._open.append(ToolCall(call_id, name, ""))
                case ToolArguments(_, delta):
                    begun = self._open.pop()
                    self._open.append(begun._replace(arguments=begun.arguments + delta))
                case ToolCallEnded():
                    self.calls.append(self._open.pop())
        return self
