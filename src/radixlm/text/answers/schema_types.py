"""Which types of JSON a schema's values have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ANY_TYPE = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
# Schemas that refer to each other in a ring say nothing.
DEEPEST: Final = 16
_BEGINS = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}


def types_of(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """Of all values of `schema`, which stands in `root`; all types where it does not say.

    >>> sorted(types_of({"anyOf": [{"const": "a"}, {"type": "null"}]}, {}))
    ['null', 'string']
    """
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return ANY_TYPE
    match schema:
        case {"$ref": str(place)}:
            return types_of(schema_at(place, root), root, depth + 1)
        case {"const": value}:
            return frozenset({_type_of(value)})
        case {"enum": [*values]}:
            return frozenset(map(_type_of, values))
        case {"type": str(name)}:
            return frozenset({name})
        case {"type": [*names]}:
            return frozenset(map(str, names))
        case {"anyOf": [*others]} | {"oneOf": [*others]}:
            return frozenset().union(*(types_of(other, root, depth + 1) for other in others))
    return ANY_TYPE


def fits(value: str, types: frozenset[str]) -> bool:
    """Whether a value, given as JSON, has one of the types."""
    found = _BEGINS.get(value[0])
    if found is None:
        whole = value.lstrip("-").isdigit()
        return "number" in types or (whole and "integer" in types)
    return found in types


def _type_of(value: Any) -> str:
    match value:
        case str():
            return "string"
        case bool():
            return "boolean"
        case None:
            return "null"
        case int():
            return "integer"
        case float():
            return "number"
        case list():
            return "array"
    return "object"


def schema_at(place: str, root: Any) -> Any:
    """What `#/a/b` refers to; None where that is nothing."""
    found = root
    for name in place.split("/")[1:]:
        if not isinstance(found, Mapping):
            return None
        found = found.get(name.replace("~1", "/").replace("~0", "~"))
    return found if place.startswith("#") else None
