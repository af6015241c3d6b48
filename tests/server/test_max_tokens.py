"""How long an answer may be: one rule on all routes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from radixlm.cache import RadixCache
from tests.server_support import Client, fake_engine, refused

# Pool and context are the same, and some of it may be pinned: MOST tokens are left for a request.
CONTEXT, PINNED = 300, 73
MOST = CONTEXT - PINNED
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, NATIVE = "/v1/messages", "/generate"
# By route: the body, and the field of the length.
ROUTES: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, HELLO, "max_tokens"),
    (CHAT, HELLO, "max_completion_tokens"),
    (TEXT, {"prompt": "hi"}, "max_tokens"),
    (RESPONSES, {"input": "hi", "store": False}, "max_output_tokens"),
    (MESSAGES, HELLO, "max_tokens"),
    (NATIVE, {"text": "hi"}, "max_new_tokens"),
]


def asked(path: str, body: dict[str, Any], field: str, most: int) -> dict[str, Any]:
    length = {field: most}
    return {**body, **({"sampling_params": length} if path == NATIVE else length)}


def total(answer: dict[str, Any]) -> int:
    """Tokens of prompt and answer."""
    usage = answer.get("usage") or answer["meta_info"]
    if "total_tokens" in usage:
        return int(usage["total_tokens"])
    names = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
    return sum(usage.get(name, 0) for name in (*names, "cache_read_input_tokens"))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    engine, _ = fake_engine(context_length=CONTEXT, cache=RadixCache(CONTEXT, 1, pin_budget=PINNED))
    yield Client(engine)
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def strict() -> Iterator[Client]:
    engine, _ = fake_engine(context_length=CONTEXT, cache=RadixCache(CONTEXT, 1, pin_budget=PINNED))
    yield Client(engine, strict_fields=True)
    asyncio.run(engine.close())


@pytest.mark.parametrize(("path", "body", "field"), ROUTES)
def test_more_than_fits_is_what_fits(client, path, body, field):
    answer = client.post(path, **asked(path, body, field, 65_535), cache_report=True)
    assert answer.status_code == 200, answer.text
    answered = answer.json()
    assert total(answered) == MOST
    report = answered.get("cache_report") or answered["meta_info"]["cache_report"]
    name = f"sampling_params.{field}" if path == NATIVE else field
    said = f"{name} 65535 is more than fits: with its prompt it is at most {MOST} tokens"
    assert report["changes"] == [said]


@pytest.mark.parametrize(("path", "body", "field"), ROUTES)
def test_what_fits_is_as_it_was(client, path, body, field):
    answer = client.post(path, **asked(path, body, field, 5), cache_report=True)
    assert "changes" not in answer.text


@pytest.mark.parametrize(("path", "body", "field"), ROUTES)
def test_strict_fields_refuse_it(strict, path, body, field):
    error = refused(strict.post(path, **asked(path, body, field, 65_535)))
    assert field in error["message"]
    assert f"maximum context length is {MOST} tokens" in error["message"]
    assert strict.post(path, **asked(path, body, field, 5)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, HELLO), (RESPONSES, {"input": "hi", "store": False})]
)
def test_without_a_limit_it_is_the_context(client, strict, path, body):
    for each in (client, strict):
        assert total(each.post(path, **body).json()) == MOST


def test_without_a_limit_a_text_has_openai_s_sixteen(client):
    usage = client.post(TEXT, prompt="hi").json()["usage"]
    assert usage["completion_tokens"] == 16


def test_of_two_fields_the_newer_one_counts(client):
    answer = client.post(CHAT, **HELLO, max_tokens=65_535, max_completion_tokens=3).json()
    assert answer["usage"]["completion_tokens"] == 3


def test_each_prompt_has_its_own_room(client):
    prompts = [[1] * 10, [1] * 200]
    answer = client.post(TEXT, prompt=prompts, max_tokens=65_535, n=2, cache_report=True)
    assert total(answer.json()) == 2 * MOST * 2 - sum(map(len, prompts))
    assert {choice["finish_reason"] for choice in answer.json()["choices"]} == {"length"}
    assert [len(report["changes"]) for report in answer.json()["cache_report"]] == [1, 1]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_what_can_not_be_is_refused_all_the_same(client, path):
    body = HELLO if path == CHAT else {"prompt": "hi"}
    least = {"min_tokens": MOST, "max_tokens": 65_535}
    assert refused(client.post(path, **body, **least))["param"] == "max_tokens"
    long = "x" * MOST
    full = {"messages": [{"role": "user", "content": long}]} if path == CHAT else {"prompt": long}
    error = refused(client.post(path, **full, max_tokens=65_535))
    assert error["code"] == "context_length_exceeded"
    assert error["param"] in full


def test_a_prompt_that_is_scored_may_fill_the_context():
    engine, _ = fake_engine(context_length=CONTEXT)
    for most in (0, 1):
        scored = {"prompt": [1] * CONTEXT, "max_tokens": most, "echo": True, "logprobs": 1}
        assert Client(engine).post(TEXT, **scored).status_code == 200
    asyncio.run(engine.close())


@pytest.mark.parametrize("path", [TEXT, CHAT, MESSAGES, RESPONSES, NATIVE, "/tokenize"])
@pytest.mark.parametrize("length", [MOST, CONTEXT])
def test_a_text_that_no_tokens_bring_into_it_is_refused_unread(client, path, length):
    long = "x" * (length * client.engine.tokenizer.longest_token + 1)
    body = {
        TEXT: {"prompt": long},
        RESPONSES: {"input": long},
        NATIVE: {"text": long},
        "/tokenize": {"prompt": long},
    }.get(path, {"messages": [{"role": "user", "content": long}], "max_tokens": 5})
    said = refused(client.post(path, **body))["message"]
    if path == MESSAGES:
        assert f"> {MOST - 1} maximum" in said
    else:
        assert f"maximum context length is {MOST} tokens" in said
        assert "tokens or more" in said
