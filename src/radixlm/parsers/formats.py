"""The formats that write arguments one by one: as in Python, and Qwen3-Coder's, in tags; and the
table of all formats.

A new one has a parser, a CallFormat, a name in the table, and where its models' templates tell it
apart, a line in `format_in`.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from radixlm.parsers import json_formats
from radixlm.parsers.harmony import CHANNEL, HARMONY
from radixlm.parsers.json_formats import HERMES, HERMES_BEGIN, HERMES_END
from radixlm.parsers.steps import Steps, begun
from radixlm.parsers.tool_calls import CallFormat, CallParser, Fields
from radixlm.parsers.tools import fits, types_of

# A quote that nothing closes runs to the end, in a group: from each quote in it a search would go
# through all that follows again.
_PIECE = re.compile(
    r"""'(?:[^'\\]|\\.)*(?:'|(\\?\Z))|"(?:[^"\\]|\\.)*(?:"|(\\?\Z))|\b(?:True|False|None)\b""",
    re.DOTALL,
)
_WORDS = {"True": "true", "False": "false", "None": "null"}
_IN_STRING = re.compile(r'\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)|["\x00-\x1f]', re.DOTALL)


_PYTHON_BEGIN = "<|python_start|>"
_PYTHON_END = "<|python_end|>"
FUNCTION = "<function="
_FUNCTION_END = "</function>"
_PARAMETER = "<parameter="
_PARAMETER_END = "</parameter>"
_TEXT = frozenset({"string"})


def as_json(text: str) -> str | None:
    """The JSON of a value that is written as in Python or as in JSON; None where it is neither.

    Models mix both, and break lines inside of strings, which `ast.literal_eval` refuses.

    >>> as_json("{'a': [True, null, \\"it's\\"]}")
    '{"a": [true, null, "it\\'s"]}'
    """
    try:
        value = json.loads(_PIECE.sub(_piece, text))
        made = json.dumps(value, ensure_ascii=False, allow_nan=False)
        made.encode()  # half of a surrogate pair is no character
    except (ValueError, RecursionError):
        return None
    return made


def _piece(found: re.Match[str]) -> str:
    written = found[0]
    if found.lastindex is not None:
        return written  # no JSON, since it is not closed
    return _WORDS.get(written) or f'"{_IN_STRING.sub(_in_string, written[1:-1])}"'


def _in_string(found: re.Match[str]) -> str:
    written = found[0]
    if written[0] != "\\":
        return f"\\u{ord(written):04x}"
    match written[1]:
        case "'":
            return "'"
        case "x" if len(written) == 4:
            return f"\\u00{written[2:]}"
        case "u" if len(written) == 2:
            return "\\\\u"
        case "u" | '"' | "\\" | "/" | "b" | "f" | "n" | "r" | "t":
            return written
        case other:  # Python keeps the backslash before what it does not know
            return "\\\\" + _IN_STRING.sub(_in_string, other)


class FieldParser(CallParser):
    """Makes the JSON of a call's arguments out of their names and values.

    A call begins with its first argument: until then it may be none.
    """

    _given: frozenset[str] = frozenset()  # the names of the call's arguments so far

    @abstractmethod
    def _fields(self) -> Steps[bool]:
        """Read one call: set `_name`, then `_argument` for each, then `_close`."""

    def _read_call(self) -> Steps[bool]:
        self._given = frozenset()
        whole = yield from self._fields()
        if self._ended and not whole:  # it waited for more, and nothing has come
            self._at = len(self._text)
            if self._cut and self._name is not None:
                self._more("")
        return whole

    def _is_new(self, key: str) -> bool:
        """Whether it is a name, and none that was there before."""
        return bool(key) and key not in self._given

    def _argument(self, key: str, value: str) -> None:
        """Give away one argument. value: JSON, or the begin of it, which `_more` goes on with."""
        self._more(f"{', ' if self._given else '{'}{json.dumps(key, ensure_ascii=False)}: {value}")
        self._given |= {key}

    def _close(self) -> bool:
        self._more("}" if self._given else "{}")
        return True


class PythonicParser(FieldParser):
    """The answer begins with `[f(a="b", c=[1, None]), g()]`; Llama 4 may put it between
    <|python_start|> and <|python_end|>.

    Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_2/
    """

    def _run(self) -> Steps[None]:
        yield from self._skip_spaces()
        tagged = yield from self._skip(_PYTHON_BEGIN)
        yield from self._skip_spaces()
        if (yield from self._skip("[")) and (yield from self._calls(",")):
            yield from self._closed_by("]")
            if tagged:
                yield from self._closed_by(_PYTHON_END)
        yield from self._rest()

    def _fields(self) -> Steps[bool]:
        name = yield from self._word()
        if name not in self._tools or not (yield from self._skip("(")):
            return False
        self._name = name
        yield from self._skip_spaces()
        while not (yield from self._skip(")")):
            if not (yield from self._field()):
                return False
        return self._close()

    def _field(self) -> Steps[bool]:
        """Read `key=value`, and the comma after it."""
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


PYTHONIC = CallFormat(
    parser=PythonicParser,
    opens="[",
    fields=Fields(after="(", key_after="=", join=", ", closes=")"),
    join=", ",
    closes="]",
    never_begins=r"\s*(<\|python_start\|>\s*)?\[\s*[A-Za-z0-9_.\-]+\(",
    markers=(_PYTHON_BEGIN, _PYTHON_END),
)


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


AUTO = "auto"
# By the names that vLLM and SGLang have for them.
FORMATS: Final[Mapping[str, CallFormat]] = {
    "hermes": HERMES,
    "qwen": HERMES,
    "qwen25": HERMES,
    "llama3": json_formats.LLAMA,
    "llama3_json": json_formats.LLAMA,
    "mistral": json_formats.MISTRAL,
    "pythonic": PYTHONIC,
    "llama4_pythonic": PYTHONIC,
    "qwen3_coder": QWEN_CODER,
    "qwen3_xml": QWEN_CODER,
    "gpt-oss": HARMONY,
    "openai": HARMONY,
    "json": json_formats.JSON,
}
_TOOLS = re.compile(r"\btools\b")
# How templates describe it to the model: `[func_name1(params_name1=params_value1, …)]`.
_PYTHONIC = re.compile(r"\[\w+\(\w+=")


def format_named(name: str, template: str) -> CallFormat:
    """The format of this name; of AUTO, the one that the model's chat template writes calls in."""
    found = format_in(template) if name == AUTO else FORMATS[name]
    named = found is json_formats.MISTRAL and json_formats.MISTRAL_ARGUMENTS in template
    return json_formats.MISTRAL_NAMED if named else found


def format_in(template: str) -> CallFormat:
    """JSON where the template knows no tools, or writes calls in no known format."""
    if CHANNEL in template:
        return HARMONY
    if not _TOOLS.search(template):
        return json_formats.JSON
    if HERMES_BEGIN in template:
        return QWEN_CODER if FUNCTION in template else HERMES
    if json_formats.MISTRAL_BEGIN in template:
        return json_formats.MISTRAL
    if _PYTHONIC.search(template):
        return PYTHONIC
    if json_formats.LLAMA_BEGIN in template or (
        '"parameters": ' in template and "<|start_header_id|>" in template
    ):
        return json_formats.LLAMA
    return json_formats.JSON
