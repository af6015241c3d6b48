"""One message while it is made: what it is so far, and what its stream tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from radixlm.core.errors import InvalidRequestError, RequestTooLargeError
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.answer_stream import AnswerStream
from radixlm.server.anthropic.as_chat import Conversation, chat_of, in_own_words
from radixlm.server.anthropic.blocks import MessageItem
from radixlm.server.anthropic.body import CountBody, MessagesBody, PromptBody
from radixlm.server.anthropic.edits import edited
from radixlm.server.anthropic.wire import (
    AppliedEdit,
    CacheCreation,
    ContextManaged,
    FinalUsage,
    MessageEvent,
    MessageOut,
    StopReason,
    TokenCount,
)
from radixlm.server.anthropic.writer import BlockWriter
from radixlm.server.cache.reports import reported
from radixlm.server.cache.wire import CacheReported
from radixlm.server.cache_fields import SECONDS
from radixlm.server.chat import ChatPrompt, ChatTask, chat_prompt, task_of
from radixlm.server.generation import Job
from radixlm.server.ids import new_id
from radixlm.server.protocol import ChatBody
from radixlm.server.service import Service
from radixlm.server.usage import UsageMeter


@dataclass(frozen=True, slots=True, eq=False)
class MessageTask:
    """A chat's task, and what its message needs to know. applied: edits of its context."""

    chat: ChatTask
    body: MessagesBody
    applied: Sequence[AppliedEdit] = ()

    @property
    def job(self) -> Job:
        return replace(self.chat.job, prompt_only=[self.body.prompt_only])


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


class MessageRun:
    """Takes the outputs of a message's job, and writes it down."""

    def __init__(self, service: Service, made: MessageTask) -> None:
        self._service = service
        self._made = made
        self._stream = AnswerStream(made.chat.new_parser())
        self._writer = BlockWriter(shows_thinking=made.body.shows_thinking)
        self._meter = UsageMeter(1)
        self._begun = False
        self._last = RequestOutput("")

    def push(self, output: RequestOutput) -> Iterator[MessageEvent]:
        """Take the next output."""
        self._meter.add(0, output)
        self._last = output
        if not self._begun:
            self._begun = True
            message = self._message()
            message["usage"]["output_tokens"] = 0  # what has come by now depends on the time
            yield {"type": "message_start", "message": message}
            yield {"type": "ping"}
        yield from self._writer.push(self._stream.events(output))

    def finish(self) -> Iterator[MessageEvent]:
        """The job has ended."""
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

    def message(self) -> MessageOut:
        """The whole one, when the job has ended."""
        return {
            **self._message(),
            "stop_reason": self._stop_reason(),
            "stop_sequence": self._stop_sequence(),
            **self._managed(),
            **self._report(),
        }

    def _message(self) -> MessageOut:
        """As it is now, but for how it ended, which a stream tells at its end only."""
        return {
            "id": self._made.chat.job.request_id,
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
        return reported(self._service, self._made.job, self._meter.misses)

    def _managed(self) -> ContextManaged:
        if not self._made.body.edits:
            return {}
        return {"context_management": {"applied_edits": list(self._made.applied)}}

    def _stop_reason(self) -> StopReason | None:
        match self._last.finish_reason:
            case None:
                return None
            case FinishReason.LENGTH:
                limit = self._made.chat.job.params.max_tokens
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
        kept = self._meter.newly_kept()
        return {
            "ephemeral_5m_input_tokens": kept.get(SECONDS["5m"], 0),
            "ephemeral_1h_input_tokens": kept.get(SECONDS["1h"], 0),
        }

    def _usage(self) -> FinalUsage:
        usage = self._meter.as_json(self._stream.reasoning_tokens)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        kept = sum(self._meter.newly_kept().values())
        return {
            "input_tokens": usage["prompt_tokens"] - cached - kept,
            "cache_creation_input_tokens": kept,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {
                "thinking_tokens": usage["completion_tokens_details"]["reasoning_tokens"]
            },
        }
