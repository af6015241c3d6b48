"""A miss in words: what caused it, in which message, and what to do about it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

import numpy as np

from radixlm.core.keys import Key
from radixlm.core.misses import SHOWN_TOKENS, MissReason, MissReport
from radixlm.observe.difference import SAME, Difference, DifferenceKind, Texts, difference, meeting
from radixlm.text.fitting import one_text
from radixlm.text.tokenizer import Tokenizer

TOOLS = "tools"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MOST_STRINGS = 100
# How many characters are searched in vain for messages that the template changed; after that, a
# message is only looked for in the next few.
_MOST_IN_VAIN = 32 * 2**20
_NEAR = 4_096


class Cause(StrEnum):
    """A cause for which tokens had to be computed. fix: "" for none; "{where}" stands for a better
    place.
    """

    what: str
    fix: str

    def __new__(cls, value: str, what: str = "", fix: str = "") -> Self:
        cause = str.__new__(cls, value)
        cause._value_, cause.what, cause.fix = value, what, fix
        return cause

    DATE_TIME = ("date_time", "a date or time changes per request", "move it to {where}")
    ID = ("id", "an id changes per request", "leave it out, or move it to {where}")
    NUMBER = (
        "number",
        "a number or counter changes per request",
        "leave it out, or move it to {where}",
    )
    REORDERED = (
        "reordered",
        "the same entries come in another order",
        "send tools, JSON keys and documents in the same order each time, for example sorted",
    )
    CHANGING_PART = (
        "changing_part",
        "a part changes per request, and the same text follows",
        "move it to {where}",
    )
    EDITED_TOOLS = (
        "edited_tools",
        "the tools are others",
        "send the same tools in the same order with each request",
    )
    EDITED_HISTORY = (
        "edited_history",
        "an earlier message was rewritten",
        "append to a conversation and leave what was sent as it is",
    )
    CUT_HISTORY = (
        "cut_history",
        "messages were left out of the conversation",
        "keep them while there is room, then leave out many at once and not some each turn",
    )
    CONTEXT_EDIT = (
        "context_edit",
        "context_management cleared part of the conversation",
        "let it clear much at once and seldom (trigger, keep, clear_at_least)",
    )
    REASONING = (
        "reasoning",
        "the reasoning of an answer was left out",
        "send it back (reasoning_content), with a --chat-template that writes that of every turn",
    )
    WHITE_SPACE = (
        "white_space",
        "only white space differs",
        "send earlier text exactly as it was sent before",
    )
    UNICODE = (
        "unicode",
        "the same letters come as other Unicode characters",
        "send text in one form (NFC), without byte order marks and characters of no width",
    )
    RETOKENIZED = (
        "retokenized",
        "the same text is cut into other tokens",
        "end no prompt with white space, and send answers back as they came, or as token ids",
    )
    # Another question, another conversation.
    NEW_TEXT = ("new_text", "the prompt's own text begins")
    EVICTED = (
        "evicted",
        "it was cached, but had to make room",
        "give the cache more room (--kv-tokens, --host-kv-tokens, --disk-cache), or pin the prefix",
    )
    WINDOW_EVICTED = (
        "window_evicted",
        "what follows is, too, but in layers with a window those before it had to make room",
        "give these layers more room (--swa-full-tokens-ratio), or pin the prefix",
    )
    NO_STATE = (
        "no_state",
        "what follows is, too, but the model's state after it is not kept",
        "keep more states (--max-mamba-cache-size), or closer ones (--state-checkpoint-interval)",
    )
    FIRST_SEEN = ("first_seen", "nothing like it was cached before")
    # but the last token, or its page
    NOTHING_MISSED = ("nothing_missed", "all of it was cached, but what is always computed")
    PAGE_FLOOR = (
        "page_floor",
        "only whole pages are cached, and the rest fills none",
        "start with a smaller --page-size",
    )
    BLOCK_FLOOR = (
        "block_floor",
        "nothing is known: only whole blocks outlive a restart, and the rest fills none",
    )
    HELD_BACK = ("held_back", "no more was wanted from the cache")
    DISABLED = ("disabled", "the cache is off", "start without --disable-radix-cache")


# At least this share of the computed tokens had been cached: many prompts begin with a few tokens
# of some forgotten one.
_EVICTED_SHARE: Final = 0.25
_PROMPT_END: Final = "the end of the prompt"
_LAST_MESSAGE: Final = "the last message, and leave it there in later turns"
_QUESTION: Final = 2  # messages that are no conversation yet: a system prompt and a question
_OF_TOOLS: Final = '"parameters": {'
_MOST_OF_TOOLS: Final = 4_096  # tokens: the first tool may now come last
_SOME: Final = 10  # characters
_HEADER: Final = 5  # characters that the template writes in front of a message, at least
# Kinds that a few words show; the cause depends on the message that they are in.
_OF_WORDS: Final = frozenset(
    {DifferenceKind.DATE_TIME, DifferenceKind.ID, DifferenceKind.NUMBER, DifferenceKind.TEXT}
)
_OF_REASON: Final = {
    MissReason.NEW: Cause.FIRST_SEEN,
    MissReason.LAST_TOKEN: Cause.NOTHING_MISSED,
    MissReason.WINDOW_EVICTED: Cause.WINDOW_EVICTED,
    MissReason.NO_STATE: Cause.NO_STATE,
    MissReason.PAGE_FLOOR: Cause.PAGE_FLOOR,
    MissReason.BLOCK_FLOOR: Cause.BLOCK_FLOOR,
    MissReason.HELD_BACK: Cause.HELD_BACK,
    MissReason.DISABLED: Cause.DISABLED,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """position: the token. where: a better place for the part that changes."""

    cause: Cause
    position: int
    spot: Spot | None = None
    difference: Difference | None = None
    where: str = _PROMPT_END

    @property
    def what(self) -> str:
        return self.cause.what

    @property
    def fix(self) -> str:
        return self.cause.fix.format(where=self.where)

    @property
    def place(self) -> str:
        """Such as "message 0 (system), token 18"."""
        if self.spot is None:
            return f"token {self.position}"
        return f"{self.spot}, token {self.position}"


def cause_of(miss: MissReport) -> Cause | None:
    """The cause of a miss, where its text is not needed for that."""
    if miss.reason is MissReason.EVICTED:
        computed = miss.prompt_tokens - miss.cached
        return Cause.EVICTED if miss.evicted >= _EVICTED_SHARE * computed else Cause.FIRST_SEEN
    return _OF_REASON.get(miss.reason)


def find(
    tokenizer: Tokenizer,
    miss: MissReport,
    key: Key,
    outline: Outline | None = None,
    *,
    others: bool = False,
) -> Finding:
    """Find a miss's cause. O(prompt), most of it in C; see benchmarks/explain.py.

    key: the prompt. outline: of a chat's. others: the cached text may be of another user, so little
    of it is looked at: causes could reveal guesses of it.
    """
    cause = cause_of(miss)
    if cause is not None:
        return Finding(cause, miss.position)
    spot = None if outline is None else outline.at(tokenizer, key, miss.position)
    parts = [
        np.frombuffer(data, dtype=np.int32)
        for data in (miss.shared, miss.cached_next, miss.requested_next)
    ]
    if spot is not None and spot.message is None:
        parts[-1] = key[miss.position :][:_MOST_OF_TOOLS]
    if others:
        parts[1] = parts[1][:SHOWN_TOKENS]
    begins = miss.position <= parts[0].size
    found, texts = difference(tokenizer, *parts, begins=begins)
    if outline is not None and spot is not None and spot.message in outline.edited:
        return Finding(Cause.CONTEXT_EDIT, miss.position, spot, found)
    cause, inside = _cause(found.kind, texts, spot)
    has_tools = outline is not None and bool(outline.tools)
    where = _where(spot, inside=inside, has_tools=has_tools)
    return Finding(cause, miss.position, spot, found, where)


def _cause(kind: DifferenceKind, texts: Texts, spot: Spot | None) -> tuple[Cause, bool]:
    """The cause, and whether the same text follows in the same message."""
    if kind is DifferenceKind.REASONING:
        answer = spot is not None and spot.role == "assistant" and not spot.last
        kind = kind if answer else DifferenceKind.TEXT
    if kind not in _OF_WORDS:
        return Cause(kind.value), False
    if spot is None:
        inside = meeting(texts.cached, texts.requested) is not None
        return _of_own(kind, inside=inside), inside
    if spot.message is None:
        return Cause.DATE_TIME if kind is DifferenceKind.DATE_TIME else Cause.EDITED_TOOLS, False
    return _in_message(kind, texts, spot)


def _in_message(kind: DifferenceKind, texts: Texts, spot: Spot) -> tuple[Cause, bool]:
    _, cached, requested = texts
    if spot.last:
        inside = spot.into >= 0 and meeting(cached, requested[: spot.left]) is not None
        return _of_own(kind, inside=inside), inside
    if _left_out(texts, spot):
        return Cause.CUT_HISTORY, False
    met = meeting(cached, requested)
    if _tools_gone(cached if met is None else cached[: met[0]], spot):
        return Cause.EDITED_TOOLS, False
    inside = spot.into >= 0 and met is not None and met[1] + _SOME <= spot.left
    if spot.role == "system" or (spot.role == "user" and met is not None):
        if kind is not DifferenceKind.TEXT:
            return Cause(kind.value), inside
        if inside and spot.role == "system":
            return Cause.CHANGING_PART, True
    # Two conversations part at the first message of the user's; later, it was one that they share.
    shared = (spot.message or 0) > 1 or spot.role == "assistant"
    goes_on = met is not None and spot.of > _QUESTION
    return Cause.EDITED_HISTORY if shared or goes_on else Cause.NEW_TEXT, inside


def _of_own(kind: DifferenceKind, *, inside: bool) -> Cause:
    """The cause in a prompt's own end: nothing is lost unless the same text follows."""
    if not inside:
        return Cause.NEW_TEXT
    return Cause.CHANGING_PART if kind is DifferenceKind.TEXT else Cause(kind.value)


