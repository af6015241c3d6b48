"""Finds the formats of a model's calls and thoughts, by what its chat template writes.

Small conversations are rendered. The format of calls is the one whose parser gives back the call
that the template wrote; never a word in the template's source. A template that writes no calls
shows its format in what it says of tools, or else the tools are described by us.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.core.keys import common_beginning
from radixlm.parsers import Answered, thoughts
from radixlm.parsers.call_format import CallFormat, Written
from radixlm.parsers.families import JSON
from radixlm.parsers.formats import FORMATS
from radixlm.parsers.harmony import HarmonyReader
from radixlm.parsers.one_call import Offered
from radixlm.parsers.reader import AnswerReader
from radixlm.parsers.thoughts import Thoughts
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.thinking_switch import ThinkingSwitch, ThinkingWish

BY_ITS_CALL = "a call that it wrote"  # what shows most formats
_NAME = "look_up_weather"
_CALL = Written(_NAME, {"city": "Oberwil im Simmental", "days": 27})
_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "Weather.", "parameters": _PARAMETERS},
}
_QUESTION = {"role": "user", "content": "How is the weather?"}
_RESULT = {"role": "tool", "tool_call_id": "call00001", "name": _NAME, "content": "Fine."}
_THOUGHT, _ANSWER = "it rains perhaps", "it shines"
# A marker of which only the beginning stands there.
_OPENED = re.compile(r"[<\[][^<>\[\]\s]*\Z")
_LONGEST_MARKER = 100
_KNOWN = tuple(
    dict.fromkeys(
        form for form in thoughts.THOUGHTS.values() if form and form is not thoughts.ALWAYS
    )
)


class FoundFormat(NamedTuple):
    """how: what showed it, in words for people."""

    calls: CallFormat
    how: str


def calls_in(template: ChatTemplate) -> FoundFormat:
    """The format of calls of a template's models. Takes some milliseconds."""
    formats = list(dict.fromkeys(FORMATS.values()))
    itself = not template.fit(described=True, tools=True).calls_in_text
    with_tools = _rendered(template, [_QUESTION], [_TOOL])
    for prompt, written in _written_calls(template, with_tools) if itself else ():
        fitting = [(_fit(form, prompt, written), form) for form in formats]
        best = max(fitting, key=lambda entry: entry[0] or (-len(written), 0))
        if best[0] is not None:
            return FoundFormat(best[1], BY_ITS_CALL)
    for form in formats:
        if any(sign in with_tools for sign in form.signs):
            described = not template.fit(described=True, tools=True).tools_in_text
            return FoundFormat(replace(form, described=described), "what it says of tools")
    return FoundFormat(JSON, "our own description")


def _written_calls(template: ChatTemplate, asked: str) -> Iterator[tuple[str, str]]:
    """Prompts, and what the template writes after them for a turn with a call, in the ways that it
    takes one. asked: the prompt that asks for one.
    """
    call = {"id": "call00001", "type": "function", "function": _CALL._asdict()}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    for answered in (False, True):
        turns = [_QUESTION, said, *([_RESULT] if answered else ())]
        after = _rendered(template, turns, [_TOOL], add_generation_prompt=False)
        end = _common(asked, after)
        prompt, written = after[:end], after[end:]
        if _NAME in written or str(_CALL.arguments["city"]) in written:
            yield prompt, written


def _fit(form: CallFormat, prompt: str, written: str) -> tuple[int, int] | None:
    """How well a format reads the call that was written; None where it reads another, or none."""
    offered = Offered({_NAME: _PARAMETERS})
    reader: AnswerReader | HarmonyReader
    if form.channels:
        reader = HarmonyReader(offered, str)
    else:
        reader = AnswerReader(form, offered, str, begun=form.opened_by(prompt))
    said = Answered().add(reader.push(written)).add(reader.flush())
    calls = [Written(call.name, _object(call.arguments)) for call in said.calls]
    if calls != [_CALL]:
        return None
    own = form.write([_CALL])
    verbatim = len(own) * (own in prompt[len(prompt) - len(form.begin) :] + written)
    return -len(said.text), verbatim


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def thoughts_in(template: ChatTemplate, switch: ThinkingSwitch) -> Thoughts | None:
    """How a template's models write thoughts; None where it shows none."""
    texts = list(_with_thoughts(template, switch))
    said = "\n".join(texts)
    opened = tuple(text.rstrip()[-_LONGEST_MARKER:] for text in texts)
    marked = [form for form in _KNOWN if form.begin and _shows(form, said, opened)]
    if marked:
        return max(marked, key=lambda form: (_weight(form, said), len(form.end)))
    taken = [form for form in _KNOWN if _takes_apart(template, form)]
    return taken[0] if taken else None


def _shows(form: Thoughts, said: str, ends: Sequence[str]) -> bool:
    """Whether a template wrote a form's end or sign, or prompts that the form's begin ends."""
    written = (form.end.strip(), *form.signs)
    return any(text in said for text in written) or any(
        end.endswith(form.begin.strip()) for end in ends
    )


def _weight(form: Thoughts, said: str) -> int:
    """How much of a form's markers there is."""
    return sum(bool(marker) and marker.strip() in said for marker in form.literals)


def _with_thoughts(template: ChatTemplate, switch: ThinkingSwitch) -> Iterator[str]:
    """The text that the template writes where thoughts may stand."""
    call = {"id": "call00001", "type": "function", "function": _CALL._asdict()}
    said = {"role": "assistant", "content": _ANSWER, "reasoning_content": _THOUGHT}
    calling = {**said, "content": "", "tool_calls": [call]}
    wishes = (ThinkingWish(), ThinkingWish(on=True), ThinkingWish(on=False))
    for variables in (switch.variables(wish, {}) for wish in wishes):
        yield _rendered(template, [_QUESTION], **variables)
        yield _rendered(template, [_QUESTION], [_TOOL], **variables)
        yield _rendered(template, [_QUESTION, said], **variables)
        yield _rendered(template, [_QUESTION, calling, _RESULT], [_TOOL], **variables)


def _takes_apart(template: ChatTemplate, form: Thoughts) -> bool:
    """Whether the template leaves out thoughts that stand in an earlier answer's text."""
    answer = f"{form.begin}\n{_THOUGHT}\n{form.end}\n\n{_ANSWER}"
    said = _rendered(template, [_QUESTION, {"role": "assistant", "content": answer}, _QUESTION])
    return _ANSWER in said and _THOUGHT not in said


def _rendered(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Iterable[Mapping[str, Any]] = (),
    **more: Any,
) -> str:
    """The prompt; "" where the template refuses."""
    try:
        return template.render_chat(messages, list(tools), described=True, **more)
    except InvalidRequestError:
        return ""


def _common(one: str, other: str) -> int:
    """How many characters both begin with, but no part of a marker."""
    end = common_beginning(one, other)
    opened = _OPENED.search(other, 0, end)
    return opened.start() if opened else end
