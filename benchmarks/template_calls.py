"""Calls as chat templates write them into the assistant's turn, and what is read back of them.

The text of a turn is what the rendering of a conversation with the calls has more than the one
that asks for them, cut to whole markers, without the end of the turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.core.keys import common_beginning
from radixlm.parsers import Answered, ToolCallEnded
from radixlm.parsers.style import AnswerStyle
from radixlm.parsers.tools import Calling, Tool, ToolUse
from radixlm.text.chat_template import ChatTemplate

Json = dict[str, Any]

SPECIAL: Final = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
ASKED = "May I ask-this?"
_ANSWERED = "answered-so"
_PLAIN: Final = {"role": "assistant", "content": _ANSWERED}
# An answer ends before the markers that templates write behind it.
_TURN_END: Final = re.compile(r"(\s*(<[|｜][^<>|｜]+[|｜]?>|</s>))+\s*\Z")
_TURN_BEGIN: Final = re.compile(r"\A(\s*(<[|｜][^<>|｜]+[|｜]?>|</?think>))+")
LEFT_OUT: Final = "left out"


class Call(NamedTuple):
    """A call of a tool. arguments: JSON values."""

    name: str
    arguments: Json


class Turn(NamedTuple):
    """What the assistant says in one turn."""

    calls: tuple[Call, ...] = ()
    content: str = ""
    reasoning: str = ""

    @property
    def words(self) -> list[str]:
        """Those by which its text is known."""
        return [text for text in (self.reasoning, self.content) if text] + [
            call.name for call in self.calls
        ]


class Written(NamedTuple):
    """What a template wrote for a turn, after `prompt`. how: what it had to be given."""

    prompt: str
    text: str
    how: str


class Found(NamedTuple):
    """A call that was read. arguments: JSON, or its beginning where the call is not whole."""

    name: str
    arguments: str
    whole: bool


class Read(NamedTuple):
    """What a parser made of a text."""

    calls: tuple[Found, ...]
    text: str
    reasoning: str


def _tool(name: str, **types: str) -> Tool:
    properties = {
        key: {
            "type": each,
            "description": f"Its {key}.",
            **({"items": {"type": "string"}} if each == "array" else {}),
        }
        for key, each in types.items()
    }
    return Tool(name, {"type": "object", "properties": properties, "required": []})


TOOLS: Final = (
    _tool("get_weather", city="string", days="integer"),
    _tool("write_file", path="string", text="string", mode="string"),
    _tool(
        "configure",
        on="boolean",
        off="boolean",
        none="null",
        count="integer",
        ratio="number",
        list="array",
        empty_list="array",
        tree="object",
        empty_tree="object",
        note="string",
    ),
    _tool("now"),
)
USE: Final = ToolUse(TOOLS, Calling.AUTO)
WEATHER = Call("get_weather", {"city": "Bern", "days": 2})
_TREE = {"a": [1, -2.5, "x", [True]], "b": {"c": "d e", "f": True, "g": None}}


def _text(text: str) -> Turn:
    return Turn((Call("write_file", {"path": "a b.txt", "text": text}),))


# By what is special about them.
CALLS: Final[Mapping[str, Turn]] = {
    "one": Turn((WEATHER,)),
    "quotes": _text('say "hi", it\'s \\ here \\n'),
    "line breaks": _text("def f():\n\treturn 1\n\n  # end"),
    "edges": _text("\n  first and last \n\n"),
    "braces": _text('{"a": [1, {"b": "}]"}]}'),
    "markup": _text("<b>x</b> & <a href='y'>, a </parameter> there, an </arg_value> here"),
    "unicode": _text("Grüße, 日本, 🙂"),
    "like others": Turn((Call("write_file", {"path": "2", "text": "true", "mode": "null"}),)),
    "empty text": Turn((Call("write_file", {"path": "", "text": "", "mode": "w"}),)),
    "types": Turn(
        (
            Call(
                "configure",
                {
                    "on": True,
                    "off": False,
                    "none": None,
                    "count": -3,
                    "ratio": 0.25,
                    "list": ["one", "it's"],
                    "empty_list": [],
                    "tree": _TREE,
                    "empty_tree": {},
                    "note": "n",
                },
            ),
        )
    ),
    "no arguments": Turn((Call("now", {}),)),
    "two": Turn((WEATHER, Call("write_file", {"path": "b", "text": 'a "b"\nc'}))),
    "three": Turn((Call("now", {}), WEATHER, Call("get_weather", {"city": "Genf"}))),
}
THOUGHTS: Final[Mapping[str, Turn]] = {
    "thoughts": Turn((), "It-is-fine.", "So I thought-it.\n\nYes."),
    "thoughts, call": Turn((WEATHER,), "", "So I thought-it.\n\nYes."),
}


def offered() -> list[Json]:
    """The tools as a request has them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": f"It can {tool.name}.",
                "parameters": tool.parameters,
            },
        }
        for tool in TOOLS
    ]


