"""Random JSON schemas and regular expressions that have answers, most of them short."""

from __future__ import annotations

import random
import string
from typing import Any

_LETTERS = string.ascii_letters
_WORDS = ("name", "size", "Größe", "a b", "x-1", 'say "hi"', "back\\slash", "naïve", "日本", "ok")


class Schemas:
    """Draws schemas: nested objects, arrays, enums, const, ranges, patterns, anyOf, allOf, $ref."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._definitions: dict[str, Any] = {}

    def one(self) -> dict[str, Any]:
        """A whole schema; a third of them have definitions, some that name themselves."""
        self._definitions = {}
        if self._draw.random() < 0.35:
            self._definitions["leaf"] = self._leaf()
            if self._draw.random() < 0.5:
                self._definitions["tree"] = {
                    "type": "object",
                    "properties": {
                        "value": self._leaf(),
                        "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1},
                    },
                    "required": ["value"],
                    "additionalProperties": False,
                }
        schema = self._any(3)
        return {**schema, "$defs": self._definitions} if self._definitions else schema

    def _any(self, depth: int) -> dict[str, Any]:
        if depth == 0 or self._draw.random() < 0.3:
            return self._leaf() if self._draw.random() < 0.8 else self._reference()
        kinds = (self._object, self._object, self._array, self._any_of, self._all_of)
        return self._draw.choice(kinds)(depth - 1)

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._draw.sample(_WORDS, self._draw.randint(0, 4))
        return {
            "type": "object",
            "properties": {name: self._any(depth) for name in names},
            "required": [name for name in names if self._draw.random() < 0.7],
            "additionalProperties": False,
        }

    def _array(self, depth: int) -> dict[str, Any]:
        low = self._draw.randint(0, 2)
        schema: dict[str, Any] = {
            "type": "array",
            "items": self._any(depth),
            "minItems": low,
            "maxItems": low + self._draw.randint(0, 2),
        }
        if self._draw.random() < 0.2:
            schema["prefixItems"] = [self._leaf() for _ in range(self._draw.randint(1, 2))]
        return schema

    def _any_of(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self._any(depth) for _ in range(self._draw.randint(2, 3))]}

    def _all_of(self, depth: int) -> dict[str, Any]:
        return {"allOf": [self._any(depth)], "title": "all of one"}

    def _reference(self) -> dict[str, Any]:
        if not self._definitions:
            return self._leaf()
        return {"$ref": "#/$defs/" + self._draw.choice(sorted(self._definitions))}

    def _leaf(self) -> dict[str, Any]:
        draw = self._draw
        match draw.randrange(9):
            case 0:
                return {"type": draw.choice(("null", "boolean"))}
            case 1:
                return {"enum": draw.sample([*_WORDS, 1, -2.5, None, True, [1], {"k": 0}], 3)}
            case 2:
                return {"const": draw.choice([*_WORDS, 0, {"k": ["v"]}, []])}
            case 3:
                low = draw.randint(-1_000, 1_000)
                return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 5_000)}
            case 4:
                low = draw.randint(0, 100)
                high = low + draw.randint(20, 500)
                return {
                    "type": "integer",
                    "exclusiveMinimum": low,
                    "exclusiveMaximum": high,
                    "multipleOf": draw.choice((2, 3, 5)),
                }
            case 5:
                least = round(draw.uniform(-50, 50), draw.randint(0, 3))
                return {"type": "number", "minimum": least, "maximum": least + draw.randint(1, 90)}
            case 6:
                return {"type": "string", "pattern": f"^{Regexes(draw).one(2)}$"}
            case 7:
                return {"type": "string", "format": draw.choice(("date", "time", "uuid", "ipv4"))}
            case _:
                low = draw.randint(0, 4)
                return {"type": "string", "minLength": low, "maxLength": low + draw.randint(0, 9)}


class Regexes:
    """Draws regular expressions that Python's `re` reads as llguidance does."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def one(self, depth: int = 3) -> str:
        """At most `depth` groups in each other."""
        parts = [self._part(depth) for _ in range(self._draw.randint(1, 3))]
        return "".join(parts)

    def _part(self, depth: int) -> str:
        draw = self._draw
        kind = draw.randrange(6 if depth else 3)
        if kind == 0:
            return "".join(draw.choices(_LETTERS, k=draw.randint(1, 4)))
        if kind == 1:
            first, last = sorted(draw.sample(string.ascii_lowercase, 2))
            return f"[{first}-{last}{draw.choice(string.digits)}]"
        if kind == 2:
            return draw.choice(("[^a-z]", r"\.", r"\[", "é", "[0-9]", "-", r"\\"))
        inner = f"(?:{self.one(depth - 1)})"
        if kind == 3:
            return f"(?:{self.one(depth - 1)}|{self.one(depth - 1)})"
        low = draw.randint(0, 2)
        bounded = f"{{{low},{low + draw.randint(1, 3)}}}"
        # Repetitions without end inside of each other would seldom come to one.
        return inner + draw.choice(("?", bounded, "*", "+") if depth == 1 else ("?", bounded))
