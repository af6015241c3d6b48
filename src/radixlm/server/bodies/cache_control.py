"""Wishes of clients for what of a prompt is to stay cached, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, Literal, NamedTuple

from radixlm.core.keys import Key
from radixlm.core.request import Breakpoint
from radixlm.server.http.body import Body
from radixlm.server.http.fields import NotYet
from radixlm.text.breakpoints import PrefixEnd, ends_in, tokens_within
from radixlm.text.tokenizer import Tokenizer, new_mark

MAX_BREAKPOINTS: Final = 4
DEFAULT_KEEP: Final = "30m"
SECONDS: Final = {"5m": 300.0, "30m": 1_800.0, "1h": 3_600.0, "12h": 43_200.0}
KeepFor = Literal["30m", "12h"]
# The longest that a cache may keep a prefix: nothing is promised by it.
Retention = Literal["in_memory", "in-memory", "24h"]


class CacheControl(Body):
    """Anthropic's: the prompt up to here is to be kept, for five minutes by default."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def seconds(self) -> float:
        return SECONDS[self.ttl or "5m"]


class PromptCacheBreakpoint(Body):
    """OpenAI's: a prefix that is to be kept ends here. ttl: by default the options' one."""

    mode: Literal["explicit"]
    ttl: KeepFor | None = None

    def seconds(self, options: PromptCacheOptions | None) -> float:
        return SECONDS[self.ttl or (options and options.ttl) or DEFAULT_KEEP]


class PromptCacheOptions(Body):
    """ttl: of all breakpoints; given, the implicit one at the prompt's end is kept as well."""

    not_yet: ClassVar[NotYet] = {"comparison_response_id": (), "prewarm": (False,)}

    mode: Literal["implicit", "explicit"] | None = None
    ttl: KeepFor | None = None


class Wish(NamedTuple):
    """The prompt up to the end of `place` is to be kept; without one, the whole prompt.

    ttl: in seconds; 0 counts as one of the breakpoints, but keeps nothing.
    """

    place: PrefixEnd | None
    ttl: float


def implicit_wish(options: PromptCacheOptions | None) -> list[Wish]:
    """OpenAI's implicit breakpoint at the prompt's end. Without a lifetime nothing is kept by it:
    the prompt stays as long as nothing needs its room more.
    """
    options = options or PromptCacheOptions()
    if options.mode == "explicit":
        return []
    return [Wish(None, 0.0 if options.ttl is None else SECONDS[options.ttl])]


def breakpoints_of(
    tokenizer: Tokenizer,
    key: Key,
    text: str,
    break_mark: str,
    wishes: Sequence[Wish],
    render: Callable[[Mapping[PrefixEnd, str]], str],
) -> tuple[Breakpoint, ...]:
    """The ends in the key of the latest wishes' prefixes, as many as a request may have.

    text: of the key, with `break_mark` in it. render: the same text with a mark at each place.
    O(length of the text), and nothing without any wish.
    """
    wanted = [wish for wish in wishes[-MAX_BREAKPOINTS:] if wish.ttl]
    marks = {wish.place: new_mark() for wish in wanted if wish.place is not None}
    ends: dict[str, int] = {}
    if marks:
        chars = ends_in(text, render(marks), list(marks.values()))
        places = [len(text[:end].replace(break_mark, "")) for end in chars.values()]
        plain = text.replace(break_mark, "")
        tokens = tokens_within(tokenizer, key, plain, places)
        ends = dict(zip(chars, tokens, strict=True))
    found: dict[int, float] = {}
    for place, ttl in wanted:
        end = key.size if place is None else ends.get(marks[place], 0)
        if end:
            found[end] = max(ttl, found.get(end, 0.0))
    return tuple(Breakpoint(*entry) for entry in found.items())
