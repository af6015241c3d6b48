"""The source that llguidance compiles, made from a grammar's text.

JSON schemas are changed where llguidance (1.9.1) would not keep to them, and limited where they set
no limit, since a weak model would write keys without end. Every change leaves fewer answers than
the schema allows, never others; a schema that cannot be mended so is refused. Each names what was
seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from math import inf, nextafter
from typing import TYPE_CHECKING, Any, cast

from llguidance import LLMatcher, grammar_from

from radixlm.core.grammar import JSON_STYLE, Grammar, GrammarKind
from radixlm.structured_output.disjoint import Branches
from radixlm.structured_output.lenient import Lenient, all_parts, each_part

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_JSON = cast("JsonCompileOptions", dict(JSON_STYLE))
_LENIENT = cast("JsonCompileOptions", {**JSON_STYLE, "lenient": True})
_LENIENT_OPTION = '"lenient": true'
# Its conversion to Lark is Python, and of the square of the number of rules.
MAX_GBNF_LENGTH = 16_384
_SCHEMA_IN_LARK = re.compile(r"(%json\s*)(?=\{)")
_LONGEST_REASON = 400
_TOO_AMBIGUOUS = (
    "the grammar is too ambiguous: what is written so far can be read in more ways than are "
    "followed at a time; let fewer rules match the same text, write "
    "lists as (item)* instead of a rule that names itself, and require most properties of large "
    "objects"
)
# By what llguidance says.
_REASONS = {
    "NoExtensionBias": "no answer that ends is allowed, or none that the model's tokens can spell",
    "Current row has": _TOO_AMBIGUOUS,
    "Too many items": _TOO_AMBIGUOUS,
}


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
_FAR = 10_000
_NO_CONTROLS = r"[^\x00-\x08\x0b\x0c\x0e-\x1f]"


class GrammarError(ValueError):
    """The grammar cannot be compiled, or no answer can follow it; says why."""


def is_lenient(grammar: Grammar) -> bool:
    """Whether a schema in it need not be followed whole."""
    return _LENIENT_OPTION in grammar.text


def source_of(grammar: Grammar, *, outlines: bool = False) -> str:
    """The source. In Python, and slow for odd grammars. Raises GrammarError.

    outlines: of schemas that need not be followed whole, no more than that.
    """
    try:
        match grammar.kind:
            case GrammarKind.REGEX:
                return LLMatcher.grammar_from_regex(grammar.text)
            case GrammarKind.JSON_SCHEMA:
                schema = json.dumps(_load(_schema(grammar.text)))
                return LLMatcher.grammar_from_json_schema(schema, defaults=_JSON)
            case GrammarKind.LARK:
                return _lark(_with_mended_schemas(grammar.text, outlines=outlines))
    except ValueError as error:
        raise GrammarError(one_line(str(error))) from None


def _schema(text: str) -> str:
    """`true` is the schema of everything; llguidance takes objects only."""
    match text.strip():
        case "true":
            return "{}"
        case "false":
            raise GrammarError("the schema `false` allows no answer")
        case text if text.startswith("{"):
            return text
        case text:
            raise GrammarError(f"a JSON schema is an object, got {text:.40}")


def _lark(text: str) -> str:
    if "::=" in text and len(text) > MAX_GBNF_LENGTH:
        raise GrammarError(
            f"a GBNF grammar may have {MAX_GBNF_LENGTH} characters, this one has {len(text)}; "
            "write it in Lark"
        )
    return grammar_from("ebnf", text)


def _with_mended_schemas(text: str, *, outlines: bool) -> str:
    """Lark whose schemas (`%json {...}`) are mended, and written as other JSON is."""
    parts, lenient = _SCHEMA_IN_LARK.split(text), Lenient(_can_be_followed)
    made = parts[:1]
    for mark, part in zip(parts[1::2], parts[2::2], strict=True):
        try:
            _, end = json.JSONDecoder().raw_decode(part)
        except (ValueError, RecursionError):
            made += [mark, part]  # for llguidance to say what is wrong
            continue
        schema = {"x-guidance": _JSON} | _load(part[:end], lenient, outlines=outlines)
        made += [mark, json.dumps(schema), part[end:]]
    return "".join(made)


def one_line(text: str) -> str:
    """llguidance's error text, shortened, or in our words."""
    text = " ".join(text.replace("<non-verbose/>", "").split())
    for name, meaning in _REASONS.items():
        if name in text:
            return meaning
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + " ..."


