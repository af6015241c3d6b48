"""The formats in which models call tools."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from radixlm.parsers import json_formats, pythonic, qwen_coder
from radixlm.parsers.json_formats import JsonParser
from radixlm.parsers.tool_calls import CallParser

_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """How a call looks whose arguments are written one by one:

        before NAME after (FIELD (join FIELD)*)? closes

    key_before, key_after: around an argument's name, in front of its value.
    value_end: what ends a value; texts stand before it without quotes. "": all values are JSON.
    """

    before: str = ""
    after: str
    key_before: str = ""
    key_after: str
    value_end: str = ""
    join: str = ""
    closes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How answers that call tools look.

    parser: reads them, and more ways of writing than the one that is described here:

        begin opens CALL (join CALL)* closes end (again begin opens CALL closes end)*

    begin, end: markers around calls; "" when the answer must begin with them, or ends with them.
    key: of the arguments, in a call that is an object with `name`. names: instead, the marker that
        stands between a call's name and its arguments. fields: instead, how these are written.
    join, again: what stands between calls, None where there is no such way.
    never_begins: a regex; without a marker, text of which the parser would read calls.
    markers: of these the ones that are special tokens must show in the text.
    id_prefix, id_length: of a call's id: the length is that of its random part.
    described: the model is told of the tools by its own template, else by ours.
    """

    parser: type[CallParser]
    begin: str = ""
    opens: str = ""
    key: str = "arguments"
    names: str = ""
    fields: Fields | None = None
    join: str | None = None
    closes: str = ""
    end: str = ""
    again: str | None = None
    never_begins: str = ""
    markers: tuple[str, ...] = ()
    id_prefix: str = "call_"
    id_length: int = 24
    described: bool = True

    def new_id(self) -> str:
        """A fresh id for a call."""
        letters = (secrets.choice(_ALPHABET) for _ in range(self.id_length))
        return self.id_prefix + "".join(letters)


HERMES = CallFormat(
    parser=json_formats.HermesParser,
    begin=json_formats.HERMES_BEGIN,
    opens="\n",
    closes="\n",
    end=json_formats.END,
    again="\n",
    markers=(json_formats.HERMES_BEGIN, json_formats.END),
)
LLAMA = CallFormat(
    parser=json_formats.LlamaParser,
    key="parameters",
    join=json_formats.SEPARATOR + " ",
    never_begins=r"(\s*\{|(?s:.*)<\|python_tag\|>)",
    markers=(json_formats.TAG,),
)
# Mistral's templates take ids of nine letters or digits, and no other ones.
MISTRAL = CallFormat(
    parser=json_formats.MistralParser,
    begin=json_formats.MISTRAL_BEGIN,
    opens=" [",
    join=", ",
    closes="]",
    markers=(json_formats.MISTRAL_BEGIN,),
    id_prefix="",
    id_length=9,
)
MISTRAL_NAMED = CallFormat(
    parser=json_formats.MistralParser,
    begin=json_formats.MISTRAL_BEGIN,
    names=json_formats.ARGUMENTS,
    again="",
    markers=(json_formats.MISTRAL_BEGIN, json_formats.ARGUMENTS, json_formats.CALL_ID),
    id_prefix="",
    id_length=9,
)
PYTHONIC = CallFormat(
    parser=pythonic.PythonicParser,
    opens="[",
    fields=Fields(after="(", key_after="=", join=", ", closes=")"),
    join=", ",
    closes="]",
    never_begins=r"\s*(<\|python_start\|>\s*)?\[\s*[A-Za-z0-9_.\-]+\(",
    markers=(pythonic.BEGIN, pythonic.END),
)
QWEN_CODER = CallFormat(
    parser=qwen_coder.QwenCoderParser,
    begin=json_formats.HERMES_BEGIN,
    opens="\n",
    fields=Fields(
        before=qwen_coder.FUNCTION,
        after=">\n",
        key_before=qwen_coder.PARAMETER,
        key_after=">\n",
        value_end=qwen_coder.PARAMETER_END,
        closes=qwen_coder.FUNCTION_END,
    ),
    closes="\n",
    end=json_formats.END,
    again="\n",
    markers=(json_formats.HERMES_BEGIN, json_formats.END),
)
JSON = CallFormat(
    parser=JsonParser,
    join="\n",
    never_begins=r"\s*(```(json)?\s*)?(\[\s*)?\{",
    described=False,
)

# By the names that vLLM and SGLang have for them.
FORMATS: Mapping[str, CallFormat] = MappingProxyType(
    {
        "hermes": HERMES,
        "qwen": HERMES,
        "qwen25": HERMES,
        "llama3": LLAMA,
        "llama3_json": LLAMA,
        "mistral": MISTRAL,
        "pythonic": PYTHONIC,
        "llama4_pythonic": PYTHONIC,
        "qwen3_coder": QWEN_CODER,
        "qwen3_xml": QWEN_CODER,
        "json": JSON,
    }
)
