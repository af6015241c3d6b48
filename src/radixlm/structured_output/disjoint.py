"""Whether branches of a JSON schema's `oneOf` exclude each other, so that they are an `anyOf`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import inf
from typing import Any

from radixlm.core.grammar import schema_at, type_of

_TYPES = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))
_DEEPEST = 16
_OF_NUMBERS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
# Keywords that bound a value from below and above; the second one leaves the bound out.
_BOUNDS = {
    "integer": _OF_NUMBERS,
    "fraction": _OF_NUMBERS,
    "string": (("minLength",), ("maxLength",)),
    "array": (("minItems",), ("maxItems",)),
    "object": (("minProperties",), ("maxProperties",)),
}


class Branches:
    """Compares schemas. root: what their references lead into.

    llguidance does the same, but it follows no references (pydantic's unions are made of them) and
    knows no bounds. This says that two schemas exclude each other only when it is certain: by their
    types, by what they name (`const`, `enum`), by bounds, or by a property or first item.
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
        if self._parts_exclude(left, right, depth) or self._parts_exclude(right, left, depth):
            return True
        ours, theirs = _named(left), _named(right)
        if ours is not None and theirs is not None and not set(ours) & set(theirs):
            return True
        common = _types(left, ours) & _types(right, theirs)
        return all(self._differ_as(kind, left, right, depth) for kind in common)

    def _parts_exclude(self, schema: Mapping[str, Any], other: Any, depth: int) -> bool:
        """Whether something that values of `schema` must match, too, excludes `other`."""
        needed = [[part] for part in schema.get("allOf", ())]
        if "$ref" in schema:
            needed.append([schema_at(schema["$ref"], self._root)])
        needed += [schema[name] for name in ("anyOf", "oneOf") if schema.get(name)]
        return any(all(self.exclude(part, other, depth + 1) for part in each) for each in needed)

    def _differ_as(
        self, kind: str, left: Mapping[str, Any], right: Mapping[str, Any], depth: int
    ) -> bool:
        """Whether no value of one type matches both."""
        if kind in _BOUNDS:
            (low, high), (other_low, other_high) = _range(kind, left), _range(kind, right)
            if low > other_high or other_low > high:
                return True
        if kind == "object":
            pairs = ((left, right), (right, left))
            return any(self._property_excludes(one, other, depth) for one, other in pairs)
        if kind == "array" and min(_number(each, "minItems", 0) for each in (left, right)) >= 1:
            return self.exclude(_first_item(left), _first_item(right), depth + 1)
        return False

    def _property_excludes(
        self, one: Mapping[str, Any], other: Mapping[str, Any], depth: int
    ) -> bool:
        """Whether `other` excludes a property that `one` requires."""
        known = other.get("properties", {})
        closed = other.get("additionalProperties", True) is False
        for name in one.get("required", ()):
            if name not in known:
                if closed and not other.get("patternProperties"):
                    return True
            elif name in other.get("required", ()):
                mine = one.get("properties", {}).get(name, True)
                if self.exclude(mine, known[name], depth + 1):
                    return True
        return False


def _types(schema: Mapping[str, Any], named: Sequence[str] | None) -> frozenset[str]:
    """Types that a value of it may have; `fraction` is a number that is no integer."""
    found = _TYPES
    if "type" in schema:
        given = schema["type"]
        kinds = set(given if isinstance(given, list) else [given])
        found &= kinds | ({"integer", "fraction"} if "number" in kinds else set())
    if named is not None:
        # Whole numbers are written as integers here.
        kinds = {type_of(json.loads(value)) for value in named}
        found &= {"fraction" if kind == "number" else kind for kind in kinds}
    return found


def _named(schema: Mapping[str, Any]) -> list[str] | None:
    """The only values that it allows, as JSON in which equal ones are equal; None for any."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    return [json.dumps(_canonical(value), sort_keys=True) for value in values]


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_canonical(part) for part in value]
    if isinstance(value, Mapping):
        return {name: _canonical(part) for name, part in value.items()}
    return value


def _range(kind: str, schema: Mapping[str, Any]) -> tuple[tuple[float, int], tuple[float, int]]:
    """The lowest and the highest bound, each with how far inside of it values begin to be: so
    3 (excluded) is more than 3 as a lower bound, and less as an upper one.
    """
    lows, highs = _BOUNDS[kind]
    low = max((_number(schema, name, -inf), inside) for inside, name in enumerate(lows))
    high = min((_number(schema, name, inf), -inside) for inside, name in enumerate(highs))
    return low, high


def _number(schema: Mapping[str, Any], name: str, otherwise: float) -> float:
    value = schema.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and value is not None else otherwise


def _first_item(schema: Mapping[str, Any]) -> Any:
    first = schema.get("prefixItems")
    if isinstance(first, list) and first:
        return first[0]
    items = schema.get("items", True)
    if isinstance(items, list):
        return items[0] if items else True
    return items
