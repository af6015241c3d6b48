"""One response while it is made: what it is so far, and what its stream tells."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from radixlm.core.errors import InvalidRequestError, QueueFullError
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.http.http_errors import GenerationFailedError, openai_error
from radixlm.server.http.sse import compact, event
from radixlm.server.pipeline.answer_stream import AnswerStream
from radixlm.server.pipeline.cache_control import DEFAULT_KEEP
from radixlm.server.pipeline.cache_fields import SECONDS
from radixlm.server.pipeline.cache_report import reported
from radixlm.server.pipeline.logprobs import TokenTexts, chat_logprobs
from radixlm.server.pipeline.service import Service
from radixlm.server.pipeline.usage import UsageMeter
from radixlm.server.responses.response_store import Turn
from radixlm.server.responses.responses_as_chat import callers_names
from radixlm.server.responses.responses_body import (
    ENCRYPTED,
    AnyTool,
    NamespaceTool,
    ResponseBody,
    Status,
)
from radixlm.server.responses.responses_prompt import ResponseTask
from radixlm.server.responses.responses_wire import (
    AnyEvent,
    CacheOptions,
    FailureCode,
    ResponseEvent,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)
from radixlm.server.responses.responses_writer import ItemWriter

Outcome = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
Kind = Literal[
    "response.created",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]

_OUTCOMES: dict[FinishReason | None, Outcome] = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
}


class ResponseWriter:
    """Writes a response, and stores it.

    input_items: as they are stored and given back, with their ids.
    """

    def __init__(
        self,
        service: Service,
        made: ResponseTask,
        input_items: list[dict[str, Any]],
    ) -> None:
        self._service = service
        self._made = made
        self._stream = AnswerStream(made.chat.new_parser())
        params, tokenizer = made.chat.generation.params, service.engine.tokenizer
        told = params.logprobs is not None
        self._texts = TokenTexts(tokenizer, params, made.chat.prompt.key) if told else None
        self._input = json.dumps(input_items, ensure_ascii=False)
        self._count = itertools.count()
        self._writer = ItemWriter(
            self._number, seals=made.body.includes(ENCRYPTED), names=callers_names(made.body.tools)
        )
        self.meter = UsageMeter(1, caches=service.caches)
        self._reason: FinishReason | None = None
        self._stored = made.body.stores
        self.status: Outcome = "queued" if made.body.background else "in_progress"
        self._begun = False
        self._error: Exception | None = None
        self._completed_at: int | None = None

    @property
    def id(self) -> str:
        return self._made.id

    @property
    def ended(self) -> bool:
        return self.status not in ("queued", "in_progress")

    def begin(self) -> Iterator[AnyEvent]:
        """It is being made now."""
        self.status = "in_progress"
        self._begun = True
        yield self._told("response.created")
        yield self._told("response.in_progress")

    def push(self, _choice: int, output: RequestOutput) -> Iterable[bytes]:
        return self._written(self._events(output))

    async def finish(self) -> Iterable[bytes]:
        """It is stored before its stream's last event, so that it can be fetched then."""
        outcome = _OUTCOMES.get(self._reason, "cancelled")
        status: Status = "completed" if outcome == "completed" else "incomplete"
        events = self._written(self._writer.finish(status))
        self._end(outcome)
        await self.store()
        return [*events, *self._written(iter([self.last()]))]

    def whole(self) -> bytes:
        return compact(self.response())

    def _written(self, events: Iterator[AnyEvent]) -> list[bytes]:
        """Each as it is made: they show items that grow."""
        streams = self._made.body.stream
        return [as_bytes(told) for told in events if streams]

    def _events(self, output: RequestOutput) -> Iterator[AnyEvent]:
        if not self._begun:
            yield from self.begin()
        self._reason = output.finish_reason
        pieces = output.as_it_came() if self._texts is None else self._texts.pieces(output)
        for piece, told in self._stream.steps(pieces, output):
            logprobs = chat_logprobs(self._service.engine.tokenizer, piece.logprobs)["content"]
            yield from self._writer.push(told, () if self._stream.thinks else logprobs)

    def last(self) -> ResponseEvent:
        """The stream's last event."""
        kind: Kind = "response.completed"
        if self.status != "completed":
            kind = "response.failed" if self.status == "failed" else "response.incomplete"
        return self._told(kind)

    def cancel(self) -> None:
        """Its client wants no more of it."""
        self._writer.stop()
        self._end("cancelled")

    def fail(self, error: Exception) -> None:
        """It can not be made."""
        self._error = error
        self._writer.stop()
        self._end("failed")

    def failed(self, error: Exception) -> bytes:
        """Such a response is not stored."""
        self._stored = False
        self.fail(error)
        return as_bytes(self.last())

    async def store(self) -> bool:
        """Keep it as it is now, if it is to be kept. Whether it is."""
        if self._stored:
            self._stored = await self._service.responses.put(self._turn())
        return self._stored

    def response(self) -> ResponseObject:
        """As it is now."""
        body, generation = self._made.body, self._made.chat.generation
        params = generation.params
        response: ResponseObject = {
            "id": self.id,
            "object": "response",
            "created_at": self._made.created,
            "completed_at": self._completed_at,
            "status": self.status,
            "background": bool(body.background),
            "error": self._failure(),
            "incomplete_details": (
                {"reason": "max_output_tokens"} if self.status == "incomplete" else None
            ),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "model": self._service.model_name,
            "output": self._writer.items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "prompt_cache_options": _cache_options(body),
            "prompt_cache_retention": _retention(body),
            "reasoning": _reasoning(body),
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": self._stored,
            "temperature": params.temperature,
            "text": _text(body),
            "tool_choice": _tool_choice(body),
            "tools": [_tool(tool) for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": self._usage() if self.ended else None,
            "user": body.user,
        }
        report = reported(self._service, generation, self.meter.misses)
        if self.ended and "cache_report" in report:
            response["cache_report"] = report["cache_report"]
        return response

    def _end(self, outcome: Outcome) -> None:
        self.status = outcome
        if outcome == "completed":
            self._completed_at = int(time.time())

    def _turn(self) -> Turn:
        return Turn(
            id=self.id,
            owner=self._made.chat.generation.tenant,
            parent=self._made.body.previous_response_id,
            created=self._made.created,
            ended=self.ended,
            response=json.dumps(self.response(), ensure_ascii=False),
            input=self._input,
        )

    def _usage(self) -> ResponseUsage:
        usage = self.meter.as_json(self._stream.reasoning_tokens)
        kept = self.meter.newly_kept()
        details = usage["prompt_tokens_details"]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": details["cached_tokens"],
                "cache_write_tokens": details["cache_write_tokens"],
                "cache_write_tokens_details": {
                    "ttl_30m_tokens": kept.get(SECONDS["30m"], 0),
                    "ttl_12h_tokens": kept.get(SECONDS["12h"], 0),
                },
            },
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]
            },
            "total_tokens": usage["total_tokens"],
        }

    def _failure(self) -> ResponseFailure | None:
        match self._error:
            case None:
                return None
            case QueueFullError():
                return _failure("rate_limit_exceeded", self._error)
            case InvalidRequestError():
                return _failure("invalid_prompt", self._error)
            case _:
                return _failure("server_error", self._error)

    def _told(self, kind: Kind) -> ResponseEvent:
        return {"sequence_number": self._number(), "type": kind, "response": self.response()}

    def _number(self) -> int:
        return next(self._count)


