"""Server-sent events as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

DONE = b"data: [DONE]\n\n"
# Readers of text take these for the ends of lines, too (httpx does); in JSON they stand in strings.
_LINE_ENDS = tuple((end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029")


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """One event: a single `data:` line, under its name where the API gives events names."""
    return framed(compact(data), name)


def framed(line: bytes, name: str = "") -> bytes:
    """One event of a line that is JSON already."""
    for end, escaped in _LINE_ENDS:
        line = line.replace(end, escaped)
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + line + b"\n\n"


def compact(data: object) -> bytes:
    """JSON without a space or a line break."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def spliced(fields: Mapping[str, Any], written: Mapping[str, bytes]) -> bytes:
    """The same of an object, some of whose fields are JSON already.

    >>> spliced({"id": 1}, {"list": b"[2,3]"})
    b'{"id":1,"list":[2,3]}'
    """
    members = [compact(fields)[1:-1]] if fields else []
    members += [compact(name) + b":" + value for name, value in written.items()]
    return b"{" + b",".join(members) + b"}"
