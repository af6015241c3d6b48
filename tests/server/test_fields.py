"""Fields that no model of a body has: what is taken, what is refused, --strict-fields."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chat_templates import HERMES
from tests.server_support import Client, events, fake_engine, refused, requests_seen

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HELLO = {"role": "user", "content": "hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SHORT: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [HELLO], "max_tokens": 1},
    TEXT: {"prompt": "hi", "max_tokens": 1},
    RESPONSES: {"input": "hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": [HELLO], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [HELLO]},
    "/generate": {"text": "hi", "sampling_params": {"max_new_tokens": 1}},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
    "/abort_request": {"rid": "a"},
    "/cache/explain": {"prompt": "hi"},
    "/cache/hint": {"prompt": "hi", "cache_hint": "session_end"},
}
# What sglang-router 0.3.2 and vllm-router 0.1.17 make of requests that have none of it.
ROUTED: list[tuple[str, dict[str, Any]]] = [
    (
        CHAT,
        {
            "logprobs": False,
            "stream": False,
            "no_stop_trim": False,
            "ignore_eos": False,
            "continue_final_message": False,
            "skip_special_tokens": True,
            "separate_reasoning": True,
            "stream_reasoning": True,
            "return_hidden_states": False,
            "include_reasoning": True,
        },
    ),
    (
        TEXT,
        {
            "stream": False,
            "echo": False,
            "no_stop_trim": False,
            "ignore_eos": False,
            "skip_special_tokens": True,
            "return_hidden_states": False,
        },
    ),
    (
        RESPONSES,
        {
            "store": True,
            "stream": None,
            "temperature": 1.0,
            "top_p": 1.0,
            "priority": 0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        },
    ),
    (
        "/generate",
        {
            "model": None,
            "return_logprob": False,
            "return_text_in_logprobs": False,
            "stream": False,
            "log_metrics": True,
            "return_hidden_states": False,
            "background": False,
            "no_logs": False,
            "return_bytes": False,
            "return_entropy": False,
        },
    ),
]
# What LiteLLM and others send back of an answer, beside what they were given.
ECHOED: dict[str, Any] = {
    "role": "assistant",
    "content": "Hello.",
    "reasoning_content": "They greet.",
    "provider_specific_fields": {"refusal": None, "reasoning_content": "They greet."},
    "reasoning_details": [{"type": "reasoning.text", "text": "They greet."}],
    "reasoning_items": [{"type": "reasoning"}],
    "thinking_blocks": [{"type": "thinking", "thinking": "They greet.", "signature": "x"}],
    "extra_content": {"google": {"thought_signature": "x"}},
    "id": "msg_1",
    "parsed": {"a": 1},
    "annotations": [],
    "function_call": None,
    "audio": None,
    "images": None,
    "refusal": None,
}


@pytest.fixture(scope="module")
def strict() -> Iterator[Client]:
    engine, _ = fake_engine()
    yield Client(engine, strict_fields=True)
    asyncio.run(engine.close())


@pytest.mark.parametrize("path", SHORT)
def test_what_nobody_knows_is_passed_over(fake, strict, path):
    body = SHORT[path]
    for value in (None, False, True, 0, "", [], {"a": 1}):
        assert fake.post(path, **body, nonsense=value).status_code == 200
        message = refused(strict.post(path, **body, nonsense=value))["message"]
        assert "nonsense is not a field" in message
    assert strict.post(path, **body).status_code == 200


# What clients of newer APIs send, in places of all kinds.
BETA: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "/v1/messages",
        {
            "system": [
                {
                    "type": "text",
                    "text": "a",
                    "cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"},
                }
            ],
            "tools": [
                {
                    "name": "f",
                    "input_schema": {},
                    "strict": False,
                    "eager_input_streaming": True,
                    "defer_loading": True,
                    "allowed_callers": ["direct", "code_execution_20260120"],
                    "execution": {"mode": "x"},
                }
            ],
            "betas": ["x"],
            "context_management": {"edits": [], "compaction": True},
            "output_config": {"effort": "low", "task_budget": {"type": "tokens", "total": 9}},
            "thinking": {"type": "adaptive", "interleaved": True},
            "container": None,
            "mcp_servers": [],
            "speed": "fast",
            "service_tier": "priority",
            "metadata": {"user_id": "a", "session": "b"},
            "diagnostics": {"previous_message_id": "a"},
        },
        [
            *("betas", "system[].cache_control.scope", "tools[].execution"),
            *("output_config.task_budget", "context_management.compaction"),
            *("thinking.interleaved", "metadata.session"),
        ],
    ),
    (
        CHAT,
        {
            "messages": [{**HELLO, "weight": 1}, {**HELLO, "weight": 1}],
            "stream": False,
            "usage": {"include": True},
            "provider": {"order": ["x"]},
            "prediction": {"type": "content", "content": "x"},
            "tools": [{"type": "function", "function": {"name": "f", "returns": {}}, "x": 1}],
        },
        ["usage", "provider", "messages[].weight", "tools[].function.returns", "tools[].x"],
    ),
    (
        RESPONSES,
        {
            "input": [{"role": "user", "content": "hi", "created_by": "x"}],
            "stream_options": {"include_obfuscation": True},
            "stream": True,
            "reasoning": {"effort": "low", "budget": 5},
            "session_id": "s",
            "store": False,
        },
        ["session_id", "input[].created_by", "reasoning.budget"],
    ),
]


@pytest.mark.parametrize(("path", "fields", "unknown"), BETA)
def test_what_is_passed_over_is_named(path, fields, unknown, caplog):
    engine, _ = fake_engine()
    client = Client(engine)
    with caplog.at_level(logging.INFO, "radixlm.server"):
        for _ in range(2):
            body = {**SHORT[path], **fields, "cache_report": True}
            answer = client.post(path, **body)
            assert answer.status_code == 200, answer.text
    said = [f"{name!r} is not a field that is known here; it is passed over" for name in unknown]
    assert sorted(each for each in caplog.messages if "passed over" in each) == sorted(said)
    told = next(values_of(answer.text, "changes"))
    assert sorted(told) == sorted(said)
    asyncio.run(engine.close())


def values_of(text: str, name: str) -> Iterator[Any]:
    """Of each time that a name is in JSON, also in a stream's."""
    for part in text.split(f'"{name}":')[1:]:
        yield json.JSONDecoder().raw_decode(part.lstrip())[0]


