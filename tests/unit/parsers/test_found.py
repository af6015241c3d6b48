"""Which format and thoughts a template shows, by what it writes."""

from __future__ import annotations

import pytest

from radixlm.parsers.families import HERMES, SEED
from radixlm.parsers.formats import FORMATS
from radixlm.parsers.style import AnswerStyle
from radixlm.parsers.thoughts import SEED as SEED_THOUGHTS
from radixlm.parsers.thoughts import THINK, THOUGHTS
from tests import family_templates
from tests.unit.parsers.readings import read


@pytest.mark.parametrize("name", family_templates.CALLS)
def test_the_format_of_calls(name):
    """Whatever the source's comments, and what it never writes, say of other formats."""
    assert AnswerStyle.of(family_templates.CALLS[name]) == AnswerStyle(FORMATS[name], None)


@pytest.mark.parametrize(("name", "way"), family_templates.THOUGHTS)
def test_thoughts(name, way):
    template = family_templates.THOUGHTS[name, way]
    assert AnswerStyle.of(template).thinking == THOUGHTS[name]


def test_words_that_are_told_of_the_tools_show_no_thoughts():
    told = family_templates.framed(tools="Write <tool_call>, and never [TOOL_CALLS]. ")
    assert AnswerStyle.of(told) == AnswerStyle.of(family_templates.framed())


@pytest.mark.parametrize(
    ("form", "thoughts", "call"),
    [
        (HERMES, THINK, '<tool_call>{"name": "now", "arguments": {}}</tool_call>'),
        (SEED, SEED_THOUGHTS, "<seed:tool_call><function=now></function></seed:tool_call>"),
    ],
)
def test_a_call_in_open_thoughts_ends_them(form, thoughts, call):
    text = f"{thoughts.begin}I look.\n{call}\n{thoughts.end}\n\nDone."
    answer = read(form, text, thoughts=thoughts)
    assert (answer.reasoning, answer.text) == ("I look.", "Done.")
    assert [made.name for made in answer.calls] == ["now"]
    held = read(form, text, thoughts=thoughts, mends=False)
    assert (held.calls, held.text) == ([], "Done.")
