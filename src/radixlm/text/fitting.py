"""A conversation as one chat template takes it, with nothing of it lost.

Templates refuse or leave out what their authors did not think of: a second system message, two
calls at once, ids of another server, two users in a row. Such messages are joined, folded, split
or renamed:

    system A   system B   user C   ->   system A/B   user C          systems_joined
    system A   user C              ->   user A/C                     system_folded
    assistant f() g()   tool F   tool G   ->   f()  F  g()  G         one_call_a_message
    user A   user B                ->   user A   assistant ""   user B      roles_alternate

What is done to a message follows from those before it and from its own results, never from later
turns: so the rendering of earlier turns stays the beginning of the next one's. Only
text_in_thoughts ends with a turn, as the template drops its thoughts then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.text.tool_text import (
    CallText,
    calls_in_text,
    described,
    filled,
    results_in_text,
    tools_text,
)

Json = dict[str, Any]
Message = Mapping[str, Any]

# Where thoughts stand in the content: as a part of their own, or in tags.
THINKING_PART, INLINE = "part", "inline"
NO_TEXT: tuple[Any, ...] = ("", [{"type": "text", "text": ""}], " ")
_ID = re.compile(r"[A-Za-z0-9]{9}")

_Step = Callable[[Sequence[Json]], Iterable[Json]]


@dataclass(frozen=True, slots=True)
class Fit:
    """The changes that a template wants of conversations; by default none.

    empty_answer: which of NO_TEXT stands for an answer without text.
    described_in_schema: it writes the parameters of tools, but not what they are for.
    tools_as_functions: it has the tools as JSON text in `functions`.
    tools_listed: without any tools, it gets an empty list in place of None.
    content_none: it takes calls only beside a content that is None.
    ids: those that it takes; "short" has nine letters or digits, "named" the function's name.
    thoughts_as: the field that it reads reasoning from, or THINKING_PART, or INLINE.
    parts_of: the roles of which it reads a content of several text parts; others get one text.
    """

    systems_joined: bool = False
    system_folded: bool = False
    late_system_folded: bool = False
    user_first: bool = False
    roles_alternate: bool = False
    empty_answer: int = 0
    tools_as_functions: bool = False
    tools_listed: bool = False
    tools_in_text: bool = False
    described_in_schema: bool = False
    tools_filled: bool = False
    calls_in_text: bool = False
    results_in_text: bool = False
    results_by_call: bool = False
    answer_after_results: bool = False
    one_call_a_message: bool = False
    text_in_thoughts: bool = False
    text_before_calls: bool = False
    ids: Literal["", "short", "named"] = ""
    arguments_as_json: bool = False
    content_none: bool = False
    thoughts_as: str = "reasoning_content"
    parts_of: frozenset[str] = frozenset()


class Fitted(NamedTuple):
    """A conversation as a template is given it; each message is still to be `spelled`.

    changes: the fields of Fit that made a difference.
    """

    messages: list[Json]
    tools: list[Json] | None
    changes: tuple[str, ...]


# What the log says of a change.
WORDS: Mapping[str, str] = {
    "systems_joined": "system messages are joined to one",
    "system_folded": "system messages stand at the beginning of the first user message",
    "late_system_folded": "system messages amid a conversation stand there as user messages",
    "user_first": "an empty user message stands in front of an answer that comes first",
    "roles_alternate": "empty messages stand between two of one role",
    "tools_in_text": "tools are described in the system message",
    "described_in_schema": "descriptions of tools stand in their parameters' schema",
    "tools_filled": "tools without description or parameters get empty ones",
    "calls_in_text": "calls are written as text",
    "results_in_text": "results are written as user messages",
    "results_by_call": "results come in the order of their calls",
    "answer_after_results": "an empty answer stands behind results where no other comes",
    "one_call_a_message": "each call is a message, with its result behind it",
    "text_in_thoughts": "text beside thoughts and calls follows the thoughts while a turn goes on",
    "text_before_calls": "text beside calls is a message in front of them",
    "ids": "ids of calls become others",
}


def fitted(
    messages: Sequence[Message], tools: Sequence[Message], fit: Fit, calls: CallText
) -> Fitted:
    """The conversation for a template that wants `fit`. O(length of the messages).

    calls: how they are written as text. Raises InvalidRequestError for parts that are no text.
    """
    said = [_plain(message) for message in messages]
    given = [*map(dict, tools)]
    changes = []
    for name, change in (("tools_filled", filled), ("described_in_schema", described)):
        if getattr(fit, name):
            before, given = given, [*map(change, given)]
            changes += [name] * (given != before)
    steps: Mapping[str, _Step] = {
        "results_by_call": _results_by_call,
        "calls_in_text": partial(calls_in_text, calls),
        "results_in_text": results_in_text,
        "tools_in_text": partial(_tools_in_text, given, calls.asks),
        "systems_joined": _systems_joined,
        "system_folded": _system_folded,
        "late_system_folded": _late_system_folded,
        "text_in_thoughts": _text_in_thoughts,
        "text_before_calls": partial(_text_before_calls, fit.roles_alternate),
        "one_call_a_message": _one_call_a_message,
        "ids": _short_ids if fit.ids == "short" else _named_ids,
        "answer_after_results": _answer_after_results,
        "user_first": _user_first,
        "roles_alternate": _roles_alternate,
    }
    for name, step in steps.items():
        if getattr(fit, name):
            before, said = said, [*step(said)]
            if said != before:
                changes.append(name)
    known = None if fit.tools_in_text else given
    return Fitted(said, known or ([] if fit.tools_listed else None), tuple(changes))


def one_text(content: Any) -> Any:
    """A message's content as most templates get it: text parts as one text, a line each."""
    return "\n".join(_parts(content)) if isinstance(content, list) else content


