"""Whether branches of a JSON schema's `oneOf` exclude each other, so that they are an `anyOf`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import inf
from typing import Any

_TYPES = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))
_DEEPEST = 16
_RANGES = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


class Branches:
    """Compares schemas. root: what their references lead into.

    It says that two exclude each other only when it knows so: by their types, by what they name
    (`const`, `enum`), by bounds, or by a property or first item in which they exclude each other.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def overlap(self, branches: Sequence[Any]) -> tuple[int, int] | None:
        """Places of two branches that may both hold, None when no two do."""
        for (first, left), (second, right) in combinations(enumerate(branches), 2):
            if not self.exclude(left, right):
                return first, second
        return None

    def exclude(self, left: Any, right: Any, depth: int = 0) -> bool:
        """Whether it is certain that no value matches both."""
        if depth > _DEEPEST:
            return False
        if left is False or right is False:
            return True
        if not isinstance(left, Mapping) or not isinstance(right, Mapping):
            return False
        for one, other in ((left, right), (right, left)):
            if any(self.exclude(part, other, depth + 1) for part in self._all_of(one)):
                return True
            if any(
                alternatives and all(self.exclude(part, other, depth + 1) for part in alternatives)
                for alternatives in (one.get("anyOf"), one.get("oneOf"))
            ):
                return True
        return self._differ(left, right, depth)

    def _all_of(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        yield from schema.get("allOf", ())
        if "$ref" in schema:
            yield self._resolved(schema["$ref"])

    def _resolved(self, reference: Any) -> Any:
        at: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        for step in filter(None, reference[1:].split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            at = at.get(name, True) if isinstance(at, Mapping) else True
        return at

    def _differ(self, left: Mapping[str, Any], right: Mapping[str, Any], depth: int) -> bool:
        named = _named(left), _named(right)
        if None not in named and not set(named[0] or ()) & set(named[1] or ()):
            return True
        common = _types(left) & _types(right)
        return all(self._differ_as(kind, left, right, depth) for kind in common)

    def _differ_as(
        self, kind: str, left: Mapping[str, Any], right: Mapping[str, Any], depth: int
    ) -> bool:
        """Whether no value of one type matches both."""
        if kind in ("integer", "fraction"):
            return _apart(_interval(left), _interval(right))
        if kind in _RANGES:
            low, high = _RANGES[kind]
            for one, other in ((left, right), (right, left)):
                if _number(one, low, 0) > _number(other, high, inf):
                    return True
        if kind == "object":
            return self._differ_in_a_property(left, right, depth)
        if kind == "array" and min(_number(s, "minItems", 0) for s in (left, right)) >= 1:
            return self.exclude(_first_item(left), _first_item(right), depth + 1)
        return False

    def _differ_in_a_property(
        self, left: Mapping[str, Any], right: Mapping[str, Any], depth: int
    ) -> bool:
        for one, other in ((left, right), (right, left)):
            for name in one.get("required", ()):
                mine = one.get("properties", {}).get(name, True)
                known = other.get("properties", {})
                if name not in known and not other.get("patternProperties"):
                    if other.get("additionalProperties", True) is False:
                        return True
                elif (
                    name in other.get("required", ())
                    and name in known
                    and self.exclude(mine, known[name], depth + 1)
                ):
                    return True
        return False


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """Types that a value of it may have; `fraction` is a number that is no integer."""
    named = _named(schema)
    found = _TYPES
    if "type" in schema:
        given = schema["type"]
        kinds = set(given if isinstance(given, list) else [given])
        found &= kinds | ({"integer", "fraction"} if "number" in kinds else set())
    if named is not None:
        found &= {_type_of(json.loads(value)) for value in named}
    return found


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _named(schema: Mapping[str, Any]) -> list[str] | None:
    """The only values that it allows, as JSON in which equal ones are equal; None for any."""
    if "const" in schema:
        return [_canonical(schema["const"])]
    values = schema.get("enum")
    return [_canonical(value) for value in values] if isinstance(values, list) else None


def _canonical(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return value


def _number(schema: Mapping[str, Any], name: str, otherwise: float) -> float:
    value = schema.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and value is not None else otherwise


def _interval(schema: Mapping[str, Any]) -> tuple[float, bool, float, bool]:
    """(lowest, whether it is left out, highest, whether it is left out)."""
    low, out_low = _number(schema, "minimum", -inf), _number(schema, "exclusiveMinimum", -inf)
    high, out_high = _number(schema, "maximum", inf), _number(schema, "exclusiveMaximum", inf)
    return max(low, out_low), out_low >= low, min(high, out_high), out_high <= high


def _apart(left: tuple[float, bool, float, bool], right: tuple[float, bool, float, bool]) -> bool:
    for (low, low_out, _, _), (_, _, high, high_out) in ((left, right), (right, left)):
        if low > high or (low == high and (low_out or high_out)):
            return True
    return False


def _first_item(schema: Mapping[str, Any]) -> Any:
    first = schema.get("prefixItems")
    if isinstance(first, list) and first:
        return first[0]
    items = schema.get("items", True)
    if isinstance(items, list):
        return items[0] if items else True
    return items
