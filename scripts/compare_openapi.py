"""Say what a later OpenAPI document has lost: `python scripts/compare_openapi.py BEFORE AFTER`.

Every route, status, header, field, type and constraint of the first must be in the second, which
may have more. Schemas are compared by what they say, not by their names. Exits with 1 after a list
of what is lost.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# Words for people, names, and what is compared in another way.
_UNCOMPARED = {"$ref", "title", "description", "discriminator", "example", "examples"}
_OPERATION_WORDS = {"operationId", "summary", "description", "tags"}


class Comparison:
    """Of two documents. Each pair of schemas is compared once, however they refer to each other."""

    def __init__(self, before: Json, after: Json) -> None:
        self._before = before
        self._after = after
        self._compared: dict[tuple[str, str], list[str]] = {}

    def lost(self) -> Iterator[str]:
        """One line for each thing that only the first has."""
        for path, item in self._before["paths"].items():
            for method, operation in item.items():
                place = f"{method.upper()} {path}"
                other = self._after["paths"].get(path, {}).get(method)
                if other is None:
                    yield f"{place} is gone"
                else:
                    yield from self._operation(place, operation, other)
        for name in ("security", "servers"):
            if self._before.get(name) != self._after.get(name):
                yield f"{name} differs"
        schemes = "securitySchemes"
        if self._before["components"].get(schemes) != self._after["components"].get(schemes):
            yield f"{schemes} differs"

    def _operation(self, place: str, before: Json, after: Json) -> Iterator[str]:
        for name in before.keys() - _OPERATION_WORDS:
            if name not in after:
                yield f"{place}: {name} is gone"
        if before.get("security") != after.get("security"):
            yield f"{place}: security differs"
        given = {(each["in"], each["name"]): each for each in after.get("parameters", ())}
        for each in before.get("parameters", ()):
            where = f"{place} {each['in']} {each['name']}"
            other = given.get((each["in"], each["name"]))
            if other is None:
                yield f"{where} is gone"
            elif each.get("required", False) and not other.get("required", False):
                yield f"{where} is not required"
            else:
                yield from self._schema(where, each["schema"], other["schema"])
        if "requestBody" in before and "requestBody" in after:
            yield from self._content(
                f"{place} body", before["requestBody"], after["requestBody"], "required"
            )
        for status, answer in before["responses"].items():
            where = f"{place} {status}"
            if status not in after["responses"]:
                yield f"{where} is gone"
                continue
            other = after["responses"][status]
            for header in answer.get("headers", {}).keys() - other.get("headers", {}).keys():
                yield f"{where}: the header {header} is gone"
            yield from self._content(where, answer, other)

    def _content(self, place: str, before: Json, after: Json, *same: str) -> Iterator[str]:
        for name in same:
            if before.get(name) != after.get(name):
                yield f"{place}: {name} differs"
        for media, content in before.get("content", {}).items():
            other = after.get("content", {}).get(media)
            if other is None:
                yield f"{place}: {media} is gone"
                continue
            for name in ("schema", "itemSchema"):
                if name in content:
                    yield from self._schema(f"{place} {media}", content[name], other.get(name, {}))

    def _schema(self, place: str, before: Any, after: Any) -> list[str]:
        """What `after` no longer says."""
        if not isinstance(before, dict) or not isinstance(after, dict):
            return [] if before == after else [f"{place}: {before!r:.80} became {after!r:.80}"]
        key = json.dumps(before, sort_keys=True), json.dumps(after, sort_keys=True)
        if key not in self._compared:
            self._compared[key] = []  # a schema inside itself is being compared already
            found = self._lost_of(_whole(before, self._before), _whole(after, self._after))
            self._compared[key] = list(found)
        return [place + line for line in self._compared[key]]

    def _lost_of(self, before: Json, after: Json) -> Iterator[str]:
        for name, value in before.items():
            other: Any = after.get(name)
            if name in _UNCOMPARED or value == other:
                continue
            if name not in after:
                if name == "default" and value is None:
                    continue  # that of every field that may be left out
                yield f": {name} is gone ({value!r:.80})"
            elif name == "required":
                yield from (f": {field} is not required" for field in {*value} - {*other})
            elif name in ("properties", "patternProperties"):
                for field, schema in value.items():
                    if field not in other:
                        yield f": the field {field} is gone"
                    else:
                        yield from self._schema(f".{field}", schema, other[field])
            elif name in ("anyOf", "oneOf", "prefixItems"):
                yield from self._alternatives(value, other)
            elif name == "enum":
                if not {json.dumps(each) for each in value} <= {json.dumps(each) for each in other}:
                    yield f": {name} {value!r:.80} became {other!r:.80}"
            else:
                yield from self._schema(f" {name}", value, other)

    def _alternatives(self, before: Sequence[Any], after: Sequence[Any]) -> Iterator[str]:
        for each in before:
            losses = [self._schema("", each, other) for other in after]
            if all(losses):
                fewest = min(losses, key=len)
                yield from (f" alternative{line}" for line in fewest)


def _whole(schema: Json, document: Json) -> Json:
    """A schema with what it refers to, and all parts of an allOf as one."""
    schema = dict(schema)
    while (reference := schema.pop("$ref", None)) is not None:
        found: Any = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        schema = {**found, **schema}
    for part in schema.pop("allOf", ()):
        for name, value in _whole(part, document).items():
            known = schema.get(name)
            if isinstance(known, dict) and isinstance(value, dict):
                schema[name] = {**known, **value}
            elif isinstance(known, list) and isinstance(value, list):
                schema[name] = [*known, *value]
            else:
                schema[name] = value
    if patterns := schema.get("patternProperties"):
        schema["patternProperties"] = _by_name(patterns)
    return schema


def _by_name(patterns: Mapping[str, Any]) -> Json:
    """`^(a|b)$` as an entry for each name, so that other groups of the same are no change."""
    return {
        name: schema
        for pattern, schema in patterns.items()
        for name in re.sub(r"^\^\(|\)\$$", "", pattern).split("|")
    }


def main() -> None:
    before, after = (json.loads(Path(name).read_bytes()) for name in sys.argv[1:])
    lost = sorted(set(Comparison(before, after).lost()))
    print("\n".join(lost) or "Nothing is lost.")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
