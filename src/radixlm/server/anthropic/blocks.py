"""The blocks of which messages to /v1/messages are made, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag

from radixlm.server.cache_fields import CacheControl
from radixlm.server.fields import NotYet
from radixlm.server.request_model import Body, ListOf


class Block(Body):
    cache_control: CacheControl | None = None


class TextBlock(Block):
    not_yet: ClassVar[NotYet] = {"citations": ([],)}

    type: Literal["text"]
    text: str


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
    content: str | ListOf[TextBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(Body):
    """Thoughts are no place for a mark: templates leave out those of earlier turns."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


_TAGS = {
    "text": "TextBlock",
    "tool_use": "ToolUseBlock",
    "tool_result": "ToolResultBlock",
    "thinking": "ThinkingBlock",
}


def _tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return _TAGS.get(kind) if isinstance(kind, str) else None


AnyBlock = Annotated[
    Annotated[TextBlock, Tag("TextBlock")]
    | Annotated[ToolUseBlock, Tag("ToolUseBlock")]
    | Annotated[ToolResultBlock, Tag("ToolResultBlock")]
    | Annotated[ThinkingBlock, Tag("ThinkingBlock")],
    Discriminator(
        _tag,
        custom_error_type="block_type",
        custom_error_message="Blocks are supported whose type is one of " + ", ".join(_TAGS),
    ),
]
