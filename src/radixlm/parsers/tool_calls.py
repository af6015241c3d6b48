"""One call, `{"name": …, "arguments": {…}}`, read as it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from radixlm.parsers.events import (
    AnswerEvent,
    TextDelta,
    ToolArguments,
    ToolCallBegun,
    ToolCallCut,
    ToolCallEnded,
)
from radixlm.parsers.json_scan import At, JsonScanner, is_object
from radixlm.parsers.steps import StepParser, Steps

_NAME = "name"
# As Hermes and Mistral call it, and as Llama does.
_ARGUMENTS = ("arguments", "parameters")
# Half of a pair is no character, so no answer can hold it.
_SURROGATE = re.compile("[\ud800-\udfff]")


class CallReader:
    """Reads the fields in any order, and passes over those it does not know.

    names: of the tools that there are; an object with another name is no call.
    name: when it is known already; then the object is the arguments alone.
    whole, broken: it has ended as a call, or turned out to be none. begun: its events have.
    """

    def __init__(
        self,
        call: int,
        names: Collection[str],
        new_id: Callable[[], str],
        *,
        name: str | None = None,
    ) -> None:
        self.whole = self.broken = self.begun = False
        self._call = call
        self._names = names
        self._new_id = new_id
        self._name = name
        self._only_arguments = name is not None
        self._scanner = JsonScanner()
        self._field = ""
        self._field_start = 0
        # From where the arguments are to be sent, and where they end, in the text.
        self._unsent: int | None = None
        self._end: int | None = None
        # Up to where the text says what the call is.
        self._known = 0
        self._spelled: str | None = None

    def read(
        self, text: str, start: int, *, last: bool, cut: bool = False
    ) -> tuple[int, list[AnswerEvent]]:
        """Read text[start:]; gives where it stopped, and what became certain.

        All of the call must be in `text`, at the same places each time. last: no more will come.
        cut: since it was cut off; then a call begins as soon as its name has come.
        """
        at = start
        while at < len(text) and not (self.whole or self.broken):
            if (run := self._scanner.run(text, at)) > at:
                at = run
            elif self._take(text, at):
                at += 1
                self.whole = self._scanner.at is At.END
            else:
                self.broken = True
        cut = cut and not self.broken
        if self.whole:
            self.whole = self._name is not None
            self.broken = not self.whole
        elif (self.broken or last) and self._name in self._names and self._end is not None:
            # Its last brace is missing, as it happens to small models.
            self.whole, self.broken, at = True, False, self._known
        self.broken |= last and not self.whole
        return at, self._events(text, at, begins=self.whole or cut)

    def _take(self, text: str, at: int) -> bool:
        """Take one character; False when no call goes on with it."""
        scanner, character = self._scanner, text[at]
        was, depth = scanner.at, scanner.depth
        if not scanner.advance(character):
            return False
        if not depth:
            return self._begin(character, at)
        if was is At.VALUE and depth == 1 and not character.isspace():
            return self._begin_value(character, at)
        if scanner.depth == 1 and (scanner.at, scanner.depth) != (was, depth):
            return self._in_object(was, text, at)
        if scanner.at is At.END and self._only_arguments:
            self._end = self._known = at + 1
        return True

    def _begin(self, character: str, at: int) -> bool:
        if self._only_arguments and character == "{":
            self._unsent = at
        return character != "["

    def _in_object(self, was: At, text: str, at: int) -> bool:
        """Something began or ended between the call's own braces."""
        if self._only_arguments:
            return True
        now = self._scanner.at
        if now is At.STRING and was in (At.FIRST_KEY, At.KEY):
            self._field_start = at
        elif now is At.COLON:
            self._field = json.loads(text[self._field_start : at + 1])
        elif now is At.AFTER:
            return self._end_value(text[self._field_start : at + 1], at + 1)
        return True

    def _begin_value(self, character: str, at: int) -> bool:
        if self._only_arguments:
            return True
        self._field_start = at
        if self._field == _NAME:
            return character == '"' and self._name is None
        if self._field not in _ARGUMENTS:
            return True
        if self._unsent is not None or self._spelled is not None:
            return False
        if character == "{":
            self._unsent = at
        return character in '{"n'

    def _end_value(self, value: str, end: int) -> bool:
        if self._field == _NAME:
            self._name, self._known = json.loads(value), end
            return self._name in self._names
        if self._field in _ARGUMENTS:
            if value.startswith("{"):
                self._end = self._known = end
            else:  # some write them as a text, or nothing at all
                self._spelled = json.loads(value) or "{}"
                return is_object(self._spelled) and not _SURROGATE.search(self._spelled)
        return True

    def _events(self, text: str, at: int, *, begins: bool) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        name = self._name if self._name in self._names else None
        if name is not None and not self.begun and (self._unsent is not None or begins):
            self.begun = True
            events.append(ToolCallBegun(self._call, self._new_id(), name))
            if self._unsent is None and (self.whole or self._spelled):
                events.append(ToolArguments(self._call, self._spelled or "{}"))
        if self.begun and self._unsent is not None:
            end = at if self._end is None else self._end
            if end > self._unsent:
                events.append(ToolArguments(self._call, text[self._unsent : end]))
                self._unsent = end
        if self.whole:
            events.append(ToolCallEnded(self._call))
        return events


