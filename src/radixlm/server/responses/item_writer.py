"""An answer's events as the items of a response, and as the events of its stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from radixlm.parsers import (
    AnswerEvent,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegun,
    ToolCallCut,
    ToolCallEnded,
)
from radixlm.server.pipeline.conversation import new_id, sealed
from radixlm.server.pipeline.logprobs import ChatToken
from radixlm.server.responses import responses_wire as wire
from radixlm.server.responses.responses_body import Status


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
        self,
        write: Callable[[Mapping[str, Any]], None],
        *,
        seals: bool,
        names: Mapping[str, tuple[str, str]],
    ) -> None:
        self.items: list[wire.OutputItem] = []
        self._write = write
        self._seals = seals
        self._names = names
        self._open: wire.OutputItem | None = None
        # Of tokens whose text is held back, as what may be the beginning of a call is.
        self._logprobs: list[ChatToken] = []

    def push(self, events: Sequence[AnswerEvent], logprobs: Sequence[ChatToken] = ()) -> None:
        """Take the next events. logprobs: of the tokens that came; the next text gets them, those
        of a call nothing.
        """
        fresh = list(logprobs)
        for event in events:
            match event:
                case TextDelta(text):
                    self._text(text, self._logprobs + fresh)
                    self._logprobs, fresh = [], []
                case ReasoningDelta(text):
                    part = self._reasoning()["content"][0]
                    part["text"] += text
                    self._part_event("response.reasoning_text.delta", delta=text)
                case ToolCallBegun(_, call_id, name):
                    self._call(call_id, name)
                case ToolArguments(_, delta):
                    self._arguments(delta)
                case ToolCallEnded():
                    self._logprobs = []
                    self.close("completed")
                case ToolCallCut():
                    self._logprobs = []
                    self.close("incomplete")
        if not (events and isinstance(events[-1], ToolCallEnded)):
            self._logprobs += fresh

    def finish(self, status: Status) -> None:
        """The answer has ended. One that says nothing is an empty message."""
        if not self.items:
            self._message()
        self.close(status)

    def close(self, status: Status) -> None:
        """End the item that is open, if any."""
        item, self._open = self._open, None
        if item is None:
            return
        match item["type"]:
            case "message":
                text = item["content"][0]
                logprobs = _without_bytes(text["logprobs"])
                done = "response.output_text.done"
                self._part_event(done, text=text["text"], logprobs=logprobs)
                self._part_event("response.content_part.done", part=text)
            case "reasoning":
                part = item["content"][0]
                self._part_event("response.reasoning_text.done", text=part["text"])
                self._part_event("response.content_part.done", part=part)
                if self._seals:
                    item["encrypted_content"] = sealed(part["text"])
            case "function_call":
                done, arguments = "response.function_call_arguments.done", item["arguments"]
                self._item_event(done, item_id=item["id"], arguments=arguments)
        item["status"] = status
        self._item_event("response.output_item.done", item=item)

    def _text(self, text: str, logprobs: list[ChatToken]) -> None:
        part = self._message()["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        shown = _without_bytes(logprobs)
        self._part_event("response.output_text.delta", delta=text, logprobs=shown)

    def _message(self) -> wire.OutputMessage:
        """The message that is open; it begins when there is none."""
        if self._open is not None and self._open["type"] == "message":
            return self._open
        message = wire.OutputMessage(
            type="message", id=new_id("msg"), status="in_progress", role="assistant", content=[]
        )
        self._begin(message)
        part = wire.OutputText(type="output_text", text="", annotations=[], logprobs=[])
        self._part_event("response.content_part.added", part=part)
        message["content"].append(part)
        return message

    def _reasoning(self) -> wire.OutputReasoning:
        """The reasoning that is open; it begins when there is none."""
        if self._open is not None and self._open["type"] == "reasoning":
            return self._open
        reasoning = wire.OutputReasoning(
            type="reasoning", id=new_id("rs"), status="in_progress", summary=[], content=[]
        )
        self._begin(reasoning)
        part = wire.ReasoningText(type="reasoning_text", text="")
        self._part_event("response.content_part.added", part=part)
        reasoning["content"].append(part)
        return reasoning

    def _call(self, call_id: str, name: str) -> None:
        call = wire.OutputCall(
            type="function_call",
            id=new_id("fc"),
            status="in_progress",
            call_id=call_id,
            name=name,
            arguments="",
        )
        if name in self._names:
            call["namespace"], call["name"] = self._names[name]
        self._begin(call)

    def _arguments(self, delta: str) -> None:
        if self._open is None or self._open["type"] != "function_call":
            raise ValueError("arguments of no call")
        self._open["arguments"] += delta
        kind, item_id = "response.function_call_arguments.delta", self._open["id"]
        self._item_event(kind, item_id=item_id, delta=delta)

    def _begin(self, item: wire.OutputItem) -> None:
        self.close("completed")
        self.items.append(item)
        self._open = item
        self._item_event("response.output_item.added", item=item)

    def _item_event(self, kind: str, **fields: Any) -> None:
        self._write({"type": kind, "output_index": len(self.items) - 1, **fields})

    def _part_event(self, kind: str, **fields: Any) -> None:
        self._item_event(kind, item_id=self.items[-1]["id"], content_index=0, **fields)


def _without_bytes(entries: Sequence[ChatToken]) -> list[wire.EventLogprob]:
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
