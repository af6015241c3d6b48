"""How many there are, in words."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """A number with its noun.

    >>> counted(1, "token"), counted(2, "token")
    ('1 token', '2 tokens')
    """
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
