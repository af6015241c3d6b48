"""Which format and thoughts a template shows, by what it writes."""

from __future__ import annotations

import pytest

from radixlm.parsers.formats import FORMATS
from radixlm.parsers.style import AnswerStyle
from radixlm.parsers.thoughts import THOUGHTS
from tests import family_templates


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
