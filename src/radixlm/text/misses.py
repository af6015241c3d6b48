"""A miss in words: what caused it, where, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from radixlm.core.keys import Key
from radixlm.core.misses import MissReason, MissReport
from radixlm.text.difference import Difference, Kind, difference
from radixlm.text.outline import Outline, Spot
from radixlm.text.tokenizer import Tokenizer


class Cause(StrEnum):
    """Why tokens of a prompt had to be computed."""

    DATE_TIME = "date_time"
    ID = "id"
    NUMBER = "number"
    REORDERED = "reordered"
    EDITED_TOOLS = "edited_tools"
    EDITED_HISTORY = "edited_history"
    WHITE_SPACE = "white_space"
    RETOKENIZED = "retokenized"
    NEW_TEXT = "new_text"  # the prompt's own: another question, another conversation
    EVICTED = "evicted"
    FIRST_SEEN = "first_seen"
    NOTHING_MISSED = "nothing_missed"  # but the last token, or its page
    HELD_BACK = "held_back"
    DISABLED = "disabled"


class Words(NamedTuple):
    """what: has happened. fix: what to do, "" where there is nothing."""

    what: str
    fix: str = ""


WORDS: Final = {
    Cause.DATE_TIME: Words(
        "a date or time changes per request", "move it to the end of the {where}"
    ),
    Cause.ID: Words(
        "an id changes per request", "leave it out, or move it to the end of the {where}"
    ),
    Cause.NUMBER: Words(
        "a number or counter changes per request",
        "leave it out, or move it to the end of the {where}",
    ),
    Cause.REORDERED: Words(
        "the same entries come in another order",
        "send tools and JSON keys in the same order each time",
    ),
    Cause.EDITED_TOOLS: Words(
        "the tools are others", "send the same tools with each request of a conversation"
    ),
    Cause.EDITED_HISTORY: Words(
        "an earlier message was rewritten",
        "append to a conversation and leave what was sent as it is",
    ),
    Cause.WHITE_SPACE: Words(
        "only white space differs", "send earlier text exactly as it was sent before"
    ),
    Cause.RETOKENIZED: Words(
        "the same text is cut into other tokens",
        "end no prompt with white space, and send answers back as they came, or as token ids",
    ),
    Cause.NEW_TEXT: Words("the prompts' own text begins here"),
    Cause.EVICTED: Words(
        "it was cached, but had to make room",
        "give the pool more tokens (--kv-tokens), or pin the prefix",
    ),
    Cause.FIRST_SEEN: Words("nothing like it was cached before"),
    Cause.NOTHING_MISSED: Words("all of it was cached, but what is always computed"),
    Cause.HELD_BACK: Words("no more was wanted from the cache"),
    Cause.DISABLED: Words("the cache is off", "start without --disable-radix-cache"),
}
_OF_REASON: Final = {
    MissReason.NEW: Cause.FIRST_SEEN,
    MissReason.EVICTED: Cause.EVICTED,
    MissReason.LAST_TOKEN: Cause.NOTHING_MISSED,
    MissReason.PAGE_FLOOR: Cause.NOTHING_MISSED,
    MissReason.HELD_BACK: Cause.HELD_BACK,
    MissReason.DISABLED: Cause.DISABLED,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """position: the token. spot: its message, in a chat. difference: where prompts part."""

    cause: Cause
    position: int
    spot: Spot | None = None
    difference: Difference | None = None

    @property
    def what(self) -> str:
        return WORDS[self.cause].what

    @property
    def fix(self) -> str:
        in_system = self.spot is not None and self.spot.role == "system"
        return WORDS[self.cause].fix.format(where="system prompt" if in_system else "prompt")

    @property
    def place(self) -> str:
        """Such as "message 0 (system), token 18"."""
        if self.spot is None:
            return f"token {self.position}"
        return f"{self.spot}, token {self.position}"


def cause_of_reason(reason: MissReason) -> Cause | None:
    """The cause of a miss, where its reason alone tells."""
    return _OF_REASON.get(reason)


def find(
    tokenizer: Tokenizer, miss: MissReport, key: Key, outline: Outline | None = None
) -> Finding:
    """Make out a miss's cause. O(prompt), most of it in C; see benchmarks/explain.py.

    key: the prompt. outline: of a chat's.
    """
    cause = _OF_REASON.get(miss.reason)
    if cause is not None:
        return Finding(cause, miss.position)
    spot = None if outline is None else outline.at(tokenizer, key, miss.position)
    parts = [
        np.frombuffer(data, dtype=np.int32)
        for data in (miss.shared, miss.cached_next, miss.requested_next)
    ]
    begins = miss.position <= parts[0].size
    found = difference(tokenizer, *parts, begins=begins)
    return Finding(_cause(found.kind, spot), miss.position, spot, found)


def _cause(kind: Kind, spot: Spot | None) -> Cause:
    if kind is not Kind.TEXT:
        return Cause(kind.value)
    if spot is None:
        return Cause.NEW_TEXT
    if spot.message is None:
        return Cause.EDITED_TOOLS
    # Two conversations part at the first message of the user's; later, it was one that they share.
    shared = spot.message > 1 or spot.role == "assistant"
    return Cause.EDITED_HISTORY if shared and spot.message < spot.of - 1 else Cause.NEW_TEXT
