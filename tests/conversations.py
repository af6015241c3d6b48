"""Conversations of every kind that clients send, in words that occur nowhere else, and what of them
a prompt lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]


def system(text: str, role: str = "system") -> Json:
    return {"role": role, "content": text}


def user(text: Any) -> Json:
    return {"role": "user", "content": text}


def said(text: str, thoughts: str | None = None, *calls: Json) -> Json:
    message: Json = {"role": "assistant", "content": text}
    if thoughts is not None:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(call_id: str, name: str, **arguments: Any) -> Json:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def result(call_id: str, name: str, text: Any) -> Json:
    return {"role": "tool", "content": text, "tool_call_id": call_id, "name": name}


def parts(*texts: str) -> list[Json]:
    return [{"type": "text", "text": text} for text in texts]


def tool(name: str, description: str | None = None, *names: str) -> Json:
    described = {} if description is None else {"description": description}
    schema = {"type": "object", "properties": {each: {"type": "string"} for each in names}}
    return {"type": "function", "function": {"name": name, **described, "parameters": schema}}


class Kind(NamedTuple):
    """A conversation. last: its last message is an answer that is to be continued."""

    messages: Sequence[Json]
    tools: Sequence[Json] = ()
    continued: bool = False


def schema_tool(name: str, **properties: Any) -> Json:
    schema = {"type": "object", "properties": properties, "required": [*properties][:1]}
    function = {"name": name, "description": f"odd-{name}", "parameters": schema}
    return {"type": "function", "function": function}


CLOCK = tool("klok", "tells lemon", "zone")
RAIN = tool("regn", "tells mango", "town", "days")
BOTH = (CLOCK, RAIN)
# As agents describe theirs.
ODD = (
    schema_tool("open", path={"type": ["string", "null"], "default": None}),
    schema_tool("pick", kind={"enum": ["a", 1, None]}, of={"anyOf": [{"type": "integer"}, {}]}),
    schema_tool("list", all={"type": "array", "items": {"type": "object", "properties": {}}}),
    schema_tool("deep", at={"type": "object", "properties": {"x": {"type": "number"}}}),
    schema_tool("refs", one={"$ref": "#/$defs/one"}, any={}, rows={"type": "array"}),
    {"type": "function", "function": {"name": "bare", "parameters": {}}},
    {"type": "function", "function": {"name": "none"}},
)
_FOREIGN = "toolu_01A09q90qw90lq917835"
_ZONE = call("abcDEF123", "klok", zone="birch")
_TOWN = call("ghiJKL456", "regn", town="cedar", days=7341)
_HOUR = result("abcDEF123", "klok", "result-elm")
_WET = result("ghiJKL456", "regn", "result-fir")
_ASKED = (user("ask-ash"), said("", None, _ZONE, _TOWN))

KINDS: Mapping[str, Kind] = {
    "a question": Kind([user("ask-ash")]),
    "system": Kind([system("rule-one"), user("ask-ash")]),
    "developer": Kind([system("rule-one", "developer"), user("ask-ash")]),
    "two systems": Kind([system("rule-one"), system("rule-two"), user("ask-ash")]),
    "system and developer": Kind(
        [system("rule-one"), system("rule-two", "developer"), user("ask-ash"), said("yes-oak")]
    ),
    "late system": Kind(
        [system("rule-one"), user("ask-ash"), said("yes-oak"), system("rule-two"), user("go-yew")]
    ),
    "late system, no first one": Kind(
        [user("ask-ash"), said("yes-oak"), system("rule-two"), user("go-yew"), said("so-fig")]
    ),
    "system last": Kind([system("rule-one"), user("ask-ash"), said("yes-oak"), system("rule-two")]),
    "system after the question": Kind(
        [user("ask-ash"), system("rule-two", "developer"), said("yes-oak"), user("go-yew")]
    ),
    "system after results": Kind(
        [*_ASKED, _HOUR, _WET, system("rule-two"), said("so-fig"), user("go-yew")], BOTH
    ),
    "system alone": Kind([system("rule-one")]),
    "text parts": Kind(
        [
            system(parts("rule-one", "rule-two")),
            user(parts("ask-ash", "more-ivy")),
            {"role": "assistant", "content": parts("yes-oak", "also-nut")},
            user(parts("go-yew")),
        ]
    ),
    "empty texts": Kind([system(""), user(""), said(""), user("go-yew")]),
    "no parts": Kind([user([]), {"role": "assistant", "content": []}, user("go-yew")]),
    "answer first": Kind([said("yes-oak"), user("go-yew")]),
    "answer first after system": Kind([system("rule-one"), said("yes-oak"), user("go-yew")]),
    "two questions": Kind([user("ask-ash"), user("more-ivy"), said("yes-oak"), user("go-yew")]),
    "two answers": Kind([user("ask-ash"), said("yes-oak"), said("also-nut"), user("go-yew")]),
    "ends with an answer": Kind([user("ask-ash"), said("yes-oak")]),
    "tools": Kind([system("rule-one"), user("ask-ash")], BOTH),
    "tools, no system": Kind([user("ask-ash"), said("yes-oak"), user("go-yew")], BOTH),
    "bare tools": Kind([user("ask-ash")], (tool("klok"), tool("regn"))),
    "one call": Kind([user("ask-ash"), said("", None, _ZONE), _HOUR], BOTH),
    "call and answer": Kind(
        [*(user("ask-ash"), said("", None, _ZONE), _HOUR, said("so-fig")), user("go-yew")], BOTH
    ),
    "call without arguments": Kind(
        [user("ask-ash"), said("", None, call("abcDEF123", "klok")), _HOUR], BOTH
    ),
    "text beside a call": Kind(
        [user("ask-ash"), said("wait-gum", None, _ZONE), _HOUR, said("so-fig"), user("go-yew")],
        BOTH,
    ),
    "two calls": Kind([*_ASKED, _HOUR, _WET, said("so-fig"), user("go-yew")], BOTH),
    "two calls with a text": Kind(
        [user("ask-ash"), said("wait-gum", None, _ZONE, _TOWN), _HOUR, _WET], BOTH
    ),
    "results in another order": Kind([*_ASKED, _WET, _HOUR, said("so-fig")], BOTH),
    "a result is missing": Kind([*_ASKED, _WET, user("go-yew")], BOTH),
    "no result": Kind([*_ASKED, user("go-yew")], BOTH),
    "a call last": Kind(list(_ASKED), BOTH),
    "results, then text": Kind(
        [*_ASKED, _HOUR, _WET, user("go-yew"), said("so-fig"), user("more-ivy")], BOTH
    ),
    "empty result": Kind(
        [user("ask-ash"), said("", None, _ZONE), result("abcDEF123", "klok", "")], BOTH
    ),
    "result in parts": Kind(
        [
            user("ask-ash"),
            said("", None, _ZONE),
            result("abcDEF123", "klok", parts("result-elm", "more-ivy")),
        ],
        BOTH,
    ),
    "call after call": Kind(
        [
            *(user("ask-ash"), said("", None, _ZONE), _HOUR),
            *(said("", None, _TOWN), _WET, said("so-fig"), user("go-yew")),
        ],
        BOTH,
    ),
    "calls after an answer": Kind(
        [
            *(user("ask-ash"), said("yes-oak"), user("go-yew")),
            *(said("", None, _ZONE, _TOWN), _HOUR, _WET),
        ],
        BOTH,
    ),
    "foreign ids": Kind(
        [
            user("ask-ash"),
            said("", None, call(_FOREIGN, "klok", zone="birch")),
            result(_FOREIGN, "klok", "result-elm"),
        ],
        BOTH,
    ),
    "calls, no tools": Kind([*_ASKED, _HOUR, _WET, said("so-fig"), user("go-yew")]),
    "nested arguments": Kind(
        [
            user("ask-ash"),
            said("", None, call("abcDEF123", "klok", zone={"of": ["birch", {"in": "beech"}]})),
            _HOUR,
        ],
        BOTH,
    ),
    "call first": Kind([said("", None, _ZONE), _HOUR, user("go-yew")], BOTH),
    "odd tools": Kind([system("rule-one"), user("ask-ash")], ODD),
    "call of an odd tool": Kind(
        [
            *(user("ask-ash"), said("", None, call("abcDEF123", "open", path="birch", n=1.5))),
            *(result("abcDEF123", "open", "[result-elm]"), said("so-fig"), user("go-yew")),
        ],
        ODD,
    ),
    "call of an unknown tool": Kind(
        [
            *(user("ask-ash"), said("", None, call("abcDEF123", "huh", a="birch"))),
            *(result("abcDEF123", "huh", "no such tool"), said("so-fig"), user("go-yew")),
        ],
        BOTH,
    ),
    "the same call twice": Kind(
        [
            *(user("ask-ash"), said("", None, _ZONE, call("xyzXYZ789", "klok", zone="birch"))),
            *(result("xyzXYZ789", "klok", "result-fir"), _HOUR, said("so-fig"), user("go-yew")),
        ],
        BOTH,
    ),
    "many turns": Kind(
        [each for at in range(9) for each in (user(f"ask-{at}"), said(f"yes-{at}"))], BOTH
    ),
    "two late systems": Kind(
        [
            *(system("rule-one"), user("ask-ash"), system("rule-two"), user("more-ivy")),
            *(said("yes-oak"), system("rule-three"), system("rule-four", "developer")),
            user("go-yew"),
        ]
    ),
    "call behind a reminder": Kind(
        [
            *(user("ask-ash"), said("", None, _ZONE), _HOUR, user("<reminder>more-ivy")),
            *(said("wait-gum", None, _TOWN), _WET, user("<reminder>go-yew"), said("so-fig")),
            user("and-bay"),
        ],
        BOTH,
    ),
    "white space alone": Kind([user(" "), said("\n"), user("go-yew")]),
    "thoughts alone": Kind([user("ask-ash"), said("", "think-elk"), user("go-yew")]),
    "thoughts": Kind([user("ask-ash"), said("yes-oak", "think-elk"), user("go-yew")]),
    "thoughts with a call": Kind([user("ask-ash"), said("", "think-elk", _ZONE), _HOUR], BOTH),
    "thoughts with text and a call": Kind(
        [user("ask-ash"), said("wait-gum", "think-elk", _ZONE), _HOUR], BOTH
    ),
    "thoughts with two calls": Kind(
        [user("ask-ash"), said("", "think-elk", _ZONE, _TOWN), _HOUR, _WET], BOTH
    ),
    "thoughts in two steps": Kind(
        [
            *(user("ask-ash"), said("", "think-elk", _ZONE), _HOUR),
            *(said("", "muse-owl", _TOWN), _WET),
        ],
        BOTH,
    ),
    "prefilled": Kind([user("ask-ash"), said("The answer is")], (), True),
    "prefilled, with space": Kind([system("rule-one"), user("ask-ash"), said("{\n  ")], (), True),
    "prefilled with tools": Kind([user("ask-ash"), said("The answer is")], BOTH, True),
    "prefilled after a result": Kind(
        [user("ask-ash"), said("", None, _ZONE), _HOUR, said("It is ")], BOTH, True
    ),
    "prefilled, space in front": Kind([user("ask-ash"), said("\n The answer")], (), True),
    "prefilled with nothing": Kind([user("ask-ash"), said("")], (), True),
    "prefilled after a late system": Kind(
        [user("ask-ash"), said("yes-oak"), system("rule-two"), said("The answer is")], (), True
    ),
    "prefilled after an answer": Kind(
        [user("ask-ash"), said("yes-oak"), said("The answer is")], (), True
    ),
    "prefilled thought": Kind([user("ask-ash"), said("<think>\nthink-elk so")], (), True),
    "prefilled, thought over": Kind(
        [user("ask-ash"), said("<think>\nthink-elk\n</think>\n\nThe answer is")], (), True
    ),
    "prefilled thought in its field": Kind([user("ask-ash"), said("", "think-elk so")], (), True),
    "prefilled after a thought": Kind(
        [user("ask-ash"), said("The answer is", "think-elk")], (), True
    ),
}


def texts_of(message: Json) -> Iterator[str]:
    """What a message says, in order: thoughts, texts, names and arguments of calls."""
    yield message.get("reasoning_content") or ""
    content = message["content"]
    yield from [content] if isinstance(content, str) else [part["text"] for part in content]
    for entry in message.get("tool_calls", ()):
        yield entry["function"]["name"]
        yield from _values(entry["function"]["arguments"])


def _values(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from _values(entry)
    else:
        yield str(value)


def lost(text: str, kind: Kind, *, thoughts: bool = False) -> list[str]:
    """What a prompt lacks of a conversation, or has in another order: a result counts as in order
    anywhere behind its call and in front of what is said next, and thoughts anywhere.

    thoughts: those behind the last question must be there.
    """
    place, missing = 0, []
    calls: dict[str, int] = {}
    results = [0]
    for at, message in enumerate(kind.messages):
        if message["role"] == "tool":
            found = [
                _find(text, said, calls[message["tool_call_id"]]) for said in texts_of(message)
            ]
            missing += [str(message["content"])] * (-1 in found)
            results += found
            continue
        place, results = max(place, *results), [0]
        asked = any(later["role"] == "user" for later in kind.messages[at:])
        thought = message.get("reasoning_content", "") if thoughts and not asked else ""
        missing += [thought] * (thought not in text)
        for said in texts_of({**message, "reasoning_content": "", "tool_calls": []}):
            place = _next(text, said, place, missing)
        for entry in message.get("tool_calls", ()):
            place = _next(text, entry["function"]["name"], place, missing)
            # Templates may sort arguments.
            ends = [
                _next(text, said, place, missing)
                for said in _values(entry["function"]["arguments"])
            ]
            place = calls[entry["id"]] = max([place, *ends])
    return missing + [word for word in _words_of(kind.tools) if word not in text]


def _next(text: str, said: str, place: int, missing: list[str]) -> int:
    found = _find(text, said, place)
    if found < 0:
        missing.append(said)
    return max(place, found)


def _find(text: str, said: str, place: int) -> int:
    """Where it ends; templates may trim it."""
    found = text.find(said.strip(), place)
    return found if found < 0 else found + len(said.strip())


def _words_of(tools: Sequence[Json]) -> Iterator[str]:
    for each in tools:
        yield each["function"]["name"]
        yield each["function"].get("description", "")
