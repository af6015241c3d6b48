"""The parts of a program: expressions, their parameters, and the lines that they stand at."""

from __future__ import annotations

import inspect
import json
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from radixlm.core.errors import ProgramError
from radixlm.lang.choices import ChoicesSamplingMethod

_OURS = f"{Path(__file__).parent}/"
_CONTEXTLIB = sys.modules["contextlib"].__file__
# White space ends a number, and is not part of it.
_WHITE = (" ", "\n")
_TYPES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "int": (r"[-+]?[0-9]+[ \n]?", _WHITE),
    "float": (r"[-+]?[0-9]*\.?[0-9]+[ \n]?", _WHITE),
    "bool": (r"(True|False)", ()),
    "str": (r'"[^"\\\n]*"', ()),
}


class Line(NamedTuple):
    """A place in a program, written as `tips.py:14 in advise: s += gen("tip", regex="(")`."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.number).strip()
        place = f"{Path(self.file).name}:{self.number} in {self.function}"
        return f"{place}: {code}" if code else place


def caller_line() -> Line:
    """The nearest caller outside of the language. O(frames of ours), about a microsecond."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def wrong(reason: str) -> ProgramError:
    """An error at the caller's line."""
    return ProgramError(reason, line=str(caller_line()))


def function_line(function: Callable[..., Any]) -> Line:
    """The line where it is defined; the caller's line where that is not known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return caller_line()
    return Line(code.co_filename, code.co_firstlineno, code.co_name)


def error_line(error: BaseException) -> Line | None:
    """The program's line that raised it; None when no program did."""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if not _is_ours(frame.f_code.co_filename):
            return Line(frame.f_code.co_filename, number, frame.f_code.co_name)
    return None


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) or file == _CONTEXTLIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """How one answer is sampled, in SGLang's words. In a `gen`, None leaves a parameter to what the
    program is run with.

    stop: the answer ends before any of these. stop_regex: it ends after what one of these matches,
        as soon as one does.
    n: number of answers; the program goes on with the first.
    regex, json_schema: what the whole answer must look like.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: tuple[str, ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    ignore_eos: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    regex: str | None = None
    json_schema: str | None = None

    def over(self, defaults: Params) -> Params:
        """The parameters, with the defaults for those that are None."""
        return replace(defaults, **self.given())

    def given(self) -> dict[str, Any]:
        """The parameters that are not None, by name."""
        named = ((name, getattr(self, name)) for name in PARAMS)
        return {name: value for name, value in named if value is not None}


PARAMS = tuple(entry.name for entry in fields(Params))
DEFAULTS = Params(max_new_tokens=128, temperature=1.0)


def make_params(
    *,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    dtype: type | str | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
    **others: Any,
) -> Params:
    """Parameters as a program gives them. Raises ValueError that says what is wrong.

    dtype: int, float, bool or str, or its name: the answer is one such value as Python writes it.
    """
    constraints = {"dtype": dtype, "regex": regex, "json_schema": json_schema}
    given = [name for name, value in constraints.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"give {given[0]} or {given[1]}, not both")
    stops = _texts("stop", stop)
    if dtype is not None:
        name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
        if name not in _TYPES:
            raise ValueError(f"dtype is one of {', '.join(_TYPES)}, got {dtype!r}")
        regex, ends = _TYPES[name]
        stops = (*(stops or ()), *ends) or None
    patterns = _texts("stop_regex", stop_regex)
    for pattern in patterns or ():
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"stop_regex {pattern!r} is no regular expression: {error}") from None
    return Params(
        stop=stops,
        stop_token_ids=None if stop_token_ids is None else tuple(stop_token_ids),
        stop_regex=patterns,
        regex=regex,
        json_schema=json.dumps(json_schema) if isinstance(json_schema, Mapping) else json_schema,
        **others,
    )


def _texts(name: str, given: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    texts = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{name} is a text, or a list of texts, none of them empty, got {given!r}")
    return texts


class Expr:
    """Something that `+=` appends to a state. It has no text until the program runs."""

    def __add__(self, other: Expr | str) -> Exprs:
        return Exprs((*parts_of(self), *parts_of(other)))

    def __radd__(self, other: str) -> Exprs:
        return Exprs((*parts_of(other), *parts_of(self)))

    def __str__(self) -> NoReturn:
        raise wrong(
            f"{self!r} has no text of its own: append it to a program's state with `s +=`, "
            "then read the value from the state"
        )

    def __format__(self, spec: str) -> NoReturn:
        str(self)
        raise AssertionError("str() raises")


@dataclass(frozen=True, slots=True)
class Text(Expr):
    text: str


@dataclass(frozen=True, slots=True)
class Exprs(Expr):
    """One after the other; no part is an Exprs itself."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Gen(Expr):
    name: str | None
    params: Params

    def __repr__(self) -> str:
        return f"gen({self.name!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Select(Expr):
    name: str | None
    choices: tuple[str, ...]
    method: ChoicesSamplingMethod

    def __repr__(self) -> str:
        return f"select({self.name!r})"


@dataclass(frozen=True, slots=True)
class RoleBegin(Expr):
    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd(Expr):
    role: str


@dataclass(frozen=True, slots=True)
class ScopeBegin(Expr):
    """The begin of a scope: what is written from here on is also a variable's text."""

    name: str


@dataclass(frozen=True, slots=True)
class ScopeEnd(Expr):
    name: str


def parts_of(value: object) -> tuple[Expr, ...]:
    """The single expressions of what is appended. Raises ProgramError for other types."""
    match value:
        case Exprs(parts):
            return parts
        case Expr():
            return (value,)
        case str():
            return (Text(value),)
    raise wrong(
        f"only text and expressions (gen, select, user, ...) can be appended, got {value!r:.80}"
    )


def in_role(role: str, expr: Expr | str | None = None) -> Exprs:
    inner = () if expr is None else parts_of(expr)
    return Exprs((RoleBegin(role), *inner, RoleEnd(role)))
