"""Reads calls whose arguments are a JSON object, and gives them away as the model writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixlm.parsers.call_format import JsonCall, NamedCall
from radixlm.parsers.json_text import JsonText
from radixlm.parsers.one_call import LONGEST_NAME, CallContext, CallEvents
from radixlm.parsers.run import Steps, pieces_of
from radixlm.parsers.values import as_json, is_object

# As families call them, whichever they were taught.
_FENCES = ("```json", "```")
_QUOTES = ('"', "'")
# Where JSON is wrong and Python may be right: at a text, True, False, None, or an object's begin.
_PYTHON = frozenset("'TFN{")
_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_BESIDE = frozenset({*_NAMES, "id", "type"})
# Half of a surrogate pair is no character, so no answer can hold it.
_SURROGATE = re.compile("[\ud800-\udfff]")
_IN_NAME = re.compile(r"[\w.:/-]", re.ASCII)
_PLACE = re.compile(r":\d+\Z")


@dataclass(slots=True)
class _Reading:
    """The state of a call that is read: from where its arguments are to be sent, where they end, up
    to where its text is complete, and its arguments, where they were written as a text.
    """

    unsent: int | None = None
    end: int | None = None
    known: int = 0
    spelled: str | None = None
    missing: str = ""


class _ArgumentsReader:
    """Sends a JSON object, as far as it has come, whenever the text that follows is waited for."""

    def __init__(self, around: CallContext) -> None:
        self._around, self._cursor = around, around.cursor
        self._tried = 0  # of the answer's characters, up to where none is read as Python again
        self._json = JsonText(
            around.cursor, mends=around.offered.mends, ends=(*around.ends, *around.begins)
        )

    def _sending(self, call: CallEvents, at: _Reading, read: Steps[bool]) -> Steps[bool]:
        """Run `read`, which reads one call, and send what it finds."""

        def send() -> None:
            if at.unsent is not None and call.name is not None:
                end = self._cursor.at if at.end is None else at.end
                # Even when nothing is new, so that a call begins with its arguments' first brace.
                call.more(self._json.spelled(at.unsent, end), max(end, self._cursor.at))
                at.unsent = max(at.unsent, end)

        self._cursor.before_wait = send
        whole = yield from read
        cut = self._cursor.cut and self._cursor.at == len(self._cursor.text)
        if not whole and at.end is not None and call.name is not None:
            # Its last brace is missing, as it happens to small models.
            whole, self._cursor.at = True, at.known
        send()
        if at.missing and call.name is not None:
            call.more(at.missing, self._cursor.at)
        if call.name is not None and at.unsent is None and (whole or cut):
            call.more(at.spelled or ("{}" if whole else ""), self._cursor.at)
        self._cursor.before_wait = None
        return whole

    def _python_object(self, start: int) -> Steps[Mapping[str, Any]]:
        """Read an object from `start` on that is written as in Python. An empty one where there is
        none; the cursor stays where it is no JSON then.
        """
        cursor, wrong = self._cursor, self._cursor.at
        seems_so = self._around.offered.mends and (yield from cursor.peek()) in _PYTHON
        cursor.at = start
        if seems_so and cursor.forgotten + start >= self._tried and (yield from cursor.skip("{")):
            cursor.at = start
            made = as_json((yield from cursor.balanced(_QUOTES, bracketed=True)))
            value = json.loads(made) if made else None
            if isinstance(value, dict):
                return value
            self._tried = cursor.forgotten + cursor.at
        cursor.at = wrong
        return {}

    def _object(self, at: _Reading) -> Steps[bool]:
        """Read the arguments, an object."""
        cursor, start = self._cursor, self._cursor.at
        cursor.at += 1
        yield from self._json.spaces()
        quoted_as_in_python = (yield from cursor.peek()) == "'"
        cursor.at = start
        if quoted_as_in_python:
            return False
        at.unsent = start
        self._json.mended.clear()  # what was read before is no part of it
        if not (yield from self._json.value()):
            return False
        at.end = at.known = self._cursor.at
        at.missing = self._json.missing
        return True


class JsonCallReader(_ArgumentsReader):
    """Reads `{"name": NAME, "arguments": {…}}`, its fields in any order, others passed over."""

    def __init__(self, around: CallContext, shape: JsonCall) -> None:
        super().__init__(around)
        self._keyed = not shape.name

    def read(self, call: CallEvents) -> Steps[bool]:
        at, start = _Reading(), self._cursor.at
        whole = yield from self._sending(call, at, self._read(call, at))
        return whole or (call.sent is None and (yield from self._in_python(call, start)))

    def _read(self, call: CallEvents, at: _Reading) -> Steps[bool]:
        """Read the call; False when its JSON is broken, or it is no call of such a tool."""
        yield from self._json.spaces()
        if not (yield from self._json.one_of("{")):
            return False
        others: list[str] = []
        while True:
            yield from self._json.spaces()
            start = self._cursor.at
            if not (yield from self._json.key()):
                return False
            key = json.loads(self._cursor.text[start : self._cursor.at - 1], strict=False)
            others += [] if key in _BESIDE else [key]
            yield from self._json.spaces()
            if not (yield from self._field(key, call, at)):
                return False
            yield from self._json.spaces()
            if at.missing or (yield from self._json.one_of("}")):
                given = at.unsent is not None or at.spelled is not None
                return call.name is not None and (given or call.needs_none(others))
            if not (yield from self._json.one_of(",")):
                return False

    def _field(self, key: str, call: CallEvents, at: _Reading) -> Steps[bool]:
        """Read the value of one of the call's fields."""
        cursor = self._cursor
        start, first = cursor.at, (yield from cursor.peek())
        if self._keyed and first == "{" and call.name is None:
            return call.names(key) and (yield from self._object(at))
        if key in _NAMES:
            if first != '"' or call.name is not None or not (yield from self._json.value()):
                return False
            at.known = cursor.at
            name = json.loads(cursor.text[start : cursor.at], strict=False)
            return not _SURROGATE.search(name) and call.names(name)
        if key not in _ARGUMENTS:
            return (yield from self._json.value())
        if at.unsent is not None or at.spelled is not None or first not in ("{", '"', "n"):
            return False
        if first == "{":
            return (yield from self._object(at))
        if not (yield from self._json.value()):
            return False
        # Some models write the arguments as a text, or null.
        at.spelled = json.loads(cursor.text[start : cursor.at], strict=False) or "{}"
        fits = is_object(at.spelled) and not _SURROGATE.search(at.spelled)
        cursor.at -= not fits
        return fits

    def _in_python(self, call: CallEvents, start: int) -> Steps[bool]:
        """Read a call that is written as in Python."""
        call.name, value = None, (yield from self._python_object(start))
        names = [value[key] for key in _NAMES if key in value]
        arguments = [value[key] for key in _ARGUMENTS if key in value]
        if self._keyed:
            names, arguments = list(value)[:1], list(value.values())[:1]
        match names, arguments:
            case [str(name)], [dict(given)] if call.names(name):
                call.more(json.dumps(given, ensure_ascii=False), self._cursor.at)
                return True
        return False


