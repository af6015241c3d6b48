"""An answer's events as the items of a response, and as the events that tell of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Literal

from radixlm.parsers import (
    AnswerEvent,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegun,
    ToolCallCut,
    ToolCallEnded,
)
from radixlm.server.pipeline.logprobs import ChatToken
from radixlm.server.pipeline.names import new_id, sealed
from radixlm.server.responses.responses_as_chat import Member
from radixlm.server.responses.responses_body import Status
from radixlm.server.responses.responses_wire import (
    AnyEvent,
    EventLogprob,
    ItemEvent,
    OfItem,
    OfPart,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    PartEvent,
    ReasoningText,
)


class ItemWriter:
    """Builds `items` of an answer's events, one open at a time, and tells of each change.

        text       message   added, part added, deltas, text done, part done, done
        thoughts   reasoning added, part added, deltas, text done, part done, done
        a call     function_call added, deltas, arguments done, done

    next_number: of the stream's events. seals: give reasoning as encrypted_content too.
    names: tools in namespaces, by what the model calls them.
    """

    def __init__(
        self, next_number: Callable[[], int], *, seals: bool, names: Mapping[str, Member]
    ) -> None:
        self.items: list[OutputItem] = []
        self._next_number = next_number
        self._seals = seals
        self._names = names
        self._open: OutputItem | None = None
        # Of tokens whose text is held back, as what may be the beginning of a call is.
        self._logprobs: list[ChatToken] = []

    def push(
        self, events: Sequence[AnswerEvent], logprobs: Sequence[ChatToken] = ()
    ) -> Iterator[AnyEvent]:
        """Take the next events. logprobs: of the tokens that came; the next text gets them, those
        of a call nothing.
        """
        fresh = list(logprobs)
        for event in events:
            match event:
                case TextDelta(text):
                    yield from self._text(text, self._logprobs + fresh)
                    self._logprobs, fresh = [], []
                case ReasoningDelta(text):
                    yield from self._thought(text)
                case ToolCallBegun(_, call_id, name):
                    yield from self._call(call_id, name)
                case ToolArguments(_, delta):
                    yield from self._arguments(delta)
                case ToolCallEnded():
                    self._logprobs = []
                    yield from self._close("completed")
                case ToolCallCut():
                    self._logprobs = []
                    yield from self._close("incomplete")
        if not (events and isinstance(events[-1], ToolCallEnded)):
            self._logprobs += fresh

    def finish(self, status: Status) -> Iterator[AnyEvent]:
        """The answer has ended. One that says nothing is an empty message."""
        if not self.items:
            yield from self._message()
        yield from self._close(status)

    def stop(self) -> None:
        """Nothing more comes, and nobody is told."""
        for _ in self._close("incomplete"):
            pass

    def _text(self, text: str, logprobs: list[ChatToken]) -> Iterator[AnyEvent]:
        message = yield from self._message()
        part = message["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        yield {
            **self._of_part(),
            "type": "response.output_text.delta",
            "delta": text,
            "logprobs": _without_bytes(logprobs),
        }

    def _message(self) -> Generator[AnyEvent, None, OutputMessage]:
        """The message that is open; it begins when there is none."""
        if self._open is not None and self._open["type"] == "message":
            return self._open
        message: OutputMessage = {
            "type": "message",
            "id": new_id("msg"),
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        yield from self._begin(message)
        part: OutputText = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._of_whole_part("response.content_part.added", part)
        message["content"].append(part)
        return message

    def _thought(self, text: str) -> Iterator[AnyEvent]:
        reasoning = yield from self._reasoning()
        reasoning["content"][0]["text"] += text
        yield {**self._of_part(), "type": "response.reasoning_text.delta", "delta": text}

    def _reasoning(self) -> Generator[AnyEvent, None, OutputReasoning]:
        """The reasoning that is open; it begins when there is none."""
        if self._open is not None and self._open["type"] == "reasoning":
            return self._open
        reasoning: OutputReasoning = {
            "type": "reasoning",
            "id": new_id("rs"),
            "status": "in_progress",
            "summary": [],
            "content": [],
        }
        yield from self._begin(reasoning)
        part: ReasoningText = {"type": "reasoning_text", "text": ""}
        yield self._of_whole_part("response.content_part.added", part)
        reasoning["content"].append(part)
        return reasoning

    def _call(self, call_id: str, name: str) -> Iterator[AnyEvent]:
        member = self._names.get(name)
        call: OutputCall = {
            "type": "function_call",
            "id": new_id("fc"),
            "status": "in_progress",
            "call_id": call_id,
            "name": name if member is None else member.tool.name,
            "arguments": "",
        }
        if member is not None and member.namespace is not None:
            call["namespace"] = member.namespace
        yield from self._begin(call)

    def _arguments(self, delta: str) -> Iterator[AnyEvent]:
        if self._open is None or self._open["type"] != "function_call":
            raise ValueError("arguments of no call")
        self._open["arguments"] += delta
        yield {
            **self._of_item(),
            "type": "response.function_call_arguments.delta",
            "delta": delta,
        }

    def _begin(self, item: OutputItem) -> Iterator[AnyEvent]:
        yield from self._close("completed")
        self.items.append(item)
        self._open = item
        yield self._of_whole_item("response.output_item.added", item)

    def _close(self, status: Status) -> Iterator[AnyEvent]:
        """End the item that is open, if any."""
        item, self._open = self._open, None
        if item is None:
            return
        match item["type"]:
            case "message":
                yield from self._end_text(item["content"][0])
            case "reasoning":
                yield from self._end_thought(item)
            case "function_call":
                yield {
                    **self._of_item(),
                    "type": "response.function_call_arguments.done",
                    "arguments": item["arguments"],
                }
        item["status"] = status
        yield self._of_whole_item("response.output_item.done", item)

    def _end_text(self, part: OutputText) -> Iterator[AnyEvent]:
        yield {
            **self._of_part(),
            "type": "response.output_text.done",
            "text": part["text"],
            "logprobs": _without_bytes(part["logprobs"]),
        }
        yield self._of_whole_part("response.content_part.done", part)

    def _end_thought(self, item: OutputReasoning) -> Iterator[AnyEvent]:
        part = item["content"][0]
        yield {**self._of_part(), "type": "response.reasoning_text.done", "text": part["text"]}
        yield self._of_whole_part("response.content_part.done", part)
        if self._seals:
            item["encrypted_content"] = sealed(part["text"])

    def _of_item(self) -> OfItem:
        return {
            "sequence_number": self._next_number(),
            "item_id": self.items[-1]["id"],
            "output_index": len(self.items) - 1,
        }

    def _of_part(self) -> OfPart:
        return {**self._of_item(), "content_index": 0}

    def _of_whole_item(
        self,
        kind: Literal["response.output_item.added", "response.output_item.done"],
        item: OutputItem,
    ) -> ItemEvent:
        return {
            "sequence_number": self._next_number(),
            "type": kind,
            "output_index": len(self.items) - 1,
            "item": item,
        }

    def _of_whole_part(
        self,
        kind: Literal["response.content_part.added", "response.content_part.done"],
        part: OutputText | ReasoningText,
    ) -> PartEvent:
        return {**self._of_part(), "type": kind, "part": part}


def _without_bytes(entries: Sequence[ChatToken]) -> list[EventLogprob]:
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [
                {"token": best["token"], "logprob": best["logprob"]}
                for best in entry["top_logprobs"]
            ],
        }
        for entry in entries
    ]
