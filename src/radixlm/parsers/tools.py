"""Tools that an answer may call, and whether it must."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from radixlm.core.grammar import schema_at, type_of

ANY_TYPE = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
# Keywords that say nothing about the values.
REMARKS: Final = frozenset({"title", "description", "default", "examples", "$comment"})
# A schema with more choices than that is not followed, nor one that only refers to itself.
_MOST_CHOICES = 1_000


@dataclass(frozen=True, slots=True)
class Tool:
    """parameters: the JSON schema of its arguments, an object's. strict: they must follow it."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


class Calling(StrEnum):
    """Whether tools are called: never, as the model chooses, or at least once."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """tools: those that may be called, by different names. parallel: more than once.

    others: the model sees tools that may not be called.
    """

    tools: tuple[Tool, ...] = ()
    calling: Calling = Calling.NONE
    parallel: bool = True
    others: bool = False

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.calling is not Calling.NONE

    @property
    def constrained(self) -> bool:
        """Whether a grammar must enforce it: a model that sees tools may call them all the same."""
        if self.calling is Calling.AUTO:
            held = self.others or not self.parallel
            return held or any(tool.strict for tool in self.tools)
        return bool(self.tools)


class Choices(NamedTuple):
    """Schemas, one of which each value must follow. only: nothing else is required, except with
    exclusive: that it follows no two of them.
    """

    schemas: Sequence[Any]
    only: bool
    exclusive: bool = False


_UNKNOWN = Choices(({},), only=False)


def choices(schema: Any, root: Any) -> Choices:
    """The choices that `schema`, which stands in `root`, leaves: `$ref` followed, each once, and
    `anyOf` and `oneOf` opened. Bounded, however often schemas refer to each other.
    """
    found: list[Any] = []
    only, exclusive = True, False
    seen: set[str] = set()
    waiting = [schema]
    while waiting:
        if len(waiting) + len(seen) > _MOST_CHOICES:
            return _UNKNOWN
        more: Mapping[object, object] = {}
        match waiting.pop():
            case {"$ref": str(place), **more}:
                waiting += () if place in seen else (schema_at(place, root),)
                seen.add(place)
            case {"const": _} | {"enum": _} | {"type": _} as choice:
                found.append(choice)
            case {"anyOf": [*others], **more}:
                waiting += reversed(others)
            case {"oneOf": [*others], **more}:
                waiting += reversed(others)
                exclusive = True
            case choice:
                found.append(choice)
        only = only and more.keys() <= REMARKS
    return Choices(found, only, exclusive) if found else _UNKNOWN


def types_of(schema: Any, root: Any) -> frozenset[str]:
    """The types of all values of `schema`, which stands in `root`; all types where it does not say.

    >>> sorted(types_of({"anyOf": [{"const": "a"}, {"type": "null"}]}, {}))
    ['null', 'string']
    """
    found: set[str] = set()
    for choice in choices(schema, root).schemas:
        match choice:
            case {"const": value}:
                found.add(type_of(value))
            case {"enum": [*values]}:
                found.update(map(type_of, values))
            case {"type": str(name)}:
                found.add(name)
            case {"type": [*names]}:
                found.update(map(str, names))
            case _:
                found |= ANY_TYPE
    return frozenset(found)


def fits(value: str, types: frozenset[str]) -> bool:
    """Whether a value, given as JSON, has one of the types."""
    found = type_of(json.loads(value))
    return found in types or (found == "integer" and "number" in types)