def _tools_gone(cached: str, spot: Spot) -> bool:
    """Whether tools stood before the first message, or after the system's, and are gone."""
    between = spot.into < 0 if spot.role != "system" else not spot.left
    return between and _OF_TOOLS in cached


def _left_out(texts: Texts, spot: Spot) -> bool:
    """Whether the message that begins here came later in the cached prompt."""
    before, cached, requested = texts
    if spot.into < 0:
        lead = ""
        certain = spot.role == "assistant"
    else:
        lead = before[-spot.into - _HEADER :]
        certain = spot.role != "system" and len(lead) == spot.into + _HEADER
    message = requested[:SAME]
    return certain and len(message) == SAME and (lead + cached).find(lead + message, 1) > 0


def _where(spot: Spot | None, *, inside: bool, has_tools: bool) -> str:
    """The place for the part that changes: after all that stays the same."""
    if spot is None or spot.last:
        return _PROMPT_END
    alone = spot.role == "system" and spot.of <= _QUESTION and not has_tools
    return "the end of the system prompt" if alone and inside else _LAST_MESSAGE


class Spot(NamedTuple):
    """role: of the message, or TOOLS, which are no message. of: how many messages there are.

    into, left: how many characters of the message stand before and after the place; `into` is
    negative in the text that the template writes in front of it.
    """

    message: int | None
    role: str
    of: int
    into: int = 0
    left: int = 0

    @property
    def last(self) -> bool:
        """Whether it is in the last message."""
        return self.message is not None and self.message == self.of - 1

    def __str__(self) -> str:
        return "the tools" if self.message is None else f"message {self.message} ({self.role})"


