"""The table of tool parsers. A new format is a module with its parser and its CallFormat, a name
here, and where its models' templates tell it apart, a line in `format_in`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from radixlm.parsers.json_formats import (
    HERMES,
    HERMES_BEGIN,
    JSON,
    LLAMA,
    LLAMA_BEGIN,
    MISTRAL,
    MISTRAL_ARGUMENTS,
    MISTRAL_BEGIN,
    MISTRAL_NAMED,
)
from radixlm.parsers.pythonic import PYTHONIC
from radixlm.parsers.qwen_coder import FUNCTION, QWEN_CODER
from radixlm.parsers.tool_calls import CallFormat

AUTO = "auto"
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
_TOOLS = re.compile(r"\btools\b")
# How templates describe it to the model: `[func_name1(params_name1=params_value1, …)]`.
_PYTHONIC = re.compile(r"\[\w+\(\w+=")


def format_named(name: str, template: str) -> CallFormat:
    """The format of this name; of AUTO, the one that the model's chat template writes calls in."""
    found = format_in(template) if name == AUTO else FORMATS[name]
    named = found is MISTRAL and MISTRAL_ARGUMENTS in template
    return MISTRAL_NAMED if named else found


def format_in(template: str) -> CallFormat:
    """JSON where the template knows no tools, or writes calls in no known format."""
    if not _TOOLS.search(template):
        return JSON
    if HERMES_BEGIN in template:
        return QWEN_CODER if FUNCTION in template else HERMES
    if MISTRAL_BEGIN in template:
        return MISTRAL
    if _PYTHONIC.search(template):
        return PYTHONIC
    if LLAMA_BEGIN in template or (
        '"parameters": ' in template and "<|start_header_id|>" in template
    ):
        return LLAMA
    return JSON
