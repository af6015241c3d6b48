"""Which message a place in a chat's prompt lies in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from radixlm.core.keys import Key
from radixlm.text.tokenizer import Tokenizer

TOOLS = "tools"


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
        data = self.text.encode()
        added = tokenizer.byte_length(key) - len(data)  # by the tokenizer, in front
        byte = tokenizer.byte_length(key[:position]) - max(added, 0)
        last = len(self.messages) - 1
        for place, begin, end in self._found(data):
            if byte < begin and byte < self._tools_end(data[:begin]):
                return Spot(None, TOOLS, last + 1)
            if byte < end:
                return Spot(place, str(self.messages[place]["role"]), last + 1)
        return Spot(last, str(self.messages[last]["role"]), last + 1)

    def _found(self, data: bytes) -> Iterator[tuple[int, int, int]]:
        """(message, begin, end) of the texts that stand in the prompt, in bytes."""
        at = 0
        for place, message in enumerate(self.messages):
            text = _text(message.get("content")).strip().encode()
            begin = data.find(text, at) if text else -1
            if begin >= 0:
                at = begin + len(text)
                yield place, begin, at

    def _tools_end(self, data: bytes) -> int:
        """Where the last mention of a tool's name ends, in JSON; 0 without one."""
        names = (str(tool.get("function", tool).get("name", "")) for tool in self.tools)
        return max((data.rfind(f'"{name}"'.encode()) for name in names), default=-1) + 1


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content or ""
