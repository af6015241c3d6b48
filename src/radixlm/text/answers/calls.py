"""What the formats of calls have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from radixlm.text.answers.call_reader import CallReader
from radixlm.text.answers.events import AnswerEvent, TextDelta, ToolCallCut
from radixlm.text.answers.steps import StepParser, Steps

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
