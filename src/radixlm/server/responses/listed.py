"""A response's input, as it is stored and listed."""

from __future__ import annotations

from typing import Any

from radixlm.core.errors import InvalidRequestError
from radixlm.server.ids import new_id
from radixlm.server.responses.as_chat import items_of
from radixlm.server.responses.body import ResponseBody
from radixlm.server.responses.items import AnyItem
from radixlm.server.responses.query import ItemsQuery
from radixlm.server.responses.wire import InputItems

_KINDS = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


def stored_items(body: ResponseBody) -> list[dict[str, Any]]:
    """`input` as items that say all of themselves, each with an id."""
    return [_whole(item) for item in items_of(body)]


def listed(items: list[dict[str, Any]], query: ItemsQuery) -> InputItems:
    """One page of a response's input. Raises InvalidRequestError for an unknown `after`."""
    found = items if query.order == "asc" else items[::-1]
    if query.after is not None:
        places = [place for place, item in enumerate(found) if item["id"] == query.after]
        if not places:
            raise InvalidRequestError(
                f"after {query.after!r:.80} is the id of none of these items", param="after"
            )
        found = found[places[0] + 1 :]
    page = found[: query.limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(found) > len(page),
    }


def _whole(item: AnyItem) -> dict[str, Any]:
    told: dict[str, Any] = {"id": new_id(_KINDS[item.type]), "status": "completed"}
    told |= item.model_dump(exclude_none=True)
    if item.type == "message":
        kind = "output_text" if item.role == "assistant" else "input_text"
        if isinstance(item.content, str):
            told["content"] = [{"type": kind, "text": item.content}]
        if kind == "output_text":
            told["content"] = [
                {"annotations": [], "logprobs": [], **part} for part in told["content"]
            ]
    elif item.type == "reasoning":
        told.setdefault("summary", [])
    return told
