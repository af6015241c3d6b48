"""Which message a place in a chat's prompt lies in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from radixlm.core.keys import Key
from radixlm.text.tokenizer import Tokenizer

TOOLS = "tools"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MOST_STRINGS = 100


class Spot(NamedTuple):
    """role: of the message, or TOOLS, which are no message. of: how many messages there are."""

    message: int | None
    role: str
    of: int

    def __str__(self) -> str:
        return "the tools" if self.message is None else f"message {self.message} ({self.role})"


@dataclass(frozen=True, slots=True)
class Outline:
    """A chat's messages and tools, and the text that the template made of them."""

    text: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()

    def at(self, tokenizer: Tokenizer, key: Key, position: int) -> Spot | None:
        """The message of the token at `position` of the text's key; what the template writes
        between two belongs to the second. None without messages. O(text).

        A text that messages share can be found too early, and one that the template changed is not
        found: then its message is taken for a part of the one behind it.
        """
        if not self.messages:
            return None
        wanted = self._character(tokenizer, key, position)
        last = len(self.messages) - 1
        end = 0
        for place, message in enumerate(self.messages):
            text = _text(message.get("content")).strip()
            begin = self.text.find(text, end) if text else -1
            if begin < 0:
                continue
            end = begin + len(text)
            if wanted < begin and wanted < self._tools_end(begin):
                return Spot(None, TOOLS, last + 1)
            if wanted < end:
                return Spot(place, str(message["role"]), last + 1)
        return Spot(last, str(self.messages[last]["role"]), last + 1)

    def _character(self, tokenizer: Tokenizer, key: Key, position: int) -> int:
        """Where in the text the token at `position` begins."""
        data = self.text.encode()
        before, behind = map(tokenizer.byte_length, (key[:position], key[position:]))
        added = max(before + behind - len(data), 0)  # by the tokenizer, in front
        byte = max(before - added, 0)
        return byte if self.text.isascii() else len(data[:byte].decode(errors="ignore"))

    def _tools_end(self, limit: int) -> int:
        """Where before `limit` ends what JSON says of the tool that is named last; 0 without."""
        begin, last = -1, None
        for tool in self.tools:
            name = str(tool.get("function", tool).get("name", ""))
            at = self.text.rfind(f'"{name}"', 0, limit)
            begin, last = (at, tool) if at > begin else (begin, last)
        if last is None:
            return 0
        strings = _STRING.findall(json.dumps(last, ensure_ascii=False))[-_MOST_STRINGS:]
        found = ((self.text.rfind(text, begin, limit), len(text)) for text in strings)
        return max((at + length for at, length in found if at >= 0), default=begin)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content or ""
