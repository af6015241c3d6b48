"""ChatTemplate: found where models keep it, rendered as Transformers does, and fenced in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixlm.core.errors import InvalidRequestError, ModelError
from radixlm.text.chat_template import ChatTemplate, require_template

CHATML = """{{ bos_token }}{% for message in messages %}
    {% if message.role == 'alien' %}{{ raise_exception('no aliens: ' ~ message.role) }}{% endif %}
<|im_start|>{{ message['role'] }}
{{ message['content'] | trim }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""
HELLO = [{"role": "user", "content": "Hello"}]


def chatml() -> ChatTemplate:
    return ChatTemplate(CHATML, {"bos_token": "<s>"})


def test_renders_turns_and_the_opening_of_the_answer():
    assert chatml().render(HELLO) == (
        "<s><|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chatml().render(HELLO, add_generation_prompt=False).endswith("<|im_end|>\n")


def test_text_parts_are_lines():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na\nb<|im_end|>" in chatml().render([{"role": "user", "content": parts}])
    with pytest.raises(InvalidRequestError, match="only text parts"):
        chatml().render([{"role": "user", "content": [{"type": "image_url"}]}])


def test_content_is_never_evaluated():
    text = "{{ 1 + 1 }}{% for x in y %}"
    assert text in chatml().render([{"role": "user", "content": text}])


def test_the_last_message_can_be_gone_on_with():
    messages = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    text = chatml().render(messages, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nOnce upon")
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        chatml().render(messages, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(InvalidRequestError, match="last message with text"):
        chatml().render([], continue_final_message=True)
    with pytest.raises(InvalidRequestError, match="leaves out the last message"):
        ChatTemplate("nothing").render(HELLO, continue_final_message=True)


def test_the_template_s_own_refusal_is_the_error():
    with pytest.raises(InvalidRequestError, match="no aliens: alien") as caught:
        chatml().render([{"role": "alien", "content": ""}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ [].extend([1]) }}",
        "{{ lipsum(n=10**9) }}",
        "{{ lipsum.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
    ],
)
def test_whatever_goes_wrong_in_a_template_is_an_invalid_request(source):
    with pytest.raises(InvalidRequestError, match="refuses these messages"):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{{ range.__self__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages | attr('__class__') }}",
        "{{ messages | map(attribute='__class__') | join }}",
    ],
)
def test_what_lies_behind_a_value_is_not_there(source):
    assert ChatTemplate(source).render(HELLO) == ""


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% for a in range(10**9) %}{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ 10**9 * ['x'] }}",
        "{{ 9**9**9 }}",
        "{% for a in range(90) %}{{ 'x' * 900000 }}{% endfor %}",
    ],
)
def test_endless_work_is_cut_off(source):
    with pytest.raises(InvalidRequestError, match=r"too large|too often|too much"):
        ChatTemplate(source).render(HELLO)


def test_extras_that_templates_use():
    assert ChatTemplate("{{ {'a': '<é>'} | tojson }}").render(HELLO) == '{"a": "<é>"}'
    assert ChatTemplate("{{ [1] | tojson(indent=1) }}").render(HELLO) == "[\n 1\n]"
    assert len(ChatTemplate("{{ strftime_now('%Y') }}").render(HELLO)) == 4
    assert ChatTemplate("{% for a in [1,2] %}{{ a }}{% break %}{% endfor %}").render(HELLO) == "1"
    assert ChatTemplate("{% generation %}x{% endgeneration %}").render(HELLO) == "x"
    own = "{% set ns = namespace(q=[]) %}{% set _ = ns.q.append(1) %}{{ ns.q }}"
    assert ChatTemplate(own).render(HELLO) == "[1]"
    given = [dict(HELLO[0])]
    changed = (
        "{% for m in messages %}{% set m.content = 'x' %}{% endfor %}{{ messages[0].content }}"
    )
    assert ChatTemplate(changed).render(given) == "x"
    assert given == HELLO
    assert (
        ChatTemplate("{{ enable_thinking }}{{ tools is none }}").render(
            HELLO, enable_thinking=False
        )
        == "FalseTrue"
    )


