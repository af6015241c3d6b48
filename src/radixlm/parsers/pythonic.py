"""Values as Python writes them, made JSON."""

from __future__ import annotations

import json
import re
from abc import abstractmethod

from radixlm.parsers.events import ToolArguments, ToolCallBegun, ToolCallEnded
from radixlm.parsers.steps import Steps
from radixlm.parsers.tool_calls import CallParser

_PIECE = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\b(?:True|False|None)\b""", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null"}
_IN_STRING = re.compile(r'\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)|["\x00-\x1f]', re.DOTALL)


def as_json(text: str) -> str | None:
    """The JSON of a value that is written as in Python or as in JSON; None where it is neither.

    >>> as_json("{'a': [True, None, \\"it's\\"]}")
    '{"a": [true, null, "it\\'s"]}'
    """
    try:
        value = json.loads(_PIECE.sub(_piece, text))
        made = json.dumps(value, ensure_ascii=False, allow_nan=False)
        made.encode()  # half of a pair is no character
    except (ValueError, RecursionError):
        return None
    return made


def _piece(found: re.Match[str]) -> str:
    written = found[0]
    return _WORDS.get(written) or f'"{_IN_STRING.sub(_in_string, written[1:-1])}"'


def _in_string(found: re.Match[str]) -> str:
    written = found[0]
    if written[0] != "\\":
        return f"\\u{ord(written):04x}"
    match written[1]:
        case "'":
            return "'"
        case "x" if len(written) == 4:
            return f"\\u00{written[2:]}"
        case "u" if len(written) == 2:
            return "\\\\u"
        case "u" | '"' | "\\" | "/" | "b" | "f" | "n" | "r" | "t":
            return written
        case other:  # Python keeps the backslash before what it does not know
            return "\\\\" + _IN_STRING.sub(_in_string, other)


class FieldParser(CallParser):
    """Makes the JSON of a call's arguments out of their names and values."""

    # Of the call that is being read: its name, once that is known, the names of its arguments, and
    # up to where the text has been told as its begin.
    _name = ""
    _given: frozenset[str] = frozenset()
    _told: int | None = None

    @abstractmethod
    def _fields(self) -> Steps[bool]:
        """Read one call by `_begin`, `_argument` and `_end`; False when it is none."""

    def _call(self, name: str | None = None) -> Steps[bool]:  # noqa: ARG002
        self._name, self._given, self._told = "", frozenset(), None
        whole = yield from self._fields()
        if self._ended and not whole:  # it waited for more, and nothing has come
            self._at = len(self._text)
            if self._cut and self._name:
                self._more("")
        if not whole and self._told is not None:
            self._at = self._told
        self._settle(begun=self._told is not None, whole=whole)
        return whole

    def _begin(self, name: str) -> None:
        """It is told with the first argument: until then it may be no call."""
        self._name = name

    def _is_new(self, key: str) -> bool:
        """Whether it is a name, and none that was there before."""
        return bool(key) and key not in self._given

    def _argument(self, key: str, value: str) -> None:
        """All up to `_at` is told. value: JSON, or the begin of it, which `_more` goes on with."""
        self._more(f"{', ' if self._given else '{'}{json.dumps(key, ensure_ascii=False)}: {value}")
        self._given |= {key}

    def _more(self, delta: str) -> None:
        if self._told is None:
            self._events.append(ToolCallBegun(self._begun, self._new_id(), self._name))
        self._told = self._at
        if delta:
            self._events.append(ToolArguments(self._begun, delta))

    def _end(self) -> bool:
        self._more("}" if self._given else "{}")
        self._events.append(ToolCallEnded(self._begun))
        return True


BEGIN = "<|python_start|>"
END = "<|python_end|>"


class PythonicParser(FieldParser):
    """The answer begins with `[f(a="b", c=[1, None]), g()]`; Llama 4 may put it between
    <|python_start|> and <|python_end|>.

    Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_2/
    """

    def _run(self) -> Steps[None]:
        yield from self._skip_spaces()
        tagged = yield from self._skip(BEGIN)
        yield from self._skip_spaces()
        if (yield from self._skip("[")) and (yield from self._calls(",")):
            yield from self._closed_by("]")
            if tagged:
                yield from self._closed_by(END)
        yield from self._rest()

    def _fields(self) -> Steps[bool]:
        name = yield from self._word()
        if name not in self._tools or not (yield from self._skip("(")):
            return False
        self._begin(name)
        yield from self._skip_spaces()
        while not (yield from self._skip(")")):
            if not (yield from self._field()):
                return False
        return self._end()

    def _field(self) -> Steps[bool]:
        """Read `key=value`, and the comma behind it."""
        key = yield from self._word()
        yield from self._skip_spaces()
        if not self._is_new(key) or not (yield from self._skip("=")):
            return False
        value = as_json((yield from self._value()))
        if value is None:
            return False
        self._argument(key, value)
        yield from self._skip(",")
        yield from self._skip_spaces()
        return True

    def _value(self) -> Steps[str]:
        """Read up to the comma or bracket that ends it."""
        start, depth = self._at, 0
        while character := (yield from self._peek()):
            if character in "\"'":
                yield from self._string(character)
                continue
            if character in ",)]}" and not depth:
                return self._text[start : self._at].strip()
            depth += (character in "([{") - (character in ")]}")
            self._at += 1
        return ""

    def _string(self, quote: str) -> Steps[None]:
        """Read a string, its quotes included."""
        self._at += 1
        escaped = False
        while character := (yield from self._peek()):
            self._at += 1
            if character == quote and not escaped:
                return
            escaped = character == "\\" and not escaped
