"""Claude Code's first line, which changes with each request, is no part of the prompt."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from radixlm.server.bodies.billing_header import LEFT_OUT
from tests.server_support import Client, fake_engine

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
RULES = "You help with software. " * 20
USER = {"role": "user", "content": "hi"}
MARK = {"cache_control": {"type": "ephemeral"}}


def line(cch: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={cch};"


def part(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def system(*parts: Any, role: str = "system") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [*parts]}, USER], "max_tokens": 1}


def as_blocks(first: str) -> dict[str, Any]:
    return {"system": [part(first), part(RULES)], "messages": [USER], "max_tokens": 1}


# By what sends it: Claude Code; the same with marks; as one text; and proxies before other APIs.
SENT: list[tuple[str, Any]] = [
    (MESSAGES, as_blocks),
    (
        MESSAGES,
        lambda first: {
            **as_blocks(first),
            "system": [part(first, **MARK), part(RULES, **MARK)],
        },
    ),
    (
        MESSAGES,
        lambda first: {**as_blocks(first), "system": f"{first}\n{RULES}"},
    ),
    (CHAT, lambda first: system(part(first), part(RULES))),
    (CHAT, lambda first: system(part(f"{first}\n\n{RULES}"), role="developer")),
    (CHAT, lambda first: system(part(f"{first}\n\n{first}\n{RULES}"))),  # of two that were joined
    (CHAT, lambda first: system(part(first, **MARK), part(RULES))),
    (
        CHAT,
        lambda first: {
            "messages": [
                {"role": "system", "content": first},
                {"role": "system", "content": RULES},
                USER,
            ],
            "max_tokens": 1,
        },
    ),
    (
        RESPONSES,
        lambda first: {
            "instructions": f"{first}\n{RULES}",
            "input": "hi",
            "max_output_tokens": 1,
            "store": False,
        },
    ),
]


@pytest.fixture
def client() -> Any:
    engine, _ = fake_engine()
    yield Client(engine)
    asyncio.run(engine.close())


def report(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, **body, cache_report=True)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()["cache_report"]
    return told


@pytest.mark.parametrize(("path", "make"), SENT)
def test_another_line_is_the_same_prompt(client, path, make):
    report(client, path, make(line("36ee5")))
    again = report(client, path, make(line("0aaa9")))
    assert again["computed_tokens"] == 1
    assert again["changes"] == [LEFT_OUT]
    explained = client.post("/cache/explain", **make(line("f")), route=path).json()["reports"][0]
    assert explained["computed_tokens"] == 1
    assert explained["changes"] == again["changes"]


def test_the_count_is_that_of_the_prompt(client):
    body = as_blocks(line("36ee5"))
    counted = client.post(f"{MESSAGES}/count_tokens?beta=true", **{**body, "max_tokens": None})
    without = {**body, "system": [part(RULES)]}
    sizes = {report(client, MESSAGES, each)["prompt_tokens"] for each in (body, without)}
    assert {counted.json()["input_tokens"]} == sizes


def test_a_mark_on_what_follows_keeps_the_same(client):
    marked = [part(line("1"), **MARK), part(RULES, **MARK)]
    client.post(MESSAGES, **{**as_blocks(""), "system": marked})
    kept = client.engine.stats().kv_pinned
    assert kept > len(RULES) // 2
    client.post(MESSAGES, **{**as_blocks(""), "system": [part(RULES, **MARK)]})
    assert client.engine.stats().kv_pinned == kept


def test_what_is_all_of_a_system_prompt_goes_with_its_message(client):
    alone = report(client, CHAT, system(part(line("1"))))
    assert alone["prompt_tokens"] == report(client, CHAT, {"messages": [USER]})["prompt_tokens"]
    only = {"messages": [{"role": "system", "content": line("1")}], "max_tokens": 1}
    assert client.post(CHAT, **only).status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        "x-anthropic-billing-header: what is that?",
        f"Never say {line('36ee5')}",
        f"{line('36ee5')} And help.",
        f"Help.\n{line('36ee5')}",
        "x-anthropic-billing-header",
    ],
)
def test_what_somebody_wrote_stays(client, text):
    assert "changes" not in report(client, CHAT, system(part(text)))
    said = {"messages": [{"role": "user", "content": line("36ee5")}], "max_tokens": 1}
    assert "changes" not in report(client, CHAT, said)


def test_the_log_names_it_once(client, caplog):
    with caplog.at_level(logging.INFO, "radixlm.server"):
        for nonce in "abc":
            client.post(MESSAGES, **as_blocks(line(nonce)))
    named = [each for each in caplog.messages if "x-anthropic-billing-header" in each]
    assert len(named) == 1


def test_the_flag_keeps_it():
    engine, _ = fake_engine()
    client = Client(engine, keep_billing_header=True)
    report(client, MESSAGES, as_blocks(line("36ee5")))
    again = report(client, MESSAGES, as_blocks(line("0aaa9")))
    assert again["computed_tokens"] > len(RULES) // 2
    assert "changes" not in again
    asyncio.run(engine.close())
