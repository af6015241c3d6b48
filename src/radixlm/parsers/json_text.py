"""JSON as models write it, read character by character."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence

from radixlm.parsers.run import LOOK_AHEAD, Cursor, Steps, Words

_INSIDE = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPED = '"\\/bfnrt'
_DIGITS = "0123456789"
_HEX = _DIGITS + "abcdefABCDEF"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_CLOSES = {"{": "}", "[": "]"}
_HIGH = re.compile(r"\\u[dD][89abAB]")
_LOW = re.compile(r"\\u[dD][c-fC-F]")
_ESCAPE_LENGTH = 6
_NO_CHARACTER = "\\ufffd"
# What follows the quote that ends a text.
_BEHIND = frozenset(",}]: \t\n\r")


class JsonText:
    """Reads values at a cursor.

    Libraries for partial JSON (jiter) do not say where an object ends or goes wrong, and read all
    of it again with each piece.

    mends: control characters within texts, halves of surrogate pairs, and brackets that are missing
        before one of `ends` are mended: `spelled` gives the JSON that was meant.
    """

    def __init__(self, cursor: Cursor, *, mends: bool = False, ends: Sequence[str] = ()) -> None:
        self._cursor = cursor
        self._mends = mends
        self._ends = tuple(filter(None, ends)) if mends else ()
        self._end_words = Words(self._ends)
        self.mended: deque[tuple[int, int, str]] = deque()  # from, to, what stands there instead
        self.missing = ""  # brackets that the last value lacks

    def spelled(self, start: int, end: int) -> str:
        """The text between two places, mended; each place but once, from the front."""
        text, parts = self._cursor.text, []
        while self.mended and self.mended[0][1] <= end:
            first, last, instead = self.mended.popleft()
            if start <= first:
                parts += [text[start:first], instead]
                start = last
        return "".join([*parts, text[start:end]])

    def value(self) -> Steps[bool]:
        """Read a value; where it is wrong, the cursor is at the first wrong character."""
        closes: list[str] = []  # of the objects and arrays that are open
        self.missing = ""
        while True:
            yield from self.spaces()
            opened = yield from self._cursor.peek()
            if opened in _CLOSES:
                self._cursor.at += 1
                yield from self.spaces()
                if not (yield from self.one_of(_CLOSES[opened])):
                    closes.append(_CLOSES[opened])
                    if opened == "{" and not (yield from self.key()):
                        return False
                    continue
            elif not (yield from self._scalar(opened)):
                return False
            while closes:
                yield from self.spaces()
                if (yield from self.one_of(",")):
                    if closes[-1] == "}" and not (yield from self.key()):
                        return False
                    break
                if not (yield from self.one_of(closes[-1])):
                    return (yield from self._missing(closes))
                closes.pop()
            else:
                return True

    def _missing(self, closes: list[str]) -> Steps[bool]:
        """Whether what encloses the call ends here, so that brackets were left out."""
        cursor = self._cursor
        if not self._mends:
            return False
        over = (yield from cursor.peek()) == ""
        if over and (cursor.cut or len(closes) > 1 or cursor.text.rstrip()[-1:].isdigit()):
            return False  # more may have been meant
        if not over and not (yield from cursor.comes(self._ends)):
            return False
        self.missing = "".join(reversed(closes))
        return True

    def key(self) -> Steps[bool]:
        """Read a key and its colon."""
        yield from self.spaces()
        if (yield from self._cursor.peek()) != '"' or not (yield from self._string()):
            return False
        yield from self.spaces()
        return (yield from self.one_of(":"))

    def _scalar(self, first: str) -> Steps[bool]:
        if first == '"':
            return (yield from self._string())
        if first not in _LITERALS:
            return (yield from self._number())
        for letter in _LITERALS[first]:
            if not (yield from self.one_of(letter)):
                return False
        return True

    def _string(self) -> Steps[bool]:
        cursor, certain = self._cursor, 0
        cursor.at += 1
        while True:
            if found := _INSIDE.match(cursor.text, cursor.at):
                end = self._end_within(cursor.at, found.end())
                cursor.at = end
                if end < found.end() and end >= certain:
                    certain = yield from self._goes_on()
                    if not certain:
                        return False
                cursor.at += end < found.end()
            character = yield from cursor.peek()
            if character == '"':
                cursor.at += 1
                return True
            if character and _INSIDE.fullmatch(character):
                continue
            if character and self._mends and character < " ":
                self.mended.append((cursor.at, cursor.at + 1, json.dumps(character)[1:-1]))
                cursor.at += 1
            elif not (yield from self._escape()):
                return False

    def _end_within(self, start: int, end: int) -> int:
        """The place in a stretch of text where something begins that may enclose the call; else its
        end.
        """
        text = self._cursor.text
        found = self._end_words.first(text, start, end + LOOK_AHEAD)  # it may have a line break
        begun = len(text) - self._end_words.begun(text, start)
        return min(end, begun, found.start() if found else end)

    def _goes_on(self) -> Steps[int]:
        """Up to where the text goes on past an end of what encloses the call, since its quote still
        comes; 0 when it is over.

        Nothing of it is read until that is known, so that no value is given that was not written.
        """
        cursor = self._cursor
        if not (word := (yield from cursor.comes(self._ends))):
            return cursor.at + 1
        at = cursor.at + len(word)
        while True:
            quote = cursor.text.find('"', at)
            while quote < 0 or quote + 1 >= len(cursor.text):
                if cursor.ended:
                    return 0
                at = len(cursor.text) if quote < 0 else quote
                yield from cursor.wait()
                quote = cursor.text.find('"', at)
            if cursor.text[quote + 1] in _BEHIND:
                return quote
            at = quote + 1

    def _escape(self) -> Steps[bool]:
        """Read an escape. Nothing of one that may be half of a surrogate pair is read before it is
        known whether the other half follows.
        """
        cursor, start = self._cursor, self._cursor.at
        if self._mends:
            escape = yield from self._ahead(start)
            if _HIGH.match(escape) or _LOW.match(escape):
                cursor.at = yield from self._half(escape)
                return True
        if not (yield from self.one_of("\\")):
            return False
        if not (yield from self.one_of("u")):
            return (yield from self.one_of(_ESCAPED))
        for _ in range(4):
            if not (yield from self.one_of(_HEX)):
                return False
        return True

    def _ahead(self, at: int) -> Steps[str]:
        """The escape at a place, "" for none; it is not read."""
        cursor = self._cursor
        while not cursor.ended and len(cursor.text) < at + _ESCAPE_LENGTH:
            if not "\\u".startswith(cursor.text[at : at + 2]):
                return ""
            yield from cursor.wait()
        escape = cursor.text[at : at + _ESCAPE_LENGTH]
        return escape if len(escape) == _ESCAPE_LENGTH and set(escape[2:]) <= set(_HEX) else ""

    def _half(self, escape: str) -> Steps[int]:
        """The end of the pair of which `escape` is one half; alone it is no character."""
        start, end = self._cursor.at, self._cursor.at + _ESCAPE_LENGTH
        if _HIGH.match(escape) and _LOW.match((yield from self._ahead(end))):
            return end + _ESCAPE_LENGTH
        self.mended.append((start, end, _NO_CHARACTER))
        return end

    def _number(self) -> Steps[bool]:
        cursor = self._cursor
        yield from self.one_of("-")
        if not (yield from self.one_of("0")) and not (yield from cursor.take(_DIGITS.__contains__)):
            return False
        if (yield from self.one_of(".")) and not (yield from cursor.take(_DIGITS.__contains__)):
            return False
        if (yield from self.one_of("eE")):
            yield from self.one_of("+-")
            return bool((yield from cursor.take(_DIGITS.__contains__)))
        return True

    def spaces(self) -> Steps[str]:
        return self._cursor.take(" \t\n\r".__contains__)

    def one_of(self, characters: str) -> Steps[bool]:
        """Read one character if it is one of these."""
        found = yield from self._cursor.peek()
        if not found or found not in characters:
            return False
        self._cursor.at += 1
        return True
