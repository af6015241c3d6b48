"""Finds where calls may begin in an answer's text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from radixlm.parsers.call_format import CallFormat, FieldCall, JsonCall, NamedCall
from radixlm.parsers.field_calls import PythonCallReader, TagCallReader
from radixlm.parsers.json_calls import JsonCallReader, NamedCallReader
from radixlm.parsers.nested_calls import NestedCallReader
from radixlm.parsers.one_call import CallContext, CallReader, Offered
from radixlm.parsers.run import LOOK_AHEAD, Cursor, Words

_LINE = re.compile(r"\n\s*(?=(\[?))")
_START = re.compile(r"\s*(?:```(?:json|python)?)?\s*(?=(\[?))")
_FENCE_TO_COME = re.compile(r"\s*`{0,2}\Z|\s*```[a-z]{0,6}\Z")
_WORD = re.compile(r"[\w.-]+", re.ASCII)
_FIRST_KEY = re.compile(r"""\{\s*["']([^"']*)["']""")
_KEY_TO_COME = re.compile(r"""\{\s*(["'][^"']*)?\Z""")
# Braces stand in prose and in code, too.
_OBJECT = re.compile(r"""[^{]|\{\s*["'}]""")
_OBJECT_TO_COME = re.compile(r"\{\s*\Z")
_IN_CALL = frozenset({"name", "tool_name", "type", "id", "arguments", "parameters"})
_LINE_LENGTH = 20
_SHORTEST_END = 3  # characters: brackets stand in values as well


class Way(NamedTuple):
    """A format that is read, and the reader of its calls."""

    form: CallFormat
    reader: CallReader

    @property
    def before(self) -> str:
        return "" if isinstance(self.form.call, JsonCall) else self.form.call.before.strip()

    @property
    def behind_name(self) -> tuple[str, ...]:
        """The texts that show that a name at a line's begin is a call's."""
        match self.form.call:
            case NamedCall(before="", after=after, id_marker=marker):
                return ("{", *filter(None, (after.strip(), marker)))
            case FieldCall(before="", value_end=value_end, key_before=key) if value_end:
                return (key, *filter(None, (self.form.end,)))
            case FieldCall(before="", after=after):
                return (after,)
        return ()


class Opening(NamedTuple):
    """A place where calls may begin, and what of it to pass over; by which format, None for a
    marker that is dropped. sure: by the format's own opening; else only a known tool's call is one.
    listed: in a list, whose bracket is passed over.
    """

    at: int
    after: int
    way: Way | None
    sure: bool = False
    listed: bool = False


class ReleasedText:
    """The text that was sent of an answer, as far as it says what follows.

    line: the begin of the present line; None at the answer's begin, or behind a call. last: the
    last character. in_block: whether the line stands in a code block, where calls are examples.
    """

    def __init__(self) -> None:
        self.line: str | None = None
        self.last = ""
        self.in_block = False

    def add(self, text: str) -> None:
        *lines, line = ((self.line or "") + text).split("\n")
        self.in_block ^= _turns(lines)
        self.line, self.last = line.lstrip()[:_LINE_LENGTH], text[-1:]

    def exemplary(self, text: str) -> bool:
        """Whether what follows `text`, which comes next, stands in a code block or behind a `."""
        lines = ((self.line or "") + text).split("\n")
        return self.in_block ^ _turns(lines) or (text[-1:] or self.last) == "`"


def _turns(lines: Sequence[str]) -> bool:
    """Whether code blocks begin and end an odd number of times."""
    return sum(line.lstrip().startswith("```") for line in lines) % 2 == 1


class _Marker(NamedTuple):
    word: str
    way: Way | None = None
    sure: bool = False
    passed: bool = True


class _Markers(NamedTuple):
    """Markers by their spellings; of two that are alike the first."""

    meaning: Mapping[str, _Marker]
    words: Words


class Openings:
    """The formats of an answer, of which `form` is the first.

    A format's own marker opens calls. So does, where crooked answers are mended, what opens a call
    within: `<function=` without `<tool_call>`, or at a line's begin an object with a tool's name.
    """

    def __init__(self, cursor: Cursor, form: CallFormat | None, offered: Offered) -> None:
        self._cursor, self._offered = cursor, offered
        forms = () if form is None else (form, *form.also)
        self.ways = [Way(each, _reader(cursor, each, offered)) for each in forms]
        self._known: dict[tuple[Sequence[str], bool, bool], _Markers] = {}
        self._at_lines = not all(way.before for way in self.ways)

    def like(self, opening: Opening) -> list[Way]:
        """The formats that may follow an opening."""
        way = opening.way
        if way is None or not opening.sure:
            return [way] if way else []
        return [each for each in self.ways if each.form.begin == way.form.begin]

    def look(
        self, dropped: Sequence[str], *, calls: bool, thinking: bool, given: ReleasedText
    ) -> tuple[Opening | None, int]:
        """The first opening in the text that was not given away, and up to where all is text.

        dropped: markers that open nothing. calls: another one may be made. thinking: it is
        reasoning that is read.
        """
        text, mark, line = self._cursor.text, self._cursor.mark, given.line
        asked = dropped, calls, thinking
        markers = self._known.get(asked) or self._known.setdefault(asked, self._markers(*asked))
        first, hold = None, len(text)
        if found := markers.words.first(text, mark):
            marker = markers.meaning[found[0]]
            hold = found.start()
            after = found.end() if marker.passed else hold
            first = Opening(hold, after, marker.way, marker.sure)
            if marker.way is not None and given.exemplary(text[mark:hold]):
                # A known tool's call may come between its own markers even there.
                first = first._replace(sure=False) if marker.passed else _text(hold)
        elif not self._cursor.ended:
            hold -= markers.words.begun(text, mark)
        if calls and self._at_lines and not thinking:
            for at, after in self._lines(line, hold):
                if (way := self._begun(at, after, line)) is not None:
                    # An answer that is only such an object calls, even a tool that is unknown.
                    alone = line is None and isinstance(way.form.call, JsonCall)
                    sure = alone and not way.form.begin and at == mark
                    if not (line is None and at == mark) and given.exemplary(text[mark:at]):
                        return _text(at), at
                    return Opening(at, after, way, sure, "[" in text[at:after]), at
                if not self._cursor.ended and self._undecided(at, after):
                    return None, at
        return first, hold

    def _markers(self, dropped: Sequence[str], calls: bool, thinking: bool) -> _Markers:
        meaning: dict[str, _Marker] = {}
        for marker in self._each_marker(dropped, calls, thinking):
            meaning.setdefault(marker.word, marker)
        return _Markers(meaning, Words(meaning))

    def _each_marker(
        self, dropped: Sequence[str], calls: bool, thinking: bool
    ) -> Iterator[_Marker]:
        yield from map(_Marker, dropped)
        if not calls or (thinking and not self._offered.mends):
            return
        for way in self.ways:
            if way.form.begin:
                yield _Marker(way.form.begin.strip(), way, not thinking)
            if isinstance(way.form.call, JsonCall) and self._offered.mends and not thinking:
                yield _Marker(f'{{"{way.form.call.name}": "', way, passed=False)
            if way.before and self._offered.mends and not thinking:
                yield _Marker(way.before, way, passed=False)

    def _lines(self, line: str | None, end: int) -> Iterator[tuple[int, int]]:
        """Begins of lines before `end`: where they are, and the first character of each."""
        text, mark = self._cursor.text, self._cursor.mark
        if line is None and (found := _START.match(text, mark)):
            yield mark, found.end() + len(found[1])
        for found in _LINE.finditer(text, mark, max(end, mark)):
            at = found.end()
            if at - text.rfind("\n", mark, at) <= LOOK_AHEAD:  # else it was given away
                yield at, at + len(found[1])

    def _begun(self, at: int, after: int, line: str | None) -> Way | None:
        """The format in which a tool's call seems to begin with this line."""
        text = self._cursor.text
        near = text[after : at + LOOK_AHEAD].lstrip()
        first = line is None and at == self._cursor.mark
        for way in self.ways:
            form = way.form
            if not self._offered.mends and (form.begin or not first):
                continue
            if isinstance(form.call, JsonCall):
                key = _FIRST_KEY.match(near)
                if key and self._in_call(key[1], form.call):
                    return way
                continue
            word = _WORD.match(near)
            if not word or word[0] not in self._offered.tools:
                continue
            if form.opens.strip() == "[" and "[" not in text[at:after]:
                continue
            behind = near[word.end() :].lstrip()
            if behind.startswith(way.behind_name or ("\0",)) and _OBJECT.match(behind):
                return way
        return None

    def _in_call(self, key: str, call: JsonCall) -> bool:
        return key in _IN_CALL if call.name else key in self._offered.tools

    def _undecided(self, at: int, after: int) -> bool:
        """Whether more text must show if a call begins here."""
        text = self._cursor.text
        if len(text) >= at + LOOK_AHEAD:
            return False
        rest = text[after:].lstrip()
        if not rest or _KEY_TO_COME.match(rest) or _FENCE_TO_COME.match(text, at):
            return True
        word = _WORD.match(rest)
        if not word:
            return False
        behind = rest[word.end() :].lstrip()
        if not behind and word.end() == len(rest):
            return any(name.startswith(word[0]) for name in self._offered.tools)
        marks = [mark for way in self.ways for mark in way.behind_name]
        comes = any(mark.startswith(behind) for mark in marks) or _OBJECT_TO_COME.match(behind)
        return word[0] in self._offered.tools and bool(comes)


def _text(at: int) -> Opening:
    """Note that a place holds text."""
    return Opening(at + 1, at + 1, None)


def _reader(cursor: Cursor, form: CallFormat, offered: Offered) -> CallReader:
    call = form.call
    closes = () if isinstance(call, JsonCall) else tuple(call.closes.split())
    ends = (form.end.strip(), *(closes if isinstance(call, NamedCall) else ()))
    begins = (form.begin.strip(), "" if isinstance(call, JsonCall) else call.before.strip())
    around = CallContext(
        cursor,
        offered,
        tuple(end for end in ends if len(end) >= _SHORTEST_END),
        tuple(filter(None, begins)),
    )
    match call:
        case JsonCall():
            return JsonCallReader(around, call)
        case NamedCall():
            return NamedCallReader(around, call)
        case FieldCall(value_end=""):
            return PythonCallReader(around, call)
        case FieldCall(nested=True):
            return NestedCallReader(around, call)
        case FieldCall():
            return TagCallReader(around, call)
