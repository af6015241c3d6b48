"""Terms of grammars in Lark, as llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from radixlm.core.grammar import JSON_STYLE


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
