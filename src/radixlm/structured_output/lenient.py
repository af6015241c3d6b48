"""The places of schemas within a JSON schema; and the part of one that can be followed, where it
need not be followed whole, as that of a tool which is not strict. The rest is passed over: more
answers are allowed than the schema does, never none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from radixlm.core.grammar import schema_at

ONE: Final = (
    *("items", "additionalItems", "unevaluatedItems", "contains", "not", "if", "then", "else"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
)
LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def each_part(
    name: str, value: Any, each: Callable[[Any], Any], pattern: Callable[[str], str] = str
) -> Any:
    """A keyword's value, with what `each` makes of the schemas in it and `pattern` of patterns."""
    if name in LISTS and isinstance(value, list):
        return [each(part) for part in value]
    if name in MAPS and isinstance(value, Mapping):
        keys = pattern if name == "patternProperties" else str
        return {keys(key): each(part) for key, part in value.items()}
    return each(value) if name in ONE else value


def all_parts(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A schema and all within it."""
    found = [schema]

    def add(part: Any) -> None:
        if isinstance(part, Mapping):
            found.extend(all_parts(part))

    for name, value in schema.items():
        each_part(name, value, add)
    return found


# What says something of values without a schema in it; of llguidance's own.
_PLAIN = frozenset(
    {
        *("type", "enum", "const", "pattern", "format", "minLength", "maxLength", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"),
        *("uniqueItems", "minProperties", "maxProperties", "required", "dependentRequired"),
    }
)
_SCHEMAS = frozenset({*ONE, *LISTS, *MAPS})
_KEPT = ("type", "const", "required")
_DEEPEST = 32  # JSON is read to four times that depth


class Lenient:
    """Reads the schemas of one grammar. valid: whether a schema can be followed."""

    def __init__(self, valid: Callable[[Mapping[str, Any]], bool]) -> None:
        self._valid = valid
        self._known: dict[str, bool] = {}

    def followed(self, root: Mapping[str, Any]) -> dict[str, Any]:
        """All of it that can be followed. Where the parts can not be together, `outline`."""
        if self._valid(root):
            return {**root}
        made: dict[str, Any] = self._read(root, root, 0)
        return made if self._valid(made) else self.outline(root)

    def outline(self, root: Mapping[str, Any]) -> dict[str, Any]:
        """The names and types of its properties, and of theirs: quickly compiled, whatever else the
        schema says.
        """
        return self._outline(root, 2)

    def _outline(self, schema: Any, depth: int) -> dict[str, Any]:
        if not isinstance(schema, Mapping):
            return {}
        made = self._plain({name: schema[name] for name in _KEPT if name in schema})
        if depth and isinstance(schema.get("properties"), Mapping):
            named = schema["properties"].items()
            made["properties"] = {name: self._outline(each, depth - 1) for name, each in named}
            made["additionalProperties"] = not {*made.get("required", ())} <= {*made["properties"]}
        return made

    def _read(self, schema: Any, root: Mapping[str, Any], depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return {}
        made = self._plain({name: value for name, value in schema.items() if name in _PLAIN})
        if _leads_somewhere(schema.get("$ref"), root):
            made["$ref"] = schema["$ref"]
        for name, value in schema.items():
            if name in _SCHEMAS and _holds_schemas(name, value):
                made[name] = each_part(name, value, lambda part: self._read(part, root, depth + 1))
        self._open_patterns(made)
        if "oneOf" in made:  # branches may overlap
            branches = made.pop("oneOf")
            made.setdefault("anyOf", branches)
        return made

    def _plain(self, said: dict[str, Any]) -> dict[str, Any]:
        """A schema without references to others: all of it, else each part that can be followed."""
        if self._can(said):
            return said
        made: dict[str, Any] = {}
        for name in sorted(said, key=lambda name: name != "type"):
            if self._can({**made, name: said[name]}):
                made[name] = said[name]
        return made

    def _can(self, schema: Mapping[str, Any]) -> bool:
        text = json.dumps(schema)
        if text not in self._known:
            self._known[text] = self._valid(schema)
        return self._known[text]

    def _open_patterns(self, made: dict[str, Any]) -> None:
        """Leave out patterns of keys that can not be followed; then other keys are allowed, too."""
        named = made.get("patternProperties", {})
        followed = {key: part for key, part in named.items() if self._can({"pattern": key})}
        if len(followed) < len(named):
            del made["patternProperties"]
            made |= {"additionalProperties": True}
            if followed:
                made["patternProperties"] = followed


def _leads_somewhere(reference: Any, root: Mapping[str, Any]) -> bool:
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return False
    return isinstance(schema_at(reference, root), Mapping | bool)


def _holds_schemas(name: str, value: Any) -> bool:
    if name in MAPS:
        return isinstance(value, Mapping)
    if name in LISTS and isinstance(value, list):
        return bool(value)
    return name in ONE and isinstance(value, Mapping | bool)
