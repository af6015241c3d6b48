"""Answers that are left open."""

from __future__ import annotations

import pytest

from radixlm.text.chat_template import ChatTemplate
from tests.conversations import call, result, said, user

PLAIN = """{%- for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
# As it writes a last answer, it writes its thoughts, too, whether there are any or not.
THINKS = """{%- for m in messages %}<{{ m.role }}>
{%- if m.role == "assistant" and loop.last %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}</{{ m.role }}>
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
# Thoughts are opened by the prompt, and left out of all answers.
OPENED = """{%- for m in messages %}<{{ m.role }}>
{{- m.content.split("</think>")[-1] | trim }}</{{ m.role }}>
{%- endfor %}
{%- if add_generation_prompt %}<assistant><think>
{% endif %}"""
ANSWERLESS = """{%- for m in messages if m.role != "assistant" %}<user>{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
OPEN, OVER = "<think>\nI see", "<think>\nI see\n</think>\n\nIt is "


@pytest.mark.parametrize(
    ("source", "text", "thoughts", "end"),
    [
        (PLAIN, "It is ", None, "<assistant>It is "),
        (PLAIN, "", None, "<assistant>"),
        (PLAIN, OPEN, None, f"<assistant>{OPEN}"),
        (PLAIN, "", "I see", f"<assistant>{OPEN}"),
        (PLAIN, "It is ", "I see", f"<assistant>{OVER}"),
        (THINKS, "It is ", None, "<assistant><think>\n\n</think>\n\nIt is "),
        (THINKS, "It is ", "I see", f"<assistant>{OVER}"),
        (THINKS, "", "I see", f"<assistant>{OPEN}"),
        (THINKS, OPEN, None, f"<assistant>{OPEN}"),
        (THINKS, OVER, None, f"<assistant>{OVER}"),
        (OPENED, "It is ", None, "<assistant>It is "),
        (OPENED, "\n It is", None, "<assistant>\n It is"),
        (OPENED, OPEN, None, f"<assistant>{OPEN}"),
        (OPENED, "<think>I see", None, "<assistant><think>I see"),
        (OPENED, OVER, None, f"<assistant>{OVER}"),
        (OPENED, "", "I see", f"<assistant>{OPEN}"),
        (OPENED, "It is ", "I see", f"<assistant>{OVER}"),
        (ANSWERLESS, "It is ", None, "<assistant>It is "),
    ],
)
def test_the_prompt_ends_as_the_answer_was_given(
    source: str, text: str, thoughts: str | None, end: str
) -> None:
    template = ChatTemplate(
        source.replace("{{ m.reasoning_content }}", "{{ m.reasoning_content or '' }}")
    )
    messages = [user("Why <think>?"), said(text, thoughts)]
    prompt = template.render_chat(messages, described=False, continue_final_message=True)
    assert prompt.endswith(end)
    assert prompt.count("<assistant>") == 1


def test_a_call_is_whole() -> None:
    """There is nothing to go on with, so the next answer begins."""
    messages = [user("a"), said("b", None, call("i", "f")), result("i", "f", "c")][:2]
    prompt = ChatTemplate(PLAIN).render_chat(messages, described=False, continue_final_message=True)
    assert prompt.endswith('"arguments": {}}</assistant><assistant>')
