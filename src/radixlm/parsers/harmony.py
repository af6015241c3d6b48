"""gpt-oss's format, harmony: an answer is messages in channels.

    <|channel|>analysis<|message|>…<|end|>                                  reasoning
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>                the answer

Source: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re
from collections.abc import Callable

from radixlm.parsers import ReasoningDelta, TextDelta
from radixlm.parsers.call_format import CallFormat, NamedCall
from radixlm.parsers.json_calls import NamedCallReader
from radixlm.parsers.one_call import CallContext, CallEvents, Offered
from radixlm.parsers.run import ForwardParser, Steps, Words

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
FINAL = CHANNEL + "final"
CONSTRAIN, END, _CALL, _RETURN = "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"
_ENDS = (END, _CALL, _RETURN)
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, *_ENDS)
_THOUGHTS = "analysis"
# Within a header: who is called, also without the namespace. Longer headers are text: models write
# a few words.
_TO = re.compile(r"\bto=(functions\.)?([\w.-]+)", re.ASCII)
_LONGEST_HEADER = 200


class HarmonyReader(ForwardParser):
    """Reads an answer to a prompt that ends with `<|start|>assistant`.

    Text outside of messages, and what calls no known tool, is the answer's text.
    """

    def __init__(
        self, offered: Offered, new_id: Callable[[], str], *, most: int | None = None
    ) -> None:
        super().__init__()
        self._offered, self._new_id, self._most = offered, new_id, most
        self._calls = 0
        # The next message may begin at once.
        self._ends = Words((*_ENDS, START) if offered.mends else _ENDS)
        around = CallContext(self._cursor, offered, _ENDS, ())
        self._reader = NamedCallReader(around, NamedCall(after=""))

    def _read(self) -> Steps[None]:
        cursor = self._cursor
        while True:
            yield from cursor.spaces()
            header = yield from self._header()
            if header is None:
                return
            if (name := self._called(header)) and (self._most is None or self._calls < self._most):
                yield from cursor.spaces()
                cursor.mark = cursor.at
                yield from self._call(name)
            yield from self._body(_THOUGHTS in header.partition(CHANNEL)[2])

    def _called(self, header: str) -> str:
        """The tool that a message calls; "" for none."""
        found = _TO.search(header)
        if not found:
            return ""
        known = found[2] in self._offered.tools
        return found[2] if known or (found[1] and self._offered.mends) else ""

    def _call(self, name: str) -> Steps[None]:
        """Read a call's arguments."""
        cursor = self._cursor
        call = CallEvents(self._offered, self._tell, self._calls, self._new_id, known_only=False)
        call.name = name
        whole = yield from self._reader.read_arguments(call)
        if call.sent is None:
            self._give(cursor.at)
            return
        cursor.mark = cursor.at = cursor.at if whole else call.sent
        call.end(whole)
        self._calls += 1
        if whole:
            yield from cursor.spaces()
            cursor.mark = cursor.at

    def _header(self) -> Steps[str | None]:
        """Read up to a message's begin; None when the answer ends, where what is left is text."""
        cursor, start = self._cursor, self._cursor.at
        longest = start + _LONGEST_HEADER
        while (end := cursor.text.find(MESSAGE, start, longest)) < 0:
            if cursor.ended or len(cursor.text) >= longest:
                yield from self._no_header(start)
                return None
            yield from cursor.wait()
        header = cursor.text[start:end]
        if CHANNEL not in header and not self._called(header):
            yield from self._no_header(start)
            return None
        cursor.mark = cursor.at = end + len(MESSAGE)
        return header

    def _no_header(self, start: int) -> Steps[None]:
        cursor = self._cursor
        written = cursor.text[start:]
        if cursor.ended and (written.startswith((START, CHANNEL)) or not written.strip()):
            cursor.mark = cursor.at = len(cursor.text)  # cut off within a header
            return
        cursor.mark = cursor.at = start
        yield from self._rest()

    def _body(self, thought: bool) -> Steps[None]:
        """Give a message away, up to its end."""
        cursor = self._cursor
        self._make = ReasoningDelta if thought else TextDelta
        while True:
            if found := self._ends.first(cursor.text, cursor.mark):
                self._give(found.start())
                cursor.mark = cursor.at = found.start() if found[0] == START else found.end()
                self._make = TextDelta
                return
            held = 0 if cursor.ended else self._ends.begun(cursor.text, cursor.mark)
            self._give(len(cursor.text) - held)
            if cursor.ended:
                return
            self._forget()
            yield


HARMONY = CallFormat(
    call=NamedCall(
        before=f"{CHANNEL}commentary to=",
        spelled="functions.{name}",
        after=f" {CONSTRAIN}json{MESSAGE}",
        closes=_CALL,
    ),
    again=f"{START}assistant",
    signs=(CHANNEL, "Valid channels:"),
    channels=True,
)