def test_few_are_named(fake):
    many = {f"{'x' * 1000}{place}": 1 for place in range(100)}
    report = fake.post(CHAT, **SHORT[CHAT], **many, cache_report=True).json()["cache_report"]
    assert len(report["changes"]) <= 16
    assert max(map(len, report["changes"])) < 300


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (RESPONSES, {"max_completion_tokens": 5}),
        (RESPONSES, {"response_format": {"type": "json_object"}}),
        (CHAT, {"max_output_tokens": 5}),
        (CHAT, {"repeat_penalty": 1.1}),
        (CHAT, {"messages": [{**HELLO, "prefix": True}]}),
        ("/v1/messages", {"stop": ["a"]}),
        ("/v1/messages", {"seed": 5}),
        ("/generate", {"temperature": 0}),
    ],
)
def test_what_asks_for_another_answer_is_refused_by_name(fake, path, field):
    error = refused(fake.post(path, **{**SHORT[path], **field}))
    assert "is not a field of this request" in error["message"]
    neutral = dict.fromkeys(field) if "messages" not in field else {}
    assert fake.post(path, **{**SHORT[path], **neutral}).status_code == 200


def test_the_older_name_of_a_form_is_taken(fake):
    form = {"type": "json_schema", "schema": {"const": 5}}
    body = {**SHORT["/v1/messages"], "max_tokens": 9, "output_format": form}
    assert fake.post("/v1/messages", **body).json()["content"][0]["text"] == "5"


