"""JSON schemas, with a limit where they set none: a weak model would write keys for ever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from radixlm.structured_output.schema import SchemaError, each_part, mended

# Of objects and lists of which a schema says nothing but that they are some.
MAX_KEYS = 64
MAX_ITEMS = 256
MAX_DEPTH = 6

_JOINING = ("allOf", "anyOf", "oneOf", "$ref", "if", "not")
_SHAPING = (
    *("properties", "patternProperties", "additionalProperties", "required"),
    *("minProperties", "maxProperties", "items", "prefixItems", "minItems", "contains"),
)
_ANYTHING = "radixlm-anything-"  # and how many levels it may still have


def load(text: str) -> dict[str, Any]:
    """A schema's text, mended and limited. Raises SchemaError."""
    try:
        return limited(mended(json.loads(text)))
    except SchemaError:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SchemaError(f"it is no JSON schema: {error}") from None


def limited(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema, but what it leaves open ends.

    An object whose properties are named has no others, unless the schema says
    `additionalProperties`, or asks for more than it names. Other objects, lists and values of any
    type have at most MAX_KEYS, MAX_ITEMS and MAX_DEPTH, where the schema does not say what is in
    them.

    Schemas that several parts shape together stay as they are: a part that is closed would forbid
    what another one names. So do those with an `$id` inside, which references start from. O(size).
    """
    parts = _parts(schema)
    if any(map(_joins, parts)) or any("$id" in part for part in parts[1:]):
        return dict(schema)
    made: dict[str, Any] = _limited(schema, MAX_DEPTH)
    levels = {f"{_ANYTHING}{depth}": _anything(depth) for depth in range(MAX_DEPTH)}
    return {**made, "$defs": {**made.get("$defs", {}), **levels}}


def _parts(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A schema and all within it."""
    found = [schema]

    def add(part: Any) -> None:
        if isinstance(part, Mapping):
            found.extend(_parts(part))

    for name, value in schema.items():
        each_part(name, value, add)
    return found


def _joins(schema: Mapping[str, Any]) -> bool:
    """Whether more than one schema says which keys an object, or which items a list has."""
    joining = [name for name in _JOINING if name in schema]
    alone = len(joining) == 1 and not any(name in schema for name in _SHAPING)
    return bool(joining) and not (alone and len(schema.get("allOf", [0])) == 1)


def _anything(depth: int) -> dict[str, Any]:
    """A value of any type that has `depth` levels of objects and lists at most."""
    plain = {"type": ["null", "boolean", "number", "string"]}
    made: dict[str, Any] = _limited({} if depth else plain, depth)
    return made


def _limited(schema: Any, depth: int) -> Any:
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        return schema
    made = {
        name: each_part(name, value, lambda part: _limited(part, depth))
        for name, value in schema.items()
    }
    if any(name in schema for name in (*_JOINING, "const", "enum")):
        return made
    kinds = schema.get("type", ["object", "array"])
    deeper = {"$ref": f"#/$defs/{_ANYTHING}{depth - 1}"}
    if "object" in kinds and "additionalProperties" not in schema:
        made |= _closed(schema) or _few_keys(schema, deeper)
    if "array" in kinds and not {"items", "prefixItems", "contains"} & schema.keys():
        least = schema.get("minItems", 0)
        made |= {"items": deeper, "maxItems": schema.get("maxItems", max(least, MAX_ITEMS))}
    return made


def _closed(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """No keys but those that it names, where it names as many as it asks for."""
    named = schema.get("properties", {})
    patterns = "patternProperties" in schema
    if not named and not patterns and "properties" not in schema:
        return None
    enough = schema.get("minProperties", 0) <= len(named) or patterns
    return (
        {"additionalProperties": False}
        if enough and {*schema.get("required", ())} <= {*named}
        else None
    )


def _few_keys(schema: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"additionalProperties": value}
    named = schema.get("properties", {})
    if "patternProperties" not in schema and {*named} <= {*schema.get("required", ())}:
        # llguidance counts only where every key that is named is required.
        least = max(schema.get("minProperties", 0), len(schema.get("required", ())))
        made["maxProperties"] = schema.get("maxProperties", max(least, MAX_KEYS))
    return made
