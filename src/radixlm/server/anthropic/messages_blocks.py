"""The blocks of which messages to /v1/messages are made, as clients send them; and edits of the
context: which of them the model need not read again.

The client goes on sending all of it, so each request is edited anew.
Source: https://docs.claude.com/en/docs/build-with-claude/context-editing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import Field
from typing_extensions import TypedDict

from radixlm.server.bodies.cache_control import CacheControl
from radixlm.server.http.body import Body, ByType, ListOf
from radixlm.server.http.fields import TEXT_ALONE, NotYet

CLEARED = "[cleared to make room]"
_DEFAULT_TRIGGER = 100_000
_DEFAULT_KEEP = 3
_MOST_EDITS = 4  # the prompt is counted once more for each


class ContentBlock(Body):
    cache_control: CacheControl | None = None

    @property
    def parts(self) -> Sequence[ContentBlock]:
        """Blocks within it, which the model reads as one text with it."""
        return ()

    @property
    def mark(self) -> CacheControl | None:
        """The mark of the block, or the last within it."""
        marks = [block.cache_control for block in (*self.parts, self)]
        return next((mark for mark in reversed(marks) if mark is not None), None)


class TextBlock(ContentBlock):
    # Those of an answer that another server gave.
    echoes = frozenset({"citations"})
    not_yet: ClassVar[NotYet] = {"citations": ([],)}

    type: Literal["text"]
    text: str


# Answers cite nothing.
_UNCITED: NotYet = {"citations": ({"enabled": False},)}
_UNMARKED: NotYet = {"cache_control": ()}


class PlainSourceBlock(Body):
    type: Literal["text"]
    media_type: Literal["text/plain"] = "text/plain"
    data: str


class ContentSourceBlock(Body):
    type: Literal["content"]
    content: str | ListOf[TextBlock]


class DocumentBlock(ContentBlock):
    """A text to be read, with what it is called and what is to be known of it."""

    not_yet = _UNCITED

    type: Literal["document"]
    source: Annotated[
        PlainSourceBlock | ContentSourceBlock, ByType(f"{TEXT_ALONE}; sources are supported")
    ]
    title: str | None = None
    context: str | None = None

    @property
    def parts(self) -> Sequence[ContentBlock]:
        content = self.source.content if isinstance(self.source, ContentSourceBlock) else ()
        return () if isinstance(content, str) else content

    @property
    def text(self) -> str:
        """The text that the model reads."""
        source = self.source
        given = source.data if isinstance(source, PlainSourceBlock) else source.content
        said = given if isinstance(given, str) else "\n".join(part.text for part in given)
        return "\n".join(text for text in (self.title, self.context, said) if text)


class SearchResultBlock(ContentBlock):
    """source: where it is from."""

    not_yet = _UNCITED

    type: Literal["search_result"]
    source: str
    title: str
    content: ListOf[TextBlock]

    @property
    def parts(self) -> Sequence[ContentBlock]:
        return self.content

    @property
    def text(self) -> str:
        """The text that the model reads."""
        return "\n".join((self.title, self.source, *(part.text for part in self.content)))


class ToolReferenceBlock(ContentBlock):
    """A tool that a search found. All tools are there at once, so its name is all it says."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def text(self) -> str:
        """The text that the model reads."""
        return self.tool_name


class RedactedThinkingBlock(Body):
    """Thoughts that only the server which had them can read: there are none of ours."""

    not_yet = _UNMARKED

    type: Literal["redacted_thinking"]
    data: str


ResultBlock = Annotated[
    TextBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock,
    ByType(f"{TEXT_ALONE}; blocks are supported here"),
]


