"""Events of an answer as OpenAI's chat messages and their deltas."""

from __future__ import annotations

from collections.abc import Iterable

from radixlm.core.request import FinishReason, RequestOutput
from radixlm.parsers import (
    Answered,
    AnswerEvent,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegun,
    ToolCallCut,
    ToolCallEnded,
)
from radixlm.server.openai.openai_wire import ChatAnswer, ChatDelta, ChatFinish, ToolCallDelta


def deltas_of(events: Iterable[AnswerEvent]) -> list[ChatDelta]:
    """New events of an answer."""
    return [delta for event in events if (delta := _delta(event)) is not None]


def message_of(answer: Answered) -> ChatAnswer:
    """A whole answer."""
    message: ChatAnswer = {
        "role": "assistant",
        "content": (answer.text or None) if answer.calls else answer.text,
        "refusal": None,
        "annotations": [],
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return message


def finish_of(output: RequestOutput, *, called: bool) -> ChatFinish | None:
    """Why the answer ended: with calls for the client to make, when it came to its own end."""
    if called and output.finish_reason is FinishReason.STOP:
        return "tool_calls"
    return output.finish_reason


def _delta(event: AnswerEvent) -> ChatDelta | None:
    match event:
        case TextDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case ToolCallBegun(call, call_id, name):
            begun: ToolCallDelta = {
                "index": call,
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
            return {"tool_calls": [begun]}
        case ToolArguments(call, delta):
            return {"tool_calls": [{"index": call, "function": {"arguments": delta}}]}
        case ToolCallEnded() | ToolCallCut():
            return None
