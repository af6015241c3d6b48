"""Answers held to the types that the clients' packages publish: strictly, and nothing missing.

The types are walked, so that a field that a later version of a package brings makes a test fail
until it is given, or written down in LEFT_OUT.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import httpx
from pydantic import BaseModel, TypeAdapter

# Why a field is left out. ASKED, TOLD: it is given where there is a reason to, and tested there.
ASKED = "a request must ask for it"
TOLD = "there only where there is something to say"
REFUSED = "of what is refused when a request asks for it"
ELSEWHERE = "of what is done, counted or stored at the provider's, and not here"
REPLACED = "the provider replaced it"
LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "openai.ChatCompletion": {
        "metadata": ELSEWHERE,  # of stored chats
        "moderation": REFUSED,
        "service_tier": ASKED,
    },
    "openai.ChatCompletionChunk": {
        "moderation": REFUSED,
        "obfuscation": REFUSED,
        "service_tier": ASKED,
        "usage": ASKED,
    },
    "openai.ChatCompletionMessage": {
        "audio": REFUSED,
        "function_call": REPLACED,
        "tool_calls": TOLD,
    },
    "openai.ChoiceDelta": {
        "audio": REFUSED,
        "content": TOLD,
        "function_call": REPLACED,
        "refusal": TOLD,
        "role": TOLD,
        "tool_calls": TOLD,
    },
    "openai.ChoiceDeltaToolCall": {"id": TOLD, "type": TOLD},
    "openai.ChoiceDeltaToolCallFunction": {"name": TOLD},
    "openai.Response": {
        "access_programs": ELSEWHERE,
        "conversation": REFUSED,
        "image": REFUSED,
        "input_transformations": ELSEWHERE,
        "moderation": REFUSED,
        "prompt": REFUSED,
        "prompt_cache_diagnostics": REFUSED,
        "tool_usage": ELSEWHERE,
    },
    "openai.ResponseOutputMessage": {"phase": ELSEWHERE},  # models are taught it
    "openai.ResponseReasoningItem": {"encrypted_content": ASKED},
    "openai.ResponseFunctionToolCall": {
        "async_": REFUSED,
        "caller": REFUSED,
        "namespace": ASKED,
    },
    "openai.FunctionTool": {
        "allowed_callers": REFUSED,
        "async_": REFUSED,
        "defer_loading": REFUSED,
        "output_schema": REFUSED,
    },
    "openai.ToolFunction": {
        "allowed_callers": REFUSED,
        "async_": REFUSED,
        "defer_loading": REFUSED,
        "output_schema": REFUSED,
    },
    "openai.ErrorObject": {"misalignment": ELSEWHERE},
    "openai.ResponseError": {"misalignment": ELSEWHERE},
    "openai.ResponseFunctionToolCallItem": {
        "async_": REFUSED,
        "caller": REFUSED,
        "created_by": ELSEWHERE,
        "namespace": ASKED,
    },
    "openai.ResponseFunctionToolCallOutputItem": {
        "caller": REFUSED,
        "created_by": ELSEWHERE,
        "name": ASKED,
        "namespace": REFUSED,
    },
    "openai.ResponseInputText": {"prompt_cache_breakpoint": ASKED},
    "openai.PromptCacheBreakpoint": {"ttl": ASKED},
    "openai.PromptCacheOptions": {"comparison_response_id": REFUSED},
    "openai.Reasoning": {"context": REFUSED, "generate_summary": REPLACED, "mode": REFUSED},
    "openai.ResponseFormatTextJSONSchemaConfig": {"description": ASKED, "strict": ASKED},
    "anthropic.TextBlock": {"citations": REFUSED},
    "anthropic.Usage": {"inference_geo": REFUSED, "server_tool_use": REFUSED},
    "anthropic.MessageDeltaUsage": {"server_tool_use": REFUSED},
    "anthropic.ToolUseBlock": {"caller": REFUSED, "toolset_name": REFUSED},
}
# Given beyond the published types: OpenAI's own answers have `store` too, other servers' thoughts.
BESIDES: Mapping[str, set[str]] = {
    "openai.ChatCompletionMessage": {"reasoning_content"},
    "openai.ChoiceDelta": {"reasoning_content"},
    "openai.Response": {"store"},
    "openai.Model": {"max_model_len"},
}


def strictly(kind: Any, data: str) -> Any:
    """JSON as one of the published types; fails for a field too many or one too few."""
    made = _adapter(kind).validate_json(data, strict=True)
    for model in _models_in(made):
        name = name_of(type(model))
        more = (model.model_extra or {}).keys() - BESIDES.get(name, set())
        assert not more, f"{name} has {more} besides"
        left_out = LEFT_OUT.get(name, {}).keys()
        missing = type(model).model_fields.keys() - model.model_fields_set - left_out
        assert not missing, f"{name} lacks {missing}"
    return made


def given_in(made: Any) -> set[tuple[str, str]]:
    """The fields that a reply has, with the names of their types."""
    return {
        (name_of(type(model)), field)
        for model in _models_in(made)
        for field in model.model_fields_set
    }


def fields_of(kinds: Iterable[Any]) -> dict[str, set[str]]:
    """The fields of these types and of all inside them, by their names."""
    found: dict[str, set[str]] = {}
    seen: set[type] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        waiting += typing.get_args(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
            seen.add(kind)
            found.setdefault(name_of(kind), set()).update(kind.model_fields)
            waiting += [field.annotation for field in kind.model_fields.values()]
    return found


def name_of(kind: type) -> str:
    """Under which the tables have a type: its package and its name."""
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def named_events(response: httpx.Response) -> list[tuple[str, str]]:
    """Each event's name and data."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, last = response.text.split("\n\n")
    assert last == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), data.removeprefix("data: ")))
    return found


@cache  # of all events of a stream it takes a second
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _models_in(value: Any) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from _models_in(getattr(value, name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _models_in(item)