class ToolUseBlock(ContentBlock):
    not_yet: ClassVar[NotYet] = {"caller": ({"type": "direct"},), "toolset_name": ()}

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(ContentBlock):
    not_yet: ClassVar[NotYet] = {"toolset_name": ()}

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | ListOf[ResultBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(Body):
    """Thoughts are no place for a mark: templates leave out those of earlier turns."""

    not_yet = _UNMARKED

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


AnyBlock = Annotated[
    TextBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock,
    ByType(f"{TEXT_ALONE}; blocks are supported"),
]


class SentMessage(Body):
    role: Literal["user", "assistant", "system"]
    content: str | ListOf[AnyBlock]


Count = Annotated[int, Field(ge=0)]
Messages = Sequence[SentMessage]
# A block, by the places of its message and of itself in it.
At = tuple[int, int]
B = TypeVar("B")


class Change(NamedTuple):
    """blocks: what stands in place of some. number: of the uses or turns that they are of."""

    blocks: Mapping[At, AnyBlock]
    number: int


class ClearedUses(TypedDict):
    type: Literal["clear_tool_uses_20250919"]
    cleared_tool_uses: int
    cleared_input_tokens: int


class ClearedThinking(TypedDict):
    type: Literal["clear_thinking_20251015"]
    cleared_thinking_turns: int
    cleared_input_tokens: int


AppliedEdit = ClearedUses | ClearedThinking


class TokensItem(Body):
    type: Literal["input_tokens"]
    value: Count


class UsesItem(Body):
    type: Literal["tool_uses"]
    value: Count


class TurnsItem(Body):
    type: Literal["thinking_turns"]
    value: Annotated[int, Field(ge=1)]


class AllTurnsItem(Body):
    type: Literal["all"]


_Trigger = Annotated[TokensItem | UsesItem, ByType("Triggers are supported")]


class ClearUsesItem(Body):
    """Results of tools are cleared, the oldest first, but those of the last `keep` uses.

    trigger: more tokens or uses than this. clear_at_least: this many tokens, or nothing.
    clear_tool_inputs: the calls' inputs too, of all tools or of these.
    """

    type: Literal["clear_tool_uses_20250919"]
    trigger: _Trigger | None = None
    keep: UsesItem | None = None
    clear_at_least: TokensItem | None = None
    exclude_tools: ListOf[str] | None = None
    clear_tool_inputs: bool | ListOf[str] | None = None

    def change(self, messages: Messages) -> Change:
        """The change that the edit would make."""
        uses = {block.id: (at, block) for at, block in _each(messages, ToolUseBlock)}
        results = [
            (at, block)
            for at, block in _each(messages, ToolResultBlock)
            if block.tool_use_id in uses
        ]
        keep = _DEFAULT_KEEP if self.keep is None else self.keep.value
        excluded, inputs = frozenset(self.exclude_tools or ()), self.clear_tool_inputs
        emptied = frozenset(inputs) if isinstance(inputs, list) else frozenset[str]()
        made: dict[At, AnyBlock] = {}
        for at, result in results[: max(len(results) - keep, 0)]:
            place, use = uses[result.tool_use_id]
            if use.name in excluded:
                continue
            made[at] = result.model_copy(update={"content": CLEARED})
            if inputs is True or use.name in emptied:
                made[place] = use.model_copy(update={"input": {}})
        return Change(made, sum(isinstance(block, ToolResultBlock) for block in made.values()))

    def wanted(self, messages: Messages, tokens: int, cleared: int) -> bool:
        """Whether it is time. tokens: of all. cleared: how many of these would be."""
        if self.clear_at_least is not None and cleared < self.clear_at_least.value:
            return False
        if isinstance(self.trigger, UsesItem):
            return sum(1 for _ in _each(messages, ToolUseBlock)) > self.trigger.value
        return tokens > (_DEFAULT_TRIGGER if self.trigger is None else self.trigger.value)

    def report(self, number: int, cleared: int) -> AppliedEdit:
        """The answer's report of the edit."""
        return {"type": self.type, "cleared_tool_uses": number, "cleared_input_tokens": cleared}


class ClearThinkingItem(Body):
    """Thoughts are left out but those of the last turns. What the user says ends a turn, results of
    tools do not.
    """

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | TurnsItem | AllTurnsItem | None = None

    def change(self, messages: Messages) -> Change:
        """The change that the edit would make."""
        if self.keep == "all" or isinstance(self.keep, AllTurnsItem):
            return Change({}, 0)
        keep = 1 if self.keep is None else self.keep.value
        turns = _thoughts_by_turn(messages)
        nothing = RedactedThinkingBlock(type="redacted_thinking", data="")
        old = turns[: max(len(turns) - keep, 0)]
        return Change({at: nothing for turn in old for at in turn}, len(old))

    def report(self, number: int, cleared: int) -> AppliedEdit:
        """The answer's report of the edit."""
        return {
            "type": self.type,
            "cleared_thinking_turns": number,
            "cleared_input_tokens": cleared,
        }


Edit = Annotated[ClearUsesItem | ClearThinkingItem, ByType("Edits are supported")]


class ContextManagement(Body):
    """edits: made in this order."""

    edits: Annotated[ListOf[Edit], Field(max_length=_MOST_EDITS)] | None = None


class Edited(NamedTuple):
    """changed: the places of the blocks that are others now."""

    messages: Messages
    applied: Sequence[AppliedEdit] = ()
    changed: frozenset[At] = frozenset()


def edited(messages: Messages, edits: Sequence[Edit], count: Callable[[Messages], int]) -> Edited:
    """Edit the messages that the model is to read. count: a prompt's tokens, called where an edit
    changes any.
    """
    made = Edited(messages)
    for edit in edits:
        blocks, number = edit.change(made.messages)
        if not blocks:
            continue
        after = _with(made.messages, blocks)
        before = count(made.messages)
        cleared = before - count(after)
        if cleared <= 0 or (
            isinstance(edit, ClearUsesItem) and not edit.wanted(made.messages, before, cleared)
        ):
            continue
        applied = (*made.applied, edit.report(number, cleared))
        made = Edited(after, applied, made.changed | blocks.keys())
    return made


def _with(messages: Messages, changed: Mapping[At, AnyBlock]) -> Messages:
    made = list(messages)
    for place in {message for message, _ in changed}:
        content = made[place].content
        blocks = [changed.get((place, at), block) for at, block in enumerate(content)]
        made[place] = made[place].model_copy(update={"content": blocks})
    return made


def _each(messages: Messages, kind: type[B]) -> Iterator[tuple[At, B]]:
    """All blocks of a kind, in order."""
    for place, message in enumerate(messages):
        for at, block in enumerate(message.content):
            if isinstance(block, kind):
                yield (place, at), block


def _thoughts_by_turn(messages: Messages) -> list[list[At]]:
    """The places of thoughts, by the turns that have any."""
    turns: list[list[At]] = [[]]
    for place, message in enumerate(messages):
        for at, block in enumerate(message.content):
            if message.role == "user" and not isinstance(block, ToolResultBlock):
                turns.append([])
            elif isinstance(block, ThinkingBlock):
                turns[-1].append((place, at))
    return [turn for turn in turns if turn]
