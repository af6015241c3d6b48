"""The format of Qwen3-Coder: arguments one by one, in tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from radixlm.parsers.json_formats import HERMES, HERMES_BEGIN, HERMES_END
from radixlm.parsers.pythonic import FieldParser, as_json
from radixlm.parsers.steps import Steps, begun
from radixlm.parsers.tool_calls import Fields
from radixlm.parsers.tools import fits, types_of

FUNCTION = "<function="
_FUNCTION_END = "</function>"
_PARAMETER = "<parameter="
_PARAMETER_END = "</parameter>"
_TEXT = frozenset({"string"})


class QwenCoderParser(FieldParser):
    """`<tool_call><function=f><parameter=a>b</parameter></function></tool_call>`, any number, with
    text around; one line break next to a value belongs to its tags.

    Texts stand there without quotes: the tool's schema says whether a value is one.
    Source: https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct
    """

    def _run(self) -> Steps[None]:
        return self._tagged_calls(HERMES_BEGIN, HERMES_END)

    def _fields(self) -> Steps[bool]:
        name = yield from self._named(FUNCTION)
        if name not in self._tools:
            return False
        self._name = name
        yield from self._skip_spaces()
        while not (yield from self._skip(_FUNCTION_END)):
            key = yield from self._named(_PARAMETER)
            if not self._is_new(key):
                return False
            yield from self._skip("\n")
            types = _types_of(self._tools[name], key)
            read = self._text_value(key) if types == _TEXT else self._value(key, types)
            if not (yield from read):
                return False
            yield from self._skip_spaces()
        return self._close()

    def _named(self, tag: str) -> Steps[str]:
        """Read a tag with a name; "" when none comes."""
        if not (yield from self._skip(tag)):
            return ""
        name = yield from self._while(lambda character: character not in ">\n")
        return name if (yield from self._skip(">")) else ""

    def _value(self, key: str, types: frozenset[str]) -> Steps[bool]:
        """Read a value that may be other than a text."""
        start = self._at
        while (end := self._text.find(_PARAMETER_END, start)) < 0:
            if self._ended:
                return False
            yield
        written = self._text[start:end].removesuffix("\n")
        value = as_json(written)
        is_text = value is None or (
            "string" in types and (value[0] == '"' or not fits(value, types))
        )
        self._at = end + len(_PARAMETER_END)
        self._argument(key, json.dumps(written, ensure_ascii=False) if is_text else str(value))
        return True

    def _text_value(self, key: str) -> Steps[bool]:
        """Read a text, and give it away as it comes."""
        self._argument(key, '"')
        while True:
            end = self._text.find(_PARAMETER_END, self._at)
            stop = end if end >= 0 else len(self._text) - begun(_PARAMETER_END, self._text)
            if stop > self._at and self._text[stop - 1] == "\n":
                stop -= 1
            if stop > self._at:
                start, self._at = self._at, stop
                self._more(json.dumps(self._text[start:stop], ensure_ascii=False)[1:-1])
            if end >= 0:
                self._at = end + len(_PARAMETER_END)
                self._more('"')
                return True
            if self._ended:
                return False
            yield


def _types_of(schema: Mapping[str, Any], key: str) -> frozenset[str]:
    properties = schema.get("properties")
    known = properties.get(key) if isinstance(properties, Mapping) else None
    return types_of(known, schema)


QWEN_CODER = replace(
    HERMES,
    parser=QwenCoderParser,
    fields=Fields(
        before=FUNCTION,
        after=">\n",
        key_before=_PARAMETER,
        key_after=">\n",
        value_end=_PARAMETER_END,
        closes=_FUNCTION_END,
    ),
)
