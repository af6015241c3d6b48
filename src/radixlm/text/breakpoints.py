"""The ends of messages, calls and tools in a prompt, in characters and tokens.

The messages are rendered once more with a mark after each of these, and the marks show where they
end. What a template does with the text around (trimming it, say) may differ then, so a place counts
only as far as both texts are the same:

    rendered       <|user|>Hello<|end|>
    with a mark    <|user|>Hello  #<|end|>      trimmed no more: the same up to "Hello"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from radixlm.core.keys import Key, common_prefix
from radixlm.text.tokenizer import Tokenizer

Json = dict[str, Any]


class PrefixEnd(NamedTuple):
    """The end of a prefix: a message's part of content or call, or a tool, by their numbers.

    of: which message, or 0. A content that is one text is its own only part.
    """

    kind: Literal["part", "call", "tool"]
    at: int
    of: int = 0


def with_marks(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    marks: Mapping[PrefixEnd, str],
) -> tuple[list[Json], list[Json]]:
    """The messages and tools with each mark at the end of its place."""
    marked, marked_tools = [dict(message) for message in messages], [dict(tool) for tool in tools]
    for place, mark in marks.items():
        if place.kind == "tool":
            marked_tools[place.at] = _marked(marked_tools[place.at], mark)
            continue
        message = marked[place.of]
        name = "content" if place.kind == "part" else "tool_calls"
        entries = message[name]
        if isinstance(entries, str):
            message[name] = entries + mark
        elif entries:
            here = place.at
            message[name] = [*entries[:here], _marked(entries[here], mark), *entries[here + 1 :]]
    return marked, marked_tools


def ends_in(text: str, marked: str, marks: Sequence[str]) -> dict[str, int]:
    """Count the characters of `text` in front of each mark that `marked` holds once, in order."""
    found: dict[str, int] = {}
    places = sorted((marked.find(mark), mark) for mark in marks if marked.count(mark) == 1)
    for place, mark in places:
        before = marked[:place]
        for other in found:
            before = before.replace(other, "")
        found[mark] = common_prefix(_characters(text), _characters(before))
    return found


def tokens_within(tokenizer: Tokenizer, key: Key, text: str, places: Sequence[int]) -> list[int]:
    """Count the tokens of a key that lie wholly in front of each place in its text.

    places: in characters. Where the tokens do not spell the text, as with a tokenizer that
    normalizes it, these are the tokens that the key shares with the text up to there alone.
    """
    spelled = [tokenizer.token_bytes(int(token)) for token in key]
    data, wanted = b"".join(spelled), text.encode()
    lead = 1 if tokenizer.drops_first_space and data == b" " + wanted else 0
    if data[lead:] == wanted:
        ends = np.cumsum([len(each) for each in spelled])
        limits = [lead + len(text[:chars].encode()) for chars in places]
        return [int(np.searchsorted(ends, limit, side="right")) for limit in limits]
    alone = (tokenizer.encode(text[:chars], add_special_tokens=False) for chars in places)
    return [common_prefix(key, tokens) for tokens in alone]


def _characters(text: str) -> Key:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<i4")


def _marked(value: Any, mark: str) -> Any:
    """`value` with the mark after the last text in it; names stay as they are."""
    match value:
        case str():
            return value + mark
        case list() if value:
            return [*value[:-1], _marked(value[-1], mark)]
        case dict():
            for name in reversed(value):
                marked = _marked(value[name], mark)
                if marked != value[name]:
                    return {**value, name: marked}
    return value
