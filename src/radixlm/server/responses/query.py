"""What stands behind the ? of a request to a stored response."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from fastapi import Request
from pydantic import BeforeValidator, Field

from radixlm.server.body import checked
from radixlm.server.request_model import Body, ListOf
from radixlm.server.responses.body import Include

Q = TypeVar("Q", bound=Body)


def _number(value: object) -> object:
    """Digits are all that a query can hold."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


class RetrieveQuery(Body):
    """GET /v1/responses/{response_id}. What is included was chosen when it was made."""

    include: ListOf[Include] | None = None
    stream: Literal["false"] | None = None
    include_obfuscation: Literal["false"] | None = None


class ItemsQuery(Body):
    """GET /v1/responses/{response_id}/input_items."""

    include: ListOf[Include] | None = None
    after: str | None = None
    limit: Annotated[int, BeforeValidator(_number), Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


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
