"""A miss in words: its cause by what differs and by where, and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from radixlm.cache import RadixCache
from radixlm.core.misses import MissReason, MissReport
from radixlm.observe.causes import Cause, Finding, Outline, Spot, cause_of, find
from radixlm.text.tokenizer import Tokenizer
from tests.engines import byte_tokenizer

BYTES: Tokenizer = byte_tokenizer()
SYSTEM = "You are a helper in a shop."
RULES = "tell what was bought last, in one short sentence, and be polite."
TALK = (
    *("Do you have bells for bicycles?", "Yes, we have bells of brass and of steel."),
    *("How much is the one of brass, please?", "It is nine, and eight for two of them."),
    *("Then I take two of them. Where do I pay?", "At the desk, or here."),
    "Here it is.",
)


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
    return find(BYTES, cache.explain(key).report, key, asked if chat else None)


@pytest.mark.parametrize(
    ("cached", "asked", "cause", "place"),
    [
        (("It is 2026-11-20. Be so kind as to help.", "Hi"),
         ("It is 2026-11-21. Be so kind as to help.", "Hi"), Cause.DATE_TIME, "0 (system)"),
        (("You help Ann. " + SYSTEM * 2, "Hi"), ("You help Bob. " + SYSTEM * 2, "Hi"),
         Cause.CHANGING_PART, "0 (system)"),
        ((SYSTEM, "Hi"), (SYSTEM.replace("shop", "school"), "Hi"), Cause.NEW_TEXT, "0 (system)"),
        ((SYSTEM, "Of Ann: " + RULES), (SYSTEM, "Of Bob: " + RULES), Cause.CHANGING_PART,
         "1 (user)"),
        ((SYSTEM, "Sales of May?"), (SYSTEM, "Sales of June?"), Cause.NEW_TEXT, "1 (user)"),
        ((SYSTEM, *TALK[:5]), (SYSTEM, *TALK[2:7]), Cause.CUT_HISTORY, "1 (user)"),
        ((SYSTEM, *TALK[:5]), (SYSTEM, *TALK[:2], *TALK[4:7]), Cause.CUT_HISTORY, "3 (user)"),
        ((SYSTEM, *TALK[:5]), (SYSTEM, "In short: a bell is wanted.", "Good.", *TALK[4:7]),
         Cause.EDITED_HISTORY, "1 (user)"),
        ((SYSTEM, *TALK[:3]), (SYSTEM + " Be brief.", *TALK[:5]), Cause.EDITED_HISTORY,
         "0 (system)"),
        ((SYSTEM, "Hi", "<think>\nSo.\n</think>\nYes.", "Why?"), (SYSTEM, "Hi", "Yes.", "Why?"),
         Cause.REASONING, "2 (assistant)"),
        ((SYSTEM, "Hi", "It costs 5 or more", "And?"), (SYSTEM, "Hi", "It costs 6 or more", "And?"),
         Cause.EDITED_HISTORY, "2 (assistant)"),
        ((SYSTEM, "It is 2:05 PM. " + RULES, "Yes.", "And?"),
         (SYSTEM, "It is 2:06 PM. " + RULES, "Yes.", "And?"), Cause.DATE_TIME, "1 (user)"),
        ((SYSTEM, "Sales of May?", "Nine.", "And?"), (SYSTEM, "Sales of June?", "Two!", "Why?"),
         Cause.NEW_TEXT, "1 (user)"),
        ((SYSTEM, "Hi", "Yes. \n", "And?"), (SYSTEM, "Hi", "Yes.", "And?"), Cause.WHITE_SPACE,
         "2 (assistant)"),
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


def test_no_tools_where_some_were() -> None:
    tool = '{"name": "find", "parameters": {}}'
    for system in ({"role": "system", "content": SYSTEM},), ():
        messages = [
            *system,
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes."},
        ]
        text = "".join(str(message["content"]) for message in system)
        cached = Outline(f"<s>{text}{tool}<u>Hi<a>Yes.", messages, [{"name": "find"}])
        told = found(cached, Outline(f"<s>{text}<u>Hi<a>Yes.", messages))
        assert told.cause is Cause.EDITED_TOOLS


def test_a_text_without_messages_has_a_place_in_tokens() -> None:
    ours, theirs = (outline_of(f"Order {number} of it: {RULES}") for number in (17, 18))
    told = found(ours, theirs, chat=False)
    assert (told.cause, told.spot) == (Cause.NUMBER, None)
    assert told.place == "token 15"
    assert told.fix == "leave it out, or move it to the end of the prompt"
    told = found(outline_of("Order 17 of it"), outline_of("Order 18 of it"), chat=False)
    assert told.cause is Cause.NEW_TEXT
    told = found(outline_of("I like cats a lot"), outline_of("I like dogs a lot"), chat=False)
    assert told.cause is Cause.NEW_TEXT


@pytest.mark.parametrize("reason", [each for each in MissReason if each != MissReason.DIVERGED])
def test_other_reasons_need_no_text(reason: MissReason) -> None:
    told = find(BYTES, MissReport(9, 4, reason, 4), BYTES.encode("123456789"), outline_of("x"))
    cause = cause_of(MissReport(9, 4, reason, 4))
    assert cause is not None
    assert told == Finding(cause, 4)


def test_a_difference_needs_the_text() -> None:
    assert cause_of(MissReport(9, 4, MissReason.DIVERGED, 4)) is None


def test_every_reason_but_a_difference_has_its_cause() -> None:
    causes = {reason: cause_of(MissReport(100, 0, reason, 0)) for reason in MissReason}
    assert [reason for reason, cause in causes.items() if cause is None] == [MissReason.DIVERGED]
    assert causes[MissReason.NO_STATE] is Cause.NO_STATE
    assert "--swa-full-tokens-ratio" not in Cause.NO_STATE.fix


@pytest.mark.parametrize(
    ("evicted", "cause"), [(1, Cause.FIRST_SEEN), (24, Cause.FIRST_SEEN), (25, Cause.EVICTED)]
)
def test_a_few_tokens_that_were_evicted_are_no_cause(evicted: int, cause: Cause) -> None:
    miss = MissReport(108, 8, MissReason.EVICTED, 8, evicted=evicted, evicted_ago=1.0, hits=0)
    assert cause_of(miss) is cause


def test_what_begins_at_the_prompt_s_first_token_says_so() -> None:
    told = found(outline_of("a b c. It"), outline_of("a b d. It"), chat=False)
    assert told.difference is not None
    assert told.difference.marked == "<system>a b [c.|d.] I…"


def test_what_changes_belongs_behind_what_stays() -> None:
    def fix(*messages: str, tools: bool = False) -> str:
        ours, theirs = (
            outline_of(f"It is 2026-11-{day}. {SYSTEM * 2}", *messages) for day in (20, 21)
        )
        return found(ours, replace(theirs, tools=[{"name": "x"}] if tools else ())).fix

    assert fix("Hi") == "move it to the end of the system prompt"
    last = "move it to the last message, and leave it there in later turns"
    assert fix("Hi", tools=True) == fix("Hi", "Yes.", "And?") == last


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_words_without_gaps(cause: Cause) -> None:
    told = Finding(cause, 7, Spot(0, "system", 2))
    assert told.what == cause.what != ""
    assert "{" not in told.fix
    assert ("the end of the prompt" in told.fix) == ("{where}" in cause.fix)
