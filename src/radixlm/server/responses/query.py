"""What stands behind the ? of a request to a stored response."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from radixlm.server.query import DIGITS
from radixlm.server.request_model import Body, ListOf
from radixlm.server.responses.body import Include


class RetrieveQuery(Body):
    """GET /v1/responses/{response_id}. What is included was chosen when it was made."""

    include: ListOf[Include] | None = None
    stream: Literal["false"] | None = None
    include_obfuscation: Literal["false"] | None = None


class ItemsQuery(Body):
    """GET /v1/responses/{response_id}/input_items."""

    include: ListOf[Include] | None = None
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100), DIGITS] = 20
    order: Literal["asc", "desc"] = "desc"
