"""Ids of what the server makes."""

from __future__ import annotations

import uuid


def new_id(kind: str) -> str:
    """A fresh id, whose beginning says of what."""
    return f"{kind}_{uuid.uuid4().hex}"
