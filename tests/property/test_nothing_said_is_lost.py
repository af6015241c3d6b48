"""Every kind of conversation through templates of many manners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from radixlm.core.errors import InvalidRequestError
from radixlm.text.chat_template import ChatTemplate
from tests.conversations import KINDS, Kind, lost
from tests.picky_templates import STYLES

# Those whose own writing of earlier turns changes with later ones.
CHANGING = {"mistral", "mistral named", "llama"}
THINKS = {"channels", "nine", "named ids", "spelled"}


def rendered(template: ChatTemplate, kind: Kind, described: bool, **more: Any) -> str:
    ends = kind.continued
    return template.render_chat(
        *(kind.messages, kind.tools), described=described, continue_final_message=ends, **more
    )


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_all_words_are_in_the_prompt_in_order(style: str, described: bool) -> None:
    template = ChatTemplate(STYLES[style])
    for name, kind in KINDS.items():
        text = rendered(template, kind, described)
        assert lost(text, kind, thoughts=described and style in THINKS) == [], name
        if kind.continued:
            last = kind.messages[-1]
            given = last["content"] or last.get("reasoning_content", "")
            assert text.endswith((given, given.removeprefix("<think>\n"))), name


def turns(messages: Sequence[dict[str, Any]]) -> Iterator[int]:
    """Where a turn of those who ask is over, or one's who answers."""
    open_calls: set[str] = set()
    for place, message in enumerate(messages):
        if place and not open_calls and message["role"] != "tool":
            yield place
        open_calls |= {call["id"] for call in message.get("tool_calls", ())}
        open_calls -= {message.get("tool_call_id", "")}


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("style", sorted(STYLES.keys() - CHANGING))
def test_what_was_said_stays_the_beginning(style: str, described: bool) -> None:
    template = ChatTemplate(STYLES[style])
    for name, kind in KINDS.items():
        for place in () if kind.continued else turns(kind.messages):
            before = kind._replace(messages=kind.messages[:place])
            if {message["role"] for message in before.messages} <= {"system", "developer"}:
                continue  # no turn yet
            texts = (
                rendered(template, each, described, add_generation_prompt=False)
                for each in (before, kind)
            )
            first, whole = texts
            assert whole.startswith(first), (name, place)


@pytest.mark.slow
def test_the_earlier_way_loses_much() -> None:
    """What the styles are for: as they are, templates refuse or leave out part of most kinds."""
    troubled = set()
    for style, source in STYLES.items():
        for name, kind in KINDS.items():
            try:
                text = ChatTemplate(source).render(
                    kind.messages,
                    tools=[*kind.tools] or None,
                    continue_final_message=kind.continued,
                )
            except InvalidRequestError:
                troubled.add((style, name))
                continue
            if lost(text, kind):
                troubled.add((style, name))
    assert {style for style, _ in troubled} == set(STYLES)
    assert len(troubled) > len(KINDS) * len(STYLES) // 3