@pytest.mark.parametrize(
    ("path", "field", "meant"),
    [
        (CHAT, "max_token", "max_tokens"),
        (CHAT, "maxTokens", "max_tokens"),
        (TEXT, "temprature", "temperature"),
        (RESPONSES, "max_tokens", "max_output_tokens"),
        ("/v1/messages", "stop_sequence", "stop_sequences"),
        ("/generate", "sampling_param", "sampling_params"),
        ("/tokenize", "add_special_token", "add_special_tokens"),
    ],
)
def test_a_mistyped_field_is_answered_with_the_nearest(fake, path, field, meant):
    body = {**SHORT[path], field: 5}
    error = refused(fake.post(path, **body))
    assert error["message"] == f"{field} is not a field of this request; did you mean {meant}?"


def test_a_mistyped_field_inside_is_answered_too(fake):
    body = {"text": "hi", "sampling_params": {"max_tokens": 1}}
    assert "did you mean max_new_tokens?" in refused(fake.post("/generate", **body))["message"]
    form = {"type": "json_schema", "json_schema": {"name": "a", "shema": {}}}
    error = refused(fake.post(CHAT, **SHORT[CHAT], response_format=form))
    assert "did you mean schema?" in error["message"]


@pytest.mark.parametrize("field", ["nonsense", "x" * 1_000_000])
def test_a_field_that_is_like_none_is_to_be_left_out(strict, field):
    message = refused(strict.post(CHAT, **SHORT[CHAT], **{field: 5}))["message"]
    assert message.endswith("is not a field of this request; leave it out")
    assert len(message) < 300


@pytest.mark.parametrize(
    "field",
    [
        {"detokenize": True},
        {"chat_template_content_format": "auto"},
        {"documents": []},
        {"vllm_xargs": {}},
    ],
)
def test_what_vllm_takes_for_granted_is_taken(fake, field):
    assert fake.post(CHAT, **SHORT[CHAT], **field).status_code == 200


@pytest.mark.parametrize(("path", "fields"), ROUTED)
def test_what_routers_add_is_taken(fake, strict, path, fields):
    assert fake.post(path, **{**SHORT[path], **fields}).status_code == 200
    if path == "/generate":
        assert refused(strict.post(path, **{**SHORT[path], **fields}))["param"] == "no_logs"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"separate_reasoning": False}, "separate_reasoning"),
        (CHAT, {"include_reasoning": False}, "include_reasoning"),
        (CHAT, {"return_hidden_states": True}, "return_hidden_states"),
        (TEXT, {"spaces_between_special_tokens": False}, "spaces_between_special_tokens"),
        ("/generate", {"return_entropy": True}, "return_entropy"),
        ("/generate", {"model": "another"}, "model"),
    ],
)
def test_what_can_not_be_done_is_refused(fake, path, fields, param):
    answer = fake.post(path, **{**SHORT[path], **fields})
    assert refused(answer, answer.status_code)["param"] == param
    assert answer.status_code == (404 if param == "model" else 400)


def test_an_answer_comes_back_as_libraries_keep_it(fake, strict):
    again = [HELLO, ECHOED, HELLO]
    answer = fake.post(CHAT, messages=again, max_tokens=1)
    assert answer.status_code == 200, answer.text
    plain = [
        HELLO,
        {name: ECHOED[name] for name in ("role", "content", "reasoning_content")},
        HELLO,
    ]
    assert answer.json()["usage"]["prompt_tokens"] == prompt_tokens(fake, messages=plain)
    param = refused(strict.post(CHAT, messages=again))["param"]
    assert param == "messages[1].provider_specific_fields"
    message = {"role": "user", **{name: ECHOED[name] for name in ("content", "id")}}
    assert fake.post(CHAT, messages=[message], max_tokens=1).status_code == 200


def test_a_call_comes_back_as_libraries_keep_it(fake):
    extra = {"provider_specific_fields": {"a": 1}, "extra_content": {"b": 2}}
    function = {**CALL["function"], "provider_specific_fields": {}, "parsed_arguments": {}}
    called = {**CALL, **extra, "function": function, "index": 0, "caller": None}
    messages = [HELLO, {"role": "assistant", "content": None, "tool_calls": [called]}]
    messages.append({"role": "tool", "tool_call_id": "a", "content": None})
    assert fake.post(CHAT, messages=messages, max_tokens=1).status_code == 200


def prompt_tokens(client: Client, **fields: Any) -> int:
    told: int = client.post(CHAT, **fields, max_tokens=1).json()["usage"]["prompt_tokens"]
    return told


