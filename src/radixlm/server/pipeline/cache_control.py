"""What clients ask to be kept of a prompt: from marks in their messages to tokens of the key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from radixlm.core.keys import Key
from radixlm.core.request import Breakpoint
from radixlm.server.pipeline.cache_fields import SECONDS, PromptCacheOptions
from radixlm.server.pipeline.protocol import ChatMessage, TextPart
from radixlm.server.pipeline.tool_fields import ToolPart
from radixlm.text.breakpoints import Place, ends_in, tokens_within
from radixlm.text.tokenizer import Tokenizer, new_mark

MAX_BREAKPOINTS: Final = 4
DEFAULT_KEEP: Final = "30m"


class Wish(NamedTuple):
    """The prompt up to the end of `place` is to be kept; without one, the whole prompt."""

    place: Place | None
    ttl: float


def wishes_in(
    messages: Sequence[ChatMessage],
    options: PromptCacheOptions | None,
    tools: Sequence[ToolPart] = (),
) -> list[Wish]:
    """What OpenAI's fields ask for, and Anthropic's `cache_control` in a chat: the latest
    breakpoints, as many as a request may write.

    The implicit breakpoint counts as one of them, and is kept where a lifetime is asked for:
    without one, the prompt stays as long as nothing needs its room more.
    """
    options = options or PromptCacheOptions()
    wishes = [
        Wish(Place("tool", at), mark.seconds)
        for at, tool in enumerate(tools)
        if (mark := tool.cache_control or tool.function.cache_control) is not None
    ]
    for of, message in enumerate(messages):
        parts = message.content if isinstance(message.content, list) else []
        for at, part in enumerate(parts):
            if (seconds := _seconds_of(part, options)) is not None:
                wishes.append(Wish(Place("part", at, of), seconds))
        if message.cache_control is not None and message.content:
            last = Place("part", max(len(parts) - 1, 0), of)
            wishes.append(Wish(last, message.cache_control.seconds))
    if options.mode == "explicit":
        return wishes[-MAX_BREAKPOINTS:]
    implicit = [] if options.ttl is None else [Wish(None, SECONDS[options.ttl])]
    return wishes[-(MAX_BREAKPOINTS - 1) :] + implicit


def _seconds_of(part: TextPart, options: PromptCacheOptions) -> float | None:
    """How long the prompt up to a part is to be kept."""
    if (mark := part.prompt_cache_breakpoint) is not None:
        return SECONDS[mark.ttl or options.ttl or DEFAULT_KEEP]
    return None if part.cache_control is None else part.cache_control.seconds


def breakpoints_of(
    tokenizer: Tokenizer,
    key: Key,
    text: str,
    break_mark: str,
    wishes: Sequence[Wish],
    render: Callable[[Mapping[Place, str]], str],
) -> tuple[Breakpoint, ...]:
    """Where the wishes' prefixes end in the key. O(length of the text), and nothing without any.

    text: of the key, with `break_mark` in it. render: the same text with a mark at each place.
    """
    if not wishes:
        return ()
    marks = {wish.place: new_mark() for wish in wishes if wish.place is not None}
    ends: dict[str, int] = {}
    if marks:
        chars = ends_in(text, render(marks), list(marks.values()))
        places = [len(text[:end].replace(break_mark, "")) for end in chars.values()]
        plain = text.replace(break_mark, "")
        tokens = tokens_within(tokenizer, key, plain, places)
        ends = dict(zip(chars, tokens, strict=True))
    found: dict[int, float] = {}
    for place, ttl in wishes:
        end = key.size if place is None else ends.get(marks[place], 0)
        if end:
            found[end] = max(ttl, found.get(end, 0.0))
    return tuple(Breakpoint(*entry) for entry in found.items())