_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def _load(text: str, lenient: Lenient | None = None, *, outlines: bool = False) -> dict[str, Any]:
    """A schema's text, mended and limited. O(size).

    lenient: reads those that need not be followed whole. outlines: only so far; limits would make
    hundreds of them too large.
    """
    try:
        schema = json.loads(text)
        options = schema.get("x-guidance", {})
        if lenient is not None and options.get("lenient"):
            read = lenient.outline if outlines else lenient.followed
            schema = {**read(schema), "x-guidance": options}
            if outlines:
                return schema
        return _Mender(schema).whole(schema)
    except GrammarError:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise GrammarError(f"it is no JSON schema: {error}") from None


def _can_be_followed(schema: Mapping[str, Any]) -> bool:
    """Whether it compiles, if what llguidance does not know is passed over."""
    try:
        mended = json.dumps(_Mender(schema).whole(schema))
        source = LLMatcher.grammar_from_json_schema(mended, defaults=_LENIENT)
        return not LLMatcher.validate_grammar(source)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return False


class _Mender:
    """Mends a schema and, where it can, limits its open parts.

    An object whose properties are named has no others, unless the schema says
    `additionalProperties`, or asks for more than it names. Other objects, lists and values of any
    type have at most MAX_KEYS, MAX_ITEMS and MAX_DEPTH, where the schema does not say what is in
    them.

    Schemas that several parts shape together are not limited: a part that is closed would forbid
    what another one names. Nor are those with an `$id` inside, which references start from.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        inside = all_parts(root)
        self._branches = Branches(root)
        self._limits = not any(map(_joins, inside)) and not any(
            "$id" in part for part in inside[1:]
        )

    def whole(self, root: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = self._made(root, MAX_DEPTH)
        if not self._limits:
            return made
        plain = {"type": ["null", "boolean", "number", "string"]}
        levels = {
            f"{_ANYTHING}{depth}": self._made({} if depth else plain, depth)
            for depth in range(MAX_DEPTH)
        }
        return {**made, "$defs": {**made.get("$defs", {}), **levels}}

    def _made(self, schema: Any, depth: int) -> Any:
        """depth: levels of objects and lists that a value of any type may still have."""
        if schema is True and self._limits:
            schema = {}
        if not isinstance(schema, Mapping):
            return schema
        made = {
            name: each_part(name, value, lambda part: self._made(part, depth), mended_pattern)
            for name, value in schema.items()
        }
        _check_integers([made.get("const"), made.get("enum")])
        _mend_bounds(made)
        if isinstance(made.get("pattern"), str):
            made["pattern"] = mended_pattern(made["pattern"])
        if isinstance(made.get("oneOf"), list) and "anyOf" not in made:
            self._check_disjoint(schema["oneOf"])
            made["anyOf"] = made.pop("oneOf")
        return _limited(made, depth) if self._limits else made

    def _check_disjoint(self, branches: list[Any]) -> None:
        overlap = self._branches.overlap(branches)
        if overlap is not None:
            first, second = overlap
            raise GrammarError(
                f"its `oneOf` has branches that one value may match both, {first} and {second}: "
                "give each a property of its own `const`, or a type of its own, or use `anyOf`"
            )


def _joins(schema: Mapping[str, Any]) -> bool:
    """Whether more than one schema says which keys an object, or which items a list has."""
    joining = [name for name in _JOINING if name in schema]
    alone = len(joining) == 1 and not any(name in schema for name in _SHAPING)
    return bool(joining) and not (alone and len(schema.get("allOf", [0])) == 1)


def _limited(schema: dict[str, Any], depth: int) -> dict[str, Any]:
    if any(name in schema for name in (*_JOINING, "const", "enum")):
        return schema
    made = dict(schema)
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


def _check_integers(value: Any) -> None:
    """Refuse integers that llguidance would change, since it reads numbers as doubles: of
    9007199254740993 it made 9007199254740992.
    """
    parts: Iterable[Any] = ()
    if isinstance(value, int) and not _exact(value):
        raise GrammarError(
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
        raise GrammarError(f"its bound {str(bound)[:40]} is beyond every double") from None


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


def _class_end(pattern: str, start: int) -> int:
    """The end of the class that begins at `start`; a bracket that comes first is part of it."""
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
