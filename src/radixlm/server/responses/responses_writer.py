"""One response while it is made: what it is so far, and what its stream tells."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from radixlm.core.errors import InvalidRequestError, QueueFullError
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.http.http_errors import GenerationFailedError, openai_error
from radixlm.server.http.sse import compact, framed
from radixlm.server.pipeline.answer import AnswerStream
from radixlm.server.pipeline.cache_control import DEFAULT_KEEP, SECONDS
from radixlm.server.pipeline.chat import ChatTask
from radixlm.server.pipeline.generation import reported
from radixlm.server.pipeline.logprobs import TokenTexts, chat_logprobs
from radixlm.server.pipeline.service import Service
from radixlm.server.pipeline.usage import UsageMeter
from radixlm.server.responses import responses_body as bodies
from radixlm.server.responses import responses_wire as wire
from radixlm.server.responses.item_writer import ItemWriter
from radixlm.server.responses.response_store import ResponseStore, Turn
from radixlm.server.responses.responses_conversation import callers_names

_OUTCOMES: dict[FinishReason | None, wire.Outcome] = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
}
_LAST = {"completed": "response.completed", "failed": "response.failed"}


class ResponseWriter:
    """The Writer of one response.

    input_items: as they are stored and given back, with their ids.
    """

    def __init__(
        self,
        service: Service,
        store: ResponseStore,
        chat: ChatTask,
        body: bodies.ResponseBody,
        input_items: list[dict[str, Any]],
    ) -> None:
        self.meter = UsageMeter(1, caches=service.caches)
        self.status: wire.Outcome = "queued" if body.background else "in_progress"
        self._service = service
        self._store = store
        self._body = body
        self._created = int(time.time())
        self._generation, tokenizer = chat.generation, service.engine.tokenizer
        self._stream = AnswerStream(chat.new_parser())
        params = self._generation.params
        with_logprobs = params.logprobs is not None
        self._texts = TokenTexts(tokenizer, params, chat.prompt.key) if with_logprobs else None
        self._input = json.dumps(input_items, ensure_ascii=False)
        self._writer = ItemWriter(
            self._write, seals=body.includes(bodies.ENCRYPTED), names=callers_names(body.tools)
        )
        self._begun = False
        self._reason: FinishReason | None = None
        self._stored, self._streams = body.stores, bool(body.stream)
        self._error: Exception | None = None
        self._completed_at: int | None = None
        self._sent = 0
        self._events: deque[tuple[str, bytes]] = deque()

    def push(self, _choice: int, output: RequestOutput) -> Iterator[bytes]:
        if not self._begun:
            self._begun, self.status = True, "in_progress"
            self._write_whole("response.created")
            self._write_whole("response.in_progress")
        self._reason = output.finish_reason
        pieces = output.as_it_came() if self._texts is None else self._texts.pieces(output)
        for piece, events in self._stream.steps(pieces, output):
            logprobs = chat_logprobs(self._service.engine.tokenizer, piece.logprobs)["content"]
            self._writer.push(events, () if self._stream.thinks else logprobs)
        return self._new_events()

    async def finish(self) -> Iterator[bytes]:
        """The response is stored before its stream's last event."""
        outcome = _OUTCOMES.get(self._reason, "cancelled")
        self._writer.finish("completed" if outcome == "completed" else "incomplete")
        self._end(outcome)
        await self.store()
        self._write_whole(_LAST.get(self.status, "response.incomplete"))
        return self._new_events()

    def whole(self) -> bytes:
        return compact(self.response())

    def failed(self, error: Exception) -> bytes:
        """Such a response is not stored."""
        self._stored = False
        self.fail(error)
        self._events.clear()  # what was not sent, and the end of the item that ended with it
        self._write_whole("response.failed")
        return b"".join(self._new_events())

    def cancel(self) -> None:
        """Its client wants no more of it."""
        self._writer.close("incomplete")
        self._end("cancelled")

    def fail(self, error: Exception) -> None:
        """It can not be made."""
        self._error = error
        self._writer.close("incomplete")
        self._end("failed")

    async def store(self) -> bool:
        """Keep it as it is now, if it is to be kept. Whether it is."""
        if self._stored:
            self._stored = await self._store.put(self._turn())
        return self._stored

    def response(self) -> wire.ResponseObject:
        """As it is now."""
        body, params = self._body, self._generation.params
        ended = self.status not in ("queued", "in_progress")
        response: wire.ResponseObject = {
            "id": self._generation.request_id,
            "object": "response",
            "created_at": self._created,
            "completed_at": self._completed_at,
            "status": self.status,
            "background": bool(body.background),
            "error": None if self._error is None else _failure(self._error),
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
            "reasoning": (body.reasoning or bodies.Reasoning()).model_dump(),
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
            "usage": self._usage() if ended else None,
            "user": body.user,
        }
        report = reported(self._service, self._generation, self.meter.misses)
        if ended and "cache_report" in report:
            response["cache_report"] = report["cache_report"]
        return response

    def _end(self, outcome: wire.Outcome) -> None:
        self.status = outcome
        if outcome == "completed":
            self._completed_at = int(time.time())

    def _turn(self) -> Turn:
        return Turn(
            id=self._generation.request_id,
            owner=self._generation.tenant,
            parent=self._body.previous_response_id,
            created=self._created,
            ended=self.status not in ("queued", "in_progress"),
            response=json.dumps(self.response(), ensure_ascii=False),
            input=self._input,
        )

    def _usage(self) -> wire.ResponseUsage:
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

    def _write_whole(self, kind: str) -> None:
        if self._streams:
            self._write({"type": kind, "response": self.response()})

    def _write(self, made: Mapping[str, Any]) -> None:
        if self._streams:
            self._events.append((made["type"], compact(made)))

    def _new_events(self) -> Iterator[bytes]:
        """Each has its number once those before it were sent: what an error overtakes has none."""
        while self._events:
            kind, made = self._events[0]
            yield framed(b'{"sequence_number":%d,' % self._sent + made[1:], kind)
            self._events.popleft()
            self._sent += 1


