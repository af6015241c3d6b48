"""Terms of grammars in Lark, as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import JSON_STYLE
from radixlm.parsers.formats import Fields
from radixlm.parsers.tools import REMARKS, Choices, Tool, choices, types_of


def moved(schema: Any, root: str) -> Any:
    """`schema` for a place inside another one: what it refers to in itself is at `root` now."""
    if isinstance(schema, list):
        return [moved(entry, root) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {name: moved(entry, root) for name, entry in schema.items()}
    match found.get("$ref"):
        case str(place) if place == "#" or place.startswith("#/"):
            found["$ref"] = root + place[1:]
    return found


def json_of(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """Values of a schema. lenient: what can not be followed of the schema is passed over."""
    options = {**JSON_STYLE, "lenient": lenient}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def up_to(rule: str, marker: str) -> str:
    """A rule: any text up to a marker, the marker included."""
    return f"{rule}[suffix={quoted(marker)}]: ANYTHING"


def quoted(text: str) -> str:
    """A text as it is; nothing for the empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""


_KEY = re.compile(r"[\w.-]+", re.ASCII)
_ANY_KEY = "/[A-Za-z0-9_.\\-]+/"
# What says no more of the arguments than their properties do.
_FOLLOWED = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"}
)
_OF_VALUES = REMARKS | {"enum", "const", "type"}
_WITHOUT_QUOTES = frozenset({"string", "null"})
_ROOT = "#/$defs/root"


def rules_of_call(
    rule: str, form: Fields, tool: Tool, arguments: Mapping[str, Any], *, lead: str
) -> list[str]:
    """`rule`: one call of the tool, arguments in the schema's order; `rule`_lead, the same with
    `lead` before it; and the rules they need.

    arguments: their schema. Where it names no properties, any may be given, else these alone.
    `plain` must be any text up to the form's `value_end`. Raises InvalidRequestError when the
    schema of a strict tool can not be followed in this form.
    """
    writer = _Writer(form, tool, arguments)
    opens, closes = form.before + tool.name + form.after, quoted(form.closes)
    calls = [
        f"{rule}: {quoted(opens)} {rule}_rest",
        f"{rule}_lead: {quoted(lead + opens)} {rule}_rest",
    ]
    properties = writer.properties()
    if not properties and arguments.get("additionalProperties") is not False:
        field = f"{quoted(form.key_before)} {_ANY_KEY} {writer.field_of({})}"
        return [
            *calls,
            f"{rule}_rest: ({rule}_any ({quoted(form.join)} {rule}_any)*)? {closes}",
            f"{rule}_any: {field}",
        ]
    lines = [*calls, f"{rule}_rest: {rule}_first_0 {closes}"]
    for place, (key, schema) in enumerate(properties.items()):
        given, rest = f"{rule}_field_{place}", f"{rule}_more_{place + 1}"
        needed = key in arguments.get("required", ())
        lines += [
            f"{given}: {quoted(form.key_before + key)} {writer.field_of(schema)}",
            f"{rule}_first_{place}: {given} {rest}"
            + ("" if needed else f" | {rule}_first_{place + 1}"),
            f"{rule}_more_{place}: {quoted(form.join)} {given} {rest}"
            + ("" if needed else f" | {rest}"),
        ]
    count = len(properties)
    return [*lines, f'{rule}_first_{count}: ""', f'{rule}_more_{count}: ""']


class _Writer:
    def __init__(self, form: Fields, tool: Tool, arguments: Mapping[str, Any]) -> None:
        self._form = form
        self._tool = tool
        self._root = arguments

    def properties(self) -> Mapping[str, Any]:
        """The arguments that there are."""
        more = self._root.keys() - _FOLLOWED - REMARKS
        if more:
            self._refuse(f"{sorted(more)} of its parameters")
        found = dict(self._root.get("properties", {}))
        found |= {key: {} for key in self._root.get("required", ()) if key not in found}
        for key in found:
            if not _KEY.fullmatch(key):
                raise InvalidRequestError(
                    f"tools: {self._tool.name}: this model's calls can not hold an argument named"
                    f" {key!r}; letters, digits and '_.-' can be written",
                    param="tools",
                )
        return found

    def field_of(self, schema: Any) -> str:
        """What stands behind an argument's name."""
        form = self._form
        if not form.value_end:
            return f"{quoted(form.key_after)} {self._json(schema)}"
        ends = quoted(f"\n{form.value_end}\n")
        chosen = choices(schema, self._root)
        if values := _values(chosen):
            if not _only_values(chosen, values):
                self._refuse(f"more than the values, in {json.dumps(schema)[:200]},")
            written = " | ".join(quoted(form.key_after + _plain(value)) for value in values)
            return f"({written}) {ends}"
        if "string" not in types_of(schema, self._root):
            return f"{quoted(form.key_after)} {self._json(schema)} {ends}"
        if not _any_text(chosen):
            self._refuse(f"more than the type of a text, in {json.dumps(schema)[:200]},")
        return f'{quoted(form.key_after)} plain "\\n"'

    def _json(self, schema: Any) -> str:
        found = moved(schema if isinstance(schema, Mapping) else {}, _ROOT)
        if '"$ref"' in json.dumps(found):
            found["$defs"] = {"root": moved(self._root, _ROOT)}
        return json_of(found, lenient=not self._tool.strict)

    def _refuse(self, what: str) -> None:
        """Where the schema must be followed in all it says."""
        if self._tool.strict:
            raise InvalidRequestError(
                f"tools: {self._tool.name}: {what} can not be followed in the format of this"
                " model's calls; leave it out, or `strict`",
                param="tools",
            )


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
    """Whether each of these values is one, whatever else is said."""
    said = {key for schema in chosen.schemas for key in schema}
    apart = len(set(map(_plain, values))) == len(values)
    return chosen.only and said <= _OF_VALUES and (apart or not chosen.exclusive)


def _any_text(chosen: Choices) -> bool:
    """Whether every text is a value, as it is read."""
    return chosen.only and not chosen.exclusive and all(map(_says_no_more, chosen.schemas))


def _says_no_more(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return schema is True
    said = schema.keys() - REMARKS
    return not said or (said == {"type"} and types_of(schema, {}) <= _WITHOUT_QUOTES)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
