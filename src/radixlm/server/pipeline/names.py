"""Ids of what the server makes."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Mapping
from copy import copy

from radixlm.core.errors import InvalidRequestError


def new_id(kind: str) -> str:
    """A fresh id, whose beginning says of what."""
    return f"{kind}_{uuid.uuid4().hex}"


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


def renamed(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """The same error about the request's own field.

    names: patterns of the fields it was made into, each with what stands for it, as `re.sub` takes
    them; the first that matches a field's beginning counts.
    """
    if error.param is None:
        return error
    for pattern, name in names.items():
        param = re.sub(rf"\A{pattern}", name, error.param)
        if param != error.param:
            told = copy(error)
            told.args = (str(error).replace(error.param, param),)
            told.param = param
            return told
    return error
