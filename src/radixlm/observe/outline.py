"""Which message a place in a chat's prompt lies in."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from radixlm.core.keys import Key
from radixlm.text.chat_template import one_text
from radixlm.text.tokenizer import Tokenizer

TOOLS = "tools"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MOST_STRINGS = 100
# How many characters are searched in vain for messages that the template changed; after that, a
# message is only looked for in the next few.
_MOST_IN_VAIN = 32 * 2**20
_NEAR = 4_096


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
    """A chat's messages and tools, and the text that the template made of them.

    edited: the messages from which an edit of the context left something out.
    """

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
        """Each message that is found, where it begins and ends, and the message that the text
        before it belongs to, if not to the template.
        """
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
        """Where in the text the token at `position` begins."""
        data = self.text.encode()
        before, after = map(tokenizer.byte_length, (key[:position], key[position:]))
        added = max(before + after - len(data), 0)  # by the tokenizer, in front
        byte = max(before - added, 0)
        return byte if self.text.isascii() else len(data[:byte].decode(errors="ignore"))

    def _tools_end(self, limit: int) -> int:
        """Where the JSON of the tool that is named last before `limit` ends; 0 without."""
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
