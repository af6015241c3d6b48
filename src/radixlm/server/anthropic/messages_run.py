"""An answer's events as the blocks of a message, and as the events that tell of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json

from radixlm.core.errors import InvalidRequestError, RequestTooLargeError
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
from radixlm.server.anthropic.messages_as_chat import Conversation, chat_of, in_own_words
from radixlm.server.anthropic.messages_blocks import MessageItem
from radixlm.server.anthropic.messages_body import CountBody, MessagesBody, PromptBody
from radixlm.server.anthropic.messages_edits import edited
from radixlm.server.anthropic.messages_wire import (
    AppliedEdit,
    BlockOut,
    CacheCreation,
    ContextManaged,
    DeltaOut,
    FinalUsage,
    MessageEvent,
    MessageOut,
    StopReason,
    TextOut,
    ThinkingOut,
    TokenCount,
)
from radixlm.server.http.sse import compact, event
from radixlm.server.pipeline.answer_stream import AnswerStream
from radixlm.server.pipeline.cache_fields import SECONDS
from radixlm.server.pipeline.cache_report import reported
from radixlm.server.pipeline.cache_wire import CacheReported
from radixlm.server.pipeline.chat import ChatPrompt, ChatTask, chat_prompt, task_of
from radixlm.server.pipeline.names import new_id, sealed
from radixlm.server.pipeline.protocol import ChatBody
from radixlm.server.pipeline.service import Service
from radixlm.server.pipeline.usage import UsageMeter

# So many levels deeper may arguments stand when they are sent.
_MARGIN = 100


class BlockWriter:
    """Builds `blocks` of an answer's events, one open at a time, and tells of each change.

    called: whether a whole call of a tool has come. shows_thinking: else thoughts are sealed into
    their signature, and come back with it.
    """

    def __init__(self, *, shows_thinking: bool) -> None:
        self.blocks: list[BlockOut] = []
        self.called = False
        self._shows_thinking = shows_thinking
        self._open: BlockOut | None = None
        self._begun = 0
        # Of the block that is open: a call's arguments so far, or thoughts.
        self._held = ""

    def push(self, events: Iterable[AnswerEvent]) -> Iterator[MessageEvent]:
        """Take the next events."""
        for new in events:
            match new:
                case TextDelta(text):
                    yield from self._text(text)
                case ReasoningDelta(text):
                    yield from self._thought(text)
                case ToolCallBegun(_, call_id, name):
                    yield from self._begin(
                        {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                    )
                case ToolArguments(_, delta):
                    self._held += delta
                    yield self._delta({"type": "input_json_delta", "partial_json": delta})
                case ToolCallEnded():
                    yield from self._end_call()
                case ToolCallCut():
                    yield from self._cut_call()

    def close(self) -> Iterator[MessageEvent]:
        """End the block that is open, if any."""
        block, self._open = self._open, None
        held, self._held = self._held, ""
        if block is None:
            return
        if block["type"] == "thinking":
            block["signature"] = sealed("" if self._shows_thinking else held)
            yield self._delta({"type": "signature_delta", "signature": block["signature"]})
        yield {"type": "content_block_stop", "index": self._begun - 1}

    def _end_call(self) -> Iterator[MessageEvent]:
        given = _as_input(self._held)
        self.called |= given is not None
        yield from self._close_call(given or {})

    def _cut_call(self) -> Iterator[MessageEvent]:
        """Its input is what Anthropic's SDK makes of the same deltas: what has come whole."""
        try:
            so_far = json.dumps(from_json(self._held, allow_partial=True))
        except ValueError:
            so_far = "{}"
        yield from self._close_call(_as_input(so_far) or {})

    def _close_call(self, given: dict[str, Any]) -> Iterator[MessageEvent]:
        if self._open is not None and self._open["type"] == "tool_use":
            self._open["input"] = given
        yield from self.close()

    def _text(self, text: str) -> Iterator[MessageEvent]:
        block = self._open
        if block is None or block["type"] != "text":
            block = TextOut(type="text", text="")
            yield from self._begin(block)
        block["text"] += text
        yield self._delta({"type": "text_delta", "text": text})

    def _thought(self, text: str) -> Iterator[MessageEvent]:
        block = self._open
        if block is None or block["type"] != "thinking":
            block = ThinkingOut(type="thinking", thinking="", signature="")
            yield from self._begin(block)
        self._held += text
        if self._shows_thinking:
            block["thinking"] += text
            yield self._delta({"type": "thinking_delta", "thinking": text})

    def _begin(self, block: BlockOut) -> Iterator[MessageEvent]:
        yield from self.close()
        self._open = block
        self.blocks.append(block)
        self._begun += 1
        yield {"type": "content_block_start", "index": self._begun - 1, "content_block": block}

    def _delta(self, delta: DeltaOut) -> MessageEvent:
        return {"type": "content_block_delta", "index": self._begun - 1, "delta": delta}


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


@dataclass(frozen=True, slots=True, eq=False)
class MessageTask:
    """A chat's task, and what its message needs to know. applied: edits of its context."""

    chat: ChatTask
    body: MessagesBody
    applied: Sequence[AppliedEdit] = ()


