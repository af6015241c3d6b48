"""A miss in words: its cause by what differs and by where, and what to do."""

from __future__ import annotations

import pytest

from radixlm.cache import RadixCache, explained
from radixlm.core.misses import MissReason, MissReport
from radixlm.text.misses import WORDS, Cause, Finding, cause_of_reason, find
from radixlm.text.outline import Outline, Spot
from radixlm.text.tokenizer import Tokenizer
from tests.engines import byte_tokenizer

BYTES: Tokenizer = byte_tokenizer()
SYSTEM = "You are a helper in a shop."


def outline_of(*contents: str) -> Outline:
    roles = ["system", *["user", "assistant"] * len(contents)]
    messages = [
        {"role": role, "content": text} for role, text in zip(roles, contents, strict=False)
    ]
    return Outline("".join(f"<{turn['role']}>{turn['content']}" for turn in messages), messages)


def found(cached: Outline, asked: Outline, *, chat: bool = True) -> Finding:
    """What is made out when one prompt is cached and the other is asked for."""
    cache = RadixCache(1_000)
    lease = cache.acquire(BYTES.encode(cached.text))
    lease.extend(len(cached.text))
    lease.commit(len(cached.text))
    key = BYTES.encode(asked.text)
    return find(BYTES, explained(cache, key).report, key, asked if chat else None)


@pytest.mark.parametrize(
    ("cached", "asked", "cause", "place"),
    [
        (("It is 2026-11-20. Hi",), ("It is 2026-11-21. Hi",), Cause.DATE_TIME, "0 (system)"),
        ((SYSTEM, "Do you have bells?"), (SYSTEM, "Are you open?"), Cause.NEW_TEXT, "1 (user)"),
        (("Be kind.", "Hi"), ("Never lie.", "Hi"), Cause.NEW_TEXT, "0 (system)"),
        ((SYSTEM, "Hi", "It is brass.", "And?"), (SYSTEM, "Hi", "It is gold.", "And?"),
         Cause.EDITED_HISTORY, "2 (assistant)"),
        ((SYSTEM, "Hi", "Yes.", "Bells?", "No."), (SYSTEM, "Hi", "Yes.", "Lamps?", "No."),
         Cause.EDITED_HISTORY, "3 (user)"),
        ((SYSTEM, "Hi", "Yes.", "Bells?"), (SYSTEM, "Hi", "Yes.", "Lamps?"),
         Cause.NEW_TEXT, "3 (user)"),
        ((SYSTEM, "Hi you"), (SYSTEM, "Hi  you"), Cause.WHITE_SPACE, "1 (user)"),
    ],
)  # fmt: skip
def test_the_message_decides_where_the_text_does_not(cached, asked, cause, place) -> None:
    told = found(outline_of(*cached), outline_of(*asked))
    assert told.cause is cause
    assert told.place == f"message {place}, token {told.position}"


def test_other_tools() -> None:
    messages = [{"role": "user", "content": "Find it."}]
    cached, asked = (
        Outline(f'<tools>{{"name": "{name}"}}<user>Find it.', messages, [{"name": name}])
        for name in ("search", "browse")
    )
    told = found(cached, asked)
    assert (told.cause, told.place) == (Cause.EDITED_TOOLS, f"the tools, token {told.position}")


def test_a_text_without_messages_has_a_place_in_tokens() -> None:
    told = found(outline_of("Order 17 of it"), outline_of("Order 18 of it"), chat=False)
    assert (told.cause, told.spot) == (Cause.NUMBER, None)
    assert told.place == "token 15"
    assert told.fix == "leave it out, or move it to the end of the prompt"
    told = found(outline_of("I like cats a lot"), outline_of("I like dogs a lot"), chat=False)
    assert told.cause is Cause.NEW_TEXT


@pytest.mark.parametrize("reason", [each for each in MissReason if each != MissReason.DIVERGED])
def test_other_reasons_need_no_text(reason: MissReason) -> None:
    told = find(BYTES, MissReport(9, 4, reason, 4), BYTES.encode("123456789"), outline_of("x"))
    assert told == Finding(cause_of_reason(reason), 4)
    assert cause_of_reason(MissReason.DIVERGED) is None


def test_what_begins_at_the_prompt_s_first_token_says_so() -> None:
    told = found(outline_of("a b c. It"), outline_of("a b d. It"), chat=False)
    assert told.difference is not None
    assert told.difference.marked == "<system>a b [c.|d.] I…"


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_words_without_gaps(cause: Cause) -> None:
    for spot in (None, Spot(0, "system", 2), Spot(1, "user", 2), Spot(None, "tools", 2)):
        told = Finding(cause, 7, spot)
        assert told.what == WORDS[cause].what != ""
        assert "{" not in told.fix
        assert ("system prompt" in told.fix) == (
            "{where}" in WORDS[cause].fix and spot == Spot(0, "system", 2)
        )
