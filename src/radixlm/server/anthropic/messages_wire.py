"""What /v1/messages sends: the types of its answers and events.

Source: https://docs.claude.com/en/api/messages and
https://docs.claude.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from radixlm.server.pipeline.usage import CacheReported

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class TextOut(TypedDict):
    type: Literal["text"]
    text: str


class ThinkingOut(TypedDict):
    """signature: to be sent back as it is."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseOut(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


BlockOut = TextOut | ThinkingOut | ToolUseOut


class OutputDetails(TypedDict):
    thinking_tokens: int


class FinalUsage(TypedDict):
    """The prompt has as many tokens as the first three together.

    cache_read_input_tokens: those that were cached. cache_creation_input_tokens: those that were
    computed and are kept now, since cache_control asked for it and there was room. input_tokens:
    the rest. All are cached, if --disable-radix-cache is not set.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails


class CacheCreation(TypedDict):
    """What is kept now, by how long."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class MessageUsage(FinalUsage):
    cache_creation: CacheCreation
    service_tier: Literal["standard"]
    speed: Literal["standard"]


class ClearedUses(TypedDict):
    type: Literal["clear_tool_uses_20250919"]
    cleared_tool_uses: int
    cleared_input_tokens: int


class ClearedThinking(TypedDict):
    type: Literal["clear_thinking_20251015"]
    cleared_thinking_turns: int
    cleared_input_tokens: int


AppliedEdit = ClearedUses | ClearedThinking


class AppliedEdits(TypedDict):
    applied_edits: list[AppliedEdit]


class ContextManaged(TypedDict, total=False):
    """It is there where edits were asked for."""

    context_management: AppliedEdits


class StopDelta(TypedDict):
    """How an answer ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    container: None


class MessageOut(StopDelta, CacheReported, ContextManaged):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[BlockOut]
    diagnostics: None
    usage: MessageUsage


class MessageStart(TypedDict):
    type: Literal["message_start"]
    message: MessageOut


class BlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: BlockOut


class TextDeltaOut(TypedDict):
    type: Literal["text_delta"]
    text: str


class ThinkingDeltaOut(TypedDict):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDeltaOut(TypedDict):
    type: Literal["signature_delta"]
    signature: str


class InputDeltaOut(TypedDict):
    type: Literal["input_json_delta"]
    partial_json: str


DeltaOut = TextDeltaOut | ThinkingDeltaOut | SignatureDeltaOut | InputDeltaOut


class BlockDelta(TypedDict):
    type: Literal["content_block_delta"]
    index: int
    delta: DeltaOut


class BlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: int


class MessageDelta(CacheReported, ContextManaged):
    type: Literal["message_delta"]
    delta: StopDelta
    usage: FinalUsage


class MessageStop(TypedDict):
    type: Literal["message_stop"]


class Ping(TypedDict):
    type: Literal["ping"]


MessageEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping
)


class OriginalCount(TypedDict):
    original_input_tokens: int


class TokenCount(TypedDict):
    """context_management: where edits were asked for; input_tokens are those after them."""

    input_tokens: int
    context_management: NotRequired[OriginalCount]
