"""Whether, and how hard, a model is to think: in the words of each template."""

from __future__ import annotations

from typing import Any

import pytest

from radixlm.text.chat_template import ChatTemplate
from radixlm.text.thinking_switch import ThinkingSwitch, ThinkingWish

HELLO = [{"role": "user", "content": "hi"}]
REFUSES = "{{ raise_exception('no such effort') }}"
# As families write them; the end of the prompt shows what it came to.
BY_NAME = "{% if enable_thinking is defined and not enable_thinking %}off{% endif %}"
OFF_BY_DEFAULT = (
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ thinking }}"
)
EITHER = (
    "{% if thinking is not defined %}"
    "{% set thinking = enable_thinking if enable_thinking is defined else false %}{% endif %}"
    "{{ thinking }}"
)
WORDS = (
    "{% if thinking_mode is defined and thinking_mode == 'disabled' %}off"
    "{% elif thinking_mode is defined and thinking_mode == 'enabled' %}on{% endif %}"
)
OPTION = "{% if thinking_option == 'on' %}on{% elif thinking_option == 'off' %}off{% endif %}"
BUDGET = "{% if thinking_budget is defined %}{{ thinking_budget }}{% endif %}"
PRINTED = "{{ reasoning_effort | default('medium') }}"
TWO = "{{ 'high' if reasoning_effort is defined and reasoning_effort == 'high' else 'max' }}"
NEUTRAL = (
    "{% if reasoning_effort == 'high' %}much{% elif reasoning_effort == 'max' %}most{% endif %}"
)
THREE = (
    "{% set level = reasoning_effort | default('xhigh') %}"
    "{% if enable_thinking is defined and enable_thinking is false %}" + REFUSES + "{% endif %}"
    "{% if level not in ('xhigh', 'medium', 'low') %}" + REFUSES + "{% endif %}{{ level }}"
)
ONE_OR_NONE = (
    "{% if reasoning_effort is defined and reasoning_effort not in ['none', 'high'] %}"
    + REFUSES
    + "{% endif %}{{ reasoning_effort | default('none') }}"
)
REASONING = (
    "{% set reasoning = reasoning if reasoning is not undefined else "
    "(false if reasoning_effort is defined and reasoning_effort == 'none' else true) %}"
    "{{ reasoning }}"
)
OFF, ON = ThinkingWish(on=False), ThinkingWish(on=True)


def effort(word: str) -> ThinkingWish:
    return ThinkingWish(effort=word)


def prompt(source: str, wish: ThinkingWish, **given: Any) -> str:
    template = ChatTemplate(source)
    return template.render(HELLO, **ThinkingSwitch.of(template).variables(wish, given))


@pytest.mark.parametrize(
    ("source", "wish", "shown"),
    [
        (BY_NAME, OFF, "off"),
        (BY_NAME, ON, ""),
        (BY_NAME, effort("none"), "off"),
        (BY_NAME, effort("high"), ""),
        (OFF_BY_DEFAULT, ThinkingWish(), "False"),
        (OFF_BY_DEFAULT, ON, "True"),
        (OFF_BY_DEFAULT, effort("low"), "True"),
        (OFF_BY_DEFAULT, ThinkingWish(False, "high"), "False"),
        (EITHER, ON, "True"),
        (EITHER, OFF, "False"),
        (WORDS, ThinkingWish(), ""),
        (WORDS, ON, "on"),
        (WORDS, OFF, "off"),
        (OPTION, effort("none"), "off"),
        (OPTION, effort("max"), "on"),
        (BUDGET, ThinkingWish(), ""),
        (BUDGET, ThinkingWish(True, None, 2048), "2048"),
        (BUDGET, OFF, "0"),
        (BUDGET, effort("high"), ""),
        (REASONING, OFF, "False"),
        (REASONING, effort("none"), "False"),
        (REASONING, ON, "True"),
    ],
)
def test_the_switch_reaches_it_by_its_own_name(source, wish, shown):
    assert prompt(source, wish) == shown


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        # none, minimal, low, medium, high, xhigh, max
        (PRINTED, "low low low medium high high high"),
        (TWO, "high high high high high max max"),
        (NEUTRAL, "- - - - much most most"),
        (THREE, "low low low medium xhigh xhigh xhigh"),
        (ONE_OR_NONE, "none high high high high high high"),
    ],
)
def test_an_effort_is_the_nearest_that_it_knows(source, shown):
    words = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    assert [prompt(source, effort(word)) or "-" for word in words] == shown.split()


def test_what_is_given_by_name_stays_and_sets_the_others():
    assert prompt(OFF_BY_DEFAULT, ThinkingWish(), enable_thinking=True) == "True"
    assert prompt(BY_NAME, ThinkingWish(), thinking=False) == "off"
    assert prompt(WORDS, effort("high"), enable_thinking=False) == "off"
    assert prompt(OFF_BY_DEFAULT, ThinkingWish(), thinking_mode="enabled") == "True"
    assert prompt(OFF_BY_DEFAULT, effort("none"), thinking="loud") == "loud"
    assert prompt(PRINTED, effort("low"), reasoning_effort="x") == "x"


def test_what_it_does_not_read_is_not_given():
    switch = ThinkingSwitch.of(ChatTemplate("{{ messages[0].content }}"))
    for wish in (OFF, ON, effort("high"), ThinkingWish(True, "max", 4096)):
        assert switch.variables(wish, {}) == {}
    assert ThinkingSwitch.of(None).variables(OFF, {"a": 1}) == {"a": 1}


def test_a_template_for_tools_is_read_too():
    template = ChatTemplate("plain", tool_source=OFF_BY_DEFAULT)
    variables = ThinkingSwitch.of(template).variables(ON, {})
    assert template.render(HELLO, tools=[{}], **variables) == "True"