@dataclass(frozen=True, slots=True)
class Outline:
    """A chat's messages, tools and text. edited: from which a context edit left something."""

    text: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    edited: Collection[int] = ()

    def at(self, tokenizer: Tokenizer, key: Key, position: int) -> Spot | None:
        """The message of the token at `position` of the text's key. The template's text between two
        messages belongs to the second, except where the first one ends. None without messages.
        O(text).

        A text that messages share can be found too early. One that the template changed is not
        found, nor is a call of a tool: the text up to the next message is taken for theirs.
        """
        if not self.messages:
            return None
        wanted = self._character(tokenizer, key, position)
        last = begin = end = 0
        for place, starts, ends, between in self._spans():
            if wanted < starts and between is None and wanted < self._tools_end(starts):
                return Spot(None, TOOLS, len(self.messages))
            if between is not None and end < wanted < starts:
                return self._spot(between, 0, starts - wanted)
            if wanted == end > 0:
                break
            last, begin, end = place, starts, ends
            if wanted < end:
                break
        else:
            if wanted != end:
                return self._spot(len(self.messages) - 1, 0, 0)
        return self._spot(last, wanted - begin, max(end - wanted, 0))

    def _spans(self) -> Iterator[tuple[int, int, int, int | None]]:
        """Each message found, its begin and end, and the message that the text before it is of."""
        whole, between = self.text, None
        end, left, reach = 0, _MOST_IN_VAIN, _MOST_IN_VAIN
        for place, message in enumerate(self.messages):
            text = str(one_text(message.get("content")) or "").strip()
            begin = whole.find(text, end, end + len(text) + reach) if text else -1
            if begin >= 0:
                end = begin + len(text)
                yield place, begin, end, between
                between = None
            elif text:
                left -= min(len(text) + reach, len(whole) - end)
                reach = max(left, _NEAR)
            if between is None and (message.get("tool_calls") or (text and begin < 0)):
                between = place

    def _spot(self, place: int, into: int, left: int) -> Spot:
        return Spot(place, str(self.messages[place]["role"]), len(self.messages), into, left)

    def _character(self, tokenizer: Tokenizer, key: Key, position: int) -> int:
        """The place in the text where the token at `position` begins."""
        data = self.text.encode()
        before, after = map(tokenizer.byte_length, (key[:position], key[position:]))
        added = max(before + after - len(data), 0)  # by the tokenizer, in front
        byte = max(before - added, 0)
        return byte if self.text.isascii() else len(data[:byte].decode(errors="ignore"))

    def _tools_end(self, limit: int) -> int:
        """The end of the JSON of the tool that is named last before `limit`; 0 without."""
        begin, last = -1, None
        for tool in reversed(self.tools):  # the last mostly comes last: little is left to search
            name = str(tool.get("function", tool).get("name", ""))
            at = self.text.rfind(f'"{name}"', max(begin, 0), limit)
            begin, last = (at, tool) if at > begin else (begin, last)
        if last is None:
            return 0
        strings = _STRING.findall(json.dumps(last, ensure_ascii=False))[-_MOST_STRINGS:]
        found = ((self.text.rfind(text, begin, limit), len(text)) for text in strings)
        return max((at + length for at, length in found if at >= 0), default=begin)