def _parts(content: Sequence[Any]) -> list[str]:
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise InvalidRequestError(
                f"only text parts are supported in message content, got {part!r:.80}",
                param="messages",
            )
    return [str(part.get("text", "")) for part in content]


def _plain(message: Message) -> Json:
    role = "system" if message["role"] == "developer" else message["role"]
    content = message.get("content")
    parts = {"parts": _parts(content)} if isinstance(content, list) else {}
    return {**message, "role": role, "content": one_text(content) or "", **parts}


def _joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


def _split(messages: Sequence[Json]) -> tuple[str, list[Json]]:
    """The texts of the system messages at the beginning, and the other messages."""
    first = [*takewhile(lambda message: message["role"] == "system", messages)]
    return _joined(*(message["content"] for message in first)), [*messages[len(first) :]]


def _turns(messages: Sequence[Json]) -> Iterator[tuple[Json, list[Json]]]:
    """Each message with the results behind it, which are in the order of its calls."""
    place = 0
    while place < len(messages):
        message, place = messages[place], place + 1
        results = [*takewhile(lambda each: each["role"] == "tool", messages[place:])]
        ids = [call.get("id") for call in _calls(message)]
        order = {call_id: number for number, call_id in enumerate(ids)}
        place += len(results)
        results.sort(key=lambda each: order.get(each.get("tool_call_id"), len(ids)))
        yield message, results


def _results_by_call(messages: Sequence[Json]) -> Iterator[Json]:
    for message, results in _turns(messages):
        yield message
        yield from results


def _one_call_a_message(messages: Sequence[Json]) -> Iterator[Json]:
    for message, results in _turns(messages):
        calls = _calls(message)
        if len(calls) < 2:
            yield from (message, *results)
            continue
        for at, call in enumerate(calls):
            bare = {"role": message["role"], "content": ""} if at else message
            yield {**bare, "tool_calls": [call]}
            while results and results[0].get("tool_call_id") == call.get("id"):
                yield results.pop(0)
        yield from results


def _tools_in_text(tools: Sequence[Json], asks: str, messages: Sequence[Json]) -> list[Json]:
    if not tools:
        return [*messages]
    system, others = _split(messages)
    content = _joined(system, tools_text(tools, asks))
    return [{"role": "system", "content": content}, *others]


def _systems_joined(messages: Sequence[Json]) -> list[Json]:
    system, others = _split(messages)
    if len(messages) - len(others) < 2:
        return [*messages]
    return [{**messages[0], "content": system}, *others]


def _system_folded(messages: Sequence[Json]) -> list[Json]:
    system, others = _split(messages)
    if not others or others[0]["role"] != "user":
        return [_user(system), *others] if len(others) < len(messages) else others
    return [{**others[0], "content": _joined(system, others[0]["content"])}, *others[1:]]


def _late_system_folded(messages: Sequence[Json]) -> Iterator[Json]:
    begun = False
    for message in messages:
        late = begun and message["role"] == "system"
        begun = begun or message["role"] != "system"
        yield _user(message["content"]) if late else message


def _text_in_thoughts(messages: Sequence[Json]) -> Iterator[Json]:
    """Move text into thoughts, in messages with calls, behind the last answer that has none."""
    answers = (at for at, each in enumerate(messages) if each["role"] == "assistant")
    begins = max((at for at in answers if not _calls(messages[at])), default=-1)
    for at, message in enumerate(messages):
        thoughts, text = message.get("reasoning_content"), message["content"]
        if at > begins and _calls(message) and thoughts and text:
            message = {**message, "reasoning_content": _joined(thoughts, text), "content": ""}
        yield message


