"""Values as Python writes them, made JSON."""

from __future__ import annotations

import json
import re

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