def test_variables_cannot_replace_the_messages():
    assert ChatTemplate("{{ messages[0].role }}").render(HELLO, messages=[]) == "user"


def test_broken_templates_are_model_errors():
    with pytest.raises(ModelError, match="not valid Jinja"):
        ChatTemplate("{% if %}")


def test_missing_template_says_how_to_give_one(tmp_path: Path):
    template = ChatTemplate.load(tmp_path)
    assert template is None
    with pytest.raises(InvalidRequestError, match="--chat-template"):
        require_template(template)
    assert require_template(chatml()) is not None


def _config(folder: Path, template: object) -> None:
    config = {"chat_template": template, "bos_token": {"content": "<b>"}, "eos_token": "<e>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_sources_in_their_order(tmp_path: Path):
    _config(tmp_path, "config {{ bos_token }}{{ eos_token }}")
    assert ChatTemplate.load(tmp_path).render(HELLO) == "config <b><e>"
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")
    assert ChatTemplate.load(tmp_path).render(HELLO) == "file <b>"
    override = tmp_path / "mine.jinja"
    override.write_text("mine {{ bos_token }}")
    assert ChatTemplate.load(tmp_path, override).render(HELLO) == "mine <b>"
    with pytest.raises(ModelError, match=r"--chat-template .*no such file"):
        ChatTemplate.load(tmp_path, tmp_path / "gone.jinja")
    with pytest.raises(ModelError, match="cannot be read"):
        ChatTemplate.load(tmp_path, tmp_path)


def test_templates_in_files_of_their_own(tmp_path: Path):
    _config(tmp_path, None)
    (tmp_path / "chat_template.json").write_text('{"chat_template": "json {{ bos_token }}"}')
    assert ChatTemplate.load(tmp_path).render(HELLO) == "json <b>"
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("tools")
    (more / "rag.jinja").write_text("{% broken")
    _config(tmp_path, "config")
    template = ChatTemplate.load(tmp_path)
    assert template.render(HELLO) == "config"
    assert template.render(HELLO, tools=[{"name": "f"}]) == "tools"
    (tmp_path / "chat_template.jinja").write_text("file")
    template = ChatTemplate.load(tmp_path)
    assert (template.render(HELLO), template.render(HELLO, tools=[{}])) == ("file", "tools")


def test_templates_may_name_all_tokens_of_the_config(tmp_path: Path):
    tokens = {"image_token": "<i>", "sep_token": {"content": "<s>"}, "add_bos_token": True}
    config = {"chat_template": "{{ image_token }}{{ sep_token }}{{ x_token }}", **tokens}
    config["extra_special_tokens"] = {"x_token": "<x>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.load(tmp_path).render(HELLO) == "<i><s><x>"


def test_named_templates(tmp_path: Path):
    _config(tmp_path, [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}])
    assert ChatTemplate.load(tmp_path).render(HELLO) == "d"
    _config(
        tmp_path,
        [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t{{ tools }}"}],
    )
    template = ChatTemplate.load(tmp_path)
    assert template.render(HELLO) == template.render(HELLO, tools=None) == "d"
    assert template.render(HELLO, tools=[7]) == "t[7]"
    assert (template.source, template.tool_source) == ("d", "t{{ tools }}")
    _config(tmp_path, [{"name": "rag", "template": "r"}])
    with pytest.raises(ModelError, match="only rag"):
        ChatTemplate.load(tmp_path)
    for broken in (7, {"name": "default"}, {"name": 1, "template": "d"}):
        _config(tmp_path, [broken])
        with pytest.raises(ModelError, match="needs a name and a template"):
            ChatTemplate.load(tmp_path)
    _config(tmp_path, 7)
    with pytest.raises(ModelError, match="not a text"):
        ChatTemplate.load(tmp_path)
