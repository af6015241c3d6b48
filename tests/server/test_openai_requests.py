"""Every field of the openai package's request types is honoured, has nothing to do, or is refused.

The types are walked, so that a field that a later version of the package brings makes a test fail:
then somebody decides which of the three it is, and writes it down in a table here.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from openai.types import chat
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.chat.chat_completion_content_part_param import File
from openai.types.chat.chat_completion_content_part_text_param import PromptCacheBreakpoint
from openai.types.chat.chat_completion_message_custom_tool_call_param import (
    ChatCompletionMessageCustomToolCallParam,
)
from openai.types.chat.chat_completion_message_function_tool_call_param import (
    ChatCompletionMessageFunctionToolCallParam,
    Function,
)
from openai.types.chat.chat_completion_named_tool_choice_param import Function as NamedFunction
from openai.types.shared_params import (
    FunctionDefinition,
    ResponseFormatJSONObject,
    ResponseFormatJSONSchema,
    ResponseFormatText,
)
from openai.types.shared_params.response_format_json_schema import JSONSchema
from typing_extensions import is_typeddict

from radixlm.core.grammar import Grammar
from radixlm.core.request import GenerateRequest, Namespace
from radixlm.server.http.fields import MESSAGE_NO_OPS, NOT_YET, REQUEST_NO_OPS
from tests.server_support import Client, events, fake_engine, refused, requests_seen

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
LEAST: Mapping[str, Mapping[str, Any]] = {
    "chat": {"messages": HELLO, "max_tokens": 1},
    "text": {"prompt": "hello", "max_tokens": 1},
}

# What arrives at the engine: field, what is sent, the engine's field, what it is there.
ARRIVES = {
    "frequency_penalty": (0.5, "frequency_penalty", 0.5),
    "logit_bias": ({"65": 3}, "logit_bias", {65: 3}),
    "max_tokens": (7, "max_tokens", 7),
    "presence_penalty": (0.25, "presence_penalty", 0.25),
    "seed": (11, "seed", 11),
    "stop": (["x", "yz"], "stop", ("x", "yz")),
    "temperature": (0.75, "temperature", 0.75),
    "top_p": (0.5, "top_p", 0.5),
}
CHAT_ARRIVES = {
    **ARRIVES,
    "logprobs": (True, "logprobs", 0),
    "max_completion_tokens": (7, "max_tokens", 7),
    "response_format": (
        {"type": "json_object"},
        "grammar",
        Grammar.json_schema({"type": "object"}),
    ),
    "top_logprobs": (3, "logprobs", 3),
}
TEXT_ARRIVES = {**ARRIVES, "logprobs": (3, "logprobs", 3)}

# What shows in the answer or in how it comes; each has a test of its own below, or where it says.
# Those of tools are in test_tools.py and test_bad_tools.py.
TOOLS = {"parallel_tool_calls", "tool_choice", "tools"}
# Those of caching are in test_prompt_caching.py.
CACHING = {"prompt_cache_options", "prompt_cache_retention"}
CHAT_SHOWS = {"prediction", "messages", "model", "n", "service_tier", "stream", "stream_options"}
CHAT_SHOWS |= TOOLS | CACHING
# The effort shows in the prompt; the others are taken as hints. See test_fields.py.
CHAT_SHOWS |= {"reasoning_effort", "store", "verbosity"}
TEXT_SHOWS = {"best_of", "echo", "model", "n", "prompt", "stream", "stream_options"}

CHAT_REFUSED: Mapping[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "moderation": {"model": "omni"},
    "web_search_options": {},
}
TEXT_REFUSED = {"suffix": "end"}

# Obfuscation is taken as a hint.
STREAM_SHOWS = {"include_usage", "include_obfuscation"}
MESSAGE_SHOWS = {"role", "content", "name"}
ASSISTANT_REFUSED = {
    "audio": {"id": "a"},
    "function_call": {"name": "f", "arguments": "{}"},
    "refusal": "I will not.",
}
PART_SHOWS = {"type", "text", "prompt_cache_breakpoint"}

# Every type whose fields are looked at, with those that are honoured and those that are refused.
PLACES: Mapping[Any, tuple[set[str], Mapping[str, Any]]] = {
    chat_params.CompletionCreateParamsNonStreaming: (set(CHAT_ARRIVES) | CHAT_SHOWS, CHAT_REFUSED),
    chat_params.CompletionCreateParamsStreaming: (set(CHAT_ARRIVES) | CHAT_SHOWS, CHAT_REFUSED),
    text_params.CompletionCreateParamsNonStreaming: (set(TEXT_ARRIVES) | TEXT_SHOWS, TEXT_REFUSED),
    text_params.CompletionCreateParamsStreaming: (set(TEXT_ARRIVES) | TEXT_SHOWS, TEXT_REFUSED),
    chat.ChatCompletionStreamOptionsParam: (STREAM_SHOWS, {}),
    chat.ChatCompletionSystemMessageParam: (MESSAGE_SHOWS, {}),
    chat.ChatCompletionDeveloperMessageParam: (MESSAGE_SHOWS, {}),
    chat.ChatCompletionUserMessageParam: (MESSAGE_SHOWS, {}),
    chat.ChatCompletionAssistantMessageParam: (
        MESSAGE_SHOWS | {"tool_calls"},
        ASSISTANT_REFUSED,
    ),
    chat.ChatCompletionToolMessageParam: ({"role", "content", "tool_call_id"}, {}),
    ChatCompletionMessageFunctionToolCallParam: ({"id", "type", "function"}, {}),
    Function: ({"name", "arguments"}, {}),
    chat.ChatCompletionFunctionToolParam: ({"type", "function"}, {}),
    FunctionDefinition: ({"name", "description", "parameters", "strict"}, {}),
    chat.ChatCompletionNamedToolChoiceParam: ({"type", "function"}, {}),
    NamedFunction: ({"name"}, {}),
    chat.ChatCompletionAllowedToolChoiceParam: ({"type", "allowed_tools"}, {}),
    chat.ChatCompletionAllowedToolsParam: ({"mode", "tools"}, {}),
    chat.ChatCompletionPredictionContentParam: ({"type", "content"}, {}),
    chat.ChatCompletionContentPartTextParam: (PART_SHOWS, {}),
    PromptCacheBreakpoint: ({"mode", "ttl"}, {}),
    chat_params.PromptCacheOptions: ({"mode", "ttl"}, {}),
    ResponseFormatText: ({"type"}, {}),
    ResponseFormatJSONObject: ({"type"}, {}),
    ResponseFormatJSONSchema: ({"type", "json_schema"}, {}),
    JSONSchema: ({"name", "description", "schema", "strict"}, {}),
}
# Types that are refused as a whole, with one of each and the field that the error names.
REFUSED_MESSAGES: Mapping[Any, tuple[dict[str, Any], str]] = {
    chat.ChatCompletionFunctionMessageParam: (
        {"role": "function", "content": "x", "name": "f"},
        "messages[0].role",
    ),
}
CUSTOM = {"type": "custom", "custom": {"name": "f", "input": "x"}}
REFUSED_CALLS: Mapping[Any, tuple[dict[str, Any], str]] = {
    ChatCompletionMessageCustomToolCallParam: (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", **CUSTOM}]}]},
        "messages[0].tool_calls[0].type",
    ),
    chat.ChatCompletionCustomToolParam: ({"tools": [CUSTOM]}, "tools[0].type"),
    chat.ChatCompletionNamedToolChoiceCustomParam: (
        {"tools": [TOOL], "tool_choice": CUSTOM},
        "tool_choice",
    ),
}
REFUSED_PARTS: Mapping[Any, tuple[dict[str, Any], str]] = {
    chat.ChatCompletionContentPartRefusalParam: (
        {"type": "refusal", "refusal": "no"},
        "messages[0].content[0].refusal",
    ),
    chat.ChatCompletionContentPartImageParam: (
        {"type": "image_url", "image_url": {"url": "x"}},
        "messages[0].content[0].image_url",
    ),
    chat.ChatCompletionContentPartInputAudioParam: (
        {"type": "input_audio", "input_audio": {}},
        "messages[0].content[0].input_audio",
    ),
    File: ({"type": "file", "file": {}}, "messages[0].content[0].file"),
}


def fields_of(kind: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def dicts_in(hint: Any) -> Iterator[Any]:
    """The TypedDicts that a value of this type may be or hold, not those inside of them."""
    if is_typeddict(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from dicts_in(part)


@pytest.mark.parametrize("kind", PLACES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_field_is_decided_upon(kind):
    honoured, given_up = PLACES[kind]
    no_ops = MESSAGE_NO_OPS if "Message" in kind.__name__ else REQUEST_NO_OPS
    decided = (honoured, set(given_up), set(no_ops))
    for name in fields_of(kind):
        times = sum(name in group for group in decided)
        assert times == 1, f"{kind.__name__}.{name}: honoured, refused, or nothing to do? ({times})"
    assert honoured <= set(fields_of(kind)) | {"stream"}
    assert set(given_up) <= set(fields_of(kind))


def test_every_type_inside_is_decided_upon():
    """What a refused field would hold needs no decision of its own."""
    wholly_refused = {*REFUSED_MESSAGES, *REFUSED_PARTS, *REFUSED_CALLS}
    for kind, (_, given_up) in PLACES.items():
        for name, hint in fields_of(kind).items():
            for inside in () if name in given_up or name in REQUEST_NO_OPS else dicts_in(hint):
                assert inside in PLACES or inside in wholly_refused, f"{kind.__name__}.{name}"


@pytest.fixture
def seen(fake, monkeypatch) -> list[GenerateRequest]:
    """What arrived at the engine."""
    return requests_seen(fake.engine, monkeypatch)


def post(client: Client, api: str, **fields: Any) -> Any:
    return client.request("POST", PATHS[api], json={**LEAST[api], **fields})


@pytest.mark.parametrize(
    ("api", "name"),
    [*(("chat", name) for name in CHAT_ARRIVES), *(("text", name) for name in TEXT_ARRIVES)],
)
def test_sampling_arrives(fake, seen, api, name):
    value, attribute, expected = (CHAT_ARRIVES if api == "chat" else TEXT_ARRIVES)[name]
    needed = {"logprobs": True} if name == "top_logprobs" else {}
    plain = post(fake, api, **needed)
    assert plain.status_code == 200
    answer = post(fake, api, **needed, **{name: value})
    assert answer.status_code == 200, answer.text
    before, after = (request.params for request in seen)
    assert getattr(after, attribute) == expected != getattr(before, attribute)


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 5),
        ("min_p", 0.5),
        ("repetition_penalty", 1.5),
        ("min_tokens", 1),
        ("ignore_eos", True),
        ("stop_token_ids", [1, 2]),
        ("skip_special_tokens", False),
    ],
)
def test_sampling_beyond_openai_s_arrives(fake, seen, api, name, value):
    assert post(fake, api, **{name: value}).status_code == 200
    [params] = [request.params for request in seen]
    assert getattr(params, name) == (frozenset(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("api", PATHS)
def test_what_the_cache_and_the_schedule_need_arrives(fake, seen, api):
    fields = {"cache_salt": "s", "extra_key": "e", "priority": 7}
    assert post(fake, api, **fields).status_code == 200
    [request] = seen
    assert request.namespace == Namespace(cache_salt="s", extra_key="e")
    assert request.priority == 7


@pytest.mark.parametrize("name", sorted(REQUEST_NO_OPS))
@pytest.mark.parametrize("api", PATHS)
def test_what_needs_nothing_done_is_taken(fake, api, name):
    assert post(fake, api, **{name: {"any": "thing"}}).status_code == 200


@pytest.mark.parametrize(
    ("api", "name", "value"),
    [
        *(("chat", *item) for item in CHAT_REFUSED.items()),
        *(("text", *item) for item in TEXT_REFUSED.items()),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_can_not_be_done_is_refused_by_name(fake, api, name, value, stream):
    error = refused(post(fake, api, stream=stream, **{name: value}))
    assert error["param"] == name
    assert name in error["message"]
    assert post(fake, api, **{name: None}).status_code == 200


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in CHAT_REFUSED for value in NOT_YET[name]]
)
def test_values_that_ask_for_nothing_are_taken(fake, name, value):
    assert post(fake, "chat", **{name: value}).status_code == 200


@pytest.mark.parametrize(("name", "value"), ASSISTANT_REFUSED.items())
def test_what_an_assistant_may_not_have_said_is_refused(fake, name, value):
    messages = [{"role": "assistant", "content": "x", name: value}]
    assert refused(post(fake, "chat", messages=messages))["param"] == f"messages[0].{name}"


@pytest.mark.parametrize(("message", "param"), REFUSED_MESSAGES.values())
def test_messages_of_functions_are_refused(fake, message, param):
    assert refused(post(fake, "chat", messages=[message]))["param"] == param


@pytest.mark.parametrize(("fields", "param"), REFUSED_CALLS.values())
def test_tools_that_are_no_functions_are_refused(fake, fields, param):
    assert refused(post(fake, "chat", **fields))["param"] == param


@pytest.mark.parametrize(("part", "param"), REFUSED_PARTS.values())
def test_parts_that_are_no_text_are_refused(fake, part, param):
    messages = [{"role": "user", "content": [part]}]
    assert refused(post(fake, "chat", messages=messages))["param"] == param


@pytest.mark.parametrize("api", PATHS)
def test_another_model_is_refused(fake, api):
    assert post(fake, api, model="test-model").status_code == 200
    assert refused(post(fake, api, model="other"), 404)["param"] == "model"


@pytest.mark.parametrize("api", PATHS)
def test_n_makes_choices_and_stream_makes_events(fake, api):
    assert len(post(fake, api, n=3).json()["choices"]) == 3
    assert {
        event["choices"][0]["index"] for event in events(post(fake, api, n=3, stream=True))
    } == {
        0,
        1,
        2,
    }


@pytest.mark.parametrize("api", PATHS)
def test_stream_options_without_a_stream_are_refused(fake, api):
    usage = {"include_usage": True}
    *_, last = events(post(fake, api, stream=True, stream_options=usage))
    assert last["choices"] == []
    for stream in (False, None):
        answer = post(fake, api, stream=stream, stream_options=usage)
        assert refused(answer)["param"] == "stream_options"


def test_the_tier_is_named_when_asked_for(fake):
    assert post(fake, "chat", service_tier="auto").json()["service_tier"] == "default"
    chunks = events(post(fake, "chat", service_tier="default", stream=True))
    assert {chunk["service_tier"] for chunk in chunks} == {"default"}
    assert "service_tier" not in post(fake, "chat").json()
    assert post(fake, "chat", service_tier="priority").json()["service_tier"] == "default"


MESSAGE_PROBES: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "role": lambda message: {**message, "role": "assistant"},
    "content": lambda message: {**message, "content": message["content"] + "!"},
    "name": lambda message: {**message, "name": "ann"},
}


def test_every_field_of_a_message_reaches_the_template():
    assert set(MESSAGE_PROBES) == MESSAGE_SHOWS
    engine, _ = fake_engine(
        template="{% for m in messages %}{{ m.role }}{{ m.name }}{{ m.content }}{% endfor %}"
    )
    client = Client(engine)

    def tokens(message: dict[str, Any]) -> int:
        return post(client, "chat", messages=[message]).json()["usage"]["prompt_tokens"]

    plain = {"role": "user", "content": "hello"}
    for name, change in MESSAGE_PROBES.items():
        assert tokens(change(plain)) != tokens(plain), name
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert tokens({**plain, "content": parts}) == tokens({**plain, "content": "hel\nlo"})
    asyncio.run(engine.close())
