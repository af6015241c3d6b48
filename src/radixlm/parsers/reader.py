"""Reads answers apart: reasoning, text, and calls in a declared format.

The idea: text is given away up to the next opening of calls. What follows that is tried: if it is a
call, its events follow; if not, it was text.

    thoughts </think> text <tool_call> {"name": … } </tool_call> text
    reasoning         text ^ tried     call's events             text
"""

from __future__ import annotations

from collections.abc import Callable

from radixlm.parsers import ReasoningDelta, TextDelta
from radixlm.parsers.call_format import CallFormat, JsonCall
from radixlm.parsers.one_call import CallEvents, Offered
from radixlm.parsers.openings import Opening, Openings, ReleasedText, Way
from radixlm.parsers.run import ForwardParser, Steps, before_spaces
from radixlm.parsers.thoughts import Thoughts

_FENCES = ("```json", "```python", "```")


class AnswerReader(ForwardParser):
    """Reads an answer; what looks like a call and is none is text, and a call that has begun stays
    one.

    most: at most this many calls; what comes after them is text.
    opened: the prompt left the reasoning open. begun: it opened the calls, see functionary.
    """

    def __init__(
        self,
        form: CallFormat | None,
        offered: Offered,
        new_id: Callable[[], str],
        *,
        thoughts: Thoughts | None = None,
        opened: bool = False,
        begun: bool = False,
        most: int | None = None,
    ) -> None:
        super().__init__()
        self._offered, self._new_id, self._most = offered, new_id, most
        self._thoughts, self._opened, self._begun = thoughts, opened, begun
        self._openings = Openings(self._cursor, form, offered)
        self._calls = 0
        self._after_call = False
        self._given = ReleasedText()
        self._dropped: tuple[str, ...] = ()  # tags that are no text where they come first
        self._listed = False  # the calls that are read stand in a list

    @property
    def _may_call(self) -> bool:
        return self._most is None or self._calls < self._most

    def _read(self) -> Steps[None]:
        if self._thoughts is not None:
            yield from self._thought(self._thoughts)
        if self._begun:
            start = self._cursor.at
            yield from self._read_calls(Opening(start, start, self._openings.ways[0]))
        while (opening := (yield from self._next())) is not None:
            yield from self._read_calls(opening)

    def _thought(self, thoughts: Thoughts) -> Steps[None]:
        """Read the reasoning, and what opens the answer."""
        cursor = self._cursor
        yield from cursor.spaces()
        begins = bool(thoughts.begin) and (yield from cursor.skip_loosely(thoughts.begin))
        if begins or self._opened:
            yield from cursor.spaces()
            cursor.mark = cursor.at
            self._make = ReasoningDelta
            while (opening := (yield from self._next(thoughts.end.strip()))) is not None:
                yield from self._read_calls(opening)
                if self._calls:
                    break
            self._make, self._given = TextDelta, ReleasedText()
        ended = (begins or self._opened) and not self._calls
        if not ended and not (ended := (yield from cursor.skip_loosely(thoughts.end))):
            # After a call in the reasoning, its end may still come.
            self._dropped += (thoughts.end.strip(),) if self._calls else ()
        begin, end = thoughts.answer_begin, thoughts.answer_end
        answers = bool(begin) and (yield from cursor.skip_loosely(begin))
        self._dropped += (end,) if end and (answers or not begin) else ()
        if ended or answers:
            yield from cursor.spaces()
            cursor.mark = cursor.at
        cursor.at = cursor.mark

    def _next(self, stop: str = "") -> Steps[Opening | None]:
        """Give text away up to where calls may begin; None behind `stop`, or where all ends."""
        cursor = self._cursor
        while True:
            dropped = (stop,) if stop else self._dropped
            opening, hold = self._openings.look(
                dropped, calls=self._may_call, thinking=bool(stop), given=self._given
            )
            if opening is not None:
                self._give_before(opening.at)
                cursor.at = opening.after
                if opening.way is not None:
                    return opening
                tag = cursor.text[opening.at : opening.after]
                self._dropped = tuple(each for each in self._dropped if each != tag)
                cursor.mark = cursor.at
                if stop:
                    return None
            elif cursor.ended:
                self._give(len(cursor.text))
                return None
            else:
                self._give_before(hold)
                self._forget()
                yield

    def _give_before(self, end: int) -> None:
        """Give away text up to `end`, without the spaces before it."""
        self._give(before_spaces(self._cursor.text, self._cursor.mark, end))

    def _give(self, end: int) -> None:
        cursor = self._cursor
        if self._after_call:  # spaces that touch a call are dropped
            text = cursor.text[cursor.mark : end]
            cursor.mark += len(text) - len(text.lstrip())
            self._after_call = cursor.mark == end
        if end > cursor.mark:
            self._given.add(cursor.text[cursor.mark : end])
        super()._give(end)

    def _read_calls(self, opening: Opening) -> Steps[None]:
        """Read calls from an opening on; where there are none, that was text."""
        cursor, made = self._cursor, self._calls
        ways = self._openings.like(opening)
        for way in ways:
            cursor.at = opening.after
            form = way.form
            if form.plain and (yield from cursor.skip_loosely(form.plain)):
                yield from cursor.spaces()
                cursor.mark = cursor.at
                return
            yield from cursor.skip_loosely(form.opens)
            if (yield from self._fence()):
                yield from cursor.skip_loosely(form.opens)
            opens = cursor.text[opening.after : cursor.at]
            self._listed = opening.listed or (bool(form.begin) and "[" in opens)
            whole = yield from self._some_calls(way, opening)
            if self._calls > made:
                if whole:
                    yield from self._close(form)
                return
        self._give(max(cursor.at, min(opening.at + 1, len(cursor.text))))

    def _some_calls(self, way: Way, opening: Opening) -> Steps[bool]:
        """Read calls, one after the other; False when the last one was none, or is broken off."""
        sure = opening.sure
        while True:
            yield from self._cursor.spaces()
            if not (yield from self._call(way, sure)):
                return False
            sure = sure or bool(way.form.begin)
            yield from self._cursor.spaces()
            if not self._may_call or not (yield from self._another(way)):
                return True

    def _call(self, way: Way, sure: bool) -> Steps[bool]:
        """Read one call from here on; False when it is none, or one that is broken off."""
        cursor = self._cursor
        call = CallEvents(
            *(self._offered, self._tell, self._calls, self._new_id),
            known_only=not sure,
        )
        whole = yield from way.reader.read(call)
        if call.sent is None:
            return False
        if not whole:
            cursor.at = call.sent
        call.end(whole)
        self._calls += 1
        self._after_call, self._given = whole, ReleasedText()
        cursor.mark = cursor.at
        return whole

    def _another(self, way: Way) -> Steps[bool]:
        """Read what stands between two calls; False when no other one follows."""
        cursor, form = self._cursor, way.form
        if form.join is not None and form.join.strip():
            if (yield from cursor.skip_loosely(form.join)):
                return True
        elif form.join is not None and not isinstance(form.call, JsonCall) and not form.call.before:
            return not (yield from cursor.comes(filter(None, (form.closes, form.end)))) and bool(
                (yield from cursor.peek())
            )
        if self._listed and (yield from cursor.skip(",")):
            return True
        if form.join is None and not self._offered.mends:
            return False
        before = "{" if isinstance(form.call, JsonCall) else form.call.before
        return bool(before) and bool((yield from cursor.comes((before,))))

    def _fence(self) -> Steps[bool]:
        """Read the begin or the end of a code block, which models put around JSON."""
        if not self._offered.mends:
            return False
        yield from self._cursor.spaces()
        fence = yield from self._cursor.comes(_FENCES)
        return bool(fence) and (yield from self._cursor.skip(fence))

    def _close(self, form: CallFormat) -> Steps[None]:
        """Pass over what ends calls, if it comes, or was cut off."""
        cursor = self._cursor
        if self._listed and not form.closes.strip():
            yield from self._close_by("]")
        yield from self._fence()
        for word in (*form.closes.split(), *form.end.split()):
            yield from self._close_by(word)
        while self._offered.mends and form.end and (yield from self._closed_again(form)):
            pass
        yield from self._fence()
        yield from cursor.spaces()
        cursor.mark = cursor.at

    def _closed_again(self, form: CallFormat) -> Steps[bool]:
        """Read another end of calls, also where the opening tag stands in its place."""
        cursor, begin = self._cursor, form.begin.strip()
        if (yield from cursor.skip_loosely(form.end)):
            return True
        at = yield from cursor.after_spaces(cursor.at)
        if not begin or not (yield from cursor.comes((begin,), at)):
            return False
        behind = yield from cursor.after_spaces(at + len(begin))
        if behind < len(cursor.text) and not (yield from cursor.comes((begin,), behind)):
            return False
        cursor.at = at + len(begin)
        return True

    def _close_by(self, word: str) -> Steps[None]:
        cursor, start = self._cursor, self._cursor.at
        yield from cursor.spaces()
        if (yield from cursor.skip(word)):
            return
        rest = cursor.text[cursor.at :]
        cursor.at = len(cursor.text) if cursor.cut and word.startswith(rest) else start
