"""Whatever a client gets wrong: an OpenAI-shaped error that names the field, and nothing leaks."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest

from tests.server_support import Client, fake_engine, idle_and_whole, refused, under_way, until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logit_bias": {"one": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": [100_000]}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": ["a"] * 20, "n": 128}, "n"),
        ({"suffix": "end"}, "suffix"),
        ({"tools": [{"type": "function"}]}, "tools"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_fields_are_named(fake, fields, param, stream):
    body = {"prompt": "hello", "stream": stream, **fields}
    error = refused(fake.request("POST", COMPLETIONS, json=body))
    assert error["param"] == param
    assert param.split("[")[0].split(".")[-1] in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "pope", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].image_url",
        ),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "a"}}},
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "nothing"}},
                }
            },
            "response_format",
        ),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "response_format"),
        ({"regex": "("}, "regex"),
        ({"regex": ""}, "regex"),
        ({"regex": "a" * (2 * 2**20 + 1)}, "regex"),
        ({"regex": 5}, "regex"),
        ({"ebnf": "start: missing"}, "ebnf"),
        ({"ebnf": 'start: "a"', "regex": "a"}, "ebnf"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": {"uniqueItems": True}}, "json_schema"),
        ({"json_schema": []}, "json_schema"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": {"type": "nothing"}}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": "start: missing", "guided_decoding_backend": "x"}, "guided_grammar"),
        ({"guided_whitespace_pattern": " *"}, "guided_whitespace_pattern"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
        (
            {"structured_outputs": {"choice": ["a"]}, "guided_regex": "a"},
            "structured_outputs.choice",
        ),
        ({"modalities": ["audio"]}, "modalities"),
        ({"audio": {}}, "audio"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"include_reasoning": False}, "include_reasoning"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"echo": True}, "echo"),
    ],
)
def test_wrong_chat_fields_are_named(fake, fields, param):
    error = refused(fake.request("POST", CHAT, json={"messages": HELLO, **fields}))
    assert error["param"] == param


def test_unsupported_fields_say_so(fake):
    error = refused(fake.chat(functions=[{"name": "f"}]))
    assert "functions is not supported yet" in error["message"]
    assert "not a field" in refused(fake.chat(tols=[]))["message"]
    assert "use tools instead" in error["message"]


def test_fields_that_ask_for_nothing_are_taken(fake):
    harmless = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "tools": None,
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "prompt_cache_key": "k",
        "n": None,
        "temperature": None,
        "stop": None,
        "ignore_eos": True,
        "priority": 3,
        "extra_key": "e",
        "min_p": 0.1,
        "top_k": 5,
        "repetition_penalty": 1.1,
        "min_tokens": 1,
    }
    assert fake.chat(max_tokens=1, **harmless).status_code == 200
    assert fake.complete(max_tokens=1, best_of=1, suffix=None, user="u").status_code == 200


def test_the_message_does_not_repeat_a_whole_prompt(fake):
    error = refused(fake.complete(["x" * 100_000, 7]))
    assert len(error["message"]) < 500


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, '{"prompt": [%s]}', "prompt[0]"),
        (COMPLETIONS, '{"prompt": [[%s]]}', "prompt[0][0]"),
        (COMPLETIONS, '{"prompt": "a", "stop": [%s]}', "stop[0]"),
        (COMPLETIONS, '{"prompt": "a", "stop_token_ids": [%s]}', "stop_token_ids[0]"),
        (CHAT, '{"messages": [%s]}', "messages[0]"),
        (CHAT, '{"messages": [{"role": "user", "content": [%s]}]}', "messages[0].content[0]"),
        ("/generate", '{"text": [%s]}', "text[0]"),
        ("/generate", '{"input_ids": [%s]}', "input_ids[0]"),
        ("/generate", '{"input_ids": [[%s]]}', "input_ids[0][0]"),
        ("/generate", '{"text": "a", "sampling_params": [%s]}', "sampling_params[0]"),
        ("/generate", '{"text": "a", "rid": [%s]}', "rid[0]"),
        ("/detokenize", '{"tokens": [%s]}', "tokens[0]"),
        ("/tokenize", '{"messages": [%s]}', "messages[0]"),
    ],
)
def test_a_million_wrong_entries_make_one_error(fake, path, body, param):
    content = body % ",".join(["null"] * 1_000_000)
    client = Client(fake.engine, max_request_bytes=2**25)
    begun = time.process_time()
    assert refused(client.request("POST", path, content=content))["param"] == param
    assert time.process_time() - begun < 2.0  # an error for each took 10 to 40 seconds


def test_too_many_biases_are_not_looked_at_one_by_one(fake):
    biases = ",".join(f'"{token}": "x"' for token in range(2000))
    error = refused(
        fake.request("POST", COMPLETIONS, content=f'{{"prompt": "a", "logit_bias": {{{biases}}}}}')
    )
    assert error["param"] == "logit_bias"
    assert "2000 tokens, at most 1024 are allowed" in error["message"]


@pytest.mark.parametrize(
    ("prompt", "param"), [([1, "a"], "prompt[1]"), ([[1], [2, "a"]], "prompt[1][1]")]
)
def test_the_entry_that_does_not_fit_the_others_is_named(fake, prompt, param):
    assert refused(fake.complete(prompt))["param"] == param


def test_a_text_beyond_any_context_is_not_even_tokenized(fake, monkeypatch):
    longest = 2000 * fake.engine.tokenizer.longest_token
    assert "2001" in refused(fake.complete("x" * 2001))["message"]  # short enough to be counted
    monkeypatch.setattr(fake.engine.tokenizer, "encode", None)
    text = "x" * (longest + 1)
    for error, param in (
        (refused(fake.complete(["a" * (longest + 1)])), "prompt"),
        (refused(fake.chat(text, stream=True)), "messages"),
    ):
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == param
        assert "2000 tokens" in error["message"]


def test_unknown_models_are_a_404(fake):
    for answer in (
        fake.complete(model="gpt-9"),
        fake.chat(model="gpt-9", stream=True),
        fake.get("/v1/models/gpt-9"),
    ):
        error = refused(answer, 404)
        assert error["code"] == "model_not_found"
        assert "'gpt-9'" in error["message"]


def test_a_prompt_that_can_never_fit_is_refused_with_numbers(fake):
    error = refused(fake.complete("x" * 2001, stream=True))
    assert error["code"] == "context_length_exceeded"
    assert "2001" in error["message"]
    assert "2000" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_that_can_never_fit_names_its_own_field(fake, stream):
    error = refused(fake.chat("x" * 2001, stream=stream))
    assert error["param"] == "messages"
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        (COMPLETIONS, {"prompt": [1] * 2000}, 2001),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 30_000}]}, 2001),
        ("/v1/responses", {"input": "x" * 2500}, 2501),
        ("/generate", {"input_ids": [1] * 2000}, 2001),
    ],
)
def test_what_is_too_long_is_told_in_words_that_clients_look_for(fake, path, body, asked):
    error = refused(fake.post(path, **body))
    told = re.match(
        r"This model's maximum context length is (\d+) tokens.* requested (\d+) tokens",
        error["message"],
    )
    assert told is not None, error["message"]
    assert told[1] == "2000"
    assert int(told[2]) >= asked


def test_routes_that_are_none_have_the_same_shape(fake):
    refused(fake.get("/v1/nothing"), 404)
    refused(fake.get(COMPLETIONS), 405)


@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
def test_of_a_request_that_the_queue_cannot_hold_nothing_is_queued(prompt):
    engine, _ = fake_engine(seconds=0.01, max_queued_requests=4)
    client = Client(engine)
    # Never will it: a client that tries again, or a batch's line, would do so for ever.
    assert "more than --max-queued-requests 4" in refused(client.complete(prompt, n=8))["message"]
    # At once: were some of them under way, there would be no room.
    assert client.complete(prompt, n=2).status_code == 200
    assert engine.stats().requests_aborted == 0
    asyncio.run(engine.close())


def test_a_full_queue_is_a_429_with_a_time_to_wait():
    engine, _ = fake_engine(seconds=0.01, max_queued_requests=2)
    for stream in (False, True):
        with under_way(engine):
            answer = Client(engine).complete(["a"] * 2, stream=stream)
        error = refused(answer, 429)
        assert (error["type"], error["code"]) == ("rate_limit_exceeded", "queue_full")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def test_a_crash_ends_requests_with_an_error_and_shows_in_health():
    engine, runner = fake_engine()
    client = Client(engine)
    assert client.get("/health").status_code == 200
    runner.broken = True
    assert "the fuse blew" in refused(client.complete(), 503)["message"]
    error = refused(client.get("/health"), 503)
    assert "the fuse blew" in error["message"]
    assert error["code"] == "engine_dead"
    refused(client.chat(stream=True), 503)
    refused(client.get("/flush_cache"), 503)
    asyncio.run(engine.close())


def test_a_crash_in_mid_stream_becomes_the_last_event():
    engine, runner = fake_engine(seconds=0.01)
    client = Client(engine)

    async def breaking() -> list[str]:
        sent: list[dict] = []
        body = json.dumps({"prompt": "a", "max_tokens": 500, "stream": True}).encode()
        received = iter([{"type": "http.request", "body": body}])

        async def receive():
            message = next(received, None)
            if message is None:
                await asyncio.sleep(60)
            return message

        async def send(message):
            sent.append(message)
            if len(sent) == 4:
                runner.broken = True

        scope = {"type": "http", "method": "POST", "path": COMPLETIONS}
        await client.app({**scope, "query_string": b"", "headers": []}, receive, send)
        assert sent[0]["status"] == 200
        return b"".join(message.get("body", b"") for message in sent).decode().split("\n\n")

    *_, error, done, end = asyncio.run(breaking())
    assert "the fuse blew" in json.loads(error.removeprefix("data: "))["error"]["message"]
    assert (done, end) == ("data: [DONE]", "")
    asyncio.run(engine.close())


def test_a_client_that_leaves_while_it_sends_is_no_error(fake):
    sent = []
    received = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive():
        return next(received, {"type": "http.disconnect"})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": COMPLETIONS}
    asyncio.run(fake.app({**scope, "query_string": b"", "headers": []}, receive, send))
    assert sent[0]["status"] == 499


def test_errors_nobody_meant_are_shaped_and_tell_no_secrets(fake, monkeypatch):
    def broken(*_args, **_options):
        raise KeyError("secret")

    monkeypatch.setattr(fake.engine.tokenizer, "encode", broken)
    error = refused(fake.complete(), 500)
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]
