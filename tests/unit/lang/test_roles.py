"""Messages as text: by templates as they are, or by habit."""

from __future__ import annotations

import pytest

from radixlm.core.errors import InvalidRequestError
from radixlm.lang.transcript import HABITS, Answer, TemplateRoles, Transcript, habit_of
from radixlm.text.chat_template import ChatTemplate
from tests.server_support import CHATML

CHAT = (("system", "be brief"), ("user", "hi"), ("assistant", "yes"), ("user", "why"))
MISTRAL = (
    "{{ '<s>' }}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}"
    "{% if not loop_messages %}{{ raise_exception('a user must speak') }}{% endif %}"
    "{% for m in loop_messages %}{% if m.role == 'user' %}[INST] "
    "{% if loop.first and system is defined %}{{ system + '\\n\\n' }}{% endif %}"
    "{{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
THINKS = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write(roles, chat):
    said = Transcript(roles)
    for role, content in chat:
        said.begin(role)
        said.take(Answer(content)) if role == "assistant" else said.write(content)
        said.end(role)
    return said.text


@pytest.mark.parametrize("source", [CHATML, MISTRAL])
@pytest.mark.parametrize("chat", [CHAT, CHAT[1:], CHAT[:2], CHAT[1:2], CHAT[:3]])
def test_a_chat_is_what_the_template_writes(source, chat):
    template = ChatTemplate(source)
    messages = [{"role": role, "content": content} for role, content in chat]
    whole = template.render(messages, add_generation_prompt=False)
    assert write(TemplateRoles(template), chat) == whole


def test_an_answer_begins_where_the_template_asks_for_it():
    assert write(TemplateRoles(ChatTemplate(THINKS)), CHAT[1:3]) == (
        "<|user|>hi<|end|><|assistant|>yes<|end|>"
    )


def test_what_the_tokenizer_gives_is_not_written_twice():
    assert write(TemplateRoles(ChatTemplate(MISTRAL), "<s>"), CHAT[1:2]) == "[INST] hi [/INST]"


def test_a_template_that_rewrites_what_was_said_is_refused():
    source = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(InvalidRequestError, match="changes earlier messages"):
        write(TemplateRoles(ChatTemplate(source)), CHAT)


def test_a_role_that_is_left_out_is_refused():
    source = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(InvalidRequestError, match="leaves out messages of assistant"):
        write(TemplateRoles(ChatTemplate(source)), CHAT[1:3])


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen2.5-7B", "qwen"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-instruct"),
        ("google/gemma-2-9b-it", "gemma-it"),
        ("nobody/knows", "default"),
    ],
)
def test_habits_by_the_model_s_name(model, name):
    assert habit_of(model) == habit_of("", name) == HABITS[name]


def test_a_default_system_message_comes_first():
    assert write(habit_of("Qwen3"), CHAT[1:2]).startswith("<|im_start|>system\nYou are")
    assert "You are" not in write(habit_of("Qwen3"), CHAT)
    with pytest.raises(ValueError, match="chat_template_name is one of"):
        habit_of("", "nope")
    assert "default" in HABITS
