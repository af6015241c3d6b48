"""Conversations of every kind, and what of their words a chat template's prompt holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.parsers.style import AnswerStyle
from radixlm.server.bodies.chat_conversation import chat_of
from radixlm.server.bodies.protocol import ChatBody
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer, new_mark

Json = dict[str, Any]


class Verdict(NamedTuple):
    """outcome: `ok`, `refused`, `lost` or `out of order`. left_out: thoughts that are not there."""

    outcome: str
    words: str = ""
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation as a request has it, and its words.

    turns: words in their order; those of one entry in any order. system: in their order, anywhere.
    anywhere: names and descriptions of tools. thoughts: of earlier turns, which many templates
    leave out on purpose. last: what the prompt ends with.
    """

    messages: Sequence[Json]
    turns: Sequence[Sequence[str]]
    system: Sequence[str] = ()
    anywhere: Sequence[str] = ()
    thoughts: Sequence[str] = ()
    last: str = ""
    more: Json = field(default_factory=dict)


def _user(text: Any) -> Json:
    return {"role": "user", "content": text}


def _system(text: Any, role: str = "system") -> Json:
    return {"role": role, "content": text}


def _said(text: Any, *calls: Json, thoughts: str | None = None) -> Json:
    more: Json = {"tool_calls": list(calls)} if calls else {}
    more |= {} if thoughts is None else {"reasoning_content": thoughts}
    return {"role": "assistant", "content": text, **more}


def _call(call_id: str, name: str, word: str) -> Json:
    function = {"name": name, "arguments": json.dumps({"text": word})}
    return {"id": call_id, "type": "function", "function": function}


def _result(call_id: str, text: Any) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _tool(name: str, **more: Any) -> Json:
    return {"type": "function", "function": {"name": name, **more}}


def _parts(*texts: str) -> list[Json]:
    return [{"type": "text", "text": text} for text in texts]


_PARAMETERS = {
    "type": "object",
    "properties": {"text": {"type": "string", "description": "Explains-text."}},
    "required": ["text"],
}
_LOOK = _tool("look-up", description="Explains-look.", parameters=_PARAMETERS)
_NOTE = _tool("note-down", description="Explains-note.", parameters=_PARAMETERS)
_OFFERED: Final[Json] = {"tools": [_LOOK, _NOTE]}
_DESCRIBED = ("look-up", "Explains-look", "Explains-text", "note-down", "Explains-note")
# As schemas of real tools are: types that are not said, several, or of no entries.
_ODD = {
    "type": "object",
    "properties": {
        "list": {"type": "array"},
        "several": {"type": ["string", "null"]},
        "any": {},
        "either": {"anyOf": [{"type": "string"}, {"type": "array", "items": {}}]},
        "choice": {"enum": ["a", 1, None]},
    },
}
_OWN = ("own1", "own2", "own3")
_FOREIGN = ("toolu_01A09q90qw90lq917835lq9", "call_x-1:0")


def _two_calls(first: str, second: str, *, back: bool = False) -> list[Json]:
    results = [_result(first, "result-one"), _result(second, "result-two")]
    return [
        _user("asks-one"),
        _said("", _call(first, "look-up", "given-one"), _call(second, "note-down", "given-two")),
        *(results[::-1] if back else results),
    ]


_CALLED = [["asks-one"], ["given-one"], ["given-two"], ["result-one", "result-two"]]
_ONE_CALL = [
    _user("asks-one"),
    _said("", _call(_OWN[0], "look-up", "given-one")),
    _result(_OWN[0], "result-one"),
]
_ONE_CALLED = [["asks-one"], ["given-one"], ["result-one"]]
_TALK = [_user("asks-one"), _said("says-one"), _user("asks-two")]
_TALKED = [["asks-one"], ["says-one"], ["asks-two"]]


def _with_tools(messages: Sequence[Json], turns: Sequence[Sequence[str]], **more: Any) -> Chat:
    return Chat(messages, turns, anywhere=_DESCRIBED, more=_OFFERED, **more)


def _begun(text: str, *turns: str) -> Chat:
    """The answer is to go on after `text`."""
    continued = {"continue_final_message": True, "add_generation_prompt": False}
    messages = [_user("asks-one"), _said(text)]
    return Chat(
        messages, [["asks-one"], *([word] for word in turns)], last=turns[-1], more=continued
    )


