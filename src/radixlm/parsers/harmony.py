"""gpt-oss's format, harmony: an answer is messages in channels.

    <|channel|>analysis<|message|>…<|end|>                                  reasoning
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>                the answer

Source: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re

from radixlm.parsers import ReasoningDelta, TextDelta
from radixlm.parsers.json_formats import JsonCallParser
from radixlm.parsers.steps import Steps, begun
from radixlm.parsers.tool_calls import CallFormat

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN, END, _CALL, _RETURN = "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"
_ENDS = (END, _CALL, _RETURN)
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, *_ENDS)
_THOUGHTS = "analysis"
# Within a header: who is called. Longer ones are text: models write a few words.
_TO = re.compile(r"\bto=functions\.([\w.-]+)", re.ASCII)
_LONGEST_HEADER = 200


class HarmonyParser(JsonCallParser):
    """Reads an answer to a prompt that ends with `<|start|>assistant`.

    Text outside of messages, and what calls no known tool, is the answer's text.
    """

    def _run(self) -> Steps[None]:
        while True:
            yield from self._skip_spaces()
            header = yield from self._header()
            if header is None:
                return
            called = _TO.search(header)
            if called and called[1] in self._tools and self._may_call:
                yield from self._skip_spaces()
                self._mark = self._at
                yield from self._call(called[1])
            yield from self._body(_THOUGHTS in header.partition(CHANNEL)[2])

    def _header(self) -> Steps[str | None]:
        """Read up to a message's begin; None when the answer ends, where what is left is text."""
        start = self._at
        while (end := self._text.find(MESSAGE, start)) < 0:
            if self._ended or len(self._text) - start > _LONGEST_HEADER:
                yield from self._no_header(start)
                return None
            yield
        if CHANNEL not in self._text[start:end]:
            yield from self._no_header(start)
            return None
        self._mark = self._at = end + len(MESSAGE)
        return self._text[start:end]

    def _no_header(self, start: int) -> Steps[None]:
        written = self._text[start:]
        if self._ended and (written.startswith((START, CHANNEL)) or not written.strip()):
            self._mark = self._at = len(self._text)  # cut off within a header
            return
        self._mark = self._at = start
        yield from self._rest()

    def _body(self, thought: bool) -> Steps[None]:
        """Give a message away, up to its end."""
        make = ReasoningDelta if thought else TextDelta
        while True:
            found = [(at, end) for end in _ENDS if (at := self._text.find(end, self._mark)) >= 0]
            if found:
                at, end = min(found)
                self._give(at, make)
                self._mark = self._at = at + len(end)
                return
            stop = len(self._text)
            if not self._ended:
                stop -= max(begun(end, self._text) for end in _ENDS)
            self._give(max(stop, self._mark), make)
            if self._ended:
                return
            self._text, self._mark, self._at = self._text[self._mark :], 0, 0
            yield


HARMONY = CallFormat(parser=HarmonyParser, markers=MARKERS, channels=True)
