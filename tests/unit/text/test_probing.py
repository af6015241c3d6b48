"""What is found of a template by having it render small conversations."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from radixlm.text.chat_template import ChatTemplate
from radixlm.text.fitting import Fit
from tests.chat_templates import HERMES, LLAMA, MISTRAL
from tests.picky_templates import STYLES

_TEXT = {"tools_in_text": True, "calls_in_text": True, "results_in_text": True}
FOUND: dict[str, dict[str, Any]] = {
    "folded": {"system_folded": True, "roles_alternate": True, "late_system_folded": True, **_TEXT},
    "first": {"systems_joined": True, "late_system_folded": True},
    "asked": {"user_first": True, "tools_in_text": True, "calls_in_text": True},
    "nine": {
        "system_folded": True,
        "late_system_folded": True,
        "roles_alternate": True,
        "ids": "short",
        "empty_answer": 1,
        "thoughts_as": "part",
        "results_by_call": False,
    },
    "channels": {
        "systems_joined": True,
        "late_system_folded": True,
        "one_call_a_message": True,
        "text_before_calls": True,
        "text_in_thoughts": True,
        "thoughts_as": "thinking",
    },
    "named ids": {"ids": "named", "thoughts_as": "reasoning", "results_by_call": False},
    "spelled": {"arguments_as_json": True, "tools_in_text": True, "thoughts_as": "inline"},
    "unclosed": {"tools_in_text": True, "answer_after_results": True},
    "needy": {"tools_filled": True},
    "hermes": {},
}


def fit_of(source: str, *, described: bool = True, tools: bool = True) -> Fit:
    return ChatTemplate(source).fit(described=described, tools=tools)


@pytest.mark.parametrize("style", FOUND)
def test_what_a_style_wants(style: str) -> None:
    found = asdict(fit_of(STYLES[style]))
    wanted = asdict(Fit(results_by_call=True)) | FOUND[style]
    assert {**found, "user_first": wanted["user_first"]} == wanted


def test_words_in_a_template_s_source_say_nothing() -> None:
    talk = "{# alternate tool_calls reasoning thinking raise_exception('no system') </think> #}"
    assert fit_of(talk + HERMES) == fit_of(HERMES)


def test_a_text_s_way_of_calls_needs_no_tools_of_the_template() -> None:
    found = fit_of(LLAMA, described=False)
    assert (found.tools_in_text, found.calls_in_text, found.results_in_text) == (True, True, True)


def test_conversations_without_tools_are_another_matter() -> None:
    assert fit_of(STYLES["needy"], tools=False) == Fit(tools_listed=True, results_by_call=True)
    assert fit_of(MISTRAL, tools=False).ids == "short"


def test_templates_may_refuse_everything() -> None:
    assert fit_of("{{ raise_exception('never') }}").thoughts_as == "reasoning_content"