def message_task(service: Service, body: MessagesBody, tenant: str) -> MessageTask:
    """Render and tokenize. Takes time in proportion to the messages: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    (chat, wishes, changed), applied = _edited_chat(service, body)

    def prompt() -> ChatPrompt:
        whose = (tenant, *chat.namespace)
        made = chat_prompt(service, chat.messages, chat, whose=whose, wishes=wishes)
        outline = made.outline and replace(made.outline, edited=changed)
        return made._replace(outline=outline)

    try:
        task = task_of(
            service,
            chat,
            prompt,
            tenant,
            request_id=new_id("msg"),
            max_tokens=max(body.max_tokens, 1),
            prompt_only=body.prompt_only,
        )
    except InvalidRequestError as error:
        raise in_own_words(error) from None
    return MessageTask(task, body, applied)


def _edited_chat(service: Service, body: PromptBody) -> tuple[Conversation, Sequence[AppliedEdit]]:
    """The chat that the edits of the context leave, and those that were made."""
    made = edited(
        body.messages,
        body.edits,
        lambda messages: _size(service, chat_of(_with(body, messages)).chat),
    )
    return chat_of(_with(body, made.messages), made.changed), made.applied


def _with(body: PromptBody, messages: Sequence[MessageItem]) -> PromptBody:
    return body.model_copy(update={"messages": messages})


def _size(service: Service, chat: ChatBody) -> int:
    """Tokens of a prompt; of one that is far too long, so many at least."""
    try:
        return chat_prompt(service, chat.messages, chat).key.size
    except RequestTooLargeError as error:
        if error.prompt_tokens is None:
            raise in_own_words(error) from None
        return error.prompt_tokens
    except InvalidRequestError as error:
        raise in_own_words(error) from None


def token_count(service: Service, body: CountBody, tenant: str) -> TokenCount:
    """Tokens of the prompt. Takes time in proportion to it: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    (chat, *_), applied = _edited_chat(service, body)
    try:
        whose = (tenant, *chat.namespace)
        told: TokenCount = {
            "input_tokens": chat_prompt(service, chat.messages, chat, whose=whose).key.size
        }
    except InvalidRequestError as error:
        raise in_own_words(error) from None
    if body.edits:
        cleared = sum(edit["cleared_input_tokens"] for edit in applied)
        told["context_management"] = {"original_input_tokens": told["input_tokens"] + cleared}
    return told


class MessageWriter:
    """Writes a message. error_end: what a stream ends with that an error cuts short."""

    def __init__(
        self, service: Service, made: MessageTask, error_end: Callable[[Exception], bytes]
    ) -> None:
        self.meter = UsageMeter(1)
        self.failed = error_end
        self._service = service
        self._made = made
        self._stream = AnswerStream(made.chat.new_parser())
        self._writer = BlockWriter(shows_thinking=made.body.shows_thinking)
        self._begun = False
        self._last = RequestOutput("")

    def push(self, _choice: int, output: RequestOutput) -> Iterable[bytes]:
        return self._written(self._events(output))

    async def finish(self) -> Iterable[bytes]:
        return self._written(self._last_events())

    def whole(self) -> bytes:
        return compact(
            {
                **self._message(),
                "stop_reason": self._stop_reason(),
                "stop_sequence": self._stop_sequence(),
                **self._managed(),
                **self._report(),
            }
        )

    def _written(self, events: Iterator[MessageEvent]) -> list[bytes]:
        """Each as it is made: they show blocks that grow."""
        streams = self._made.body.stream
        return [event(told, told["type"]) for told in events if streams]

    def _events(self, output: RequestOutput) -> Iterator[MessageEvent]:
        self._last = output
        if not self._begun:
            self._begun = True
            message = self._message()
            message["usage"]["output_tokens"] = 0  # what has come by now depends on the time
            yield {"type": "message_start", "message": message}
            yield {"type": "ping"}
        yield from self._writer.push(self._stream.events(output))

    def _last_events(self) -> Iterator[MessageEvent]:
        yield from self._writer.close()
        yield {
            "type": "message_delta",
            "delta": {
                "stop_reason": self._stop_reason(),
                "stop_sequence": self._stop_sequence(),
                "stop_details": None,
                "container": None,
            },
            "usage": self._usage(),
            **self._managed(),
            **self._report(),
        }
        yield {"type": "message_stop"}

    def _message(self) -> MessageOut:
        """As it is now, but for how it ended, which a stream tells at its end only."""
        return {
            "id": self._made.chat.generation.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._service.model_name,
            "content": self._writer.blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "diagnostics": None,
            "usage": {
                **self._usage(),
                "cache_creation": self._cache_creation(),
                "service_tier": "standard",
                "speed": "standard",
            },
        }

    def _report(self) -> CacheReported:
        return reported(self._service, self._made.chat.generation, self.meter.misses)

    def _managed(self) -> ContextManaged:
        if not self._made.body.edits:
            return {}
        return {"context_management": {"applied_edits": list(self._made.applied)}}

    def _stop_reason(self) -> StopReason | None:
        match self._last.finish_reason:
            case None:
                return None
            case FinishReason.LENGTH:
                limit = self._made.chat.generation.params.max_tokens
                cut = limit is not None and limit < self._made.body.max_tokens
                return "model_context_window_exceeded" if cut else "max_tokens"
            case _ if self._stop_sequence() is not None:
                return "stop_sequence"
            case _:
                return "tool_use" if self._writer.called else "end_turn"

    def _stop_sequence(self) -> str | None:
        matched = self._last.matched_stop
        return matched if isinstance(matched, str) else None

    def _cache_creation(self) -> CacheCreation:
        kept = self.meter.newly_kept()
        return {
            "ephemeral_5m_input_tokens": kept.get(SECONDS["5m"], 0),
            "ephemeral_1h_input_tokens": kept.get(SECONDS["1h"], 0),
        }

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