@pytest.mark.parametrize("role", ["system", "developer", "assistant", "tool"])
def test_no_content_is_an_empty_one(fake, role):
    before = [{"role": "assistant", "tool_calls": [CALL]}] if role == "tool" else []
    said: dict[str, Any] = {"role": role} | ({"tool_call_id": "a"} if before else {})
    empty = prompt_tokens(fake, messages=[*before, {**said, "content": ""}])
    assert prompt_tokens(fake, messages=[*before, {**said, "content": None}]) == empty
    answer = fake.post(CHAT, messages=[*before, said], max_tokens=1)
    assert answer.status_code == (200 if role == "assistant" else 400)


@pytest.mark.slow
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_a_user_says_something(fake, path):
    error = refused(fake.post(path, messages=[HELLO, {"role": "user", "content": None}]))
    assert error["param"] == "messages[1].content"
    assert error["message"] == 'messages[1].content is null; say "" if the user says nothing'
    empty = [{"role": "user", "content": ""}]
    assert fake.post(path, messages=empty).status_code == 200


THINKING = (
    "{% if reasoning_effort is defined %}<{{ reasoning_effort }}>{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<none>{% endif %}"
    "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def thinker() -> Iterator[Client]:
    """Its prompts show what the template was told."""
    engine, _ = fake_engine(template=THINKING)
    yield Client(engine)
    asyncio.run(engine.close())


def prompt_of(client: Client, path: str = CHAT, **fields: Any) -> str:
    told = client.post(path, **{**SHORT[path], **fields})
    assert told.status_code == 200, told.text
    ids = told.json()["prompt_token_ids"]
    return client.engine.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({}, "|hi"),
        ({"reasoning_effort": None}, "|hi"),
        ({"reasoning_effort": "minimal"}, "<low>|hi"),
        ({"reasoning_effort": "high"}, "<high>|hi"),
        ({"reasoning_effort": "none"}, "<none>|hi"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "x"}},
            "<x>|hi",
        ),
        ({"store": True, "verbosity": "low"}, "|hi"),
        ({"messages": [{"role": "assistant", "reasoning": "hm", "content": "a"}]}, "hm|a"),
        (
            {"messages": [{"role": "assistant", "reasoning": "b", "reasoning_content": "hm"}]},
            "hm|",
        ),
    ],
)
def test_what_a_template_is_told(thinker, fields, start):
    assert prompt_of(thinker, return_token_ids=True, **fields) == start


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (RESPONSES, {"text": {"verbosity": "low"}}),
        (RESPONSES, {"reasoning": {"effort": "low", "summary": "detailed"}}),
        (RESPONSES, {"tools": [{"type": "function", "name": "f", "defer_loading": True}]}),
        (RESPONSES, {"tools": [{"type": "function", "name": "f", "defer_loading": False}]}),
        (RESPONSES, {"stop": None, "ignore_eos": True, "top_logprobs": 0}),
        ("/v1/messages", {"thinking": {"type": "adaptive", "display": "full"}}),
        ("/v1/messages", {"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]}),
        (CHAT, {"top_logprobs": 0, "logprobs": False, "stream_options": {"include_usage": None}}),
        (CHAT, {"cache_prompt": True, "length_penalty": 1.0, "guided_json": None}),
        (CHAT, {"best_of": 1, "bad_words": [], "custom_params": {}, "session_params": {}}),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}, "strict": False}]}),
    ],
)
def test_hints_and_defaults_are_taken(fake, path, fields):
    answer = fake.post(path, **{**SHORT[path], **fields})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 5),
        ("min_p", 0.5),
        ("seed", 7),
        ("repetition_penalty", 1.5),
        ("frequency_penalty", 0.5),
        ("presence_penalty", 0.5),
        ("ignore_eos", True),
        ("skip_special_tokens", False),
    ],
)
def test_sampling_of_responses_arrives(fake, monkeypatch, name, value):
    seen = requests_seen(fake.engine, monkeypatch)
    assert fake.post(RESPONSES, **SHORT[RESPONSES], **{name: value}).status_code == 200
    assert getattr(seen[0].params, name) == value


