"""Answers held to the types that the clients' packages publish."""

from __future__ import annotations

from typing import Any

import httpx
from pydantic import BaseModel, TypeAdapter

# OpenAI's answers have it, the types of its package do not.
_SENT_ALL_THE_SAME = {"store"}


def strictly(kind: Any, data: str) -> Any:
    """JSON as one of the published types; fails for a field that it does not have."""
    made = TypeAdapter(kind).validate_json(data, strict=True)
    _check_known(made, "")
    return made


def named_events(response: httpx.Response) -> list[tuple[str, str]]:
    """Each event's name and data."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, last = response.text.split("\n\n")
    assert last == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), data.removeprefix("data: ")))
    return found


def _check_known(value: Any, path: str) -> None:
    if isinstance(value, BaseModel):
        unknown = (value.model_extra or {}).keys() - _SENT_ALL_THE_SAME
        assert not unknown, (path, unknown)
        for name in type(value).model_fields:
            _check_known(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for place, entry in enumerate(value):
            _check_known(entry, f"{path}[{place}]")
