"""Grammars of calls whose arguments are written one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import JSON_STYLE
from radixlm.parsers.call_format import FieldCall
from radixlm.parsers.tools import ANY_TYPE, REMARKS, Choices, Tool, choices, types_of

_KEY = re.compile(r"[\w.-]+", re.ASCII)
_ANY_KEY = "/[A-Za-z0-9_.\\-]+/"
# What says no more of the arguments than their properties do.
_FOLLOWED = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"}
)
_OF_VALUES = REMARKS | {"enum", "const", "type"}
_WITHOUT_QUOTES = frozenset({"string", "null"})
_COMPOUND = frozenset({"array", "object"})
_ROOT = "#/$defs/root"


class GrammarWriter(Protocol):
    """Writes what depends on the vocabulary."""

    def literal(self, text: str) -> str:
        """A literal; its special tokens as such."""

    def up_to(self, rule: str, marker: str) -> str:
        """A rule: any text up to a marker, the marker included."""


def shared_rules(form: FieldCall, writer: GrammarWriter) -> list[str]:
    """Rules that those of all tools use: `plain`, any text up to the end of a value, and with own
    quotes `any`, any value.
    """
    if form.quote:
        quote, join = writer.literal(form.quote), writer.literal(form.join)
        pair = f"{_ANY_KEY} {writer.literal(form.key_after)} any"
        scalar = json_rule({"type": ["number", "boolean", "null"]})
        array, pairs = f'"[" (any ({join} any)*)? "]"', f"({pair} ({join} {pair})*)?"
        any_value = f'any: {quote} plain | {scalar} | {array} | "{{" {pairs} "}}"'
        return [writer.up_to("plain", form.quote), any_value]
    if form.value_end and "{key}" not in form.value_end:
        return [writer.up_to("plain", form.value_end)]
    return []


class FieldRules(NamedTuple):
    """Rules of one tool's calls whose arguments are written one by one.

    arguments: their schema. Where it names no properties, any may be given, else these alone.
    """

    form: FieldCall
    tool: Tool
    arguments: Mapping[str, Any]
    writer: GrammarWriter

    def rules(self, rule: str, *, lead: str) -> list[str]:
        """`rule`: one call, arguments in the schema's order; `rule`_lead, the same with `lead`
        before it; and the rules they need.

        `plain` must be any text up to the form's `value_end`. Raises InvalidRequestError when the
        schema of a strict tool cannot be followed in this form.
        """
        form, literal = self.form, self.writer.literal
        opens, closes = form.before + self.tool.name + form.after, literal(form.closes)
        join = literal(form.join)
        lines = [
            f"{rule}: {literal(opens)} {rule}_rest",
            f"{rule}_lead: {literal(lead + opens)} {rule}_rest",
        ]
        properties = self._properties()
        if not properties and self.arguments.get("additionalProperties") is not False:
            if "{key}" in form.value_end:  # a key that is not known can not be closed
                return [*lines, f"{rule}_rest: {closes}"]
            return [
                *lines,
                f"{rule}_rest: ({rule}_any ({join} {rule}_any)*)? {closes}",
                f"{rule}_any: {literal(form.key_before)} {_ANY_KEY} {self._value({}, '')}",
            ]
        lines.append(f"{rule}_rest: {rule}_first_0 {closes}")
        for place, (key, schema) in enumerate(properties.items()):
            given = f"{rule}_field_{place}"
            first, more = (f"{rule}_{which}_" for which in ("first", "more"))
            needed = key in self.arguments.get("required", ())
            without = ("", "") if needed else (f" | {first}{place + 1}", f" | {more}{place + 1}")
            plain = "plain"
            if "{key}" in form.value_end:
                plain = f"{rule}_plain_{place}"
                lines.append(self.writer.up_to(plain, form.end(key)))
            lines += [
                f"{given}: {literal(form.key_before + key)} {self._value(schema, key, plain)}",
                f"{first}{place}: {given} {more}{place + 1}{without[0]}",
                f"{more}{place}: {join} {given} {more}{place + 1}{without[1]}",
            ]
        count = len(properties)
        return [*lines, f'{rule}_first_{count}: ""', f'{rule}_more_{count}: ""']

    def _properties(self) -> Mapping[str, Any]:
        more = self.arguments.keys() - _FOLLOWED - REMARKS
        if more:
            self._refuse(f"{sorted(more)} of its parameters")
        known = self.arguments
        if "{key}" in self.form.value_end and not known.get("properties"):
            known = {"properties": self.tool.parameters.get("properties", {})}
        found = dict(known.get("properties", {}))
        found |= {key: {} for key in self.arguments.get("required", ()) if key not in found}
        odd = [key for key in found if not _KEY.fullmatch(key)]
        if odd and self.tool.strict:
            raise self._wrong(
                f"this model's calls can not hold an argument named {odd[0]!r}; letters, digits "
                "and '_.-' can be written"
            )
        return {key: schema for key, schema in found.items() if key not in odd}

    def _value(self, schema: Any, key: str, plain: str = "plain") -> str:
        """The rule of what stands after an argument's name. plain: the rule of any text up to a
        value's end.
        """
        form, literal = self.form, self.writer.literal
        after = literal(form.key_after + form.pad)
        if form.quote:
            return f"{after} {self._in_quotes(schema)}"
        if not form.value_end:
            return f"{after} {self._json(schema)}"
        ends = literal(form.pad + form.end(key))
        json_after = literal((form.json_after or form.key_after) + form.pad)
        types = types_of(schema, self.arguments)
        chosen = choices(schema, self.arguments)
        if values := _values(chosen):
            if not _only_values(chosen, values):
                self._refuse(f"more than the values, in {json.dumps(schema)[:200]},")
            written = " | ".join(
                literal(self._after(value) + form.pad + form.value(value)) for value in values
            )
            return f"({written}) {ends}"
        if form.nested and types & _COMPOUND:
            self._refuse("what stands in an array or object")
            return f"{after} {plain}"
        if "string" not in types:
            return f"{json_after} {self._json(schema)} {ends}"
        if not (chosen.only and not chosen.exclusive and all(map(_says_no_more, chosen.schemas))):
            self._refuse(f"more than the type of a text, in {json.dumps(schema)[:200]},")
        behind = form.value_end[len(form.value_end.rstrip()) :]
        text = f"{after} {plain} {literal(behind)}"
        if not form.json_after or types == {"string"}:
            return text
        others = self._json({"type": sorted(types - {"string"})})
        return f"({text} | {json_after} {others} {ends})"

    def _after(self, value: Any) -> str:
        form = self.form
        return form.key_after if isinstance(value, str) or not form.json_after else form.json_after

    def _in_quotes(self, schema: Any) -> str:
        """A value in the format's own quotes."""
        form, chosen = self.form, choices(schema, self.arguments)
        if values := _values(chosen):
            if not _only_values(chosen, values):
                self._refuse(f"more than the values, in {json.dumps(schema)[:200]},")
            return (
                "(" + " | ".join(self.writer.literal(form.value(value)) for value in values) + ")"
            )
        types = types_of(schema, self.arguments)
        if not types & (_COMPOUND | {"string"}):
            return self._json(schema)
        says_nothing = types == ANY_TYPE and all(map(_says_no_more, chosen.schemas))
        is_text = types == {"string"} and all(map(_says_no_more, chosen.schemas))
        if not says_nothing and not is_text:
            self._refuse(f"more than the type of a text, in {json.dumps(schema)[:200]},")
        return f"{self.writer.literal(form.quote)} plain" if types == {"string"} else "any"

    def _json(self, schema: Any) -> str:
        found = moved(schema if isinstance(schema, Mapping) else {}, _ROOT)
        if '"$ref"' in json.dumps(found):
            found["$defs"] = {"root": moved(self.arguments, _ROOT)}
        return json_rule(found, lenient=not self.tool.strict)

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


def moved(schema: Any, root: str) -> Any:
    """`schema` for a place inside another one: its references to itself start at `root` now."""
    if isinstance(schema, list):
        return [moved(entry, root) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: moved(entry, root) for name, entry in schema.items()}
    match found.get("$ref"):
        case str(place) if place == "#" or place.startswith("#/"):
            found["$ref"] = root + place[1:]
    return found


def json_rule(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """Values of a schema. lenient: the parts of it that cannot be followed are passed over."""
    options = {**JSON_STYLE, "lenient": lenient}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def quoted(text: str) -> str:
    """A literal; nothing for the empty text."""
    return json.dumps(text, ensure_ascii=False) if text else ""