# By their kinds.
CHATS: Final = {
    "one message": Chat([_user("asks-one")], [["asks-one"]]),
    "several turns": Chat(_TALK, _TALKED),
    "a system message": Chat([_system("rule-one"), *_TALK], _TALKED, ["rule-one"]),
    "two system messages": Chat(
        [_system("rule-one"), _system("rule-two"), *_TALK], _TALKED, ["rule-one", "rule-two"]
    ),
    "a late system message": Chat(
        [*_TALK[:2], _system("rule-one"), _TALK[2]], _TALKED, ["rule-one"]
    ),
    "a last system message": Chat(
        [_system("rule-one"), *_TALK, _system("rule-two")], _TALKED, ["rule-one", "rule-two"]
    ),
    "a developer message": Chat([_system("rule-one", "developer"), *_TALK], _TALKED, ["rule-one"]),
    "system and late developer": Chat(
        [_system("rule-one"), *_TALK[:2], _system("rule-two", "developer"), _TALK[2]],
        _TALKED,
        ["rule-one", "rule-two"],
    ),
    "only a system message": Chat([_system("rule-one")], [], ["rule-one"]),
    "text parts": Chat(
        [
            _system(_parts("rule-one", "rule-two")),
            _user(_parts("asks-one", "asks-two")),
            _said(_parts("says-one", "says-two")),
            _user(_parts("asks-three")),
        ],
        [["asks-one"], ["asks-two"], ["says-one"], ["says-two"], ["asks-three"]],
        ["rule-one", "rule-two"],
    ),
    "two user messages": Chat([_user("asks-one"), _user("asks-two")], [["asks-one"], ["asks-two"]]),
    "two assistant messages": Chat(
        [_user("asks-one"), _said("says-one"), _said("says-two"), _user("asks-two")],
        [["asks-one"], ["says-one"], ["says-two"], ["asks-two"]],
    ),
    "the assistant first": Chat(
        [_said("says-one"), _user("asks-one")], [["says-one"], ["asks-one"]]
    ),
    "tools": _with_tools([_user("asks-one")], [["asks-one"]]),
    "tools and a system message": _with_tools(
        [_system("rule-one"), _user("asks-one")], [["asks-one"]], system=["rule-one"]
    ),
    "tools without descriptions": Chat(
        [_user("asks-one")],
        [["asks-one"]],
        anywhere=["bare-one", "bare-two", "bare-three"],
        more={
            "tools": [
                _tool("bare-one"),
                _tool("bare-two", parameters={"type": "object", "properties": {}}),
                _tool(
                    "bare-three",
                    parameters={"type": "object", "properties": {"text": {"type": "string"}}},
                ),
            ]
        },
    ),
    "tools with odd schemas": Chat(
        [_user("asks-one")],
        [["asks-one"]],
        anywhere=["odd-one"],
        more={"tools": [_tool("odd-one", description="Explains.", parameters=_ODD)]},
    ),
    "a call": _with_tools(_ONE_CALL, _ONE_CALLED),
    "a call, content null": _with_tools(
        [_ONE_CALL[0], {**_ONE_CALL[1], "content": None}, _ONE_CALL[2]], _ONE_CALLED
    ),
    "text with a call": _with_tools(
        [_ONE_CALL[0], {**_ONE_CALL[1], "content": "says-one"}, _ONE_CALL[2]],
        [["asks-one"], ["says-one", "given-one"], ["result-one"]],
    ),
    "a call without arguments": _with_tools(
        [
            _user("asks-one"),
            _said(
                "",
                {**_call(_OWN[0], "look-up", ""), "function": {"name": "look-up", "arguments": ""}},
            ),
            _result(_OWN[0], "result-one"),
        ],
        [["asks-one"], ["result-one"]],
    ),
    "call after call": _with_tools(
        [
            *_ONE_CALL,
            _said("", _call(_OWN[1], "note-down", "given-two")),
            _result(_OWN[1], "result-two"),
        ],
        [*_ONE_CALLED, ["given-two"], ["result-two"]],
    ),
    "two calls": _with_tools(_two_calls(*_OWN[:2]), _CALLED),
    "two calls, answered": _with_tools(
        [*_two_calls(*_OWN[:2]), _said("says-one"), _user("asks-two")],
        [*_CALLED, ["says-one"], ["asks-two"]],
    ),
    "results in another order": _with_tools(_two_calls(*_OWN[:2], back=True), _CALLED),
    "a result, then text": _with_tools(
        [*_ONE_CALL, _user("asks-two")], [*_ONE_CALLED, ["asks-two"]]
    ),
    "a result in parts": _with_tools(
        [*_ONE_CALL[:2], _result(_OWN[0], _parts("result-one", "result-two"))],
        [*_ONE_CALLED, ["result-two"]],
    ),
    "foreign ids": _with_tools(_two_calls(*_FOREIGN), _CALLED),
    "calls, no tools": Chat(
        [*_ONE_CALL, _said("says-one"), _user("asks-two")],
        [*_ONE_CALLED, ["says-one"], ["asks-two"]],
    ),
    "a late system message after a result": _with_tools(
        [*_ONE_CALL, _system("rule-one")], _ONE_CALLED, system=["rule-one"]
    ),
    "thoughts": Chat(
        [_user("asks-one"), _said("says-one", thoughts="thinks-one"), _user("asks-two")],
        _TALKED,
        thoughts=["thinks-one"],
    ),
    "thoughts with a call": _with_tools(
        [
            _user("asks-one"),
            _said("", _call(_OWN[0], "look-up", "given-one"), thoughts="thinks-one"),
            _result(_OWN[0], "result-one"),
        ],
        _ONE_CALLED,
        thoughts=["thinks-one"],
    ),
    "thoughts alone": Chat(
        [_user("asks-one"), _said("", thoughts="thinks-one"), _user("asks-two")],
        [["asks-one"], ["asks-two"]],
        thoughts=["thinks-one"],
    ),
    "thoughts in tags": Chat(
        [_user("asks-one"), _said("<think>\nthinks-one\n</think>\n\nsays-one"), _user("asks-two")],
        _TALKED,
        thoughts=["thinks-one"],
    ),
    "a begun answer": _begun("says-one", "says-one"),
    "a begun thought": _begun("<think>\nthinks-one", "thinks-one"),
    "a thought, a begun answer": _begun(
        "<think>\nthinks-one\n</think>\n\nsays-one", "thinks-one", "says-one"
    ),
    "empty contents": Chat(
        [_system(""), _user(""), _said(""), _user("asks-one"), _said(None), _user("asks-two")],
        [["asks-one"], ["asks-two"]],
    ),
    "an empty result": _with_tools(
        [*_ONE_CALL[:2], _result(_OWN[0], ""), _said("says-one"), _user("asks-two")],
        [["asks-one"], ["given-one"], ["says-one"], ["asks-two"]],
    ),
}


