"""benchmarks/templates.py: what it reads off a template, and how it judges what is read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.template_calls import (
    ASKED,
    CALLS,
    LEFT_OUT,
    SPECIAL,
    THOUGHTS,
    Written,
    differing_cut,
    read,
    right,
    written,
)
from benchmarks.template_chats import CHATS, judged
from benchmarks.templates import DOCS, family_of, formats, main, row, table
from radixlm.parsers.style import AnswerStyle
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.model_folder import DEMO_MODEL
from radixlm.text.tokenizer import Tokenizer

# Thinks where it is asked to; writes calls as Hermes' models do; takes one system message, first.
SOURCE = """{%- if tools %}<|start|>system
{% if messages[0].role == "system" %}{{ messages[0].content }}
{% endif %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call as <tool_call>{"name": ..., "arguments": ...}</tool_call><|end|>
{% elif messages[0].role == "system" %}<|start|>system
{{ messages[0].content }}<|end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "system" and not loop.first %}{{ raise_exception("system comes first") }}
{%- elif message.role == "user" or message.role == "tool" %}<|start|>user
{{ message.content }}<|end|>
{% elif message.role == "assistant" %}<|start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant
{% if enable_thinking %}<think>
{% endif %}{% endif %}"""
TEMPLATE = ChatTemplate(SOURCE, SPECIAL)
STYLE = AnswerStyle.of(SOURCE)
ONE = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 2}}\n</tool_call>'


def test_a_turn_is_what_the_template_writes_between_the_prompt_and_the_turns_end() -> None:
    made = written(TEMPLATE, CALLS["one"])
    assert isinstance(made, Written)
    assert made.prompt.endswith(f"{ASKED}<|end|>\n<|start|>assistant\n")
    assert (made.text.strip(), made.how) == (ONE, "")


def test_arguments_are_given_as_text_where_the_template_wants_that() -> None:
    wants_text = SOURCE.replace("arguments | tojson", "arguments + ''")
    made = written(ChatTemplate(wants_text, SPECIAL), CALLS["one"])
    assert isinstance(made, Written)
    assert (made.text.strip(), made.how) == (ONE, "arguments as text")


def test_what_the_template_does_not_write_has_a_reason() -> None:
    assert written(ChatTemplate("{{ messages[0].content }}", SPECIAL), CALLS["one"]) == LEFT_OUT
    refusing = ChatTemplate("{{ raise_exception('no') }}", SPECIAL)
    assert written(refusing, CALLS["one"]) == "the chat template refuses: no"


@pytest.mark.parametrize("name", [*CALLS, *THOUGHTS])
def test_turns_are_read_back_whole_and_in_pieces(name: str) -> None:
    turn = {**CALLS, **THOUGHTS}[name]
    made = written(TEMPLATE, turn)
    assert isinstance(made, Written)
    found = read(STYLE, made.prompt, [made.text])
    assert right(found, turn)
    assert differing_cut(STYLE, made, found) is None
    assert differing_cut(STYLE, made, found._replace(text="x")) == "each character"


def test_another_value_or_text_beside_the_call_is_not_right() -> None:
    assert right(read(STYLE, "", [ONE]), CALLS["one"])
    assert not right(read(STYLE, "", [ONE.replace("2", "2.0")]), CALLS["one"])
    assert not right(read(STYLE, "", [f"Sure {ONE}"]), CALLS["one"])
    assert not right(read(STYLE, "", [ONE[:-20]], cut=True), CALLS["one"])


def outcome_of(kind: str, source: str) -> tuple[str, str]:
    template = ChatTemplate(source, SPECIAL)
    tokenizer = Tokenizer.load(DEMO_MODEL)
    return judged(CHATS[kind], template, AnswerStyle.of(source), tokenizer)[:2]


def test_what_a_conversation_loses_is_named() -> None:
    assert outcome_of("two calls", SOURCE) == ("ok", "")
    without = SOURCE.replace(' or message.role == "tool"', "")
    assert outcome_of("two calls", without) == ("ok", "")  # they are text then
    assert outcome_of("several turns", "x") == ("lost", "asks-one says-one asks-two")
    backwards = SOURCE.replace("for message in messages", "for message in messages | reverse")
    assert outcome_of("several turns", backwards)[0] == "out of order"
    refusing = "{{ raise_exception('no') }}"
    assert outcome_of("several turns", refusing) == ("refused", "the chat template refuses: no")


def test_the_table_has_a_row_for_each_way(tmp_path: Path) -> None:
    path = tmp_path / "xin-Own-3.1-8B-Instruct.jinja"
    path.write_text(SOURCE)
    assert "| hermes | `<think>` |  | Own-3.1 |" in table([row(path, cuts=False)])
    assert family_of("Qwen-Qwen2.5-7B-Instruct") == "Qwen2.5"


def test_the_docs_have_every_format_as_it_is_written_now() -> None:
    made = formats()
    assert made in DOCS.read_text()
    assert "]``` ````" in made  # code blocks in a format do not end the cell's own


def test_it_ends_in_a_json_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.jinja").write_text(SOURCE.replace("system comes first", "no"))
    monkeypatch.setattr("sys.argv", ["templates", str(tmp_path), "--no-cuts"])
    with pytest.raises(SystemExit):
        main()
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["templates"] == 1
    assert report["calls"] == report["thoughts"] == {"right": 1}
