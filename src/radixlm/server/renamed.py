"""Errors about what a request was made into, in the words of the request itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy

from radixlm.core.errors import InvalidRequestError


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
