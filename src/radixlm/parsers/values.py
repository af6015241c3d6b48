"""Values in calls: as models write them, in Python or in JSON, made into JSON."""

from __future__ import annotations

import json
import re

# A quote that nothing closes runs to the end, in a group: from each quote in it a search would go
# through all that follows again.
_PIECE = re.compile(
    r"""'(?:[^'\\]|\\.)*(?:'|(\\?\Z))|"(?:[^"\\]|\\.)*(?:"|(\\?\Z))|\b(?:True|False|None)\b""",
    re.DOTALL,
)
_WORDS = {"True": "true", "False": "false", "None": "null"}
_IN_STRING = re.compile(r'\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)|["\x00-\x1f]', re.DOTALL)


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
    if found.lastindex is not None:
        return written  # no JSON, since it is not closed
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


_QUOTED_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"']+)(\s*:)")


def unquoted_json(text: str, quote: str) -> str | None:
    """The JSON of a value whose texts stand between two `quote`, and whose keys have no quotes.

    >>> unquoted_json("{a:[§it's§,true]}", "§")
    '{"a": ["it\\'s", true]}'
    """
    parts = text.split(quote)
    if len(parts) % 2 == 0:
        return None
    texts = [json.dumps(part, ensure_ascii=False) for part in parts[1::2]]
    # The texts stay out while keys are looked for, lest these be found in them.
    rest = _QUOTED_KEY.sub(r'\1"\2"\3', "\0".join(parts[::2]))
    if rest.count("\0") != len(texts):
        return None
    rests = rest.split("\0")
    return as_json(
        rests[0] + "".join(text + rest for text, rest in zip(texts, rests[1:], strict=True))
    )


def is_object(text: str) -> bool:
    """Whether `text` is a JSON object, and nothing else."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        json.loads(text, parse_constant=refuse, parse_int=str)
    except (ValueError, RecursionError):
        return False
    return text[0] == "{" and text[-1] == "}"