def written(template: ChatTemplate, turn: Turn) -> Written | str:
    """What the template writes for the turn; or why it does not: its refusal, or LEFT_OUT."""
    asked = [{"role": "user", "content": ASKED}]
    refusals: list[str] = []
    for how, answer, variables in _forms(turn):
        given: Json = {"tools": offered(), **variables}
        try:
            before = template.render(asked, **given)
            given["add_generation_prompt"] = False
            after = template.render([*asked, answer], **given)
            plain = template.render([*asked, _PLAIN], **given)
        except InvalidRequestError as error:
            refusals.append(str(error))
            continue
        start = _start(before, after)
        text = after[start : _end(after, plain)]
        if all(text.count(word) >= turn.words.count(word) for word in turn.words):
            return Written(before[:start], text, how)
        refusals.insert(0, LEFT_OUT)
    return refusals[0]


def _forms(turn: Turn) -> Iterator[tuple[str, Json, Json]]:
    """Messages with the turn, from what most templates take to what some want; and variables."""
    with_calls = (False, True) if turn.calls else (False,)
    for thinking in (False, True) if turn.reasoning else (False,):
        for named, empty, as_text in product(with_calls, ("", None), with_calls):
            how = {
                "arguments as text": as_text,
                "content null": empty is None,
                "ids with names": named,
                "enable_thinking": thinking,
            }
            yield (
                ", ".join(name for name, given in how.items() if given),
                _message(turn, empty, as_text=as_text, named=named),
                {"enable_thinking": True, "thinking": True} if thinking else {},
            )


def _message(turn: Turn, empty: str | None, *, as_text: bool, named: bool) -> Json:
    """empty: instead of a content that is empty. named: ids have the names in them, as Kimi's."""
    answer: Json = {"role": "assistant", "content": turn.content or empty}
    if turn.reasoning:
        # By all the names that templates have for it.
        answer |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), turn.reasoning)
    for place, (name, values) in enumerate(turn.calls):
        call_id = f"functions.{name}:{place}" if named else f"abcdefgh{place}"
        arguments = json.dumps(values, ensure_ascii=False) if as_text else values
        function = {"name": name, "arguments": arguments}
        entry = {"id": call_id, "type": "function", "function": function}
        answer.setdefault("tool_calls", []).append(entry)
    return answer


def _start(before: str, after: str) -> int:
    """Where the texts begin to differ, at the begin of a marker."""
    at = common_beginning(before, after)
    if ASKED in after[at:]:
        at = after.rindex(ASKED) + len(ASKED)
    opened = after.rfind("<", 0, at)
    return opened if opened >= 0 and not re.search(r"[>\s]", after[opened:at]) else at


def _end(after: str, plain: str) -> int:
    """Where the turn's end begins, which turns without calls have, too."""
    turn_end = plain.rpartition(_ANSWERED)[2]
    length = common_beginning(after[::-1], turn_end[::-1])
    shared = re.search(r"\s*[<\[].*|\s*\Z", turn_end[len(turn_end) - length :], re.DOTALL)
    return len(after) - (len(shared[0]) if shared else 0)


def read(style: AnswerStyle, prompt: str, pieces: Sequence[str], *, cut: bool = False) -> Read:
    """What the style's parser makes of an answer that comes in pieces."""
    parser = style.parser(USE, prompt)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.flush(cut=cut)
    answer = Answered().add(events)
    ends = [event.whole for event in events if isinstance(event, ToolCallEnded)]
    calls = [
        Found(call.name, as_json(call.arguments), whole)
        for call, whole in zip(answer.calls, ends, strict=True)
    ]
    return Read(tuple(calls), answer.text, answer.reasoning)


def _without_null(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_null(inner) for key, inner in value.items() if inner is not None}


def as_json(arguments: str) -> str:
    """The arguments in one spelling, which tells types apart, without those that are null: some
    templates leave them out.
    """
    try:
        given = _without_null(json.loads(arguments))
        return json.dumps(given, sort_keys=True, ensure_ascii=False)
    except (ValueError, AttributeError):
        return arguments


def right(found: Read, turn: Turn) -> bool:
    """Whether the turn was read, and nothing beside it."""
    calls = tuple(Found(name, as_json(json.dumps(values)), True) for name, values in turn.calls)
    text = _TURN_BEGIN.sub("", _TURN_END.sub("", found.text))
    texts = (text.strip(), found.reasoning.strip())
    return found.calls == calls and texts == (turn.content, turn.reasoning)


def differing_cut(style: AnswerStyle, said: Written, whole: Read) -> str | None:
    """Where the text is cut, so that it reads in pieces as something else; None for nowhere."""
    text = said.text
    if read(style, said.prompt, list(text)) != whole:
        return "each character"
    for at in range(1, len(text)):
        if read(style, said.prompt, [text[:at], text[at:]]) != whole:
            return f"{text[:at][-12:]!r} | {text[at:][:12]!r}"
    return None
