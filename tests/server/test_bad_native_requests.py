"""Whatever a client of SGLang's or vLLM's own routes gets wrong: named, and nothing leaks."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.server_support import Client, fake_engine, idle_and_whole, refused, under_way, until


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": None}, "text"),
        ({"text": 7}, "text"),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"text": ["a", ""]}, "text"),
        ({"text": ["a", 7]}, "text[1]"),
        ({"text": "a", "input_ids": [1]}, "input_ids"),
        ({"text": None, "input_ids": []}, "input_ids"),
        ({"text": None, "input_ids": [[]]}, "input_ids"),
        ({"text": None, "input_ids": "a"}, "input_ids"),
        ({"text": None, "input_ids": [1.5]}, "input_ids[0]"),
        ({"text": None, "input_ids": [-1]}, "input_ids"),
        ({"text": None, "input_ids": [2**31]}, "input_ids"),
        ({"text": None, "input_ids": [[1], [100_000]]}, "input_ids"),
        ({"text": ["a"] * 2049}, "text"),
        ({"text": ["a"] * 20, "sampling_params": {"n": 128}}, "sampling_params.n"),
        ({"sampling_params": 7}, "sampling_params"),
        ({"sampling_params": [{}, {}]}, "sampling_params"),
        ({"sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens"),
        ({"sampling_params": {"max_new_tokens": "4"}}, "sampling_params.max_new_tokens"),
        (
            {"sampling_params": {"max_new_tokens": 4, "min_new_tokens": 5}},
            "sampling_params.min_new_tokens",
        ),
        (
            {"sampling_params": {"max_new_tokens": 0, "min_new_tokens": 1}},
            "sampling_params.min_new_tokens",
        ),
        ({"sampling_params": [{"temperature": -1}]}, "sampling_params[0].temperature"),
        ({"sampling_params": [{"temperature": "x"}]}, "sampling_params[0].temperature"),
        ({"sampling_params": {"top_p": 0}}, "sampling_params.top_p"),
        ({"sampling_params": {"top_k": -2}}, "sampling_params.top_k"),
        ({"sampling_params": {"stop": [""]}}, "sampling_params.stop"),
        ({"sampling_params": {"stop_token_ids": [10**6]}}, "sampling_params.stop_token_ids"),
        ({"sampling_params": {"logit_bias": {"x": 1}}}, "sampling_params.logit_bias"),
        ({"sampling_params": {"repetition_penalty": 0}}, "sampling_params.repetition_penalty"),
        ({"sampling_params": {"n": 0}}, "sampling_params.n"),
        ({"sampling_params": {"seed": 1, "sampling_seed": 2}}, "sampling_params.sampling_seed"),
        ({"sampling_params": {"seed": 2**64}}, "sampling_params.seed"),
        ({"sampling_params": {"sampling_seed": 2**64}}, "sampling_params.sampling_seed"),
        ({"sampling_params": {"max_tokens": 4}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"regex": "("}}, "sampling_params.regex"),
        ({"sampling_params": {"json_schema": "[]"}}, "sampling_params.json_schema"),
        ({"sampling_params": {"regex": "a", "ebnf": "b"}}, "sampling_params.ebnf"),
        ({"sampling_params": {"no_stop_trim": True}}, "sampling_params.no_stop_trim"),
        ({"text": ["a", "b"], "sampling_params": [{}, {"n": 2}]}, "sampling_params[1].n"),
        ({"stream": "yes"}, "stream"),
        ({"return_logprob": 1}, "return_logprob"),
        ({"return_logprob": [True, True]}, "return_logprob"),
        ({"logprob_start_len": 0}, "logprob_start_len"),
        ({"return_logprob": True, "logprob_start_len": 6}, "logprob_start_len"),
        ({"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        ({"top_logprobs_num": 2}, "top_logprobs_num"),
        ({"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
        ({"rid": ""}, "rid"),
        ({"rid": "x" * 257}, "rid"),
        ({"rid": ["a", "b"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["same", "same"]}, "rid"),
        ({"rid": 7}, "rid"),
        ({"priority": "high"}, "priority"),
        ({"cache_salt": 1}, "cache_salt"),
        ({"lora_path": "x"}, "lora_path"),
        ({"image_data": "x.png"}, "image_data"),
        ({"token_ids_logprob": [1]}, "token_ids_logprob"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_fields_are_named(fake, fields, param, stream):
    error = refused(fake.post("/generate", **{"text": "xyzab", "stream": stream, **fields}))
    assert error["param"] == param
    name = re.sub(r"\[\d+\]", "", param).split(".")[-1]
    assert name in error["message"] or "prompt" in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_new_tokens": 4, "min_new_tokens": 5}, "min_new_tokens 5 is more than max_new_tok"),
        ({"max_new_tokens": 0, "min_new_tokens": 1}, "min_new_tokens 1 is more than max_new_tok"),
    ],
)
def test_errors_speak_the_client_s_words(fake, params, words):
    assert words in refused(fake.generate(sampling_params=params))["message"]


@pytest.mark.parametrize("prompt", [{"text": "x" * 2001}, {"input_ids": [1] * 2000}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_can_never_fit_is_refused_with_numbers(fake, prompt, stream):
    error = refused(fake.post("/generate", **prompt, stream=stream))
    assert error["code"] == "context_length_exceeded"
    assert error["param"] in prompt
    assert "2000" in error["message"]


def test_a_text_beyond_any_context_is_not_even_tokenized(fake, monkeypatch):
    text = "x" * (2000 * fake.engine.tokenizer.longest_token + 1)
    monkeypatch.setattr(fake.engine.tokenizer, "encode", None)
    assert refused(fake.generate([text]))["param"] == "text"
    assert refused(fake.post("/tokenize", prompt=text))["param"] == "prompt"
    messages = [{"role": "user", "content": text}]
    assert refused(fake.post("/tokenize", messages=messages))["param"] == "messages"


def test_a_million_prompts_are_not_tokenized(fake, monkeypatch):
    monkeypatch.setattr(fake.engine.tokenizer, "encode", None)
    assert "2048" in refused(fake.generate(["a"] * 1_000_000))["message"]
    assert "2048" in refused(fake.complete(["a"] * 1_000_000))["message"]


def test_a_full_queue_is_a_429():
    engine, _ = fake_engine(seconds=0.01, max_queued_requests=2)
    for stream in (False, True):
        with under_way(engine):
            refused(Client(engine).generate(["a"] * 2, stream=stream), 429)
        assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def test_a_crash_is_a_503():
    engine, runner = fake_engine()
    client = Client(engine)
    runner.broken = True
    assert "the fuse blew" in refused(client.generate(rid="mine"), 503)["message"]
    refused(client.generate(rid="mine", stream=True), 503)
    refused(client.get("/health_generate"), 503)
    refused(client.post("/abort_request", abort_all=True), 503)
    refused(client.post("/reset_prefix_cache"), 503)
    asyncio.run(engine.close())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "rid"),
        ({"rid": ""}, "rid"),
        ({"rid": None, "abort_all": False}, "rid"),
        ({"rid": "a", "abort_all": True}, "rid"),
        ({"rid": 7}, "rid"),
        ({"rid": ["a"]}, "rid"),
        ({"abort_all": "yes"}, "abort_all"),
    ],
)
def test_wrong_aborts_are_named(fake, body, param):
    assert refused(fake.post("/abort_request", **body))["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "pope", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"prompt": "a", "tools": []}, "tools"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ({"prompt": "a", "return_token_strs": "yes"}, "return_token_strs"),
        ({"prompt": "a", "chat_template": "x"}, "chat_template"),
    ],
)
def test_wrong_fields_of_tokenize_are_named(fake, body, param):
    assert refused(fake.post("/tokenize", **body))["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "tokens"),
        ({"tokens": None}, "tokens"),
        ({"tokens": 7}, "tokens"),
        ({"tokens": ["a"]}, "tokens[0]"),
        ({"tokens": [1, 100_000]}, "tokens[1]"),
        ({"tokens": [-1]}, "tokens[0]"),
        ({"tokens": [2**70]}, "tokens[0]"),
        ({"tokens": [1] * 2001}, "tokens"),
        ({"tokens": [[1] * 1000] * 3}, "tokens"),
        ({"tokens": [[1], [2, -1]]}, "tokens[1][1]"),
    ],
)
def test_wrong_fields_of_detokenize_are_named(fake, body, param):
    assert refused(fake.post("/detokenize", **body))["param"] == param


def test_other_models_are_a_404(fake):
    refused(fake.post("/tokenize", prompt="a", model="gpt-9"), 404)
    refused(fake.post("/detokenize", tokens=[1], model="gpt-9"), 404)


def test_messages_need_a_template():
    engine, _ = fake_engine(template=None)
    messages = [{"role": "user", "content": "a"}]
    error = refused(Client(engine).post("/tokenize", messages=messages))
    assert "--chat-template" in error["message"]
    asyncio.run(engine.close())
