"""Calls whose arguments are written one by one; and the format that writes them as in Python."""

from __future__ import annotations

import json
import re
from abc import abstractmethod

from radixlm.parsers.steps import Steps
from radixlm.parsers.tool_calls import CallFormat, CallParser, Fields

_PIECE = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\b(?:True|False|None)\b""", re.DOTALL)
_WORDS = {"True": "true", "False": "false", "None": "null"}
_IN_STRING = re.compile(r'\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)|["\x00-\x1f]', re.DOTALL)


BEGIN = "<|python_start|>"
END = "<|python_end|>"


def as_json(text: str) -> str | None:
    """The JSON of a value that is written as in Python or as in JSON; None where it is neither.

    Models mix both, and break lines inside of strings, which `ast.literal_eval` refuses.

    >>> as_json("{'a': [True, null, \\"it's\\"]}")
    '{"a": [true, null, "it\\'s"]}'
    """
    try:
        value = json.loads(_PIECE.sub(_piece, text))
        made = json.dumps(value, ensure_ascii=False, allow_nan=False)
        made.encode()  # half of a surrogate pair is no character
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
    """Makes the JSON of a call's arguments out of their names and values.

    A call begins with its first argument: until then it may be none.
    """

    _given: frozenset[str] = frozenset()  # the names of the call's arguments so far

    @abstractmethod
    def _fields(self) -> Steps[bool]:
        """Read one call: set `_name`, then `_argument` for each, then `_close`."""

    def _read_call(self) -> Steps[bool]:
        self._given = frozenset()
        whole = yield from self._fields()
        if self._ended and not whole:  # it waited for more, and nothing has come
            self._at = len(self._text)
            if self._cut and self._name is not None:
                self._more("")
        return whole

    def _is_new(self, key: str) -> bool:
        """Whether it is a name, and none that was there before."""
        return bool(key) and key not in self._given

    def _argument(self, key: str, value: str) -> None:
        """Give away one argument. value: JSON, or the begin of it, which `_more` goes on with."""
        self._more(f"{', ' if self._given else '{'}{json.dumps(key, ensure_ascii=False)}: {value}")
        self._given |= {key}

    def _close(self) -> bool:
        self._more("}" if self._given else "{}")
        return True


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
        self._name = name
        yield from self._skip_spaces()
        while not (yield from self._skip(")")):
            if not (yield from self._field()):
                return False
        return self._close()

    def _field(self) -> Steps[bool]:
        """Read `key=value`, and the comma after it."""
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


PYTHONIC = CallFormat(
    parser=PythonicParser,
    opens="[",
    fields=Fields(after="(", key_after="=", join=", ", closes=")"),
    join=", ",
    closes="]",
    never_begins=r"\s*(<\|python_start\|>\s*)?\[\s*[A-Za-z0-9_.\-]+\(",
    markers=(BEGIN, END),
)
