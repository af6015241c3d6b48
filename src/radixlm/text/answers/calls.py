"""What the formats of calls have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection

from radixlm.text.answers.call_reader import CallReader
from radixlm.text.answers.events import AnswerEvent, TextDelta, ToolCallBroken
from radixlm.text.answers.steps import StepParser, Steps


class CallParser(StepParser):
    """An AnswerParser that finds calls. What looks like one and is none is text.

    names: of the tools that there are.
    new_id: makes an id for each call.
    most: so many calls at most; what comes after them is text.
    """

    def __init__(
        self, names: Collection[str], new_id: Callable[[], str], *, most: int | None = None
    ) -> None:
        super().__init__()
        self._names = names
        self._new_id = new_id
        self._most = most
        self._begun = 0
        self._made = 0
        self._after_call = False

    @property
    def _may_call(self) -> bool:
        return self._most is None or self._made < self._most

    def _call(self, name: str | None = None) -> Steps[bool]:
        """Read one call from here on; when it is none, give all text since `_mark` away.

        name: when it is known already; then the arguments alone come here.
        """
        reader = CallReader(self._begun, self._names, self._new_id, name=name)
        while True:
            self._at, events = reader.read(self._text, self._at, last=self._ended)
            self._events += events
            if reader.whole or reader.broken:
                break
            yield
        self._begun += reader.begun
        if reader.whole:
            self._made += 1
            self._after_call = True
            self._mark = self._at
            return True
        if reader.begun:
            text = self._text[self._mark : self._at]
            self._events.append(ToolCallBroken(self._begun - 1, text))
            self._mark = self._at
            self._after_call = False
        else:
            self._give(self._at)
        return False

    def _calls(self, separator: str) -> Steps[bool]:
        """Read calls with `separator` between; False when the last one was none."""
        while True:
            yield from self._skip_spaces()
            if not (yield from self._call()):
                return False
            yield from self._skip_spaces()
            if not self._may_call or not (yield from self._skip(separator)):
                return True

    def _closed_by(self, marker: str) -> Steps[None]:
        """After a call: pass over spaces, and over `marker` if it comes."""
        yield from self._skip_spaces()
        yield from self._skip(marker)
        self._mark = self._at

    def _give(self, end: int, make: Callable[[str], AnswerEvent] = TextDelta) -> None:
        if self._after_call:  # spaces that touch a call are nobody's
            text = self._text[self._mark : end]
            self._mark += len(text) - len(text.lstrip())
            self._after_call = self._mark == end
        super()._give(end, make)