def test_the_verbosity_that_was_asked_for_is_told(fake):
    answer = fake.post(RESPONSES, **SHORT[RESPONSES], text={"verbosity": "low"})
    assert answer.json()["text"]["verbosity"] == "low"


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, {"messages": [HELLO]}), (TEXT, {"prompt": "hi"})]
)
def test_the_usage_so_far_is_in_every_chunk(fake, path, body):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**body, "max_tokens": 5, "stream": True}
    told = events(fake.post(path, **body, return_token_ids=True, stream_options=options))
    *chunks, last = [event["usage"] for event in told]
    counts = [usage["completion_tokens"] for usage in chunks]
    # Outputs that came together are one chunk: how many there are is a matter of time.
    ids = [event["choices"][0].get("token_ids", ()) for event in told[:-1]]
    assert all(sum(map(len, ids[: at + 1])) <= count for at, count in enumerate(counts))
    assert counts == sorted(counts)
    assert counts[-1] == last["completion_tokens"] == 5
    assert {usage["prompt_tokens"] for usage in chunks} == {last["prompt_tokens"]}
    without = {"include_usage": False, "continuous_usage_stats": True}
    told = events(fake.post(path, **body, stream_options=without))
    assert all("usage" not in event for event in told)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_where_cached_tokens_were_is_told_as_sglang_does(fake, path):
    body = {**SHORT[path], "return_cached_tokens_details": True, "cache_salt": path}
    fake.post(path, **body)
    whole = fake.post(path, **body).json()
    cached = whole["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached
    assert whole["sglext"] == {"cached_tokens_details": {"device": cached, "host": 0}}
    *_, last = events(fake.post(path, **body, stream=True))
    assert (last["sglext"], last["choices"]) == (whole["sglext"], [])
    assert "sglext" not in fake.post(path, **SHORT[path]).json()


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"guided_regex": "[ab]c"}, {"ac", "bc"}),
        ({"guided_choice": ["a(b)", "c.d|e"]}, {"a(b)", "c.d|e"}),
        ({"guided_grammar": 'start: "x" "y"', "guided_decoding_backend": "guidance"}, {"xy"}),
        # As guidance sends it, for older and newer servers.
        ({"guided_regex": "xy", "structured_outputs": {"regex": "xy"}}, {"xy"}),
        ({"guided_json": {"enum": ["q"]}}, {'"q"'}),
        ({"structured_outputs": {"regex": "[ab]c"}}, {"ac", "bc"}),
        ({"structured_outputs": {"choice": ["yes", "no"], "json_object": False}}, {"yes", "no"}),
        ({"structured_outputs": {"grammar": 'root ::= "x"'}}, {"x"}),
        ({"structured_outputs": {"json": '{"const": 5}', "disable_any_whitespace": True}}, {"5"}),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_grammars_by_vllm_s_names_hold(fake, path, fields, texts):
    choice = fake.post(path, **{**SHORT[path], **fields, "max_tokens": 30}).json()["choices"][0]
    assert (choice["text"] if path == TEXT else choice["message"]["content"]) in texts


def test_any_object_by_vllm_s_name(fake):
    answer = fake.complete(structured_outputs={"json_object": True}, max_tokens=4)
    assert answer.json()["choices"][0]["text"].startswith("{")


@pytest.mark.parametrize("place", ["part", "message", "tool", "function"])
def test_cache_control_in_a_chat_keeps_the_prompt(place):
    engine, _ = fake_engine(template=HERMES)
    client = Client(engine)
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    part = {"type": "text", "text": "Be kind. " * 20, **(mark if place == "part" else {})}
    function = {"name": "f", "description": "d" * 50, **(mark if place == "function" else {})}
    tool = {"type": "function", "function": function, **(mark if place == "tool" else {})}
    system = {"role": "system", "content": [part], **(mark if place == "message" else {})}
    messages = [system, {**HELLO, **({} if place != "message" else mark)}]
    answer = client.post(CHAT, messages=messages, tools=[tool], max_tokens=1)
    assert 0 < engine.stats().kv_pinned < answer.json()["usage"]["prompt_tokens"]
    asyncio.run(engine.close())
