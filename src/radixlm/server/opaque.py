"""Text that a client keeps for the server without being meant to read it. It is not secret."""

from __future__ import annotations

import base64
import binascii

_PREFIX = "radixlm1."


def sealed(text: str) -> str:
    """`text` as ASCII without spaces."""
    return _PREFIX + base64.urlsafe_b64encode(text.encode()).decode()


def unsealed(token: str) -> str | None:
    """The text that `sealed` made `token` of; None for anything else."""
    if not token.startswith(_PREFIX):
        return None
    try:
        return base64.b64decode(
            token.removeprefix(_PREFIX).encode(), altchars=b"-_", validate=True
        ).decode()
    except (binascii.Error, ValueError):
        return None
