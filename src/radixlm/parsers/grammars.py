"""Grammars of answers with reasoning and calls of tools, in Lark as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import ANY_OBJECT, JSON_STYLE, Grammar, GrammarKind
from radixlm.parsers import harmony, steps
from radixlm.parsers.tool_calls import CallFormat, Fields
from radixlm.parsers.tools import REMARKS, Calling, Choices, Tool, ToolUse, choices, types_of

_SLASH = re.compile(r"(\\.)|/", re.DOTALL)
_KEY = re.compile(r"[\w.-]+", re.ASCII)
_ANY_KEY = "/[A-Za-z0-9_.\\-]+/"
# What says no more of the arguments than their properties do.
_FOLLOWED = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"}
)
_OF_VALUES = REMARKS | {"enum", "const", "type"}
_WITHOUT_QUOTES = frozenset({"string", "null"})
_ROOT = "#/$defs/root"


def answer_grammar(
    form: CallFormat,
    use: ToolUse,
    *,
    special: Mapping[str, int],
    opened: bool | None,
    wanted: Grammar | None = None,
) -> str:
    """The grammar of all answers that are allowed.

    When calls are required, they are all there is, and their arguments follow the schemas, as far
    as that can be done where they are not strict. When calls may be made, text may come instead, or
    around them where a marker begins them; only arguments of strict tools follow a schema. Else
    there is only text, with no call in it.

    special: the markers that are special tokens, which are not text. opened: whether the prompt
    opened the reasoning before the answer; None where there is none. wanted: what an answer without
    calls must look like.

    Raises InvalidRequestError when that cannot stand within a grammar.
    """
    writer = _AnswerWriter(form, use, special)
    lines = ["%llguidance {}", f"start: {writer.thoughts(opened)}answer"]
    lines.append(f"answer: {writer.answer(wanted is not None)}")
    if use.may_call:
        lines += writer.calls(among_text=use.calling is Calling.AUTO and wanted is None)
    lines.append(writer.up_to("rest", steps.END))
    lines.append("SPACES: /[ \\n]{0,4}/")
    lines.append("ANYTHING: /(?s:.*)/")
    lines.append(f"TEXT: {writer.text()}")
    if wanted is not None:
        lines.append(f"final: {_within(wanted)}")
    return "\n".join(lines) + "\n"


def channel_grammar(
    use: ToolUse, *, special: Mapping[str, int], wanted: Grammar | None = None
) -> str:
    """The same for answers in channels, see `harmony`: any thoughts, and then text, or one call."""
    writer = _AnswerWriter(harmony.HARMONY, use, special)
    channel, message, constrain, start = map(
        writer.marker, (harmony.CHANNEL, harmony.MESSAGE, harmony.CONSTRAIN, harmony.START)
    )
    text = f'{channel} "final" {message} {"ANYTHING" if wanted is None else "final"}'
    ways = [] if use.calling is Calling.REQUIRED and use.may_call else [text]
    if use.may_call:
        for tool in use.tools:
            followed = tool.strict or use.calling is Calling.REQUIRED
            written = _json(tool.parameters if followed else ANY_OBJECT, lenient=not tool.strict)
            to = _quoted(f"commentary to=functions.{tool.name} ")
            ways.append(f'{channel} {to} {constrain} "json" {message} {written}')
    lines = [
        "%llguidance {}",
        "start: thoughts? answer",
        f'thoughts: {channel} "analysis" {message} rest {start} "assistant"',
        f"answer: {' | '.join(ways)}",
        writer.up_to("rest", harmony.END),
        "ANYTHING: /(?s:.*)/",
    ]
    if wanted is not None:
        lines.append(f"final: {_within(wanted)}")
    return "\n".join(lines) + "\n"


class _AnswerWriter(NamedTuple):
    form: CallFormat
    use: ToolUse
    special: Mapping[str, int]

    def thoughts(self, opened: bool | None) -> str:
        """What comes before the answer, spaces included."""
        if opened is None:
            return ""
        begin = self.marker(steps.BEGIN)
        return f"({begin})? rest SPACES " if opened else f"({begin} rest SPACES)? "

    def answer(self, with_final: bool) -> str:
        """Text, blocks of calls, or what is wanted instead of text."""
        text = "final" if with_final else "TEXT"
        form, use = self.form, self.use
        if not use.may_call:
            return text
        if use.calling is Calling.AUTO and form.begin and use.parallel and not with_final:
            return "block* TEXT"
        again = form.again is not None and use.parallel
        blocks = f"block ({_quoted(form.again or '')} block)*" if again else "block"
        return blocks if use.calling is Calling.REQUIRED else f"{text} | {blocks}"

    def text(self) -> str:
        """All text that is not read as calls; where calls may be made, a marker ends it anyway."""
        form = self.form
        if not form.begin:
            return f"ANYTHING & ~/{form.never_begins}(?s:.*)/"
        if self.use.may_call:
            return "ANYTHING"
        return f"ANYTHING & ~/(?s:.*){re.escape(form.begin)}(?s:.*)/"

    def calls(self, *, among_text: bool) -> list[str]:
        """The rule `block`, and those that it needs. among_text: any text may come before it."""
        form, tools = self.form, self.use.tools
        # One literal with the first name, where text may begin alike: the longest match wins.
        leads = form.fields is not None and not form.begin
        calls = first = "lead" if leads else f"{_quoted(form.opens)} one"
        if form.join is not None and self.use.parallel:
            calls = f"{first} ({_quoted(form.join)} one)*"
        head = "head" if form.begin else ""
        parts = (head, calls, _quoted(form.closes), self.marker(form.end))
        lines = [f"block: {' '.join(filter(None, parts))}"]
        if among_text and form.begin:
            lines.append(self.up_to("head", form.begin))
        elif form.begin:
            lines.append(f"head: {self.marker(form.begin)}")
        lines.append("one: " + " | ".join(f"tool_{place}" for place in range(len(tools))))
        for place, tool in enumerate(tools):
            lines += self._call(f"tool_{place}", tool)
        if leads:
            lines.append("lead: " + " | ".join(f"tool_{place}_lead" for place in range(len(tools))))
        if form.fields is not None and form.fields.value_end:
            lines.append(_up_to("plain", form.fields.value_end))
        return lines

    def up_to(self, rule: str, marker: str) -> str:
        """A rule: any text up to a marker, the marker included."""
        if marker in self.special:
            return f"{rule}: ANYTHING {self.marker(marker)}"
        return _up_to(rule, marker)

    def _call(self, rule: str, tool: Tool) -> list[str]:
        """The rule of a call, and those that it needs."""
        followed = tool.strict or self.use.calling is Calling.REQUIRED
        arguments = tool.parameters if followed else ANY_OBJECT
        form = self.form
        if form.fields is not None:
            fields = _FieldsWriter(form.fields, tool, arguments)
            return fields.rules(rule, lead=form.opens)
        if form.names:
            written = _json(arguments, lenient=not tool.strict)
            return [f"{rule}: {_quoted(tool.name)} {self.marker(form.names)} {written}"]
        call = {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                form.key: _moved(arguments, f"#/properties/{form.key}"),
            },
            "required": ["name", form.key],
            "additionalProperties": False,
        }
        return [f"{rule}: {_json(call, lenient=not tool.strict)}"]

    def marker(self, marker: str) -> str:
        token = self.special.get(marker)
        return _quoted(marker) if token is None else f"<[{token}]>"


class _FieldsWriter(NamedTuple):
    """Rules of one tool's calls whose arguments are written one by one.

    arguments: their schema. Where it names no properties, any may be given, else these alone.
    """

    form: Fields
    tool: Tool
    arguments: Mapping[str, Any]

    def rules(self, rule: str, *, lead: str) -> list[str]:
        """`rule`: one call, arguments in the schema's order; `rule`_lead, the same with `lead`
        before it; and the rules they need.

        `plain` must be any text up to the form's `value_end`. Raises InvalidRequestError when the
        schema of a strict tool cannot be followed in this form.
        """
        form = self.form
        opens, closes = form.before + self.tool.name + form.after, _quoted(form.closes)
        lines = [
            f"{rule}: {_quoted(opens)} {rule}_rest",
            f"{rule}_lead: {_quoted(lead + opens)} {rule}_rest",
        ]
        properties = self._properties()
        if not properties and self.arguments.get("additionalProperties") is not False:
            return [
                *lines,
                f"{rule}_rest: ({rule}_any ({_quoted(form.join)} {rule}_any)*)? {closes}",
                f"{rule}_any: {_quoted(form.key_before)} {_ANY_KEY} {self._value({})}",
            ]
        lines.append(f"{rule}_rest: {rule}_first_0 {closes}")
        for place, (key, schema) in enumerate(properties.items()):
            given = f"{rule}_field_{place}"
            first, more = (f"{rule}_{which}_" for which in ("first", "more"))
            needed = key in self.arguments.get("required", ())
            without = ("", "") if needed else (f" | {first}{place + 1}", f" | {more}{place + 1}")
            lines += [
                f"{given}: {_quoted(form.key_before + key)} {self._value(schema)}",
                f"{first}{place}: {given} {more}{place + 1}{without[0]}",
                f"{more}{place}: {_quoted(form.join)} {given} {more}{place + 1}{without[1]}",
            ]
        count = len(properties)
        return [*lines, f'{rule}_first_{count}: ""', f'{rule}_more_{count}: ""']

    def _properties(self) -> Mapping[str, Any]:
        more = self.arguments.keys() - _FOLLOWED - REMARKS
        if more:
            self._refuse(f"{sorted(more)} of its parameters")
        found = dict(self.arguments.get("properties", {}))
        found |= {key: {} for key in self.arguments.get("required", ()) if key not in found}
        for key in found:
            if not _KEY.fullmatch(key):
                raise self._wrong(
                    f"this model's calls can not hold an argument named {key!r}; letters, digits "
                    "and '_.-' can be written"
                )
        return found

    def _value(self, schema: Any) -> str:
        """What stands after an argument's name."""
        form = self.form
        if not form.value_end:
            return f"{_quoted(form.key_after)} {self._json(schema)}"
        ends = _quoted(f"\n{form.value_end}\n")
        chosen = choices(schema, self.arguments)
        if values := _values(chosen):
            if not _only_values(chosen, values):
                self._refuse(f"more than the values, in {json.dumps(schema)[:200]},")
            written = " | ".join(_quoted(form.key_after + _plain(value)) for value in values)
            return f"({written}) {ends}"
        if "string" not in types_of(schema, self.arguments):
            return f"{_quoted(form.key_after)} {self._json(schema)} {ends}"
        if not (chosen.only and not chosen.exclusive and all(map(_says_no_more, chosen.schemas))):
            self._refuse(f"more than the type of a text, in {json.dumps(schema)[:200]},")
        return f'{_quoted(form.key_after)} plain "\\n"'

    def _json(self, schema: Any) -> str:
        found = _moved(schema if isinstance(schema, Mapping) else {}, _ROOT)
        if '"$ref"' in json.dumps(found):
            found["$defs"] = {"root": _moved(self.arguments, _ROOT)}
        return _json(found, lenient=not self.tool.strict)

    def _refuse(self, what: str) -> None:
        """Only where the tool is strict."""
        if self.tool.strict:
            raise self._wrong(
                f"{what} can not be followed in the format of this model's calls; leave it out, or "
                "`strict`"
            )

    def _wrong(self, text: str) -> InvalidRequestError:
        return InvalidRequestError(f"tools: {self.tool.name}: {text}", param="tools")


