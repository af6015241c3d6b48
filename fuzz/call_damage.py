"""Ways in which models write calls wrong, for `fuzz.crooked_calls`.

A damage makes another sample of one, with what is still right to read of it, or None where it does
not apply. Texts are changed outside of the values, whose places are known by what they are.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchmarks.template_calls import Call, Turn

Json = dict[str, Any]
# Writes a turn after a prompt; None where the format has no way to.
Write = Callable[[Turn], tuple[str, str] | None]

MISSPELT = "fetch_weather_now"
_TAG = re.compile(r"<[^<>\n]{1,60}>|\[/?[A-Z_ ]{3,}\]")
_CLOSING = re.compile(
    r"</|\[/|<\w+\|>|<\|call\|>|(?i:[|｜_▁](?:end|suffix)(?:[|｜_▁]|\b))|(?i:end|suffix)[|｜]>"
)
_CLOSED = re.compile(rf"[}}\])]+(?=(?:\s|{_TAG.pattern})*\Z)")
# A special token, in which a model can write no space.
_ONE_TOKEN = re.compile(re.escape("]<]minimax[>["))
_SPACES = (" ", "\n", "\n\n", "  \n")
_STAND_IN, _HALF = "\ue000", "\\ud83d"


@dataclass(frozen=True, slots=True)
class Sample:
    """A text, and the calls that it means.

    others: further values that are right, by the names of arguments. partly: arguments may be
    missing. loosely: without a schema, a value may be read as a text or as what it spells.
    cut: the answer did not come to its own end.
    """

    turn: Turn
    prompt: str
    text: str
    write: Write
    others: Mapping[str, Any] = field(default_factory=dict)
    partly: bool = False
    loosely: bool = False
    cut: bool = False


Damage = Callable[[random.Random, Sample], Sample | None]


def values_of(turn: Turn) -> list[str]:
    """The texts in the calls' arguments, those of lists and objects among them."""

    def texts(value: Any) -> list[str]:
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            return [text for each in inner for text in texts(each)]
        return [value] if isinstance(value, str) and value else []

    return [text for call in turn.calls for text in texts(call.arguments)]


def tags(sample: Sample) -> list[re.Match[str]]:
    """The markers in the text that are in no value."""
    return list(_TAG.finditer(_without_values(sample)))


def _without_values(sample: Sample) -> str:
    """The text with zeros for the values, so that places stay as they are."""
    hidden = sample.text
    for value in sorted(values_of(sample.turn), key=len, reverse=True):
        for spelled in _spellings(value):
            hidden = hidden.replace(spelled, "\0" * len(spelled))
    return hidden


def _spellings(value: str) -> Iterator[str]:
    """A text as it may stand in a format, damaged or not."""
    yield from (value, repr(value)[1:-1])
    for ascii_only in (False, True):
        spelled = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield spelled
        yield spelled.replace("\\n", "\n").replace("\\t", "\t")
        yield spelled.replace(_STAND_IN, _HALF).replace(json.dumps(_STAND_IN)[1:-1], _HALF)


def json_of(sample: Sample, call: Call) -> str | None:
    """The call's arguments as the text has them; None where they are not one JSON object."""
    for ascii_only in (False, True):
        for separators in ((", ", ": "), (",", ":")):
            made = json.dumps(call.arguments, ensure_ascii=ascii_only, separators=separators)
            if call.arguments and made in sample.text:
                return made
    return None


def _with(sample: Sample, at: int, end: int, text: str) -> Sample:
    return replace(sample, text=sample.text[:at] + text + sample.text[end:])


def opening_dropped(draw: random.Random, sample: Sample) -> Sample | None:
    """A marker in front of the first call's name is missing."""
    name = sample.text.find(sample.turn.calls[0].name)
    before = [tag for tag in tags(sample) if tag.end() <= name and not _CLOSING.search(tag[0])]
    if not before:
        return None
    tag = draw.choice(before)
    return _with(sample, *tag.span(), "")


def _closings(sample: Sample) -> list[re.Match[str]]:
    return [tag for tag in tags(sample) if _CLOSING.search(tag[0])]


def closing_dropped(draw: random.Random, sample: Sample) -> Sample | None:
    """A marker that closes a value, a call or all of them is missing, with its line."""
    found = _closings(sample)
    if not found:
        return None
    start, end = draw.choice(found).span()
    own_line = sample.text[:start].endswith("\n") and sample.text[end:].startswith("\n")
    return _with(sample, start, end + own_line, "")


