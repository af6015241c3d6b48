"""The answers and events of /v1/messages, and their writer.

Source: https://docs.claude.com/en/api/messages and
https://docs.claude.com/en/docs/build-with-claude/streaming.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic_core import from_json
from typing_extensions import TypedDict

from radixlm import parsers
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.anthropic.messages_blocks import AppliedEdit
from radixlm.server.anthropic.messages_body import MessagesBody
from radixlm.server.bodies.cache_control import SECONDS
from radixlm.server.bodies.conversation import Json, sealed
from radixlm.server.http.sse import compact, event
from radixlm.server.insight.usage import CacheReported, UsageMeter
from radixlm.server.pipeline.answer import AnswerStream
from radixlm.server.pipeline.chat import ChatTask
from radixlm.server.pipeline.generation import reported
from radixlm.server.pipeline.service import Service

# This many levels deeper may arguments stand when they are sent.
_MARGIN = 100

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


class ThinkingDetails(TypedDict):
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
    output_tokens_details: ThinkingDetails


class CacheCreation(TypedDict):
    """The tokens that are kept now, by how long."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class MessageUsage(FinalUsage):
    cache_creation: CacheCreation
    service_tier: Literal["standard"]
    speed: Literal["standard"]


class AppliedEdits(TypedDict):
    applied_edits: list[AppliedEdit]


class OptionalMessageFields(CacheReported, total=False):
    """context_management: where edits of the context were asked for."""

    context_management: AppliedEdits


class StopDelta(TypedDict):
    """How an answer ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    container: None


class MessageOut(StopDelta, OptionalMessageFields):
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


class MessageDelta(OptionalMessageFields):
    type: Literal["message_delta"]
    delta: StopDelta
    usage: FinalUsage


class MessageStop(TypedDict):
    type: Literal["message_stop"]


class Ping(TypedDict):
    type: Literal["ping"]


PING = event(Ping(type="ping"), "ping")

MessageEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping
)


class BlockWriter:
    """Makes `blocks` of what an answer's parser finds, one open at a time. Each change is an event.

    called: whether a whole call of a tool has come. shows_thinking: else thoughts are sealed into
    their signature, and come back with it.
    """

    def __init__(self, tell: Callable[[Json], None], *, shows_thinking: bool) -> None:
        self.blocks: list[Json] = []
        self.called = False
        self._tell = tell
        self._shows_thinking = shows_thinking
        self._open: str | None = None  # the type of the last block, unless that has ended
        self._held = ""  # of the open block: a call's arguments so far, or thoughts

    def write(self, event: parsers.AnswerEvent) -> None:
        """Take the next event."""
        match event:
            case parsers.TextDelta(text):
                self._block("text", text="")["text"] += text
                self._delta("text_delta", text=text)
            case parsers.ReasoningDelta(text):
                block = self._block("thinking", thinking="", signature="")
                self._held += text
                if self._shows_thinking:
                    block["thinking"] += text
                    self._delta("thinking_delta", thinking=text)
            case parsers.ToolCallBegun(_, call_id, name):
                self._begin("tool_use", id=call_id, name=name, input={})
            case parsers.ToolArguments(_, delta):
                self._held += delta
                self._delta("input_json_delta", partial_json=delta)
            case parsers.ToolCallEnded(_, whole):
                given = _as_input(self._held if whole else _came_whole(self._held))
                self.called |= whole and given is not None
                self.blocks[-1]["input"] = given or {}
                self.close()

    def close(self) -> None:
        """End the block that is open, if any."""
        kind, self._open = self._open, None
        held, self._held = self._held, ""
        if kind is None:
            return
        if kind == "thinking":
            signature = sealed("" if self._shows_thinking else held)
            self.blocks[-1]["signature"] = signature
            self._delta("signature_delta", signature=signature)
        self._event("content_block_stop")

    def _block(self, kind: str, **empty: str) -> Json:
        """The block of this kind that is open; another begins where there is none."""
        if self._open != kind:
            self._begin(kind, **empty)
        return self.blocks[-1]

    def _begin(self, kind: str, **fields: Any) -> None:
        self.close()
        self._open = kind
        self.blocks.append({"type": kind, **fields})
        self._event("content_block_start", content_block=self.blocks[-1])

    def _delta(self, kind: str, **fields: str) -> None:
        self._event("content_block_delta", delta={"type": kind, **fields})

    def _event(self, kind: str, **fields: Json) -> None:
        self._tell({"type": kind, "index": len(self.blocks) - 1, **fields})


class MessageWriter:
    """The Writer of one message. body: the request's. applied: the edits of its context."""

    def __init__(
        self, service: Service, chat: ChatTask, body: MessagesBody, applied: Sequence[AppliedEdit]
    ) -> None:
        self.meter = UsageMeter(1)
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
        ended = {"delta": self._ended(), "usage": self._usage(), **self._beside()}
        self._write({"type": "message_delta", **ended})
        self._write({"type": "message_stop"})
        return self._new_events()

    def whole(self) -> bytes:
        return compact({**self._message(), **self._beside()})

    def _write(self, made: Json) -> None:
        if self._body.stream:
            self._events.append(event(made, made["type"]))

    def _new_events(self) -> list[bytes]:
        events, self._events = self._events, []
        return events

    def _message(self) -> Json:
        """A MessageOut, but for what stands beside it."""
        kept = self.meter.newly_kept()
        return {
            "id": self._generation.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._generation.adapter or self._service.model_name,
            "content": self._writer.blocks,
            **self._ended(),
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

    def _beside(self) -> OptionalMessageFields:
        managed: OptionalMessageFields = {}
        if self._body.edits:
            managed["context_management"] = {"applied_edits": list(self._applied)}
        return {**managed, **reported(self._service, self._generation, self.meter)}

    def _ended(self) -> StopDelta:
        last = self._last or RequestOutput("")
        sequence = last.matched_stop if isinstance(last.matched_stop, str) else None
        return {
            "stop_reason": self._reason(last.finish_reason, sequence),
            "stop_sequence": sequence,
            "stop_details": None,
            "container": None,
        }

    def _reason(self, reason: FinishReason | None, sequence: str | None) -> StopReason | None:
        match reason:
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

    def _usage(self) -> FinalUsage:
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
    """The arguments of a call that was cut off, as Anthropic's SDK reads the same deltas, as
    JSON.
    """
    try:
        return json.dumps(from_json(arguments, allow_partial=True))
    except ValueError:
        return "{}"


def _as_input(arguments: str) -> Json | None:
    """A call's arguments; None for those that no answer could hold.

    JSON may spell half a character, a number beyond all floats, or one of too many digits, and may
    be nested deeper than anything reads.
    """
    try:
        value: Json = json.loads(arguments)
        probe: Any = value
        for _ in range(_MARGIN):
            probe = [probe]
        json.dumps(probe, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return value