class NamedCallReader(_ArgumentsReader):
    """Reads a name, and the JSON object behind it."""

    def __init__(self, around: CallContext, shape: NamedCall) -> None:
        super().__init__(around)
        self._shape = shape
        self._before, _, self._behind = shape.spelled.partition("{name}")

    def read(self, call: CallEvents) -> Steps[bool]:
        shape, cursor = self._shape, self._cursor
        pieces = pieces_of(shape.before)
        for first in range(len(pieces)):  # the first of them may be left out
            if (yield from cursor.skip_loosely(" ".join(pieces[first:]))):
                break
        name = yield from self._name()
        if (yield from cursor.peek()) == "" or not call.names(name):  # it may be cut off
            return False
        if shape.id_marker and (yield from cursor.skip_loosely(shape.id_marker)):
            yield from self._word()
        if not (yield from cursor.skip_loosely(shape.after)) and not self._around.offered.mends:
            return False
        if not (yield from self.read_arguments(call)):
            return False
        if not (yield from cursor.skip_loosely(shape.closes)) and self._around.offered.mends:
            for word in (*_FENCES[-1:], *shape.closes.split(), *_FENCES[-1:]):
                yield from cursor.skip_loosely(word)
        return True

    def read_arguments(self, call: CallEvents) -> Steps[bool]:
        """Read only the object, of a call whose name is known."""
        yield from self._json.spaces()
        while self._around.offered.mends and (fence := (yield from self._cursor.comes(_FENCES))):
            yield from self._cursor.skip_loosely(fence)
            yield from self._json.spaces()
        at, start = _Reading(), self._cursor.at
        if (yield from self._sending(call, at, self._arguments(at))):
            return True
        if call.sent is not None or not (given := (yield from self._python_object(start))):
            return False
        call.more(json.dumps(given, ensure_ascii=False), self._cursor.at)
        return True

    def _arguments(self, at: _Reading) -> Steps[bool]:
        if (yield from self._cursor.peek()) == "{":
            return (yield from self._object(at))
        at.known = self._cursor.at
        if not self._around.offered.mends:
            return False
        ends = [*self._shape.closes.split()[-1:], *self._around.ends]
        return bool((yield from self._cursor.comes(ends)))  # none at all

    def _name(self) -> Steps[str]:
        name = yield from self._word()
        if self._behind:
            name = _PLACE.sub("", name)
        return name.removeprefix(self._before)

    def _word(self) -> Steps[str]:
        return self._cursor.take(_IN_NAME.match, LONGEST_NAME)
