"""Answers read apart, whatever was crooked in them."""

from __future__ import annotations

import pytest

from radixlm.parsers import Answered
from radixlm.parsers.call_format import Written
from radixlm.parsers.families import (
    FUNCTIONARY,
    HERMES,
    JSON,
    KIMI,
    MISTRAL_NAMED,
    PYTHONIC,
    SEED,
)
from radixlm.parsers.formats import FORMATS
from radixlm.parsers.run import LOOK_AHEAD
from radixlm.parsers.thoughts import APRIEL, HUNYUAN, THINK, THOUGHTS
from radixlm.parsers.thoughts import SEED as SEED_THOUGHTS
from tests.unit.parsers.readings import parser_of, read

NOW = '{"name": "now", "arguments": {}}'


@pytest.mark.parametrize("blank", ["\n", " ", "\n  "])
@pytest.mark.parametrize("length", [LOOK_AHEAD - 1, LOOK_AHEAD, LOOK_AHEAD + 1])
@pytest.mark.parametrize("before", ["", "Text.", "```json"])
def test_white_space_is_held_back_up_to_a_length(blank, length, before):
    """Else line breaks without end cost the square of their number."""
    space = (blank * length)[-length:]
    answer = read(HERMES, f"{before}{space}<tool_call>{NOW}</tool_call>")
    assert [call.name for call in answer.calls] == ["now"]
    assert answer.text == before + space[: max(length - LOOK_AHEAD, 0)]
    for written in (NOW, "now[ARGS]{}"):
        for form in (HERMES, JSON, MISTRAL_NAMED):
            read(form, f"{before}{space}{written}")
            read(form, f"{before}\n{written[:4]}{space}{written[4:]}")


@pytest.mark.parametrize("text", ["\n", " ", "{ ", '{"x', "now ", "\n\n\t"])
def test_what_is_given_away_is_not_kept(text):
    parser = parser_of(HERMES)
    answer = Answered()
    for character in text[0] + text[1:] * 5_000 if len(text) > 1 else text * 5_000:
        answer.add(parser.push(character))
    assert len(answer.text) > 4_000


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (KIMI, KIMI.begin + "<|tool_call_begin|>now:0<|tool_call_argument_begin|>{'a': ("),
        (FUNCTIONARY, ">>>now\n{'a': ("),
        (PYTHONIC, "\n[now(a=("),
        (JSON, "\n{'name': ("),
        (JSON, '\n{"id":'),
    ],
)
def test_what_is_not_closed_is_read_once(form, text):
    """Not from each that stands in it up to the answer's end again, for minutes."""
    parser = parser_of(form)
    answer = Answered().add([*parser.push(text * 2_000), *parser.flush()])
    assert len(answer.calls) <= 1
    assert len(answer.text) > 10_000


def test_an_object_that_is_no_call_hides_none_behind_it():
    text = "<tool_call>{'name': 'now', 'a': 'it's'}</tool_call><tool_call>" + NOW + "</tool_call>"
    assert [call.name for call in read(HERMES, text).calls] == ["now"]


def test_calls_that_the_prompt_opened_may_come_behind_thoughts():
    text = "<think>Hm.</think>now\n{}"
    answer = read(FUNCTIONARY, text, thoughts=THINK, begun=True)
    assert [call.name for call in answer.calls] == ["now"]
    assert (answer.text, answer.reasoning) == ("", "Hm.")
    broken = read(FUNCTIONARY, "<think>Hm.</think>no call", thoughts=THINK, begun=True)
    assert (broken.text, broken.reasoning) == ("no call", "Hm.")


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
    late = read(form, text.replace(call, f"{call} More."), thoughts=thoughts)
    assert (late.reasoning, late.text) == ("I look.", "More.\n\nDone.")
    held = read(form, text, thoughts=thoughts, mends=False)
    assert (held.calls, held.text) == ([], "Done.")


@pytest.mark.parametrize("thoughts", dict.fromkeys(filter(None, THOUGHTS.values())))
@pytest.mark.parametrize("opened", [False, True])
def test_a_tag_that_comes_twice_is_dropped_once(thoughts, opened):
    """The second one was said: in an answer about these tags, say."""
    begin, end = thoughts.begin, thoughts.end
    for form in (None, HERMES):
        for text in (f"{end}{end}", f"{end} {end}", f"{begin}{end}{end}"):
            answer = read(form, text, thoughts=thoughts, opened=opened)
            assert (answer.reasoning, answer.text) == ("", end), text
        answer = read(form, f"{begin}{begin}Hm.{end}A{end}B{begin}", thoughts=thoughts)
        assert answer.reasoning == f"{begin.lstrip()}Hm."
        assert answer.text == f"A{end}B{begin}"


def test_a_forgotten_end_of_thoughts_is_dropped_once():
    call = f"<tool_call>{NOW}</tool_call>"
    for said in ("</think></think>Done.", "</think>Done.</think>", "Done.</think></think>"):
        answer = read(HERMES, f"<think>I look.{call}{said}", thoughts=THINK)
        assert (answer.reasoning, answer.text) == ("I look.", said.replace("</think>", "", 1))


@pytest.mark.parametrize(
    ("thoughts", "text", "said"),
    [
        (HUNYUAN, "<answer>A</answer>B</answer>", "AB</answer>"),
        (HUNYUAN, "</think><answer><answer>A</answer>", "<answer>A"),
        (HUNYUAN, "It is <answer>A</answer>.", "It is <answer>A</answer>."),
        (HUNYUAN, "<think>Hm.</think>Write <answer>A</answer>.", "Write <answer>A</answer>."),
        (APRIEL, "A[END FINAL RESPONSE]B[END FINAL RESPONSE]", "AB[END FINAL RESPONSE]"),
    ],
)
def test_tags_around_an_answer_are_dropped_as_a_pair(thoughts, text, said):
    assert read(None, text, thoughts=thoughts).text == said
    assert read(HERMES, text, thoughts=thoughts).text == said


@pytest.mark.parametrize("form", [form for form in FORMATS.values() if form.call == JSON.call])
def test_an_object_may_stand_in_a_code_block_within_its_markers(form):
    text = form.write([Written("now", {"a": 1})])
    fenced = text.replace("{", "\n```json\n{", 1) if form.begin else f"```json\n{text}\n```"
    fenced = fenced.replace("}}", "}}\n```\n") if form.begin else fenced
    answer = read(form, fenced)
    assert [call.arguments for call in answer.calls] == ['{"a": 1}']
    assert answer.text == ""