def lost(response: str) -> str:
    """A stored response that nobody works on any more, since the server that did has ended."""
    failure = _failure(GenerationFailedError("the server ended before it did"))
    return json.dumps({**json.loads(response), "status": "failed", "error": failure})


def _failure(error: Exception) -> wire.ResponseFailure:
    code: wire.FailureCode = "server_error"
    if isinstance(error, QueueFullError):
        code = "rate_limit_exceeded"
    elif isinstance(error, InvalidRequestError):
        code = "invalid_prompt"
    shape = openai_error(error)["error"]
    return {
        "code": code,
        "message": shape["message"],
        "type": shape["type"],
        "param": shape["param"],
    }


def _text(body: bodies.ResponseBody) -> dict[str, Any]:
    form = body.text.format if body.text is not None else None
    made: dict[str, Any] = {"type": "text"}
    if form is not None:
        made = form.model_dump(by_alias=True, exclude_none=True)
    verbosity = body.text.verbosity if body.text is not None else None
    return {"format": made, "verbosity": verbosity or "medium"}


def _cache_options(body: bodies.ResponseBody) -> wire.CacheOptions | None:
    wish = body.prompt_cache_options
    if wish is None:
        return None
    return {"mode": wish.mode or "implicit", "ttl": wish.ttl or DEFAULT_KEEP}


def _retention(body: bodies.ResponseBody) -> Literal["in_memory", "24h"] | None:
    kept = body.prompt_cache_retention
    return "in_memory" if kept == "in-memory" else kept


def _tool_choice(body: bodies.ResponseBody) -> Any:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    return choice.model_dump(exclude_none=True)


def _tool(tool: bodies.AnyTool) -> dict[str, Any]:
    if isinstance(tool, bodies.NamespaceTool):
        made = {"type": tool.type, "name": tool.name, "description": tool.description or ""}
        return {**made, "tools": [_tool(inner) for inner in tool.tools]}
    return {**tool.model_dump(), "strict": tool.strict is True}
