"""What is done to messages for a template that wants it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from radixlm.core.errors import InvalidRequestError
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.fitting import Fit, fitted, spelled
from radixlm.text.tool_text import AS_JSON
from tests.conversations import BOTH, call, parts, result, said, system, user
from tests.picky_templates import CHANNELS, FIRST, FOLDED

Json = dict[str, Any]
ONE, TWO = call("a", "f", x="1"), call("b", "g", y="2")
WRITTEN = '{"name": "f", "arguments": {"x": "1"}}'
GAVE, ALSO = result("a", "f", "one"), result("b", "g", "two")


def fit_of(messages: list[Json], tools: tuple[Json, ...] = (), **wanted: Any) -> list[Json]:
    fit = Fit(**wanted)
    return [spelled(each, fit) for each in fitted(messages, tools, fit, AS_JSON).messages]


def test_by_default_nothing_is_done() -> None:
    messages = [system("a"), system("b"), user("c"), said("", None, ONE, TWO), ALSO, GAVE]
    made = fitted(messages, BOTH, Fit(), AS_JSON)
    assert made == (messages, [*BOTH], ())


@pytest.mark.parametrize(
    ("name", "given", "made"),
    [
        ("systems_joined", [system("a"), system("b"), user("c")], [system("a\n\nb"), user("c")]),
        (
            "systems_joined",
            [system("a", "developer"), system(""), user("c"), system("d")],
            [system("a"), user("c"), system("d")],
        ),
        ("system_folded", [system("a"), system("b"), user("c")], [user("a\n\nb\n\nc")]),
        ("system_folded", [system("a"), said("b")], [user("a"), said("b")]),
        ("system_folded", [system("a")], [user("a")]),
        ("system_folded", [system(""), user("c")], [user("c")]),
        (
            "late_system_folded",
            [system("a"), user("b"), system("c"), said("d")],
            [system("a"), user("b"), user("c"), said("d")],
        ),
        ("user_first", [system("a"), said("b")], [system("a"), user(""), said("b")]),
        ("user_first", [system("a"), user("b")], [system("a"), user("b")]),
        ("user_first", [system("a")], [system("a"), user("")]),
        (
            "roles_alternate",
            [said("a"), said("b"), user("c"), user("d")],
            [user(""), said("a"), user(""), said("b"), user("c"), said(""), user("d")],
        ),
        (
            "roles_alternate",
            [user("a"), said("", None, ONE), GAVE, user("b")],
            [user("a"), said("", None, ONE), GAVE, said(""), user("b")],
        ),
        (
            "answer_after_results",
            [said("", None, ONE), GAVE, user("a")],
            [said("", None, ONE), GAVE, said(""), user("a")],
        ),
        (
            "one_call_a_message",
            [said("x", "t", ONE, TWO), ALSO, GAVE],
            [said("x", "t", ONE), GAVE, said("", None, TWO), ALSO],
        ),
        (
            "one_call_a_message",
            [said("", None, ONE, TWO), ALSO, user("c")],
            [said("", None, ONE), said("", None, TWO), ALSO, user("c")],
        ),
        (
            "results_by_call",
            [said("", None, ONE, TWO), ALSO, GAVE],
            [said("", None, ONE, TWO), GAVE, ALSO],
        ),
        (
            "text_before_calls",
            [said("x", "t", ONE), GAVE],
            [said("x"), said("", "t", ONE), GAVE],
        ),
        (
            "text_in_thoughts",
            [said("x", "t", ONE), GAVE, said("y"), said("x", "t", ONE), GAVE, said("z", None, TWO)],
            [
                *(said("x", "t", ONE), GAVE, said("y")),
                *(said("", "t\n\nx", ONE), GAVE, said("z", None, TWO)),
            ],
        ),
        ("calls_in_text", [said("x", None, ONE)], [said(f"x\n{WRITTEN}")]),
        ("calls_in_text", [said("", None, ONE, ONE)], [said(f"{WRITTEN}\n{WRITTEN}")]),
        (
            "results_in_text",
            [GAVE, ALSO, user("c")],
            [user("Result of f:\none\n\nResult of g:\ntwo"), user("c")],
        ),
    ],
)
def test_a_change(name: str, given: list[Json], made: list[Json]) -> None:
    assert fit_of(given, **{name: True}) == made
    fit = Fit(**{name: True})
    assert fitted(given, (), fit, AS_JSON).changes == ((name,) if made != given else ())


def test_texts_before_calls_leave_the_turn_to_the_answer() -> None:
    given = [user("a"), said("x", None, ONE), GAVE, said("y")]
    made = fit_of(given, text_before_calls=True, roles_alternate=True)
    assert made == [user("a"), said("x"), user(""), said("", None, ONE), GAVE, said("y")]


def test_thoughts_of_a_turn_that_goes_on_stay_where_texts_stand_beside_calls() -> None:
    template = ChatTemplate(CHANNELS)
    first = [user("a"), said("b", "c", ONE), GAVE]
    second = [*first, said("d", "e", TWO), ALSO]
    begun, gone_on = (
        template.render_chat(messages, BOTH, described=True, add_generation_prompt=False)
        for messages in (first, second)
    )
    assert "<analysis>c\n\nb<to f>" in begun
    assert gone_on.startswith(begun)
    over = template.render_chat([*second, said("f"), user("g")], BOTH, described=True)
    assert "<final>b<to f>" in over
    assert "<final>d<to g>" in over


def test_ids_are_made_from_the_given_ones() -> None:
    given = [said("", None, call("toolu_01A09q90", "f"), TWO), result("toolu_01A09q90", "f", "x")]
    short, _ = fit_of(given, ids="short"), fit_of(given, ids="named")
    first, second = (each["id"] for each in short[0]["tool_calls"])
    assert first == short[1]["tool_call_id"] != second
    assert all(len(each) == 9 and each.isalnum() for each in (first, second))
    assert short == fit_of([*short], ids="short") == fit_of(given, ids="short")
    named = fit_of(
        [*given, said("", None, call("functions.f:7", "f"), call("c", "f"))], ids="named"
    )
    ids = [each["id"] for message in named for each in message.get("tool_calls", ())]
    assert ids == ["functions.f:0", "functions.g:1", "functions.f:7", "functions.f:3"]
    assert named[1]["tool_call_id"] == "functions.f:0"


def test_fields_are_spelled_as_the_template_reads_them() -> None:
    message = said("x", "t", ONE)
    assert fit_of([message], thoughts_as="thinking") == [{**message, "thinking": "t"}]
    thought, text = {"type": "thinking", "thinking": "t"}, {"type": "text", "text": "x"}
    assert fit_of([message], thoughts_as="part")[0]["content"] == [thought, text]
    assert fit_of([message], thoughts_as="inline")[0]["content"] == "<think>\nt\n</think>\n\nx"
    [called] = fit_of([message], arguments_as_json=True)[0]["tool_calls"]
    assert called["function"] == {"name": "f", "arguments": '{"x": "1"}'}
    assert fit_of([said("")], empty_answer=1)[0]["content"] == parts("")


def test_tools_in_text_stand_behind_the_system_s_words() -> None:
    fit = Fit(tools_in_text=True, calls_in_text=True)
    made = fitted([system("Be kind."), user("a")], BOTH, fit, AS_JSON)
    assert made.tools is None
    assert made.messages[0]["content"].startswith("Be kind.\n\nYou may call functions.")
    assert "answer with nothing but a JSON object" in made.messages[0]["content"]


def test_tools_get_what_they_lack() -> None:
    bare = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {}}}}}
    [tool] = fitted([], [bare], Fit(tools_filled=True), AS_JSON).tools or []
    schema = {"type": "object", "properties": {"x": {"description": ""}}, "required": []}
    assert tool["function"] == {"name": "f", "description": "", "parameters": schema}
    [tool] = fitted([], BOTH[:1], Fit(described_in_schema=True), AS_JSON).tools or []
    assert tool["function"]["parameters"]["description"] == "tells lemon"


def test_each_kind_of_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    template = ChatTemplate(FOLDED)
    with caplog.at_level(logging.INFO, "radixlm.text"):
        for _ in range(2):
            template.render_chat([system("a"), user("b"), user("c")], described=True)
    start = "for this model's chat template, "
    assert [record.getMessage().removeprefix(start) for record in caplog.records] == [
        "system messages stand at the beginning of the first user message",
        "empty messages stand between two of one role",
    ]


def test_what_a_template_refuses_all_the_same_is_tried_in_other_ways() -> None:
    """Its author thought of tools, but not of this one."""
    picky = "{% if tools and 'x' not in tools[0].function.parameters.properties and "
    picky += "tools[0].function.name == 'odd' %}{{ raise_exception('no x') }}{% endif %}"
    template = ChatTemplate(picky + FIRST)
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object"}}}
    text = template.render_chat([user("a")], [odd], described=True)
    assert "You may call functions." in text
    with pytest.raises(InvalidRequestError, match="only text parts"):
        template.render_chat([user([{"type": "image_url"}])], described=True)


PARTS = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.role == 'system' %}{{ m.content if m.content is string else m.content[0].text }}"
    "{% elif m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "system", "user"),
    [
        (PARTS, "a\nb", "<a><b>"),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", "a\nb", "a\nb"),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}", "a\nb", "a\nb"),
        ("{% for m in messages %}[{{ m.role }}]{{ m | tojson }}{% endfor %}", r"a\nb", r"a\nb"),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content + '' }}{% endfor %}", "a\nb", "a\nb"),
    ],
)
def test_several_texts_are_parts_where_a_template_reads_them(source: str, system: str, user: str):
    """Where it reads all of them: this one's first takes only the first of a system message."""
    content = [{"type": "text", "text": text} for text in "ab"]
    said = [{"role": role, "content": content} for role in ("system", "user")]
    text = ChatTemplate(source).render_chat(said, described=False)
    assert system in text.partition("[user]")[0]
    assert user in text.partition("[user]")[2]
    one = ChatTemplate(source).render_chat(
        [{"role": "user", "content": content[:1]}], described=False
    )
    assert "<a>" not in one
