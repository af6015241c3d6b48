"""Calls as Python writes them."""

from __future__ import annotations

from radixlm.text.answers.field_calls import FieldParser
from radixlm.text.answers.python_values import as_json
from radixlm.text.answers.steps import Steps

BEGIN = "<|python_start|>"
END = "<|python_end|>"


class PythonicParser(FieldParser):
    """The answer begins with `[f(a="b", c=[1, None]), g()]`; Llama 4 may put it between
    <|python_start|> and <|python_end|>.

    Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_2/
    """

    def _run(self) -> Steps[None]:
        yield from self._skip_spaces()
        tagged = yield from self._skip(BEGIN)
        yield from self._skip_spaces()
        if (yield from self._skip("[")) and (yield from self._calls(",")):
            yield from self._closed_by("]")
            if tagged:
                yield from self._closed_by(END)
        yield from self._rest()

    def _fields(self) -> Steps[bool]:
        name = yield from self._word()
        if name not in self._tools or not (yield from self._skip("(")):
            return False
        self._begin(name)
        yield from self._skip_spaces()
        while not (yield from self._skip(")")):
            if not (yield from self._field()):
                return False
        return self._end()

    def _field(self) -> Steps[bool]:
        """Read `key=value`, and the comma behind it."""
        key = yield from self._word()
        yield from self._skip_spaces()
        if not self._is_new(key) or not (yield from self._skip("=")):
            return False
        value = as_json((yield from self._value()))
        if value is None:
            return False
        self._argument(key, value)
        yield from self._skip(",")
        yield from self._skip_spaces()
        return True

    def _value(self) -> Steps[str]:
        """Read up to the comma or bracket that ends it."""
        start, depth = self._at, 0
        while character := (yield from self._peek()):
            if character in "\"'":
                yield from self._string(character)
                continue
            if character in ",)]}" and not depth:
                return self._text[start : self._at].strip()
            depth += (character in "([{") - (character in ")]}")
            self._at += 1
        return ""

    def _string(self, quote: str) -> Steps[None]:
        """Read a string, its quotes included."""
        self._at += 1
        escaped = False
        while character := (yield from self._peek()):
            self._at += 1
            if character == quote and not escaped:
                return
            escaped = character == "\\" and not escaped
