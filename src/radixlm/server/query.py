"""What stands behind the ? of a request, as a model."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request
from pydantic import BeforeValidator

from radixlm.server.body import checked
from radixlm.server.request_model import Body

Q = TypeVar("Q", bound=Body)


def _number(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


# Behind a field's range: in front of it the schema would not tell the range.
DIGITS = BeforeValidator(_number)
"""A number, written with digits: they are all that a query can hold."""


def query_of(request: Request, kind: type[Q]) -> Q:
    """The query as a model. Raises InvalidRequestError that names the field."""
    values: dict[str, object] = {}
    included: list[str] = []
    for name, value in request.query_params.multi_items():
        plain = name.removesuffix("[]")
        if plain == "include":
            included.append(value)
        values[plain] = included if plain == "include" else value
    return checked(kind, values)
