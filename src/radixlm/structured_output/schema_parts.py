"""The places of schemas within a JSON schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

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