def closing_doubled(draw: random.Random, sample: Sample) -> Sample | None:
    """A marker that closes stands twice."""
    found = _closings(sample)
    if not found:
        return None
    tag = draw.choice(found)
    return _with(sample, tag.end(), tag.end(), draw.choice(("", "\n")) + tag[0])


def closing_nested(draw: random.Random, sample: Sample) -> Sample | None:
    """A value has a marker that closes in it, and goes on with words."""
    found = _closings(sample)
    if not found or not values_of(sample.turn):
        return None
    tag = draw.choice(found)[0]
    return _rewritten(draw, sample, lambda value: f"{value} with {tag} in it")


def _rewritten(draw: random.Random, sample: Sample, change: Callable[[str], str]) -> Sample | None:
    """The sample with one text among the arguments changed."""
    calls = [
        (place, key)
        for place, call in enumerate(sample.turn.calls)
        for key, value in call.arguments.items()
        if isinstance(value, str) and value
    ]
    if not calls:
        return None
    place, key = draw.choice(calls)
    changed = [*sample.turn.calls]
    old = changed[place].arguments
    changed[place] = Call(changed[place].name, {**old, key: change(old[key])})
    turn = sample.turn._replace(calls=tuple(changed))
    made = sample.write(turn)
    return None if made is None else replace(sample, turn=turn, prompt=made[0], text=made[1])


def cut_off(draw: random.Random, sample: Sample) -> Sample:
    """The text ends anywhere: because it may be no longer, or by itself."""
    cut = draw.random() < 0.5
    text = sample.text[: draw.randrange(1, len(sample.text))]
    return replace(sample, text=text, cut=cut, partly=not cut)


def raw_controls(draw: random.Random, sample: Sample) -> Sample | None:
    """Line breaks and tabs stand in JSON strings as they are."""
    made = _rewritten(draw, sample, lambda value: f"{value}\n\tgoes on")
    if made is None:
        return None
    text = made.text
    for call in made.turn.calls:
        if spelled := json_of(made, call):
            text = text.replace(spelled, spelled.replace("\\n", "\n").replace("\\t", "\t"))
    return replace(made, text=text) if text != made.text else None


def half_a_pair(draw: random.Random, sample: Sample) -> Sample | None:
    """A JSON string has an escape that is half of a surrogate pair."""
    made = _rewritten(draw, sample, lambda value: value + _STAND_IN)
    if made is None:
        return None
    escaped = json.dumps(_STAND_IN)[1:-1]
    spelled = [each for call in made.turn.calls if (each := json_of(made, call))]
    if not any(_STAND_IN in each or escaped in each for each in spelled):
        return None
    return replace(made, text=made.text.replace(_STAND_IN, _HALF).replace(escaped, _HALF))


def brace_dropped(draw: random.Random, sample: Sample) -> Sample | None:  # noqa: ARG001
    """The last brace or bracket of the last call is missing."""
    found = _last_braces(sample)
    return _with(sample, found.end() - 1, found.end(), "") if found else None


def quote_dropped(draw: random.Random, sample: Sample) -> Sample | None:  # noqa: ARG001
    """The last quote of the last call is missing."""
    found = _last_braces(sample)
    if not found or sample.text[found.start() - 1] not in "\"'":
        return None
    return _with(sample, found.start() - 1, found.start(), "")


def _last_braces(sample: Sample) -> re.Match[str] | None:
    """The braces and brackets that close the last call, where it has such."""
    call = sample.turn.calls[-1]
    if json_of(sample, call) is None and f"{call.name}(" not in sample.text:
        return None
    return _CLOSED.search(sample.text)


def in_thoughts(draw: random.Random, sample: Sample) -> Sample | None:  # noqa: ARG001
    """The call comes before the thoughts are closed."""
    turn = sample.turn._replace(reasoning="I had better look.")
    made = sample.write(turn)
    if made is None:
        return None
    prompt, text = made
    _, said, rest = text.rpartition(turn.reasoning)
    closing = _TAG.match(rest.lstrip())
    if not said or not closing:
        return None
    rest = rest.replace(closing[0], "", 1)
    return replace(
        sample, turn=turn, prompt=prompt, text=text[: -len(rest) - len(closing[0])] + rest
    )


