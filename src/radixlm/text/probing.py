"""The abilities of a chat template, found by having it render small conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.text.fitting import INLINE, NO_TEXT, THINKING_PART, Fit, Fitted, fitted
from radixlm.text.tool_text import AS_JSON

Json = dict[str, Any]
# Writes a conversation, with or without the opening of an answer.
Render = Callable[[Fitted, Fit, bool], str]
Change = Mapping[str, Any]

_REFUSED = 1_000
# Arguments and parts that a template writes as it got them.
_LEAKS = ("{'qv0g'", "'type': 'text'", "'type': 'thinking'", '"type": "thinking"')
_NAMES = ("reasoning", "thinking", "thought", THINKING_PART)


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


def _system(text: str) -> Json:
    return {"role": "system", "content": text}


def _said(text: str, *calls: Json, thoughts: str | None = None) -> Json:
    thought = {} if thoughts is None else {"reasoning_content": thoughts}
    called = {"tool_calls": [*calls]} if calls else {}
    return {"role": "assistant", **thought, "content": text, **called}


def _call(call_id: str, name: str, value: str) -> Json:
    function = {"name": name, "arguments": {"qv0g": value}}
    return {"id": call_id, "type": "function", "function": function}


def _result(call_id: str, name: str, text: str) -> Json:
    return {"role": "tool", "content": text, "tool_call_id": call_id, "name": name}


def _tool(name: str, **more: Any) -> Json:
    return {"type": "function", "function": {"name": name, **more}}


# Words that are in no template.
_SYSTEM, _RULE = _system("qv1s"), _system("qv2s")
_ASKS, _GOES_ON, _ENDS = _user("qv3u"), _user("qv4u"), _user("qv5u")
_SAYS, _SAYS_MORE = _said("qv6a"), _said("qv7a")
_CALL, _OTHER = _call("qv8idAB12", "qv8f", "qv8v"), _call("qv9idAB12", "qv9f", "qv9v")
_RESULT, _OTHER_RESULT = _result("qv8idAB12", "qv8f", "qv8r"), _result("qv9idAB12", "qv9f", "qv9r")
_FOREIGN = "call_00_qv0Foreign-Id"
_CALLS, _BOTH, _TALKS = _said("", _CALL), _said("", _CALL, _OTHER), _said("qv0t", _CALL)
_TALKS_MORE = _said("qv1t", _OTHER)
_THINKS = _said("", _CALL, thoughts="qv0h")
_SCHEMA = {"type": "object", "properties": {"qv0g": {"type": "string", "description": "qv0p"}}}
_TOOLS = (
    _tool("qv8f", description="qv8d", parameters={**_SCHEMA, "required": ["qv0g"]}),
    _tool("qv9f", description="qv9d", parameters={**_SCHEMA, "required": []}),
)
_BARE = (
    _tool("qv8f", parameters={"type": "object", "properties": {"qv0g": {"type": "string"}}}),
    _tool("qv9f", parameters={"type": "object", "properties": {}}),
)


class _TemplateProbe(NamedTuple):
    """Conversations, and what helps a template that refuses or leaves out something of them: the
    first that loses nothing is taken.

    grows: what stands before the first message's text is to be the same in all.
    """

    conversations: Sequence[Sequence[Json]]
    changes: Sequence[Change]
    tools: Sequence[Json] = _TOOLS
    grows: bool = False


_ALTERNATE: Change = {"roles_alternate": True, "user_first": True}
_LISTED: Change = {"tools_in_text": True}
_FOLDED: Change = {"system_folded": True}
_TEXT: Change = {"calls_in_text": True, "results_in_text": True}
_NO_TEXTS = range(len(NO_TEXT))
_PROBES = (
    _TemplateProbe(
        [[_ASKS], [_ASKS, _SAYS], [_ASKS, _SAYS, _GOES_ON]],
        [
            {"tools_listed": True},
            {"tools_as_functions": True},
            {"described_in_schema": True},
            *({**_LISTED, **more} for more in ({}, _FOLDED, _ALTERNATE, {**_FOLDED, **_ALTERNATE})),
        ],
    ),
    _TemplateProbe([[_ASKS]], [{"tools_filled": True}, _LISTED, {**_LISTED, **_FOLDED}], _BARE),
    _TemplateProbe(
        [
            [_ASKS, _SAYS, _GOES_ON],
            [_SAYS, _GOES_ON],
            [_ASKS, _GOES_ON],
            [_ASKS, _SAYS, _SAYS_MORE, _GOES_ON],
            [_ASKS, _said(""), _GOES_ON],
        ],
        [
            {**turns, "empty_answer": at}
            for turns in ({}, {"user_first": True}, _ALTERNATE)
            for at in _NO_TEXTS
        ],
    ),
    _TemplateProbe(
        [[_SYSTEM, _ASKS, _SAYS, _GOES_ON], [_SYSTEM, _ASKS, _SAYS], [_SYSTEM, _SAYS, _GOES_ON]],
        [_FOLDED],
    ),
    _TemplateProbe([[_SYSTEM]], [{"user_first": True}, _FOLDED]),
    _TemplateProbe([[_SYSTEM, _RULE, _ASKS]], [{"systems_joined": True}, _FOLDED]),
    _TemplateProbe(
        [
            [_SYSTEM, _ASKS, _SAYS, _RULE, _GOES_ON],
            [_SYSTEM, _ASKS, _RULE, _SAYS, _GOES_ON],
            [_ASKS, _SAYS, _RULE, _GOES_ON, _SAYS_MORE],
            [_SYSTEM, _ASKS, _SAYS, _RULE],
        ],
        [
            {"late_system_folded": True},
            {"late_system_folded": True, **_ALTERNATE},
        ],
    ),
    _TemplateProbe(
        [[_ASKS], [_ASKS, _SAYS, _RULE, _GOES_ON], [_ASKS, _RULE, _SAYS]],
        [{"late_system_folded": True}, {"late_system_folded": True, **_ALTERNATE}],
        grows=True,
    ),
    _TemplateProbe(
        [[_ASKS, _CALLS, _RESULT], [_ASKS, _CALLS, _RESULT, _SAYS, _ENDS]],
        [
            {"arguments_as_json": True},
            {"content_none": True},
            {"content_none": True, "arguments_as_json": True},
            {"ids": "named"},
            {"ids": "short"},
            {"results_in_text": True},
            {"arguments_as_json": True, "results_in_text": True},
            {"calls_in_text": True},
            _TEXT,
        ],
    ),
    _TemplateProbe(
        [[_SYSTEM, _ASKS, _CALLS, _RESULT], [_SYSTEM, _ASKS, _CALLS]],
        [_FOLDED, _LISTED, {**_FOLDED, **_LISTED}],
    ),
    _TemplateProbe(
        [[_ASKS, _said("", _call(_FOREIGN, "qv8f", "qv8v")), _result(_FOREIGN, "qv8f", "qv8r")]],
        [{"ids": "short"}, {"ids": "named"}, _TEXT],
    ),
    _TemplateProbe(
        [[_ASKS, _BOTH, _RESULT, _OTHER_RESULT], [_ASKS, _BOTH, _RESULT, _OTHER_RESULT, _SAYS]],
        [{"one_call_a_message": True}, _TEXT],
    ),
    _TemplateProbe(
        [
            [_ASKS, _TALKS, _RESULT],
            [_ASKS, _TALKS, _RESULT, _SAYS],
            [_ASKS, _TALKS, _RESULT, _SAYS, _ENDS],
            [_ASKS, _CALLS, _RESULT, _TALKS_MORE, _OTHER_RESULT],
            [_ASKS, _CALLS, _RESULT, _GOES_ON, _TALKS_MORE, _OTHER_RESULT],
        ],
        [{"text_before_calls": True}, {"text_before_calls": True, **_ALTERNATE}, _TEXT],
    ),
    _TemplateProbe(
        [
            [_ASKS, _CALLS, _RESULT, _GOES_ON],
            [_ASKS, _CALLS, _GOES_ON],
            [_CALLS, _RESULT, _GOES_ON],
            [_ASKS, _CALLS, _RESULT, _RULE, _SAYS, _GOES_ON],
        ],
        [_ALTERNATE, {"user_first": True}, {"late_system_folded": True}, _TEXT],
    ),
)

_THOUGHT = [_ASKS, _said("qv0t", _CALL, thoughts="qv0h"), _RESULT]
_THOUGHTS = _TemplateProbe(
    [_THOUGHT], [{"text_before_calls": True}, {"text_before_calls": True, **_ALTERNATE}]
)
_THINKS_ON = [*_THOUGHT, _said("qv1t", _OTHER, thoughts="qv1h"), _OTHER_RESULT]


def find_fit(render: Render, *, tools: bool, described: bool) -> Fit:
    """Find the changes that a template wants of conversations, with tools or without.

    described: the template may write tools and calls itself; else they are text.
    Renders some thirty conversations of a few words each, and more for each thing it lacks.
    """
    known = _TOOLS if tools else ()
    fit = Fit() if described else Fit(tools_in_text=True, **_TEXT)
    fit = replace(fit, parts_of=_parts_of(render, fit))
    for probe in _PROBES:
        fit = _best(render, fit, probe._replace(tools=probe.tools if tools else ()))
    names = (*_NAMES, *([INLINE] if _knows_tags(render, fit) else []))
    fits = (fit, *(replace(fit, thoughts_as=name) for name in names))
    fit = next((other for other in fits if _shows_thoughts(render, other)), fit)
    fit = _best(render, fit, _THOUGHTS._replace(tools=known))
    kept = replace(fit, text_in_thoughts=True)  # texts may end a turn, and its thoughts with it
    shown = (_shows_thoughts(render, each, _THINKS_ON) for each in (kept, fit))
    fit = kept if [*shown] == [True, False] else fit
    behind = replace(fit, answer_after_results=True)
    if _ends_results(render, behind, known) and not _ends_results(render, fit, known):
        fit = behind
    return replace(fit, results_by_call=not _shows_ids(render, fit, known))


def _best(render: Render, fit: Fit, probe: _TemplateProbe) -> Fit:
    """The first fit that loses nothing of a probe, else that which loses least."""
    best, least = fit, _lost(render, fit, probe)
    for change in probe.changes:
        if not least:
            break
        other = replace(fit, **change)
        lost = _lost(render, other, probe)
        if lost < least:
            best, least = other, lost
    return best


def _lost(render: Render, fit: Fit, probe: _TemplateProbe) -> int:
    """How many words of its conversations are not in the prompt, or not in their place."""
    lost = 0
    start = ""
    for messages in probe.conversations:
        try:
            text = render(fitted(messages, probe.tools, fit, AS_JSON), fit, True)
        except InvalidRequestError:
            lost += _REFUSED
            continue
        if probe.grows:  # to the end of the word that all begin with
            start = start or text[: text.find(messages[0]["content"])]
            lost += not text.startswith(start)
        for words in _chains(messages):
            place = 0
            for word in words:
                found = text.find(word, place)
                lost += found < 0
                place = max(place, found)
        lost += sum(word not in text for word in _described(probe.tools))
        lost += sum(leak in text for leak in _LEAKS)
    return lost


def _chains(messages: Sequence[Json]) -> Iterator[list[str]]:
    """Words that must follow each other: what is said, and each result after its call."""
    said: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            continue
        said += [message.get("reasoning_content", ""), message["content"]]
        for call in message.get("tool_calls", ()):
            called = [call["function"]["name"], *call["function"]["arguments"].values()]
            said += called
            for result in messages:
                if result.get("tool_call_id") == call["id"]:
                    yield [*called, result["content"]]
    yield said


def _described(tools: Sequence[Json]) -> Iterator[str]:
    for tool in tools:
        yield tool["function"]["name"]
        yield tool["function"].get("description", "")


def _shows_thoughts(
    render: Render, fit: Fit, messages: Sequence[Json] = (_ASKS, _THINKS, _RESULT)
) -> bool:
    """Whether those in front of the first call are there when results come."""
    try:
        text = render(fitted(messages, (), fit, AS_JSON), fit, True)
    except InvalidRequestError:
        return False
    return "qv0h" in text and not any(leak in text for leak in _LEAKS)


def _knows_tags(render: Render, fit: Fit) -> bool:
    """Whether it leaves out tagged thoughts of earlier turns: then it knows them."""
    inline = replace(fit, thoughts_as=INLINE)
    thinks = _said("qv0t", thoughts="qv0h")
    try:
        messages = [_ASKS, thinks, _GOES_ON, _SAYS, _ENDS]
        text = render(fitted(messages, (), inline, AS_JSON), inline, True)
    except InvalidRequestError:
        return False
    return "qv0t" in text and "qv0h" not in text


def _ends_results(render: Render, fit: Fit, tools: Sequence[Json]) -> bool:
    """Whether results are closed alike when a user goes on as when they are the last."""
    results = [_ASKS, _CALLS, _RESULT]
    try:
        first = render(fitted(results, tools, fit, AS_JSON), fit, False)
        return render(fitted([*results, _GOES_ON], tools, fit, AS_JSON), fit, True).startswith(
            first
        )
    except InvalidRequestError:
        return False


def _parts_of(render: Render, fit: Fit) -> frozenset[str]:
    """The roles of which it reads all of several text parts."""
    parts = [{"type": "text", "text": text} for text in ("qv1p", "qv2p")]
    found = []
    for messages in ([_SYSTEM, _ASKS], [_ASKS], [_ASKS, _CALLS, _RESULT]):
        place = 0 if len(messages) < 3 else -1
        messages[place] = {**messages[place], "content": parts}
        role = messages[place]["role"]
        other = replace(fit, parts_of=frozenset([role]))
        with suppress(InvalidRequestError):
            text = render(fitted(messages, (), other, AS_JSON), other, True)
            leaks = any(leak in text for leak in (*_LEAKS, '"type": "text"'))
            found += [role] if 0 <= text.find("qv1p") < text.find("qv2p") and not leaks else []
    return frozenset(found)


def _shows_ids(render: Render, fit: Fit, tools: Sequence[Json]) -> bool:
    """Whether results say which call they are of."""
    chat = fitted([_ASKS, _BOTH, _RESULT, _OTHER_RESULT], tools, fit, AS_JSON)
    try:
        text = render(chat, fit, True)
    except InvalidRequestError:
        return False
    ids = [call["id"] for message in chat.messages for call in message.get("tool_calls", ())]
    return bool(ids) and all(text.count(each) > 1 for each in ids)
