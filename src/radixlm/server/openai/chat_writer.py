"""How OpenAI's completions are written. What chat's and text's have in common: head, usage,
reports, the stream's end. And chat's own: answers as messages, and as their deltas.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from radixlm import parsers
from radixlm.core.request import NOTHING, FinishReason, Piece, RequestOutput, TokenLogprob
from radixlm.server.bodies.logprobs import ChatLogprobs, TokenTexts, chat_logprobs
from radixlm.server.bodies.protocol import ChatBody, GenerationBody
from radixlm.server.http.sse import DONE, compact, event, framed, spliced
from radixlm.server.insight.usage import CacheDetails, TokenUsage, UsageMeter
from radixlm.server.pipeline.answer import AnswerStream
from radixlm.server.pipeline.chat import ChatTask
from radixlm.server.pipeline.generation import Generation, reported
from radixlm.server.pipeline.service import Service

Fields = Mapping[str, Any]


class Head(TypedDict):
    """created: in seconds since 1970. system_fingerprint: of what computes the answers."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class Tier(TypedDict, total=False):
    """The service tier, where the request names one."""

    service_tier: Literal["default"]


class TokenIds(TypedDict, total=False):
    """They are there with return_token_ids."""

    token_ids: list[int]


class PromptIds(TypedDict, total=False):
    """They are there with return_token_ids; in a stream, with a choice's first tokens."""

    prompt_token_ids: list[int]


class OpenAIWriter(ABC):
    """A Writer but for `push`. whole_kind, chunk_kind: `object` of an answer and of a chunk."""

    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, service: Service, generation: Generation, body: GenerationBody) -> None:
        self.meter = UsageMeter(generation.n, caches=service.caches)
        self._service = service
        self._tokenizer = service.engine.tokenizer
        self._params = generation.params
        self._generation = generation
        self._usage = body.usage_options
        self._with_details = bool(body.return_cached_tokens_details)
        self._streams = bool(body.stream)
        self._with_ids = bool(body.return_token_ids)
        self._created = int(time.time())
        self._beside: CacheDetails = {}

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens that were pushed are thoughts."""
        return 0

    @abstractmethod
    def answer(self) -> Fields:
        """`choices`, each a mapping or JSON already, and what else the whole answer has."""

    async def finish(self) -> list[bytes]:
        generation = self._generation
        if len(generation.requests) > 1:  # in a thread: each prompt's report takes a while
            report = await asyncio.to_thread(reported, self._service, generation, self.meter)
        else:
            report = reported(self._service, generation, self.meter)
        if "cache_report" in report:
            self._beside["cache_report"] = report["cache_report"]
        if self._with_details:
            self._beside["sglext"] = {"cached_tokens_details": self.meter.details()}
        last = {**self._head(self.chunk_kind), "choices": [], **self._beside}
        if self._usage.include_usage:
            last["usage"] = self.meter.as_json(self.reasoning_tokens)
        return [event(last), DONE] if self._usage.include_usage or self._beside else [DONE]

    def whole(self) -> bytes:
        usage = self.meter.as_json(self.reasoning_tokens)
        return _in_pieces(
            {**self._head(self.whole_kind), **self.answer(), "usage": usage, **self._beside}
        )

    def event(self, fields: Fields) -> bytes:
        """A chunk with these fields, and the usage so far where that is asked for."""
        chunk = {**self._head(self.chunk_kind), **fields}
        if self._usage.include_usage:
            so_far = self._usage.continuous_usage_stats
            chunk["usage"] = self.meter.as_json(self.reasoning_tokens) if so_far else None
        return framed(_in_pieces(chunk))

    def _head(self, kind: str) -> Head:
        return {
            "id": self._generation.request_id,
            "object": kind,
            "created": self._created,
            "model": self._generation.adapter or self._service.model_name,
            "system_fingerprint": self._service.fingerprint,
        }


def _in_pieces(fields: Fields) -> bytes:
    """JSON, choice by choice: making it keeps the interpreter to itself."""
    written = (each if isinstance(each, bytes) else compact(each) for each in fields["choices"])
    rest = {name: value for name, value in fields.items() if name != "choices"}
    return spliced(rest, {"choices": b"[" + b",".join(written) + b"]"})


class CalledFunction(TypedDict):
    """arguments: a JSON object, as text."""

    name: str
    arguments: str


class MessageToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatAnswer(TypedDict):
    """content: null when there are only calls. reasoning_content: what was thought before."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    refusal: None
    tool_calls: NotRequired[list[MessageToolCall]]
    annotations: Annotated[list[object], Field(max_length=0)]


# "tool_calls" goes before "stop".
ChatFinish = FinishReason | Literal["tool_calls"]


class ChatChoice(TokenIds):
    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None


class ChatChoices(Tier, PromptIds):
    choices: list[ChatChoice]


class ChatCompletion(Head, ChatChoices, CacheDetails):
    usage: TokenUsage


class FunctionDelta(TypedDict, total=False):
    """The name comes first, with no arguments."""

    name: str
    arguments: str


class ToolCallDelta(TypedDict):
    """index: of the answer's calls. id and type come with the name."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict, total=False):
    """The new part of a message: the role first and alone, then thoughts, text and calls."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallDelta]
    refusal: None


class ChatChunkChoice(TokenIds):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None


class ChatChunkChoices(Tier, PromptIds):
    choices: list[ChatChunkChoice]


class ChatChunk(Head, ChatChunkChoices, CacheDetails):
    """usage: with stream_options.include_usage; null but in the last, which has no choices, unless
    stream_options.continuous_usage_stats asks for what it is so far.
    """

    usage: NotRequired[TokenUsage | None]


