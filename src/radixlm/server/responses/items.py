"""The items of which a conversation in /v1/responses is made, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag

from radixlm.server.cache_fields import PromptCacheBreakpoint
from radixlm.server.fields import NotYet
from radixlm.server.request_model import Body, ListOf

Status = Literal["in_progress", "completed", "incomplete"]

# What an item is not asked for by: who called a tool, and when.
_ITEM_NOT_YET: NotYet = {
    "namespace": (),
    "caller": ({"type": "direct"},),
    "async": (False,),
}


class ContentPart(Body):
    """type: input_text, output_text, refusal and, in reasoning, reasoning_text, summary_text."""

    # What came with an answer's text.
    no_ops = frozenset({"annotations", "logprobs"})
    not_yet: ClassVar[NotYet] = {
        "image_url": (),
        "file_id": (),
        "file_data": (),
        "file_url": (),
        "filename": (),
        "detail": (),
        "input_audio": (),
    }

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: PromptCacheBreakpoint | None = None


class Item(Body):
    # An answer's items come back with these; their place says the same.
    no_ops = frozenset({"phase"})
    not_yet = _ITEM_NOT_YET

    id: str | None = None
    status: Status | None = None


class MessageItem(Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | ListOf[ContentPart]


class FunctionCallItem(Item):
    """namespace: that of the tool, where it is in one."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class FunctionOutputItem(Item):
    type: Literal["function_call_output"]
    call_id: str
    output: str | ListOf[ContentPart]
    name: str | None = None


class ReasoningItem(Item):
    type: Literal["reasoning"]
    summary: ListOf[ContentPart] | None = None
    content: ListOf[ContentPart] | None = None
    encrypted_content: str | None = None


class ReferenceItem(Body):
    """In place of an item that is stored: of one that a response was given, or gave."""

    type: Literal["item_reference"]
    id: str


_TAGS = {
    "message": "MessageItem",
    "function_call": "FunctionCallItem",
    "function_call_output": "FunctionOutputItem",
    "reasoning": "ReasoningItem",
    "item_reference": "ReferenceItem",
}


def _tag(value: Any) -> str | None:
    """Which item it is; a message may leave out that it is one."""
    kind = value.get("type", "message") if isinstance(value, dict) else None
    return _TAGS.get(kind) if isinstance(kind, str) else None


AnyItem = Annotated[
    Annotated[MessageItem, Tag("MessageItem")]
    | Annotated[FunctionCallItem, Tag("FunctionCallItem")]
    | Annotated[FunctionOutputItem, Tag("FunctionOutputItem")]
    | Annotated[ReasoningItem, Tag("ReasoningItem")]
    | Annotated[ReferenceItem, Tag("ReferenceItem")],
    Discriminator(
        _tag,
        custom_error_type="item_type",
        custom_error_message="Items are supported whose type is one of " + ", ".join(_TAGS),
    ),
]
