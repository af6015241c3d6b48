"""The line that Claude Code puts before its system prompt: for those who send bills, and another
one with each request, so that nothing after it would be found in the cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from radixlm.server.bodies.cache_control import Wish
from radixlm.server.bodies.conversation import Content, Conversation, text_part

LEFT_OUT: Final = (
    "the line x-anthropic-billing-header of the system prompt is left out: it is another one with "
    "each request (--keep-billing-header keeps it)"
)
# Nothing but pairs, the first of them Claude Code's own: no sentence of anybody's.
_LINE = re.compile(
    r"(?:x-anthropic-billing-header:[ \t]*cc_[\w-]+=[^;\s]*(?:;[ \t]*[\w-]+=[^;\s]*)*;?[ \t]*"
    r"(?:[\r\n]+|\Z))+"
)


def without_billing_header(chat: Conversation) -> Conversation:
    """The same without the line, where a text of the system's begins with it: Claude Code sends it
    as a block, proxies in one text with the others. Else the conversation itself.

    A mark on a block that is nothing else keeps nothing.
    """
    left = {
        of: texts
        for of, message in enumerate(chat.messages)
        if message["role"] == "system" and (texts := _left_of(message["content"])) is not None
    }
    if not left:
        return chat
    messages = [
        {**message, "content": _content(message["content"], left[of])} if of in left else message
        for of, message in enumerate(chat.messages)
    ]
    wishes = [kept for wish in chat.wishes if (kept := _moved(wish, left)) is not None]
    stay = [of for of, message in enumerate(messages) if of not in left or message["content"]]
    shorter = replace(chat, messages=messages, wishes=wishes)
    return shorter.only(stay) if stay else shorter


def _left_of(content: Content) -> list[str] | None:
    """The rest of each text of it; None where none begins with the line."""
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    left = [text[found.end() :] if (found := _LINE.match(text)) else text for text in texts]
    return None if left == texts else left


def _content(content: Content, left: Sequence[str]) -> Content:
    return left[0] if isinstance(content, str) else [text_part(text) for text in left if text]


def _moved(wish: Wish, left: Mapping[int, Sequence[str]]) -> Wish | None:
    place = wish.place
    if place is None or place.kind != "part" or place.of not in left:
        return wish
    texts = left[place.of]
    before = sum(map(bool, texts[: place.at]))
    return Wish(place._replace(at=before), wish.ttl) if texts[place.at] else None
