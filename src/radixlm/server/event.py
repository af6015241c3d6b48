"""Server-sent events as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """One event: a single `data:` line, under its name where the API gives events names."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return head + b"data: " + text.encode() + b"\n\n"
