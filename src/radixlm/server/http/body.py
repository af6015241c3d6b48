"""Bodies of requests: what their models have in common, and how they are parsed."""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from fastapi import Request
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails
from pydantic_core.core_schema import tagged_union_schema

from radixlm.core.errors import InvalidRequestError
from radixlm.server.http.fields import (
    ELSEWHERE,
    INSTEAD,
    NOT_YET,
    OF_OTHER_KINDS,
    TEXT_ALONE,
    NotYet,
    asks_for_nothing,
    describe_body,
)

T = TypeVar("T")

# A list that is given up at its first wrong entry: an error for each of a million holds up all.
ListOf = Annotated[list[T], Field(fail_fast=True)]
# What clients keep beside a thing, as OpenAI limits it.
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


_UNION_MEMBER = re.compile(
    r"(str|int|float|bool|(list|dict|literal)\[.*\]|\w+(Part|Params|Item|Block|Tools?))\Z"
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# What the client wrote was JSON, whatever it has become here.
_WISHES = {
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
}
# A million messages hold up everybody for seconds, whatever becomes of them.
MAX_OBJECTS = 32_768


class Body(BaseModel):
    """no_ops: names of further fields that are taken, since there is nothing to do for them.

    echoes: those that are taken because they come back from answers, but not with --strict-fields.
    not_yet: names of further fields that are known, with the values of each that ask for nothing.
    answered: whether an answer is generated, which must fit, too.
    """

    # Unknown fields are kept, so that `settle_extras` can say what is wrong with each.
    model_config = ConfigDict(
        strict=True,
        extra="allow",
        frozen=True,
        protected_namespaces=(),
        json_schema_extra=describe_body,
    )
    no_ops: ClassVar[frozenset[str]] = frozenset()
    echoes: ClassVar[frozenset[str]] = frozenset()
    not_yet: ClassVar[NotYet] = NOT_YET
    answered: ClassVar[bool] = True
    _passed_over: tuple[str, ...] = PrivateAttr(default=())

    @property
    def passed_over(self) -> tuple[str, ...]:
        """The fields, as paths, that nobody knows and that ask for something."""
        return self._passed_over

    def check(self) -> None:
        """Raise InvalidRequestError for fields that do not go together, though each is right."""


@dataclass(frozen=True, slots=True)
class ByType:
    """Tells the members of a union of Bodies apart by their `type`, which some may leave out.

    what: the beginning of what is said of others. otherwise: the member that others are read as.
    """

    what: str = ""
    otherwise: type[Body] | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        members: tuple[type[Body], ...] = get_args(source)
        tags: dict[str | None, str] = {}
        for member in members:
            field = member.model_fields["type"]
            kinds = [kind for each in _literals(field.annotation) for kind in each]
            tags |= dict.fromkeys(kinds if field.is_required() else [*kinds, None], member.__name__)
        rest = None if self.otherwise is None else self.otherwise.__name__

        def tag(value: Any) -> str | None:
            kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
            return tags.get(kind, rest) if kind is None or isinstance(kind, str) else rest

        known = ", ".join(kind for kind in tags if kind is not None)
        return tagged_union_schema(
            {member.__name__: handler.generate_schema(member) for member in members},
            tag,
            custom_error_type="unknown_type",
            custom_error_message=f"{self.what} whose type is one of {known}",
        )


def _literals(annotation: Any) -> Iterator[tuple[str, ...]]:
    """The values of each Literal in it."""
    if get_origin(annotation) is Literal:
        yield get_args(annotation)
    for part in get_args(annotation):
        yield from _literals(part)


_WORDS = frozenset({"prompt", "messages"})  # of errors' texts, too


def renamed(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """The same error about the request's own field.

    names: the request's fields by what the pipeline and the engine call them, as paths such as
    sampling_params.seed; in the text only the last name of a path stands.
    """
    own = names.get(error.param or "")
    if own is None:
        return error
    same = copy(error)
    same.param = own
    if error.param not in _WORDS:
        fields = {name: path.rpartition(".")[2] for name, path in names.items()}
        known = "|".join(fields.keys() - _WORDS)
        text = re.sub(rf"\b({known})\b", lambda found: fields[found[0]], str(error))
        same.args = (text,)
    return same


@contextmanager
def in_callers_words(names: Mapping[str, str]) -> Iterator[None]:
    """Errors that are raised within are about the request's own fields; see `renamed`."""
    try:
        yield
    except InvalidRequestError as error:
        raise renamed(error, names) from None


# A name that is no longer than this, and this like a field's, may be mistyped, and is for sure.
_LONGEST_FIELD, _NEAR, _NEARER = 64, 0.7, 0.85
_PLACES = re.compile(r"\[[0-9]+\]")
_MOST_NAMED = 16

M = TypeVar("M", bound=Body)


def parse_body(model: type[M], body: bytes, *, strict: bool) -> M:
    """Make a `model` from JSON. Raises InvalidRequestError that names the first wrong field.

    Fields that are mistyped, or known and not supported yet, are errors too where they ask for
    something, with --strict-fields all that are unknown (see `fields`). So is a name that an object
    holds twice: one of the two values would be lost.
    """
    return checked(model, parse_json(body), strict=strict)


def checked(model: type[M], value: Mapping[str, Any], *, strict: bool = True) -> M:
    """Make a `model` from what JSON holds, as parse_body."""
    with not_too_deep():  # wherever it is noticed: in validation, in the message
        try:
            parsed = model.model_validate(value)
            found = settle_extras(parsed, "", strict=strict)
            parsed._passed_over = tuple(itertools.islice(dict.fromkeys(found), _MOST_NAMED))
            parsed.check()
        except ValidationError as error:
            raise _explain(error.errors(include_url=False)) from None
    return parsed


@contextmanager
def not_too_deep() -> Iterator[None]:
    """Refuse a body that could be read, but is nested too deeply to be walked through again."""
    try:
        yield
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply") from None


@not_too_deep()
def parse_json(body: bytes) -> dict[str, Any]:
    """The object that JSON holds. Raises InvalidRequestError, also for a name that stands twice."""
    try:
        value = json.loads(body.decode(), object_pairs_hook=_maker())
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"the body is not valid JSON: byte {error.start} is not UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        if not body.strip():
            raise InvalidRequestError("the body is empty; send a JSON object") from None
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None
    except InvalidRequestError:
        raise
    except ValueError:  # Python reads no integer of more than 4300 digits
        raise InvalidRequestError("the body holds a number with too many digits") from None
    if not isinstance(value, dict):
        raise InvalidRequestError(f"the body must be a JSON object, got {value!r:.80}")
    if _SURROGATE.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # neither a tokenizer nor an answer could hold it
            raise InvalidRequestError(
                "the body is not valid JSON: a \\u escape is half of a surrogate pair"
            ) from None
    return value


def _maker() -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Makes the objects of one body as they are read. Raises InvalidRequestError."""
    count = itertools.count(1)

    def make(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if next(count) > MAX_OBJECTS:
            raise InvalidRequestError(f"the body holds more than {MAX_OBJECTS} objects")
        made = dict(pairs)
        if len(made) < len(pairs):
            [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise InvalidRequestError(f"{name[:80]!r} stands twice in one object of the body")
        return made

    return make


def settle_extras(model: Body, path: str, *, strict: bool) -> list[str]:
    """Refuse or forget what a model, or a model inside it, was given beyond its fields; returns the
    paths of what nobody knows.

    What is in `no_ops` stays as it came. Raises InvalidRequestError.
    """
    unknown: list[str] = []
    extras = model.model_extra or {}
    for name in [each for each in extras if each not in model.no_ops]:
        echoed = name in model.echoes and not strict
        if not echoed and not asks_for_nothing(name, extras[name], model.not_yet, strict=strict):
            if strict or name in model.not_yet or name in ELSEWHERE or _is_mistyped(name, model):
                raise _refusal(path + name, name, type(model))
            unknown.append(_PLACES.sub("[]", path[:_LONGEST_FIELD] + name[:_LONGEST_FIELD]))
        del extras[name]
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, Body):
            unknown += settle_extras(value, f"{path}{name}.", strict=strict)
        elif isinstance(value, list) and value and isinstance(value[0], Body):
            for place, item in enumerate(value):
                unknown += settle_extras(item, f"{path}{name}[{place}].", strict=strict)
    return unknown


def _is_mistyped(name: str, model: Body) -> bool:
    return _nearest(name, type(model), _NEARER) is not None


def _refusal(path: str, name: str, model: type[Body]) -> InvalidRequestError:
    if name in model.not_yet:
        why = f": {TEXT_ALONE}" if name in OF_OTHER_KINDS else " yet"
        wrong = f"is not supported{why}"
        advice = f"use {INSTEAD[name]} instead" if name in INSTEAD else "leave it out"
    else:
        wrong = "is not a field of this request"
        meant = _nearest(name, model)
        advice = "leave it out" if meant is None else f"did you mean {meant}?"
    return InvalidRequestError(f"{path[:200]} {wrong}; {advice}", param=path[:200])


def _nearest(name: str, model: type[Body], cutoff: float = _NEAR) -> str | None:
    """The field that a mistyped one may stand for."""
    if len(name) > _LONGEST_FIELD:
        return None
    fields = [field.alias or known for known, field in model.model_fields.items()]
    near = difflib.get_close_matches(name.lower(), fields, n=1, cutoff=cutoff)
    return near[0] if near else None


def _explain(errors: Sequence[ErrorDetails]) -> InvalidRequestError:
    """One error about the first wrong field, as far into it as any of its types could read."""
    field = [entry for entry in errors if entry["loc"][:1] == errors[0]["loc"][:1]]
    worst = max(field, key=lambda each: [part for part in each["loc"] if isinstance(part, int)])
    param = _field_path(worst["loc"])
    wishes = [
        _WISHES.get(entry["type"], entry["msg"])
        for entry in field
        if _field_path(entry["loc"]) == param
    ]
    got = "" if worst["type"] == "missing" else f" (got {worst['input']!r:.80})"
    text = ", or ".join(dict.fromkeys(wishes))
    return InvalidRequestError(f"{param or 'the body'}: {text}{got}", param=param or None)


def _field_path(location: tuple[int | str, ...]) -> str:
    """`messages[0].content` for ("messages", 0, "content", "str"): without the union's member."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _UNION_MEMBER.match(part):
            path += f".{part}" if path else part
    return path


def named(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given: null means the default."""
    return {name: value for name, value in values.items() if value is not None}


Q = TypeVar("Q", bound=Body)


def _number(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


# It stands after a field's range: before it, the schema would leave the range out.
DIGITS = BeforeValidator(_number)
"""A number, written with digits: they are all that a query can hold."""


def query_of(request: Request, kind: type[Q]) -> Q:
    """The query as a model. Raises InvalidRequestError that names the field."""
    values: dict[str, object] = {}
    included: list[str] = []
    for name, value in request.query_params.multi_items():
        plain = name.removesuffix("[]")
        if plain == "include":
            included.append(value)
        values[plain] = included if plain == "include" else value
    return checked(kind, values)
