"""Finds nodes by their text."""

from __future__ import annotations

from collections.abc import Sequence

from radixlm.core.clock import Clock
from radixlm.core.reports import NodeView
from radixlm.server.cache_view.wire import Found, SearchOut
from radixlm.text.tokenizer import Tokenizer

MAX_SECONDS = 1.0
_CONTEXT_BYTES = 48


def search(
    q: str, nodes: Sequence[NodeView], tokenizer: Tokenizer, *, limit: int, clock: Clock
) -> SearchOut:
    """Nodes in whose text `q` ends; it may begin in those above. Each before its children.

    The first place in a node counts. O(length of all texts), for MAX_SECONDS at most.
    """
    wanted = q.encode()
    keep = len(wanted) - 1 + _CONTEXT_BYTES
    tails: dict[int, bytes] = {}
    matches: list[Found] = []
    until = clock.now() + MAX_SECONDS
    searched = 0
    for view in nodes:
        if len(matches) > limit or clock.now() > until:
            break
        searched += 1
        above = b"" if view.parent_id is None else tails.get(view.parent_id, b"")
        own = tokenizer.spelled(view.tokens)
        text = above + own
        tails[view.id] = text[-keep:]
        at = text.find(wanted, max(len(above) - len(wanted) + 1, 0))
        if at >= 0:
            end = at + len(wanted)
            matches.append(
                {
                    "node_id": view.id,
                    "start": view.start,
                    "before": _readable(text[max(at - _CONTEXT_BYTES, 0) : at]),
                    "match": q,
                    "after": _readable(text[end : end + _CONTEXT_BYTES]),
                }
            )
    hidden = any(view.hidden for view in nodes)
    return {
        "object": "cache.search",
        "q": q,
        "searched": searched,
        "complete": searched == len(nodes) and len(matches) <= limit and not hidden,
        "matches": matches[:limit],
    }


def _readable(data: bytes) -> str:
    """Cut anywhere: what is no whole character at the ends is left out."""
    return data.decode(errors="ignore")
