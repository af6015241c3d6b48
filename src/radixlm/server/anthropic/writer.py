"""An answer's events as the blocks of a message, and as the events that tell of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_core import from_json

from radixlm.server.anthropic.wire import (
    BlockOut,
    DeltaOut,
    MessageEvent,
    TextOut,
    ThinkingOut,
)
from radixlm.server.opaque import sealed
from radixlm.text.answers import (
    AnswerEvent,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegun,
    ToolCallCut,
    ToolCallEnded,
)

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
        for event in events:
            match event:
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