def unknown_name(draw: random.Random, sample: Sample) -> Sample:
    """A call is of a tool that was not offered."""
    place = draw.randrange(len(sample.turn.calls))
    calls = [*sample.turn.calls]
    old = calls[place].name
    calls = [call._replace(name=MISSPELT) if call.name == old else call for call in calls]
    text = re.sub(rf"\b{re.escape(old)}\b", MISSPELT, sample.text)
    turn = sample.turn._replace(calls=tuple(calls))
    return replace(sample, turn=turn, text=text, loosely=True)


def glued_before(draw: random.Random, sample: Sample) -> Sample:
    """Text stands right before the call."""
    return replace(sample, text=draw.choice(("Sure.", "I look it up: ", "Ok,")) + sample.text)


def glued_after(draw: random.Random, sample: Sample) -> Sample:
    """Text stands right after the call."""
    return replace(sample, text=sample.text + draw.choice(("Done.", " Let me see", "<b>ok</b>")))


def stray_spaces(draw: random.Random, sample: Sample) -> Sample | None:
    """Spaces or line breaks beside a marker: between markers, or in front of a name or JSON."""
    text = _without_values(sample)
    names = tuple(call.name for call in sample.turn.calls)
    places = [
        at
        for tag in _TAG.finditer(text)
        for at in tag.span()
        if not any(word.start() < at < word.end() for word in _ONE_TOKEN.finditer(text))
        and text[at:].lstrip().startswith(("<", "{", "[", *names))
        and text[:at].rstrip().endswith((">", "]", "}"))
    ]
    if not places:
        return None
    at = draw.choice(places)
    return _with(sample, at, at, draw.choice(_SPACES))


def fenced(draw: random.Random, sample: Sample) -> Sample | None:
    """A call's JSON, or all of the calls, in a fence of Markdown."""
    begin = draw.choice(("```\n", "```json\n"))
    spelled = [each for call in sample.turn.calls if (each := json_of(sample, call))]
    if spelled and draw.random() < 0.5 and _TAG.search(sample.text):
        first, last = sample.text.find("{"), sample.text.rfind("}") + 1
        if len(sample.turn.calls) > 1:
            return None
        return replace(
            sample,
            text=f"{sample.text[:first]}{begin}{sample.text[first:last]}\n```{sample.text[last:]}",
        )
    return replace(sample, text=f"{begin}{sample.text}\n```")


def key_twice(draw: random.Random, sample: Sample) -> Sample | None:
    """An argument stands twice, with different values."""
    call = sample.turn.calls[-1]
    keys = [key for key, value in call.arguments.items() if isinstance(value, str) and value]
    if not keys:
        return None
    key, other = draw.choice(keys), "another one"
    doubled = Call(call.name, {**call.arguments, "key_of_this": other})
    made = sample.write(sample.turn._replace(calls=(*sample.turn.calls[:-1], doubled)))
    if made is None:
        return None
    prompt, text = made
    text = text.replace("key_of_this", key)
    return replace(sample, prompt=prompt, text=text, others={**sample.others, key: other})


def python_quotes(draw: random.Random, sample: Sample) -> Sample | None:  # noqa: ARG001
    """The arguments are written as Python's, not as JSON."""
    text = sample.text
    for call in sample.turn.calls:
        if spelled := json_of(sample, call):
            text = text.replace(spelled, repr(call.arguments))
    return replace(sample, text=text) if text != sample.text else None


DAMAGES: Final[Mapping[str, Damage]] = {
    "opening dropped": opening_dropped,
    "closing dropped": closing_dropped,
    "closing doubled": closing_doubled,
    "closing nested": closing_nested,
    "cut off": cut_off,
    "raw controls": raw_controls,
    "half a pair": half_a_pair,
    "brace dropped": brace_dropped,
    "quote dropped": quote_dropped,
    "in thoughts": in_thoughts,
    "unknown name": unknown_name,
    "glued before": glued_before,
    "glued after": glued_after,
    "stray spaces": stray_spaces,
    "fenced": fenced,
    "key twice": key_twice,
    "python quotes": python_quotes,
}
# They begin with a text of their own, so no other can come before them.
REWRITING: Final = frozenset(
    {"closing nested", "raw controls", "half a pair", "in thoughts", "key twice"}
)
# What no reader can put right: what is missing was never written.
UNRECOVERABLE: Final = frozenset({"cut off", "quote dropped"})
