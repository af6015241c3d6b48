"""JSON schemas, changed where llguidance (1.9.1) would not keep to them.

Every change leaves fewer answers than the schema allows, never others; what can not be mended so is
refused. Each names what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from math import inf, nextafter
from typing import Any

from radixlm.structured_output.disjoint import Branches

# Where schemas stand in schemas.
_ONE = ("items", "additionalItems", "unevaluatedItems", "contains", "not", "if", "then", "else")
_OF_OBJECTS = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_FAR = 10_000


class SchemaError(ValueError):
    """The schema can not be kept to; says why."""


def mended(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema as llguidance can take it. Raises SchemaError."""
    made: dict[str, Any] = _mended(schema, Branches(schema))
    return made


def _mended(schema: Any, branches: Branches) -> Any:
    if not isinstance(schema, Mapping):
        return schema

    def each(part: Any) -> Any:
        return _mended(part, branches)

    made = {name: each_part(name, value, each, mended_pattern) for name, value in schema.items()}
    for value in _values(made):
        _check_integers(value)
    _mend_bounds(made)
    if isinstance(made.get("pattern"), str):
        made["pattern"] = mended_pattern(made["pattern"])
    if isinstance(made.get("oneOf"), list) and "anyOf" not in made:
        overlap = branches.overlap(schema["oneOf"])
        if overlap is not None:
            first, second = overlap
            raise SchemaError(
                f"its `oneOf` has branches that one value may match both, {first} and {second}: "
                "give each a property of its own `const`, or a type of its own, or use `anyOf`"
            )
        made["anyOf"] = made.pop("oneOf")
    return made


def each_part(
    name: str, value: Any, each: Callable[[Any], Any], pattern: Callable[[str], str] = str
) -> Any:
    """A keyword's value, with what `each` makes of the schemas in it and `pattern` of patterns."""
    if name in _LISTS and isinstance(value, list):
        return [each(part) for part in value]
    if name in _MAPS and isinstance(value, Mapping):
        keys = pattern if name == "patternProperties" else str
        return {keys(key): each(part) for key, part in value.items()}
    return each(value) if name in (*_ONE, *_OF_OBJECTS) else value


def _values(schema: Mapping[str, Any]) -> Iterator[Any]:
    if "const" in schema:
        yield schema["const"]
    if isinstance(schema.get("enum"), list):
        yield from schema["enum"]


def _check_integers(value: Any) -> None:
    """It reads numbers as doubles: of 9007199254740993 it made 9007199254740992."""
    parts: Iterable[Any] = ()
    if isinstance(value, int) and not _exact(value):
        raise SchemaError(
            f"it names the integer {str(value)[:40]}, which no double can hold, so that it would "
            "be rounded; make it a string"
        )
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list):
        parts = value
    for part in parts:
        _check_integers(part)


def _exact(value: float) -> bool:
    try:
        return float(value) == value
    except OverflowError:
        return False


def _mend_bounds(schema: dict[str, Any]) -> None:
    for names, toward in ((_LOW, inf), (_HIGH, -inf)):
        for name in names:
            bound = schema.get(name)
            if isinstance(bound, int) and not _exact(bound):
                schema[name] = _rounded(bound, toward)
    _mend_exclusive(schema, "exclusiveMinimum", "minimum", _HIGH, 1)
    _mend_exclusive(schema, "exclusiveMaximum", "maximum", _LOW, -1)


def _rounded(bound: int, toward: float) -> int:
    """The next integer inside of a bound that a double holds: it would be rounded to one outside
    of it.
    """
    try:
        near = float(bound)
        if (near > bound) != (toward > 0):
            near = nextafter(near, toward)
        return int(near)
    except OverflowError:
        raise SchemaError(f"its bound {str(bound)[:40]} is beyond every double") from None


def _mend_exclusive(
    schema: dict[str, Any], exclusive: str, inclusive: str, others: tuple[str, ...], sign: int
) -> None:
    """An excluded integer is allowed all the same where the other bound lies before the next one:
    {"exclusiveMinimum": 0, "maximum": 0.5} gave 0. So the bound moves in by a small part.
    """
    bound, there = _number(schema, exclusive), _number(schema, inclusive)
    found = [number for name in others if (number := _number(schema, name)) is not None]
    if bound is None or bound != int(bound) or not found:
        return
    width = min((number - bound) * sign for number in found)
    if 0 < width < 1:
        small = Decimal(10) ** (width / _FAR).adjusted()
        within = bound + sign * small
        if there is not None:
            within = max(within, there) if sign > 0 else min(within, there)
        schema[inclusive] = float(within)
        del schema[exclusive]


def _number(schema: Mapping[str, Any], name: str) -> Decimal | None:
    value = schema.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) == inf:
        return None
    return Decimal(str(value))


def mended_pattern(pattern: str) -> str:
    """A class of characters that holds control characters, as negated ones do, is matched by an
    escaped quote and an escaped backslash too, whether they are in it or not: `[^"]` gave a quote.
    So such classes lose their control characters, all but tabs and ends of lines.

    >>> mended_pattern('^[^"]+$')
    '^[[^"]&&[^\\\\x00-\\\\x08\\\\x0b\\\\x0c\\\\x0e-\\\\x1f]]+$'
    """
    made = []
    at = 0
    while at < len(pattern):
        end = at + 1
        if pattern[at] == "\\":
            end = at + 2
        elif pattern[at] == "[":
            end = _class_end(pattern, at)
        part = pattern[at:end]
        made.append(f"[{part}&&{_NO_CONTROLS}]" if _may_hold_controls(part) else part)
        at = end
    return "".join(made)


_NO_CONTROLS = r"[^\x00-\x08\x0b\x0c\x0e-\x1f]"


def _class_end(pattern: str, start: int) -> int:
    """Where the class ends that begins at `start`; a bracket that comes first is part of it."""
    at = start + 1
    at += pattern[at : at + 1] == "^"
    at += pattern[at : at + 1] == "]"
    depth = 1
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            depth += 1
        elif pattern[at] == "]":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return len(pattern)


def _may_hold_controls(part: str) -> bool:
    if part[0] != "[" or part[-1] != "]":
        return False
    return part[1:2] == "^" or "\\" in part or any(char < " " for char in part)