def _text_before_calls(alternate: bool, messages: Sequence[Json]) -> Iterator[Json]:
    for message in messages:
        if message.get("tool_calls") and message["content"]:
            yield {"role": message["role"], "content": message["content"]}
            if alternate:  # here, so that the answer to the results follows them at once
                yield _user("")
            message = {**message, "content": ""}
        yield message


def _short_ids(messages: Sequence[Json]) -> Iterator[Json]:
    for message in messages:
        ids = {str(call.get("id")): _short(str(call.get("id"))) for call in _calls(message)}
        if "tool_call_id" in message:
            given = str(message["tool_call_id"])
            ids[given] = _short(given)
        yield _renamed(message, ids)


def _named_ids(messages: Sequence[Json]) -> Iterator[Json]:
    """Named after the function, and counted through the conversation."""
    ids: dict[str, str] = {}
    count = 0
    for message in messages:
        for call in _calls(message):
            given, start = str(call.get("id")), f"functions.{call['function']['name']}:"
            ids[given] = given if given.startswith(start) else f"{start}{count}"
            count += 1
        yield _renamed(message, ids)


def _calls(message: Message) -> Sequence[Json]:
    return message.get("tool_calls") or ()


def _renamed(message: Json, ids: Mapping[str, str]) -> Json:
    made = dict(message)
    if "tool_call_id" in made:
        made["tool_call_id"] = ids.get(str(made["tool_call_id"]), made["tool_call_id"])
    if calls := _calls(message):
        made["tool_calls"] = [{**call, "id": ids[str(call.get("id"))]} for call in calls]
    return made


def _short(given: str) -> str:
    if _ID.fullmatch(given):
        return given
    return blake2b(given.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()[:9]


def _answer_after_results(messages: Sequence[Json]) -> Iterator[Json]:
    before = ""
    for message in messages:
        if before == "tool" and message["role"] not in ("tool", "assistant"):
            yield {"role": "assistant", "content": ""}
        before = message["role"]
        yield message


def _user_first(messages: Sequence[Json]) -> list[Json]:
    _, others = _split(messages)
    if others and others[0]["role"] == "user":
        return [*messages]
    place = len(messages) - len(others)
    return [*messages[:place], _user(""), *others]


def _roles_alternate(messages: Iterable[Json]) -> Iterator[Json]:
    """Calls and their results do not count."""
    due = "user"
    for message in messages:
        role = message["role"]
        if role == "user" or (role == "assistant" and not message.get("tool_calls")):
            if role != due:
                yield {"role": due, "content": ""}
            due = "user" if role == "assistant" else "assistant"
        yield message


def spelled(message: Message, fit: Fit) -> Json:
    """A fitted message with its fields as the template reads them."""
    made = dict(message)
    parts = made.pop("parts", ())
    if made["role"] != "assistant":
        whole = len(parts) > 1 and made["content"] == "\n".join(parts)  # no change has touched it
        if whole and made["role"] in fit.parts_of:
            made["content"] = [{"type": "text", "text": text} for text in parts]
        return made
    if made.get("tool_calls") and fit.arguments_as_json:
        made["tool_calls"] = [
            {**call, "function": _with_json(call["function"])} for call in made["tool_calls"]
        ]
    if made.get("tool_calls") and fit.content_none and not made["content"]:
        made["content"] = None
    thoughts = made.get("reasoning_content")
    match fit.thoughts_as:
        case _ if not thoughts:
            pass
        case name if name == THINKING_PART:
            parts = [{"type": "thinking", "thinking": thoughts}]
            text = {"type": "text", "text": made["content"]}
            made["content"] = [*parts, text] if made["content"] else parts
        case name if name == INLINE:
            made["content"] = f"<think>\n{thoughts}\n</think>\n\n{made['content']}"
        case name:
            made[name] = thoughts
    if not (made["content"] or made.get("tool_calls")):
        made["content"] = NO_TEXT[fit.empty_answer]
    return made


def _with_json(function: Json) -> Json:
    return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}


def wider(fit: Fit) -> Iterator[Fit]:
    """The fit that may help where the template refuses a conversation all the same."""
    yield replace(fit, tools_filled=True)
    yield replace(fit, tools_in_text=True)
    listed = replace(fit, tools_in_text=True, tools_listed=True)
    yield listed
    text = replace(listed, calls_in_text=True, results_in_text=True)
    yield text
    turns = replace(text, roles_alternate=True, user_first=True, late_system_folded=True)
    yield turns
    yield replace(turns, system_folded=True)
