"""Events of an answer as OpenAI's chat messages and their deltas."""

from __future__ import annotations

from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.usage import thinks_after
from radixlm.server.wire import ChatAnswer, ChatDelta, ChatFinish, ToolCallDelta
from radixlm.text.answers import (
    Answered,
    AnswerEvent,
    AnswerParser,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegun,
    ToolCallBroken,
    ToolCallEnded,
)


class ChatStream:
    """One answer as it comes. called: whether a whole call has come.

    reasoning_tokens: how many of the answer's tokens were thoughts.
    """

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self._thinks = False
        self.called = False
        self.reasoning_tokens = 0

    def events(self, output: RequestOutput) -> list[AnswerEvent]:
        """What is new; with the last output, all that was held back."""
        events = self._parser.push(output.text)
        self._thinks = thinks_after(events, self._thinks)
        if self._thinks:
            self.reasoning_tokens += len(output.token_ids)
        if output.finished:
            events += self._parser.flush()
        self.called |= any(isinstance(event, ToolCallEnded) for event in events)
        return events

    def deltas(self, output: RequestOutput) -> list[ChatDelta]:
        """The same as OpenAI's deltas."""
        return [delta for event in self.events(output) if (delta := _delta(event)) is not None]


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
        case TextDelta(text) | ToolCallBroken(_, text):
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
        case ToolCallEnded():
            return None
