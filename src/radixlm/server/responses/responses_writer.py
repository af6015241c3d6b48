"""One response while it is made: what it is so far, its items, and what its stream tells."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from radixlm import parsers
from radixlm.core.errors import InvalidRequestError, QueueFullError
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.bodies.cache_control import DEFAULT_KEEP, SECONDS
from radixlm.server.bodies.conversation import Json, sealed
from radixlm.server.bodies.logprobs import ChatToken, TokenEntry, TokenTexts, chat_logprobs
from radixlm.server.http.body import Body
from radixlm.server.http.http_errors import GenerationFailedError, openai_error
from radixlm.server.http.sse import compact, framed
from radixlm.server.insight.usage import UsageMeter
from radixlm.server.pipeline.answer import AnswerStream
from radixlm.server.pipeline.chat import ChatTask
from radixlm.server.pipeline.generation import reported
from radixlm.server.pipeline.service import Service
from radixlm.server.responses import conversation_store as conversations
from radixlm.server.responses import responses_body as bodies
from radixlm.server.responses import responses_wire as wire
from radixlm.server.responses.response_store import ResponseStore, Turn
from radixlm.server.responses.responses_conversation import callers_names, new_item_id

_OUTCOMES: dict[FinishReason | None, wire.Outcome] = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
}
_LAST = {"completed": "response.completed", "failed": "response.failed"}


class ItemWriter:
    """Makes `items` of what an answer's parser finds, one open at a time. Each change is an event:

        text       message   added, part added, deltas, text done, part done, done
        thoughts   reasoning added, part added, deltas, text done, part done, done
        a call     function_call added, deltas, arguments done, done

    write: takes each event, without its number, at once: what is in it goes on changing.
    seals: give reasoning as encrypted_content too. names: namespaces and names of tools in any, by
    what the model calls them.
    """

    def __init__(
        self, write: Callable[[Json], None], *, seals: bool, names: Mapping[str, tuple[str, str]]
    ) -> None:
        self.items: list[Json] = []
        self._write = write
        self._seals = seals
        self._names = names
        self._open: str | None = None  # the type of the last item, unless that has ended
        # Of tokens whose text is held back, as what may be the beginning of a call is.
        self._logprobs: list[ChatToken] = []

    def push(
        self, events: Sequence[parsers.AnswerEvent], logprobs: Iterable[ChatToken] = ()
    ) -> None:
        """Take events. logprobs: of their tokens; the next text gets them, those of a call none."""
        fresh = list(logprobs)
        for found in events:
            match found:
                case parsers.TextDelta(text):
                    self._text(text, self._logprobs + fresh)
                    self._logprobs, fresh = [], []
                case parsers.ReasoningDelta(text):
                    if self._open != "reasoning":
                        self._begin("reasoning", summary=[], content=[])
                        self._begin_part({"type": "reasoning_text", "text": ""})
                    self.items[-1]["content"][0]["text"] += text
                    self._part_event("response.reasoning_text.delta", delta=text)
                case parsers.ToolCallBegun(_, call_id, name):
                    namespace, own = self._names.get(name, (None, name))
                    within = {} if namespace is None else {"namespace": namespace}
                    called = {"call_id": call_id, "name": own, "arguments": ""}
                    self._begin("function_call", **called, **within)
                case parsers.ToolArguments(_, delta):
                    self.items[-1]["arguments"] += delta
                    self._of_item("response.function_call_arguments.delta", delta=delta)
                case parsers.ToolCallEnded(_, whole):
                    self._logprobs = []
                    self.close("completed" if whole else "incomplete")
        last = events[-1] if events else None
        if not (isinstance(last, parsers.ToolCallEnded) and last.whole):
            self._logprobs += fresh

    def finish(self, status: bodies.Status) -> None:
        """The answer has ended. One that says nothing is an empty message."""
        if not self.items:
            self._begin_message()
        self.close(status)

    def close(self, status: bodies.Status) -> None:
        """End the item that is open, if any."""
        kind, self._open = self._open, None
        if kind is None:
            return
        item = self.items[-1]
        if kind == "function_call":
            done = "response.function_call_arguments.done"
            self._of_item(done, arguments=item["arguments"])
        else:
            [part] = item["content"]
            shown = {"logprobs": _without_bytes(part["logprobs"])} if kind == "message" else {}
            self._part_event(f"response.{part['type']}.done", text=part["text"], **shown)
            self._part_event("response.content_part.done", part=part)
            if kind == "reasoning" and self._seals:
                item["encrypted_content"] = sealed(part["text"])
        item["status"] = status
        self._event("response.output_item.done", item=item)

    def _text(self, text: str, logprobs: list[ChatToken]) -> None:
        if self._open != "message":
            self._begin_message()
        part = self.items[-1]["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        shown = _without_bytes(logprobs)
        self._part_event("response.output_text.delta", delta=text, logprobs=shown)

    def _begin_message(self) -> None:
        self._begin("message", role="assistant", content=[])
        self._begin_part({"type": "output_text", "text": "", "annotations": [], "logprobs": []})

    def _begin(self, kind: str, **fields: Any) -> None:
        self.close("completed")
        self._open = kind
        item = {"type": kind, "id": new_item_id(kind), "status": "in_progress", **fields}
        self.items.append(item)
        self._event("response.output_item.added", item=item)

    def _begin_part(self, part: Json) -> None:
        self._part_event("response.content_part.added", part=part)
        self.items[-1]["content"].append(part)

    def _event(self, kind: str, **fields: Any) -> None:
        self._write({"type": kind, "output_index": len(self.items) - 1, **fields})

    def _of_item(self, kind: str, **fields: Any) -> None:
        self._event(kind, item_id=self.items[-1]["id"], **fields)

    def _part_event(self, kind: str, **fields: Any) -> None:
        self._of_item(kind, content_index=0, **fields)


class ResponseWriter:
    """The Writer of one response.

    input_items: as they are stored and given back, with their ids. held: closed when others may go
        on in its conversation.
    """

    def __init__(
        self,
        service: Service,
        store: ResponseStore,
        chat: ChatTask,
        body: bodies.ResponseBody,
        input_items: list[Json],
        held: ExitStack,
    ) -> None:
        self.meter = UsageMeter(1, caches=service.caches)
        self.status: wire.Outcome = "queued" if body.background else "in_progress"
        self._service = service
        self._store, self._held = store, held
        self._body = body
        self._created = int(time.time())
        self._generation, tokenizer = chat.generation, service.engine.tokenizer
        self._stream = AnswerStream(chat.new_parser())
        params = self._generation.params
        with_logprobs = params.logprobs is not None
        self._texts = TokenTexts(tokenizer, params, chat.prompt.key) if with_logprobs else None
        self._given, self._conversation = input_items, body.in_conversation
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
            self._begin()
            self._write_whole("response.in_progress")
        self._reason = output.finish_reason
        pieces = output.as_it_came() if self._texts is None else self._texts.pieces(output)
        for piece, events in self._stream.steps(pieces, output):
            logprobs = chat_logprobs(self._service.engine.tokenizer, piece.logprobs)["content"]
            self._writer.push(events, () if self._stream.thinks else logprobs)
        return self._new_events()

    def _begin(self) -> None:
        self._begun, self.status = True, "in_progress"
        self._write_whole("response.created")

    async def finish(self) -> Iterator[bytes]:
        """The response is stored before its stream's last event."""
        self.status = _OUTCOMES.get(self._reason, "cancelled")
        if self.status == "completed":
            self._completed_at = int(time.time())
        self._writer.finish("completed" if self.status == "completed" else "incomplete")
        await self._say()
        await self.store()
        self._held.close()
        self._write_whole(_LAST.get(self.status, "response.incomplete"))
        return self._new_events()

    async def _say(self) -> None:
        """Add what was said to the conversation, if it is there still and has room."""
        if self._conversation is not None and self.status != "cancelled":
            store, owner = self._store, self._generation.tenant
            said = [*self._given, *self._writer.items]
            added = await store.call(
                conversations.add, owner, self._conversation, said, store.worked_on
            )
            self._conversation = None if added is None else self._conversation

    def whole(self) -> bytes:
        return compact(self.response())

    def failed(self, error: Exception) -> bytes:
        """Such a response is not stored. Clients take no event of one that was not created."""
        self._stored = False
        self._writer.close("incomplete")
        self._events.clear()  # what was not sent, and the end of the item that ended with it
        if not self._sent:
            self._begin()
        self.stop("failed", error)
        self._write_whole("response.failed")
        return b"".join(self._new_events())

    def stop(self, status: wire.Outcome, error: Exception | None = None) -> None:
        """End it early: its client cancelled it, or it failed with `error`."""
        self._writer.close("incomplete")
        self.status, self._error = status, error

    async def store(self) -> bool:
        """Keep it as it is now, if it is to be kept. Whether it is."""
        if self._stored:
            turn = Turn(
                id=self._generation.request_id,
                owner=self._generation.tenant,
                parent=self._body.previous_response_id,
                created=self._created,
                ended=self._ended,
                response=json.dumps(self.response(), ensure_ascii=False),
                input=self._input,
            )
            self._stored = await self._store.put(turn)
        return self._stored

    def response(self) -> Json:
        """A ResponseObject, as it is now."""
        body, params = self._body, self._generation.params
        wish, kept, choice = (
            body.prompt_cache_options,
            body.prompt_cache_retention,
            body.tool_choice,
        )
        response: Json = {
            "id": self._generation.request_id,
            "object": "response",
            "created_at": self._created,
            "completed_at": self._completed_at,
            "conversation": self._conversation and {"id": self._conversation},
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
            "model": self._generation.adapter or self._service.model_name,
            "output": self._writer.items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "prompt_cache_options": (
                wish and {"mode": wish.mode or "implicit", "ttl": wish.ttl or DEFAULT_KEEP}
            ),
            "prompt_cache_retention": "in_memory" if kept == "in-memory" else kept,
            "reasoning": (body.reasoning or bodies.Reasoning()).model_dump(),
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": self._stored,
            "temperature": params.temperature,
            "text": _text(body),
            "tool_choice": (
                choice.model_dump(exclude_none=True)
                if isinstance(choice, Body)
                else choice or "auto"
            ),
            "tools": [_tool(tool) for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": self._usage() if self._ended else None,
            "user": body.user,
        }
        if self._ended:
            response |= reported(self._service, self._generation, self.meter)
        return response

    @property
    def _ended(self) -> bool:
        return self.status not in ("queued", "in_progress")

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

    def _write(self, made: Json) -> None:
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
    made = openai_error(error)["error"]
    return {"code": code, "message": made["message"], "type": made["type"], "param": made["param"]}


def _text(body: bodies.ResponseBody) -> Json:
    text = body.text or bodies.TextConfig()
    form = text.format or bodies.TextFormat(type="text")
    made = form.model_dump(by_alias=True, exclude_none=True)
    return {"format": made, "verbosity": text.verbosity or "medium"}


def _tool(tool: bodies.AnyTool) -> Json:
    if isinstance(tool, bodies.NamespaceTool):
        made = {"type": tool.type, "name": tool.name, "description": tool.description or ""}
        return {**made, "tools": [_tool(inner) for inner in tool.tools]}
    return {**tool.model_dump(), "strict": tool.strict is True}


def _without_bytes(entries: Sequence[ChatToken]) -> list[wire.EventLogprob]:
    return [
        {**_bare(entry), "top_logprobs": [_bare(best) for best in entry["top_logprobs"]]}
        for entry in entries
    ]


def _bare(entry: TokenEntry) -> wire.TopLogprob:
    return {"token": entry["token"], "logprob": entry["logprob"]}