class ChatWriter(OpenAIWriter):
    """OpenAI's chat answers, token ids where vLLM has them.

    Source: https://platform.openai.com/docs/api-reference/chat.
    """

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, service: Service, task: ChatTask, body: ChatBody) -> None:
        super().__init__(service, task.generation, body)
        self._new_parser = task.new_parser
        self._prompt = task.prompt.key
        self._with_logprobs = self._params.logprobs is not None
        # OpenAI says which tier it was only where one was asked for.
        self._tier: Tier = {} if body.service_tier is None else {"service_tier": "default"}
        self._choices: dict[int, _ChatChoice] = {}

    @property
    def reasoning_tokens(self) -> int:
        return sum(known.stream.reasoning_tokens for known in self._choices.values())

    def push(self, choice: int, output: RequestOutput) -> Iterable[bytes]:
        begins = choice not in self._choices
        if begins:
            shown = self._streams and (self._with_ids or self._with_logprobs)
            texts = TokenTexts(self._tokenizer, self._params, self._prompt) if shown else None
            self._choices[choice] = _ChatChoice(AnswerStream(self._new_parser()), texts)
        known = self._choices[choice]
        if self._streams:
            return self._chunks(choice, known, output, begins=begins)
        known.outputs.append(output)
        known.answered.add(known.stream.events(output))
        return ()

    def answer(self) -> ChatChoices:
        choices = [self._choice(choice) for choice in sorted(self._choices)]
        return {"choices": choices, **self._tier, **self._prompt_ids()}

    def _chunks(
        self, choice: int, known: _ChatChoice, output: RequestOutput, *, begins: bool
    ) -> list[bytes]:
        """The role comes first and alone, the finish reason last and alone."""
        made: list[bytes] = []
        if begins:
            first: ChatDelta = {"role": "assistant", "content": "", "refusal": None}
            made.append(self._chunk(choice, first, prompt_ids=self._prompt_ids()))
        pieces = output.as_it_came() if known.texts is None else known.texts.pieces(output)
        for piece, events in known.stream.steps(pieces, output):
            known.add(piece)
            for delta in deltas_of(events):  # the first one shows the tokens
                made.append(self._chunk(choice, delta, tokens=known.take()))
        if output.finish_reason is not None:
            if known.unsent.token_ids and known.texts is not None:
                made.append(self._chunk(choice, {"content": ""}, tokens=known.take()))
            reason = finish_of(output, called=known.stream.called)
            made.append(self._chunk(choice, {}, finish_reason=reason))
        return made

    def _choice(self, choice: int) -> ChatChoice:
        known = self._choices[choice]
        output = RequestOutput.joined(known.outputs)
        return {
            "index": choice,
            "message": message_of(known.answered),
            "logprobs": self._logprobs(output.logprobs),
            "finish_reason": finish_of(output, called=known.stream.called),
            **self._ids(output.token_ids),
        }

    def _chunk(
        self,
        choice: int,
        delta: ChatDelta,
        *,
        tokens: Piece = NOTHING,
        finish_reason: ChatFinish | None = None,
        prompt_ids: PromptIds | None = None,
    ) -> bytes:
        entry: ChatChunkChoice = {
            "index": choice,
            "delta": delta,
            "logprobs": self._logprobs(tokens.logprobs) if tokens.logprobs else None,
            "finish_reason": finish_reason,
            **self._ids(tokens.token_ids),
        }
        chunk: ChatChunkChoices = {"choices": [entry], **self._tier, **(prompt_ids or {})}
        return self.event(chunk)

    def _ids(self, token_ids: Sequence[int]) -> TokenIds:
        return {"token_ids": list(token_ids)} if self._with_ids else {}

    def _prompt_ids(self) -> PromptIds:
        return {"prompt_token_ids": self._prompt.tolist()} if self._with_ids else {}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        return chat_logprobs(self._tokenizer, entries) if self._with_logprobs else None


@dataclass(slots=True)
class _ChatChoice:
    """One of the answers. texts: where chunks show tokens. unsent: of these, what they have not
    shown yet, since the parser holds the text back. outputs: of an answer that is sent whole.
    """

    stream: AnswerStream
    texts: TokenTexts | None
    answered: parsers.Answered = field(default_factory=parsers.Answered)
    outputs: list[RequestOutput] = field(default_factory=list)
    unsent: Piece = NOTHING

    def add(self, piece: Piece) -> None:
        ids, logprobs = self.unsent.token_ids, self.unsent.logprobs
        self.unsent = Piece(ids + piece.token_ids, "", logprobs + piece.logprobs)

    def take(self) -> Piece:
        unsent, self.unsent = self.unsent, NOTHING
        return unsent


def deltas_of(events: Iterable[parsers.AnswerEvent]) -> list[ChatDelta]:
    """New events of an answer. The ends of calls give nothing."""
    made: list[ChatDelta] = []
    for found in events:
        match found:
            case parsers.TextDelta(text):
                made.append({"content": text})
            case parsers.ReasoningDelta(text):
                made.append({"reasoning_content": text})
            case parsers.ToolCallBegun(call, call_id, name):
                named: FunctionDelta = {"name": name, "arguments": ""}
                begun = ToolCallDelta(index=call, id=call_id, type="function", function=named)
                made.append({"tool_calls": [begun]})
            case parsers.ToolArguments(call, delta):
                made.append({"tool_calls": [{"index": call, "function": {"arguments": delta}}]})
    return made


def message_of(answer: parsers.Answered) -> ChatAnswer:
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
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in answer.calls
        ]
    return message


def finish_of(output: RequestOutput, *, called: bool) -> ChatFinish | None:
    """The reason why the answer ended: with calls for the client to make, when it came to its own
    end.
    """
    if called and output.finish_reason is FinishReason.STOP:
        return "tool_calls"
    return output.finish_reason