_IN_NAME = re.compile(r"[\w.-]", re.ASCII)


class CallParser(StepParser):
    """An AnswerParser that finds calls. What looks like one and is none is text; what is told of a
    call stays one, and is not told again.

    tools: the schemas of their arguments, by their names.
    new_id: makes an id for each call.
    most: so many calls at most; what comes after them is text.
    """

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        new_id: Callable[[], str],
        *,
        most: int | None = None,
    ) -> None:
        super().__init__()
        self._tools = tools
        self._new_id = new_id
        self._most = most
        self._begun = 0
        self._after_call = False

    @property
    def _may_call(self) -> bool:
        return self._most is None or self._begun < self._most

    def _call(self, name: str | None = None) -> Steps[bool]:
        """Read one call from here on; False when it is none, or one that is broken off.

        name: when it is known already; then the arguments alone come here.
        """
        reader = CallReader(self._begun, self._tools, self._new_id, name=name)
        while True:
            self._at, events = reader.read(self._text, self._at, last=self._ended, cut=self._cut)
            self._events += events
            if reader.whole or reader.broken:
                break
            yield
        self._settle(begun=reader.begun, whole=reader.whole)
        return reader.whole

    def _settle(self, *, begun: bool, whole: bool) -> None:
        """What was read since `_mark` is a whole call, the begin of one, or none, and then text."""
        if not begun:
            self._give(self._at)
            return
        if not whole:
            self._events.append(ToolCallCut(self._begun))
        self._begun += 1
        self._after_call = whole
        self._mark = self._at

    def _calls(self, separator: str) -> Steps[bool]:
        """Read calls with `separator` between; False when the last one was none."""
        while True:
            yield from self._skip_spaces()
            if not (yield from self._call()):
                return False
            yield from self._skip_spaces()
            if not self._may_call or not (yield from self._skip(separator)):
                return True

    def _word(self) -> Steps[str]:
        """Read a name; "" when none comes."""
        start = self._at
        while _IN_NAME.match((yield from self._peek())):
            self._at += 1
        return self._text[start : self._at]

    def _closed_by(self, marker: str) -> Steps[None]:
        """After a call: pass over spaces, and over `marker` if it comes, or was cut off."""
        yield from self._skip_spaces()
        if not (yield from self._skip(marker)) and self._cut:
            rest = self._text[self._at :]
            self._at += len(rest) if marker.startswith(rest) else 0
        self._mark = self._at

    def _give(self, end: int, make: Callable[[str], AnswerEvent] = TextDelta) -> None:
        if self._after_call:  # spaces that touch a call are nobody's
            text = self._text[self._mark : end]
            self._mark += len(text) - len(text.lstrip())
            self._after_call = self._mark == end
        super()._give(end, make)
