"""Ollama's answers, whole or as lines of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from radixlm import parsers
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.bodies.conversation import Json
from radixlm.server.http.sse import compact
from radixlm.server.insight.usage import UsageMeter
from radixlm.server.pipeline.answer import AnswerStream
from radixlm.server.pipeline.chat import ChatTask
from radixlm.server.pipeline.generation import Generation
from radixlm.server.pipeline.pooled import Hidden, PooledWriter
from radixlm.server.pipeline.service import Service


class OllamaTimes(TypedDict, total=False):
    """..._duration: in nanoseconds; prompt_eval's: until the first token. prompt_eval_count: of
    what was cached, too.
    """

    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


class OllamaHead(OllamaTimes):
    """The last line of a stream has done, with its reason and the times."""

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[Literal["stop", "length", "load"]]


class OllamaFunction(TypedDict):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(TypedDict):
    id: str
    function: OllamaFunction


class OllamaMessage(TypedDict):
    """thinking: before the content. tool_calls: whole ones; one that was cut off is left out."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaCall]]


class OllamaChatAnswer(OllamaHead):
    message: OllamaMessage


class OllamaGenerated(OllamaHead):
    response: str
    thinking: NotRequired[str]


class OllamaWriter:
    """The Writer of one answer. model: as the client calls it. chats: whether it is a message.
    begun: when the request came, in nanoseconds of `time.monotonic_ns`.
    """

    def __init__(
        self,
        service: Service,
        task: ChatTask,
        model: str,
        begun: int,
        *,
        chats: bool,
        streams: bool,
    ) -> None:
        self.meter = UsageMeter(1, caches=service.caches)
        self._model, self._chats, self._streams = model, chats, streams
        self._stream = AnswerStream(task.new_parser())
        self._made = parsers.Answered()
        self._calls = 0
        self._begun, self._submitted, self._first = begun, time.monotonic_ns(), 0
        self._reason: FinishReason | None = None

    def push(self, _choice: int, output: RequestOutput) -> Iterable[bytes]:
        self._first = self._first or time.monotonic_ns()
        self._reason = output.finish_reason
        made = self._made.add(self._stream.events(output))
        if not self._streams or not (made.text or made.reasoning or made.calls):
            return ()
        return [_line({**_head(self._model), **self._said(), "done": False})]

    async def finish(self) -> Iterable[bytes]:
        """Return the last line: nothing waits for the end."""
        return [self.whole() + b"\n"] if self._streams else []

    def whole(self) -> bytes:
        now, usage = time.monotonic_ns(), self.meter.as_json()
        first = self._first or now
        return compact(
            {
                **_head(self._model),
                **self._said(),
                "done": True,
                "done_reason": "length" if self._reason is FinishReason.LENGTH else "stop",
                "total_duration": now - self._begun,
                "load_duration": 0,
                "prompt_eval_count": usage["prompt_tokens"],
                "prompt_eval_duration": first - self._submitted,
                "eval_count": usage["completion_tokens"],
                "eval_duration": now - first,
            }
        )

    def _said(self) -> Json:
        """Take the text, the thoughts and the calls that have come since the last time."""
        made = self._made
        called = [call for each in made.calls if (call := self._called(each)) is not None]
        thoughts = {"thinking": made.reasoning} if made.reasoning else {}
        text, made.text, made.reasoning, made.calls = made.text, "", "", []
        if not self._chats:
            return {"response": text, **thoughts}
        message: Json = {"role": "assistant", "content": text, **thoughts}
        return {"message": {**message, **({"tool_calls": called} if called else {})}}

    def _called(self, call: parsers.ToolCall) -> OllamaCall | None:
        arguments = None
        with suppress(ValueError):  # it was cut off
            arguments = json.loads(call.arguments or "{}")
        if not isinstance(arguments, dict):
            return None
        self._calls += 1
        function = OllamaFunction(index=self._calls - 1, name=call.name, arguments=arguments)
        return {"id": call.id, "function": function}


class OllamaEmbeddings(TypedDict):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(TypedDict):
    embedding: list[float]


def embed_writer(
    service: Service,
    generation: Generation,
    model: str,
    begun: int,
    *,
    dimensions: int | None = None,
    older: bool = False,
) -> PooledWriter:
    """Write embeddings. older: of /api/embeddings, which gives one alone."""
    pooling = service.engine.info.pooling

    def whole(made: Sequence[Hidden], meter: UsageMeter) -> Mapping[str, Any]:
        vectors = [pooling.embedding(each, dimensions).tolist() for each in made]
        if older:
            return OllamaEmbedding(embedding=vectors[0])
        return OllamaEmbeddings(
            model=model,
            embeddings=vectors,
            total_duration=time.monotonic_ns() - begun,
            load_duration=0,
            prompt_eval_count=meter.as_json()["prompt_tokens"],
        )

    return PooledWriter(service, generation, whole)


def loaded(model: str, *, chats: bool) -> Json:
    """The answer to a request without a prompt: the model is there, and stays."""
    message = OllamaMessage(role="assistant", content="")
    said: Json = {"message": message} if chats else {"response": ""}
    return {**_head(model), **said, "done": True, "done_reason": "load"}


def at(seconds: float) -> str:
    """A time since 1970 as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _head(model: str) -> Json:
    return {"model": model, "created_at": at(time.time())}


def _line(made: Json) -> bytes:
    return compact(made) + b"\n"
