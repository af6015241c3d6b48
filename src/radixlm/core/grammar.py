"""The form that a request's answer must have: a value, compiled elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from radixlm.core.errors import InvalidRequestError

# Room for the schemas of a thousand tools.
MAX_GRAMMAR_LENGTH = 2 * 2**20
# How answers in JSON are written, as llguidance's options: as `json.dumps` does it, the text models
# saw most, no endless white space, and the more of it is forced the less the model is asked.
JSON_STYLE: Final[Mapping[str, Any]] = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}
# Characters with a meaning in regular expressions.
_OPERATORS = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")
_PLACE = re.compile("[0-9]{1,9}")
# The schema of every JSON object.
ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


class GrammarKind(StrEnum):
    """How a grammar is written.

    REGEX: a regular expression that the whole answer matches.
    JSON_SCHEMA: a JSON schema, as JSON text.
    LARK: Lark, as llguidance reads it, or GBNF (`root ::= ...`).
    """

    REGEX = "regex"
    JSON_SCHEMA = "json_schema"
    LARK = "lark"


class Constraint(Protocol):
    """A grammar compiled for one tokenizer; the engine knows the type of its matchers."""

    def matcher(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Grammar:
    """All answers that are allowed. Only its size is checked here; `structured_output` compiles it.

    param: the field it came from, which errors name.

    Raises InvalidRequestError.

    >>> Grammar.regex("[0-9]+").text
    '[0-9]+'
    """

    kind: GrammarKind
    text: str
    param: str = field(default="grammar", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text:
            raise InvalidRequestError(
                f"{self.param} must be text and not empty, got {self.text!r:.80}", param=self.param
            )
        if len(self.text) > MAX_GRAMMAR_LENGTH:
            raise InvalidRequestError(
                f"{self.param} is {len(self.text)} characters long, "
                f"at most {MAX_GRAMMAR_LENGTH} are allowed",
                param=self.param,
            )

    @classmethod
    def regex(cls, text: str, *, param: str = "grammar") -> Grammar:
        return cls(GrammarKind.REGEX, text, param)

    @classmethod
    def choice(cls, texts: Sequence[str], *, param: str = "grammar") -> Grammar:
        r"""One of the texts, as it is.

        >>> Grammar.choice(["yes", "no (never)"]).text
        'yes|no \\(never\\)'
        """
        if not texts:
            raise InvalidRequestError(f"{param} is empty", param=param)
        plain = (_OPERATORS.sub(r"\\\g<0>", text) for text in texts)
        return cls(GrammarKind.REGEX, "|".join(plain), param)

    @classmethod
    def lark(cls, text: str, *, param: str = "grammar") -> Grammar:
        return cls(GrammarKind.LARK, text, param)

    @classmethod
    def json_schema(
        cls, schema: str | bool | Mapping[str, Any], *, param: str = "grammar"
    ) -> Grammar:
        """schema: as JSON text, or parsed. The order of its properties is the answer's."""
        if isinstance(schema, str):
            return cls(GrammarKind.JSON_SCHEMA, schema, param)
        try:
            text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{param} is no JSON: {error}", param=param) from None
        return cls(GrammarKind.JSON_SCHEMA, text, param)


def type_of(value: Any) -> str:
    """A JSON value's type, in the words of JSON schemas."""
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


def schema_at(reference: Any, root: Any) -> Any:
    """The schema that `#/a/b` refers to in another; None where that is nothing."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for name in reference.split("/")[1:]:
        if isinstance(found, list):
            place = int(name) if _PLACE.fullmatch(name) else len(found)
            found = found[place] if place < len(found) else None
        elif isinstance(found, Mapping):
            found = found.get(name.replace("~1", "/").replace("~0", "~"))
        else:
            return None
    return found
