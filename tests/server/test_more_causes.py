"""Causes of a miss as clients meet them, each with its place; and the advice, which is followed."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from tests.server_support import Client

SYSTEM = "You are a helper in a shop for bicycles. You answer in one short sentence, politely."
TALK = (
    *("Do you have bells for bicycles?", "Yes, we have bells of brass and of steel."),
    *("How much is the one of brass, please?", "It is nine, and eight for two of them."),
    *("Then I take two of them. Where do I pay?", "At the desk, or here."),
    "Here it is.",
)
QUESTION = "Tell me of the bells that you have in the shop, of lamps, and of what they cost."
LAST = "move it to the last message, and leave it there in later turns"
Turns = list[dict[str, Any]]


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    made = AsyncEngine.from_config(EngineConfig(kv_tokens=2_000))
    yield made
    asyncio.run(made.close())


def said(*messages: str, system: str | None = SYSTEM) -> Turns:
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ["user", "assistant"] * len(messages)
    return first + [
        {"role": role, "content": text} for role, text in zip(roles, messages, strict=False)
    ]


def report(client: Client, sent: Sequence[Turns]) -> dict[str, Any]:
    """Of the last of the chats that are sent."""
    for messages in sent:
        answer = client.post(
            "/v1/chat/completions",
            messages=messages,
            max_tokens=1,
            temperature=0,
            cache_report=True,
        )
        assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()["cache_report"]
    return told


def hits(client: Client, sent: Sequence[Turns]) -> int:
    count: int = report(client, sent)["cached_tokens"]["device"]
    return count


SHOP = "Grüße aus dem Café für Räder: sei höflich, und antworte kurz."
ORDERED = ["Bells: brass, steel.", "Lamps: red, white.", "Locks: small, large."]


def asked(documents: Sequence[str]) -> Turns:
    return said("\n".join([*documents, QUESTION]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cached", "sent", "cause", "message", "advice", "followed"),
    [
        (said("Hi", system="You talk to Ann. " + SYSTEM),
         said("Hi", system="You talk to Bob. " + SYSTEM), "changing_part", 0,
         "move it to the end of the system prompt",
         [said("Hi", system=SYSTEM + " You talk to Ann."),
          said("Hi", system=SYSTEM + " You talk to Bob.")]),
        (said(*TALK[:3], system="It is 2:05 PM. " + SYSTEM),
         said(*TALK[:5], system="It is 2:06 PM. " + SYSTEM), "date_time", 0, LAST,
         [said(*TALK[:2], TALK[2] + " It is 2:05 PM."),
          said(*TALK[:2], TALK[2] + " It is 2:05 PM.", TALK[3], TALK[4] + " It is 2:06 PM.")]),
        (said("What costs 17? " + QUESTION), said("What costs 18? " + QUESTION), "number", 1,
         "leave it out, or move it to the end of the prompt",
         [said(QUESTION + " What costs 17?"), said(QUESTION + " What costs 18?")]),
        (asked(ORDERED), asked(ORDERED[::-1]), "reordered", 1, "in the same order each time",
         [asked(ORDERED), asked(ORDERED)]),
        (said("Hi", system=SHOP), said("Hi", system=unicodedata.normalize("NFD", SHOP)), "unicode",
         0, "in one form (NFC)", [said("Hi", system=SHOP), said("Hi", system=SHOP)]),
        (said(*TALK[:5]), said(*TALK[2:7]), "cut_history", 1, "keep them while there is room",
         [said(*TALK[:5]), said(*TALK[:7])]),
        (said(TALK[0], "<think>\nOf brass?\n</think>\n\n" + TALK[1], TALK[2]), said(*TALK[:5]),
         "reasoning", 2, "send it back (reasoning_content)",
         [said(TALK[0], "<think>\nOf brass?\n</think>\n\n" + TALK[1], TALK[2]),
          said(TALK[0], "<think>\nOf brass?\n</think>\n\n" + TALK[1], *TALK[2:5])]),
    ],
)  # fmt: skip
def test_the_advice_helps(
    client: Client,
    cached: Turns,
    sent: Turns,
    cause: str,
    message: int,
    advice: str,
    followed: list[Turns],
) -> None:
    told = report(client, [cached, sent])
    assert (told["cause"], told["divergence"]["message_index"]) == (cause, message)
    assert advice in told["advice"]
    asyncio.run(client.engine.flush_cache())
    assert hits(client, followed) > told["cached_tokens"]["device"] + 8


def test_a_question_that_holds_a_date_is_the_prompt_s_own(client: Client) -> None:
    told = report(client, [said("What was sold in March?"), said("What was sold in April?")])
    assert (told["cause"], told["advice"]) == ("new_text", None)
