"""/v1/messages: edits of the context, what is told of them, and what they do to the cache."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types.beta import BetaContextManagementResponse

from radixlm.cache.cache import RadixCache
from tests.messages_support import TOOLS, USER, model, send
from tests.published import strictly
from tests.server_support import Client, refused

USES, THOUGHTS = "clear_tool_uses_20250919", "clear_thinking_20251015"
CLEARED = "[cleared to make room]"


def clear(**fields: Any) -> dict[str, Any]:
    return {"type": USES, "trigger": {"type": "tool_uses", "value": 1}, **fields}


def keep(uses: int) -> dict[str, Any]:
    return {"type": "tool_uses", "value": uses}


def talk(*results: str, **given: Any) -> list[dict[str, Any]]:
    """A tool is used for each result; input: of its calls."""
    made: list[dict[str, Any]] = [USER]
    for place, result in enumerate(results):
        name = "other" if result == "other" else "get_weather"
        use = {"type": "tool_use", "id": f"c{place}", "name": name, "input": {}, **given}
        answer = {"type": "tool_result", "tool_use_id": f"c{place}", "content": result}
        made += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}]
    return made


def count(client: Client, messages: Any, *edits: Any) -> dict[str, Any]:
    management = {"context_management": {"edits": [*edits]}} if edits else {}
    fields = {"messages": messages, "tools": TOOLS, **management}
    answer = client.post("/v1/messages/count_tokens", **fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.fixture(scope="module")
def talker():
    with model("Yes.", cache=RadixCache(16_384, 1), context_length=8_192) as client:
        yield client


LONG = "It rains in Bern. " * 10
WET = {"city": "Bern, where it rains all day long"}


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (clear(keep=keep(1)), talk(LONG, LONG, LONG), talk(CLEARED, CLEARED, LONG)),
        (clear(keep=keep(0)), talk(LONG, LONG), talk(CLEARED, CLEARED)),
        (clear(), talk(*[LONG] * 4), talk(CLEARED, *[LONG] * 3)),
        (
            {"type": USES, "trigger": {"type": "input_tokens", "value": 300}, "keep": keep(1)},
            talk(LONG, LONG),
            talk(CLEARED, LONG),
        ),
        (
            clear(keep=keep(0), exclude_tools=["get_weather"]),
            talk(LONG, "other", LONG),
            talk(LONG, "other", LONG),
        ),
        (
            clear(keep=keep(0), clear_tool_inputs=True),
            talk(LONG, LONG, input=WET),
            talk(CLEARED, CLEARED),
        ),
        (
            clear(keep=keep(0), clear_tool_inputs=["other"]),
            talk(LONG, LONG, input=WET),
            talk(CLEARED, CLEARED, input=WET),
        ),
        (
            clear(keep=keep(1), clear_at_least={"type": "input_tokens", "value": 100}),
            talk(LONG, LONG),
            talk(CLEARED, LONG),
        ),
        # Not yet.
        (clear(keep=keep(0)), talk(LONG), talk(LONG)),
        ({"type": USES, "keep": keep(0)}, talk(LONG), talk(LONG)),
        (
            clear(keep=keep(1), clear_at_least={"type": "input_tokens", "value": 500}),
            talk(LONG, LONG),
            talk(LONG, LONG),
        ),
    ],
)
def test_what_is_cleared_of_uses(talker, edit, before, after):
    found = count(talker, before, edit)
    assert found["input_tokens"] == count(talker, after)["input_tokens"]
    original = found["context_management"]["original_input_tokens"]
    assert original == count(talker, before)["input_tokens"]


THINKS = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }}{% endfor %}"


def said(*thoughts: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for thought in thoughts:
        thinking = [{"type": "thinking", "thinking": thought, "signature": ""}] if thought else []
        made += [USER, {"role": "assistant", "content": [*thinking, {"type": "text", "text": "a"}]}]
    return made


def test_what_is_cleared_of_thoughts():
    def edit(**fields: Any) -> dict[str, Any]:
        return {"type": THOUGHTS, **fields}

    turns = {"type": "thinking_turns", "value": 2}
    with model("Yes.", THINKS) as client:
        for made, left in (
            (edit(), said("", "", "Hm. Three.")),
            (edit(keep=turns), said("", "Hm. Two.", "Hm. Three.")),
            (edit(keep="all"), said("Hm. One.", "Hm. Two.", "Hm. Three.")),
            (edit(keep={"type": "all"}), said("Hm. One.", "Hm. Two.", "Hm. Three.")),
        ):
            whole = said("Hm. One.", "Hm. Two.", "Hm. Three.")
            found = count(client, whole, made)
            assert found["input_tokens"] == count(client, left)["input_tokens"]
        whole.insert(5, {"role": "user", "content": "Go on."})
        body = send(client, whole, context_management={"edits": [edit()]}).json()
        assert body["context_management"]["applied_edits"] == [
            {"type": THOUGHTS, "cleared_thinking_turns": 2, "cleared_input_tokens": 16}
        ]


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_done_is_told(talker, stream):
    management = {"edits": [clear(keep=keep(1))]}
    fields = {"tools": TOOLS, "context_management": management, "stream": stream}
    answer = send(talker, talk(LONG, LONG, LONG), **fields)
    if stream:
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        [body] = [each for each in map(json.loads, lines) if each["type"] == "message_delta"]
    else:
        body = answer.json()
    strictly(BetaContextManagementResponse, json.dumps(body["context_management"]))
    [edit] = body["context_management"]["applied_edits"]
    assert (edit["type"], edit["cleared_tool_uses"]) == (USES, 2)
    lost = len(LONG) - len(CLEARED)
    assert edit["cleared_input_tokens"] == pytest.approx(2 * lost, abs=4)
    usage = body["usage"]
    left = count(talker, talk(CLEARED, CLEARED, LONG))["input_tokens"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == left
    few = send(talker, talk(LONG), tools=TOOLS, context_management=management).json()
    assert few["context_management"] == {"applied_edits": []}
    assert "context_management" not in send(talker, context_management={}).json()


def test_what_an_edit_costs_the_cache_is_told(talker):
    fields = {"tools": TOOLS, "cache_report": True}
    fields |= {"context_management": {"edits": [clear(keep=keep(2))]}, "system": "Of the cache."}
    send(talker, talk(LONG, LONG), **fields)
    report = send(talker, talk(LONG, LONG, LONG), **fields).json()["cache_report"]
    assert report["cause"] == "context_edit"
    assert report["divergence"]["role"] == "tool"
    assert "context_management cleared part of the conversation" in report["text"]
    assert "clear_at_least" in report["advice"]
    again = send(talker, talk(LONG, LONG, LONG), **fields).json()["cache_report"]
    assert again["cause"] == "nothing_missed"


def test_a_prompt_that_fits_after_its_edits_is_answered():
    huge = "x" * 20_000
    with model("Yes.") as client:
        answer = send(client, talk(huge, huge, "short"), tools=TOOLS)
        assert "too long" in refused(answer)["message"]
        management = {"edits": [clear(keep=keep(1))]}
        answer = send(client, talk(huge, huge, "short"), tools=TOOLS, context_management=management)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        ({"type": "compact_20260112"}, "context_management.edits[0]: Edits are supported whose"),
        (clear(trigger={"type": "words", "value": 1}), "context_management.edits[0].trigger"),
        (clear(keep={"type": "tool_uses", "value": -1}), "context_management.edits[0].keep.value"),
        ({"type": THOUGHTS, "keep": "some"}, "context_management.edits[0].keep"),
    ],
)
def test_what_is_wrong_with_an_edit_is_named(fake, edit, path):
    answer = send(fake, context_management={"edits": [edit]})
    assert refused(answer)["message"].startswith(path)
