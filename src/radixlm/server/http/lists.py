"""Lists as OpenAI has them, a page at a time."""

from __future__ import annotations

from typing import Any

from radixlm.core.errors import wrong

Json = dict[str, Any]


def page_of(found: list[Json] | None, limit: int, after: str | None = None) -> Json:
    """A page of `limit` at most, and whether there are more: of what was found after one of a
    list's ids. Raises InvalidRequestError where that was not there.
    """
    if found is None:
        raise wrong("after", f"{after!r:.80} is the id of none of these")
    page = found[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(found) > limit,
    }
