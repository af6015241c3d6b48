"""The blocks of which messages to /v1/messages are made, as clients send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator

from radixlm.server.http.body import Body, ByType, ListOf
from radixlm.server.http.fields import NotYet
from radixlm.server.pipeline.cache_control import CacheControl


class Block(Body):
    cache_control: CacheControl | None = None

    @property
    def parts(self) -> Sequence[Block]:
        """Blocks within it, which the model reads as one text with it."""
        return ()

    @property
    def mark(self) -> CacheControl | None:
        """Its own, or the last within it."""
        marks = [block.cache_control for block in (*self.parts, self)]
        return next((mark for mark in reversed(marks) if mark is not None), None)


class TextBlock(Block):
    not_yet: ClassVar[NotYet] = {"citations": ([],)}

    type: Literal["text"]
    text: str


# Answers cite nothing.
_UNCITED: NotYet = {"citations": ({"enabled": False},)}


class PlainSourceBlock(Body):
    type: Literal["text"]
    media_type: Literal["text/plain"] = "text/plain"
    data: str


class ContentSourceBlock(Body):
    type: Literal["content"]
    content: str | ListOf[TextBlock]


class DocumentBlock(Block):
    """A text to be read, with what it is called and what is to be known of it."""

    not_yet = _UNCITED

    type: Literal["document"]
    source: Annotated[PlainSourceBlock | ContentSourceBlock, Discriminator("type")]
    title: str | None = None
    context: str | None = None

    @property
    def parts(self) -> Sequence[Block]:
        """As Block.parts."""
        content = self.source.content if isinstance(self.source, ContentSourceBlock) else ()
        return () if isinstance(content, str) else content

    @property
    def text(self) -> str:
        """As the model reads it."""
        source = self.source
        if isinstance(source, PlainSourceBlock):
            said = source.data
        elif isinstance(source.content, str):
            said = source.content
        else:
            said = "\n".join(part.text for part in source.content)
        return "\n".join(text for text in (self.title, self.context, said) if text)


class SearchResultBlock(Block):
    """source: where it is from."""

    not_yet = _UNCITED

    type: Literal["search_result"]
    source: str
    title: str
    content: ListOf[TextBlock]

    @property
    def parts(self) -> Sequence[Block]:
        """As Block.parts."""
        return self.content

    @property
    def text(self) -> str:
        """As the model reads it."""
        return "\n".join((self.title, self.source, *(part.text for part in self.content)))


class RedactedThinkingBlock(Body):
    """Thoughts that only the server which had them can read: there are none of ours."""

    type: Literal["redacted_thinking"]
    data: str


TextualBlock = Annotated[
    TextBlock | DocumentBlock | SearchResultBlock, ByType("Blocks are supported here")
]


class ToolUseBlock(Block):
    not_yet: ClassVar[NotYet] = {"caller": ({"type": "direct"},), "toolset_name": ()}

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Block):
    not_yet: ClassVar[NotYet] = {"toolset_name": ()}

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | ListOf[TextualBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(Body):
    """Thoughts are no place for a mark: templates leave out those of earlier turns."""

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
    ByType("Blocks are supported"),
]


class MessageItem(Body):
    role: Literal["user", "assistant", "system"]
    content: str | ListOf[AnyBlock]