def _values(chosen: Choices) -> list[Any] | None:
    """All values, where each of them is named."""
    found: list[Any] = []
    for schema in chosen.schemas:
        match schema:
            case {"enum": [*values]}:
                found += values
            case {"const": value}:
                found.append(value)
            case {"type": "null"}:
                found.append(None)
            case _:
                return None
    return found


def _only_values(chosen: Choices, values: Sequence[Any]) -> bool:
    """Whether each of these values is one, whatever else the schema says."""
    said = {key for schema in chosen.schemas for key in schema}
    apart = len(set(map(_plain, values))) == len(values)
    return chosen.only and said <= _OF_VALUES and (apart or not chosen.exclusive)


def _says_no_more(schema: Any) -> bool:
    """Whether every text is a value of it, as it is read."""
    if not isinstance(schema, Mapping):
        return schema is True
    said = schema.keys() - REMARKS
    return not said or (said == {"type"} and types_of(schema, {}) <= _WITHOUT_QUOTES)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _moved(schema: Any, root: str) -> Any:
    """`schema` for a place inside another one: its references to itself start at `root` now."""
    if isinstance(schema, list):
        return [_moved(entry, root) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: _moved(entry, root) for name, entry in schema.items()}
    match found.get("$ref"):
        case str(place) if place == "#" or place.startswith("#/"):
            found["$ref"] = root + place[1:]
    return found


def _json(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """Values of a schema. lenient: the parts of it that cannot be followed are passed over."""
    options = {**JSON_STYLE, "lenient": lenient}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def _up_to(rule: str, marker: str) -> str:
    return f"{rule}[suffix={_quoted(marker)}]: ANYTHING"


def _quoted(text: str) -> str:
    """A literal; nothing for the empty text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def _within(wanted: Grammar) -> str:
    """A grammar as a part of another one."""
    match wanted.kind:
        case GrammarKind.JSON_SCHEMA:
            try:
                schema = json.loads(wanted.text)
            except (ValueError, RecursionError) as error:
                raise InvalidRequestError(
                    f"{wanted.param} is no JSON: {error}", param=wanted.param
                ) from None
            return _json(schema if isinstance(schema, dict) else {})
        case GrammarKind.REGEX:
            text = _SLASH.sub(lambda found: found[1] or r"\/", wanted.text)
            return "/" + text.replace("\n", r"\n") + "/"
        case GrammarKind.LARK:
            if "::=" in wanted.text:
                raise InvalidRequestError(
                    f"{wanted.param}: with tools or a model that thinks, write it in Lark",
                    param=wanted.param,
                )
            return f"%lark {{\n{wanted.text}\n}}"
