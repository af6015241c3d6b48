"""Ids that the server gives, and names of fields in errors."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy

from radixlm.core.errors import InvalidRequestError

_PREFIX = "radixlm1."


def new_id(kind: str) -> str:
    """A fresh id, which begins with what it is of."""
    return f"{kind}_{uuid.uuid4().hex}"


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

    names: the request's fields, by what the pipeline and the engine call them.
    """
    own = names.get(error.param or "")
    if own is None:
        return error
    renamed = copy(error)
    renamed.param = own
    if error.param not in ("prompt", "messages"):  # which are words of the text, too
        renamed.args = (str(error).replace(str(error.param), own),)
    return renamed


@contextmanager
def in_callers_words(names: Mapping[str, str]) -> Iterator[None]:
    """Errors that are raised within are about the request's own fields; see `renamed`."""
    try:
        yield
    except InvalidRequestError as error:
        raise renamed(error, names) from None
