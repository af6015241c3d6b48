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

# Never given: what only stored answers, or ones with audio, images or moderation have, what tools
# and models have that run elsewhere, and what the providers' own answers leave out. Some are there
# only where there is something to say.
LEFT_OUT: Mapping[str, set[str]] = {
    "openai.ChatCompletion": {"metadata", "moderation", "service_tier"},
    "openai.ChatCompletionChunk": {"moderation", "obfuscation", "service_tier", "usage"},
    "openai.ChatCompletionMessage": {"audio", "function_call", "tool_calls"},
    "openai.ChoiceDelta": {
        *("audio", "content", "function_call", "refusal", "role", "tool_calls"),
    },
    "openai.CompletionTokensDetails": {"text_tokens"},
    "openai.PromptTokensDetails": {"image_tokens", "text_tokens"},
    "openai.Model": {"shutdown_date"},
    "openai.Response": {
        *("access_programs", "conversation", "image", "input_transformations", "moderation"),
        *("prompt", "prompt_cache_diagnostics", "prompt_cache_options", "tool_usage"),
    },
    "openai.ResponseOutputMessage": {"phase"},
    "openai.ResponseReasoningItem": {"encrypted_content"},
    "openai.ResponseFunctionToolCall": {"async_", "caller", "namespace"},
    "openai.FunctionTool": {"allowed_callers", "async_", "defer_loading", "output_schema"},
    "openai.ErrorObject": {"misalignment"},
    "openai.ResponseError": {"misalignment"},
    "openai.ResponseFunctionToolCallItem": {"async_", "caller", "created_by", "namespace"},
    "openai.ResponseFunctionToolCallOutputItem": {"caller", "created_by", "name", "namespace"},
    "openai.ResponseInputText": {"prompt_cache_breakpoint"},
    "openai.Reasoning": {"context", "generate_summary", "mode"},
    "openai.ResponseFormatTextJSONSchemaConfig": {"description", "strict"},
    "anthropic.Message": {"container", "diagnostics"},
    "anthropic.Delta": {"container"},
    "anthropic.Usage": {"inference_geo", "server_tool_use", "speed"},
    "anthropic.MessageDeltaUsage": {"server_tool_use"},
    "anthropic.ToolUseBlock": {"caller", "toolset_name"},
}
# Of deltas: each has one of these, and a call's name comes with its first one only.
IN_TURN: Mapping[str, set[str]] = {
    "openai.ChoiceDeltaToolCall": {"id", "type"},
    "openai.ChoiceDeltaToolCallFunction": {"name"},
}
# Given beyond the published types: OpenAI's own answers have `store` too.
BESIDES: Mapping[str, set[str]] = {
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
        left_out = LEFT_OUT.get(name, set()) | IN_TURN.get(name, set())
        missing = type(model).model_fields.keys() - model.model_fields_set - left_out
        assert not missing, f"{name} lacks {missing}"
    return made


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
