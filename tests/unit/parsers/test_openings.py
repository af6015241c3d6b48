"""Where calls begin, and what only looks like one."""

from __future__ import annotations

import pytest

from radixlm.parsers import families
from radixlm.parsers.call_format import Written
from radixlm.parsers.formats import FORMATS
from tests.unit.parsers.readings import read

CALL = '{"name": "now", "arguments": {}}'
FORMS = {form: name for name, form in reversed(FORMATS.items()) if not form.channels}


@pytest.mark.parametrize("form", FORMS, ids=FORMS.values())
@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "age": 3}',
        '{"name": "now", "version": "1.0"}',
        '[{"name": "Ann", "age": 1}, {"name": "Bob", "age": 2}]',
        f"So it looks:\n\n```json\n{CALL}\n```\n\nSend it.",
        f"So it looks:\n```json\n// first\n{CALL}\n```\nSend it.",
        f"So it looks:\n```json\n[\n  {CALL}\n]\n```\nSend it.",
        f"Write `{CALL}` to call it.",
        "So it looks:\n```python\nimport x\nnow()\n```\nSend it.",
        "now\nThis tool says how late it is.\nnow: 12:00",
        "now (that is, today) we go.",
        "now {x} is a placeholder, and now { is a brace.",
        "```sh\nls\n```\nnow{ls}",
        "Models open calls with `<tool_call>` and close them with `</tool_call>`.",
        "For instance:\n```\n<tool_call>\n" + CALL.replace("now", "mine") + "\n</tool_call>\n```",
        "Mistral writes [TOOL_CALLS] and [ARGS] there.",
        "They write `<function=now>` and `<invoke name='now'>`.",
    ],
)
def test_answers_that_talk_of_calls_are_text(form, text):
    answer = read(form, text)
    assert (answer.calls, answer.text) == ([], text)


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        (families.HERMES, CALL, ""),
        (families.HERMES, f"I look. {CALL}", "I look."),
        (families.HERMES, f"I look.\n```sh\nls\n```\n{CALL}", "I look.\n```sh\nls\n```"),
        (families.HERMES, f"```json\n{CALL}\n```", ""),
        (families.QWEN_CODER, "<function=now>\n</function>", ""),
        (families.QWEN_CODER, "I look.\n<function=now>\n</function>\n</tool_call>", "I look."),
        (families.GLM47, "I look.\nnow</tool_call>", "I look."),
        (families.KIMI, "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}", ""),
        (families.MISTRAL_NAMED, "now[ARGS]{}", ""),
        (families.DEEPSEEK31, "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>", ""),
        (families.DEEPSEEK32, '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>', ""),
        (families.MINIMAX, '<invoke name="now">\n</invoke>', ""),
        (families.GEMMA4, "call:now{}<tool_call|>", ""),
        (families.PYTHONIC, "I look.\n[now()]", "I look."),
    ],
)
def test_a_known_tool_s_call_needs_no_opening_marker(form, text, said):
    answer = read(form, text)
    assert [(call.name, call.arguments) for call in answer.calls] == [("now", "{}")]
    assert answer.text == said
    assert read(form, text.replace("now", "rm"), mends=False).calls == []


@pytest.mark.parametrize("form", [form for form in FORMS if form.begin])
def test_unknown_tools_calls_are_passed_on(form):
    """The client says what there is; where a grammar held the answer, there are none but known."""
    text = form.write([Written("rm", {"a": 1})])
    assert [call.name for call in read(form, text).calls] == ["rm"]
    assert read(form, text, mends=False).calls == []
    assert read(form, form.write([Written("r m `", {"a": 1})])).calls == []