def rendered(chat: Chat, template: ChatTemplate, style: AnswerStyle, tokenizer: Tokenizer) -> str:
    """The prompt that the server makes of it, the model's own ids in it.

    Raises InvalidRequestError.
    """
    text = json.dumps([*chat.messages])
    for own in _OWN:
        text = text.replace(f'"{own}"', json.dumps(style.calls.new_id()))
    body = ChatBody.model_validate({"model": "m", "messages": json.loads(text), **chat.more})
    mark = new_mark()
    return chat_of(body).render(template, style, tokenizer, mark).replace(mark, "")


def judged(chat: Chat, template: ChatTemplate, style: AnswerStyle, tokenizer: Tokenizer) -> Verdict:
    """Whether the prompt holds all that was said, in order."""
    try:
        prompt = rendered(chat, template, style, tokenizer)
    except InvalidRequestError as error:
        return Verdict("refused", str(error))
    turns = [word for words in chat.turns for word in words]
    left_out = tuple(word for word in chat.thoughts if word not in prompt)
    lost = [word for word in (*chat.system, *turns, *chat.anywhere) if word not in prompt]
    if lost:
        return Verdict("lost", " ".join(lost), left_out)
    at = 0
    for words in chat.turns:
        places = [prompt.find(word, at) for word in words]
        split = template.fit(described=style.calls.described, tools=True).one_call_a_message
        if min(places) < 0 and split and all(word.startswith("result-") for word in words):
            continue  # each stands behind its own call
        if min(places) < 0:
            return Verdict("out of order", " ".join(words), left_out)
        at = max(places)
    ordered = sorted(chat.system, key=prompt.find)
    if ordered != list(chat.system):
        return Verdict("out of order", " ".join(chat.system), left_out)
    if chat.last and not prompt.endswith(chat.last):
        return Verdict("lost", f"the end {chat.last}", left_out)
    return Verdict("ok", "", left_out)