def as_bytes(told: AnyEvent) -> bytes:
    """An event of a stream, under its type as its name."""
    return event(told, told["type"])


def lost(response: str) -> str:
    """A stored response that nobody works on any more, since the server that did has ended."""
    failure = _failure("server_error", GenerationFailedError("the server ended before it did"))
    return json.dumps({**json.loads(response), "status": "failed", "error": failure})


def _failure(code: FailureCode, error: Exception) -> ResponseFailure:
    told = openai_error(error)["error"]
    return {
        "code": code,
        "message": told["message"],
        "type": told["type"],
        "param": told["param"],
    }


def _reasoning(body: ResponseBody) -> dict[str, Any]:
    wish = body.reasoning
    if wish is None:
        return {"effort": None, "summary": None}
    return {"effort": wish.effort, "summary": wish.summary}


def _text(body: ResponseBody) -> dict[str, Any]:
    form = body.text.format if body.text is not None else None
    told: dict[str, Any] = {"type": "text"}
    if form is not None:
        told = form.model_dump(by_alias=True, exclude_none=True)
    verbosity = body.text.verbosity if body.text is not None else None
    return {"format": told, "verbosity": verbosity or "medium"}


def _cache_options(body: ResponseBody) -> CacheOptions | None:
    wish = body.prompt_cache_options
    if wish is None:
        return None
    return {"mode": wish.mode or "implicit", "ttl": wish.ttl or DEFAULT_KEEP}


def _retention(body: ResponseBody) -> Literal["in_memory", "24h"] | None:
    kept = body.prompt_cache_retention
    return "in_memory" if kept == "in-memory" else kept


def _tool_choice(body: ResponseBody) -> Any:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    return choice.model_dump(exclude_none=True)


def _tool(tool: AnyTool) -> dict[str, Any]:
    if isinstance(tool, NamespaceTool):
        told = {"type": tool.type, "name": tool.name, "description": tool.description or ""}
        return {**told, "tools": [_tool(inner) for inner in tool.tools]}
    return {**tool.model_dump(), "strict": tool.strict is True}
