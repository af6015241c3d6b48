"""How /v1/messages writes an answer: its blocks, and an event for each change."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pydantic_core import from_json

from radixlm.core.request import FinishReason, RequestOutput
from radixlm.parsers import (
    AnswerEvent,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegun,
    ToolCallCut,
    ToolCallEnded,
)
from radixlm.server.anthropic import messages_wire as wire
from radixlm.server.anthropic.messages_body import MessagesBody
from radixlm.server.http.sse import compact, event
from radixlm.server.pipeline.answer import AnswerStream
from radixlm.server.pipeline.cache_control import SECONDS
from radixlm.server.pipeline.chat import ChatTask
from radixlm.server.pipeline.conversation import sealed
from radixlm.server.pipeline.generation import reported
from radixlm.server.pipeline.service import Service
from radixlm.server.pipeline.usage import CacheReported, UsageMeter

# This many levels deeper may arguments stand when they are sent.
_MARGIN = 100


class BlockWriter:
    """Makes `blocks` of what an answer's parser finds, one open at a time. Each change is an event.

    called: whether a whole call of a tool has come. shows_thinking: else thoughts are sealed into
    their signature, and come back with it.
    """

    def __init__(self, tell: Callable[[wire.MessageEvent], None], *, shows_thinking: bool) -> None:
        self.blocks: list[wire.BlockOut] = []
        self.called = False
        self._write = tell
        self._shows_thinking = shows_thinking
        self._open: wire.BlockOut | None = None
        self._held = ""  # of the open block: a call's arguments so far, or thoughts

    def write(self, event: AnswerEvent) -> None:
        """Take the next event."""
        match event:
            case TextDelta(text):
                self._text(text)
            case ReasoningDelta(text):
                self._thought(text)
            case ToolCallBegun(_, call_id, name):
                self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case ToolArguments(_, delta):
                self._held += delta
                self._delta({"type": "input_json_delta", "partial_json": delta})
            case ToolCallEnded():
                given = _as_input(self._held)
                self.called |= given is not None
                self._close_call(given)
            case ToolCallCut():
                self._close_call(_as_input(_came_whole(self._held)))

    def close(self) -> None:
        """End the block that is open, if any."""
        block, self._open = self._open, None
        held, self._held = self._held, ""
        if block is None:
            return
        if block["type"] == "thinking":
            block["signature"] = sealed("" if self._shows_thinking else held)
            self._delta({"type": "signature_delta", "signature": block["signature"]})
        self._write({"type": "content_block_stop", "index": len(self.blocks) - 1})

    def _text(self, text: str) -> None:
        block = self._open
        if block is None or block["type"] != "text":
            block = wire.TextOut(type="text", text="")
            self._begin(block)
        block["text"] += text
        self._delta({"type": "text_delta", "text": text})

    def _thought(self, text: str) -> None:
        block = self._open
        if block is None or block["type"] != "thinking":
            block = wire.ThinkingOut(type="thinking", thinking="", signature="")
            self._begin(block)
        self._held += text
        if self._shows_thinking:
            block["thinking"] += text
            self._delta({"type": "thinking_delta", "thinking": text})

    def _close_call(self, given: dict[str, Any] | None) -> None:
        if self._open is not None and self._open["type"] == "tool_use":
            self._open["input"] = given or {}
        self.close()

    def _begin(self, block: wire.BlockOut) -> None:
        self.close()
        self._open = block
        self.blocks.append(block)
        index = len(self.blocks) - 1
        self._write({"type": "content_block_start", "index": index, "content_block": block})

    def _delta(self, delta: wire.DeltaOut) -> None:
        index = len(self.blocks) - 1
        self._write({"type": "content_block_delta", "index": index, "delta": delta})


class MessageWriter:
    """The Writer of one message.

    body: the request's. applied: the edits of its context. failed: what a stream ends with where an
    error cuts it short.
    """

    def __init__(
        self,
        service: Service,
        chat: ChatTask,
        body: MessagesBody,
        applied: Sequence[wire.AppliedEdit],
        failed: Callable[[Exception], bytes],
    ) -> None:
        self.meter = UsageMeter(1)
        self.failed = failed
        self._service = service
        self._generation = chat.generation
        self._body = body
        self._applied = applied
        self._stream = AnswerStream(chat.new_parser())
        self._writer = BlockWriter(self._write, shows_thinking=body.shows_thinking)
        self._last: RequestOutput | None = None
        self._events: list[bytes] = []

    def push(self, _choice: int, output: RequestOutput) -> list[bytes]:
        if self._last is None:
            message = self._message()
            message["usage"]["output_tokens"] = 0  # what has come by now depends on the time
            self._write({"type": "message_start", "message": message})
            self._write({"type": "ping"})
        self._last = output
        for each in self._stream.events(output):
            self._writer.write(each)
        return self._new_events()

    async def finish(self) -> list[bytes]:
        self._writer.close()
        self._write(
            {
                "type": "message_delta",
                "delta": self._ended(),
                "usage": self._usage(),
                **self._managed(),
                **self._reported(),
            }
        )
        self._write({"type": "message_stop"})
        return self._new_events()

    def whole(self) -> bytes:
        return compact({**self._message(), **self._managed(), **self._reported()})

    def _write(self, made: wire.MessageEvent) -> None:
        if self._body.stream:
            self._events.append(event(made, made["type"]))

    def _new_events(self) -> list[bytes]:
        events, self._events = self._events, []
        return events

    def _message(self) -> wire.MessageOut:
        kept, ended = self.meter.newly_kept(), self._ended()
        return {
            "id": self._generation.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._service.model_name,
            "content": self._writer.blocks,
            "stop_reason": ended["stop_reason"],
            "stop_sequence": ended["stop_sequence"],
            "stop_details": None,
            "container": None,
            "diagnostics": None,
            "usage": {
                **self._usage(),
                "cache_creation": {
                    "ephemeral_5m_input_tokens": kept.get(SECONDS["5m"], 0),
                    "ephemeral_1h_input_tokens": kept.get(SECONDS["1h"], 0),
                },
                "service_tier": "standard",
                "speed": "standard",
            },
        }

    def _reported(self) -> CacheReported:
        return reported(self._service, self._generation, self.meter.misses)

    def _managed(self) -> wire.ContextManaged:
        if not self._body.edits:
            return {}
        return {"context_management": {"applied_edits": list(self._applied)}}

    def _ended(self) -> wire.StopDelta:
        matched = None if self._last is None else self._last.matched_stop
        sequence = matched if isinstance(matched, str) else None
        return {
            "stop_reason": self._reason(sequence),
            "stop_sequence": sequence,
            "stop_details": None,
            "container": None,
        }

    def _reason(self, sequence: str | None) -> wire.StopReason | None:
        match None if self._last is None else self._last.finish_reason:
            case None:
                return None
            case FinishReason.LENGTH:
                limit = self._generation.params.max_tokens
                cut = limit is not None and limit < self._body.max_tokens
                return "model_context_window_exceeded" if cut else "max_tokens"
            case _ if sequence is not None:
                return "stop_sequence"
            case _:
                return "tool_use" if self._writer.called else "end_turn"

    def _usage(self) -> wire.FinalUsage:
        usage = self.meter.as_json(self._stream.reasoning_tokens)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        kept = sum(self.meter.newly_kept().values())
        return {
            "input_tokens": usage["prompt_tokens"] - cached - kept,
            "cache_creation_input_tokens": kept,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {
                "thinking_tokens": usage["completion_tokens_details"]["reasoning_tokens"]
            },
        }


def _came_whole(arguments: str) -> str:
    """Of a call that was cut off, what Anthropic's SDK makes of the same deltas, as JSON."""
    try:
        return json.dumps(from_json(arguments, allow_partial=True))
    except ValueError:
        return "{}"


def _as_input(arguments: str) -> dict[str, Any] | None:
    """A call's arguments; None for those that no answer could hold.

    JSON may spell half a character, a number beyond all floats, or one of too many digits, and may
    be nested deeper than anything reads.
    """
    try:
        value: dict[str, Any] = json.loads(arguments)
        probe: Any = value
        for _ in range(_MARGIN):
            probe = [probe]
        json.dumps(probe, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return value
