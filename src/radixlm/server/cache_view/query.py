"""What stands behind the ? of a request to look at the cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import Request
from pydantic import Field

from radixlm.core.reports import TreeQuery
from radixlm.server.query import DIGITS, query_of
from radixlm.server.request_model import Body
from radixlm.server.service import service_of, tenant_of

DEFAULT_NODES = 10_000
MOST_NODES = 50_000
SEARCHED_NODES = 10_000


class TreeParams(Body):
    """GET /cache/tree and /cache/events."""

    depth: Annotated[int, Field(ge=0, le=1_000_000), DIGITS] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**31), DIGITS] = 0
    node: Annotated[int, Field(ge=1, le=2**62), DIGITS] | None = None
    max_nodes: Annotated[int, Field(ge=1, le=MOST_NODES), DIGITS] = DEFAULT_NODES
    text: Literal["true", "false"] = "true"


class SearchParams(Body):
    """GET /cache/search."""

    q: Annotated[str, Field(min_length=1, max_length=200)]
    limit: Annotated[int, Field(ge=1, le=100), DIGITS] = 20


def tree_query(request: Request) -> tuple[TreeQuery, bool]:
    """What to show, and whether with texts. Raises InvalidRequestError, AdminKeyNeededError."""
    params = query_of(request, TreeParams)
    query = replace(
        seen_by(request),
        max_depth=params.depth,
        min_tokens=params.min_tokens,
        node=params.node,
        max_nodes=params.max_nodes,
    )
    return query, params.text == "true"


def seen_by(request: Request) -> TreeQuery:
    """All that a request may see: its key's own namespace, or everybody's.

    Raises AdminKeyNeededError where all keys share one cache and this one is no admin's.
    """
    service, tenant = service_of(request), tenant_of(request)
    if not service.sees_all(request):
        return TreeQuery(within=service.salt_of(tenant), salted=False)
    return TreeQuery(salted=service.sees_salted(tenant))
