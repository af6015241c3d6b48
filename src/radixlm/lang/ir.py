"""Regular expressions that end an answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from radixlm.core.errors import ProgramError
from radixlm.lang.choices import ChoicesSamplingMethod, token_length_normalized
from radixlm.lang.lines import caller_line
from radixlm.lang.params import Params, make_params


class PatternStops:
    """Finds the first place where the text ends with what a pattern matches, whatever pieces it
    comes in. A character costs time in proportion to the text before it.

    matched: the pattern that ended it, None as long as none did.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._text = ""
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        """What of the piece is part of the answer.

        >>> PatternStops(["[.!]"]).feed("Yes. No.")
        'Yes.'
        """
        start = len(self._text)
        self._text += piece
        for end in range(start + 1, len(self._text) + 1) if self._patterns else ():
            for pattern in self._patterns:
                if pattern.search(self._text, 0, end):
                    self.matched = pattern.pattern
                    return self._text[start:end]
        return piece


class Expr:
    """Something to be appended to a state, with `+=`. It holds no text: that comes when it runs."""

    def __add__(self, other: Expr | str) -> Exprs:
        return Exprs((*parts_of(self), *parts_of(other)))

    def __radd__(self, other: str) -> Exprs:
        return Exprs((*parts_of(other), *parts_of(self)))

    def __str__(self) -> NoReturn:
        raise ProgramError(
            f"{self!r} has no text of its own: append it to a program's state with `s +=`, "
            "then read the value from the state",
            line=str(caller_line()),
        )

    def __format__(self, spec: str) -> NoReturn:
        str(self)
        raise AssertionError("str() raises")


@dataclass(frozen=True, slots=True)
class Text(Expr):
    text: str


@dataclass(frozen=True, slots=True)
class Exprs(Expr):
    """One after the other; none of them is an Exprs itself."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Gen(Expr):
    """An answer of the model."""

    name: str | None
    params: Params

    def __repr__(self) -> str:
        return f"gen({self.name!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Select(Expr):
    """The choice that the model finds best."""

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
    """From here on, what is written is part of a variable too."""

    name: str


@dataclass(frozen=True, slots=True)
class ScopeEnd(Expr):
    name: str


def parts_of(value: object) -> tuple[Expr, ...]:
    """What is appended, as single expressions. Raises ProgramError for what can not be."""
    match value:
        case Exprs(parts):
            return parts
        case Expr():
            return (value,)
        case str():
            return (Text(value),)
    raise ProgramError(
        f"only text and expressions (gen, select, user, ...) can be appended, got {value!r:.80}",
        line=str(caller_line()),
    )


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesSamplingMethod | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
) -> Expr:
    """The model goes on from here; the program reads its answer as `s[name]`.

    What is left open is as the program is run, see `Params`. dtype, regex, json_schema: what the
    answer must look like, one at most. choices: as `select`. Raises ProgramError.
    """
    if choices is not None:
        return select(name, choices, choices_method=choices_method or token_length_normalized)
    try:
        params = make_params(
            max_new_tokens=max_tokens,
            min_new_tokens=min_tokens,
            n=n,
            stop=stop,
            stop_token_ids=stop_token_ids,
            stop_regex=stop_regex,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            ignore_eos=ignore_eos,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=top_logprobs_num,
            return_text_in_logprobs=return_text_in_logprobs,
            dtype=dtype,
            regex=regex,
            json_schema=json_schema,
        )
    except (TypeError, ValueError, re.error) as error:
        raise ProgramError(str(error), line=str(caller_line())) from None
    return Gen(name, params)


def gen_int(name: str | None = None, max_tokens: int | None = None, **others: Any) -> Expr:
    """A whole number, as text; the others are `gen`'s arguments."""
    return gen(name, max_tokens, dtype=int, **others)


def gen_string(name: str | None = None, max_tokens: int | None = None, **others: Any) -> Expr:
    """A text in double quotes, quotes included; the others are `gen`'s arguments."""
    return gen(name, max_tokens, dtype=str, **others)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
) -> Expr:
    """The choice that the model finds best. A choice may be the beginning of another one.

    temperature: 0, there is nothing else. Raises ProgramError.
    """
    reason = None
    if isinstance(choices, str) or not choices:
        reason = f"choices is a list of texts, one at least, got {choices!r}"
    elif not all(isinstance(choice, str) and choice for choice in choices):
        reason = f"each choice is a text that is not empty, got {list(choices)!r:.200}"
    elif len(set(choices)) < len(choices):
        reason = f"a choice stands twice in {list(choices)!r:.200}"
    elif temperature > 1e-5:
        reason = f"select takes the best choice, so its temperature is 0, got {temperature}"
    if reason is not None or choices is None:
        raise ProgramError(str(reason), line=str(caller_line()))
    return Select(name, tuple(choices), choices_method)


def in_role(role: str, content: Expr | str | None) -> Exprs:
    """A whole message."""
    inner = () if content is None else parts_of(content)
    return Exprs((RoleBegin(role), *inner, RoleEnd(role)))


def system(expr: Expr | str | None = None) -> Exprs:
    return in_role("system", expr)


def user(expr: Expr | str | None = None) -> Exprs:
    return in_role("user", expr)


def assistant(expr: Expr | str | None = None) -> Exprs:
    return in_role("assistant", expr)


def system_begin() -> Expr:
    return RoleBegin("system")


def system_end() -> Expr:
    return RoleEnd("system")


def user_begin() -> Expr:
    return RoleBegin("user")


def user_end() -> Expr:
    return RoleEnd("user")


def assistant_begin() -> Expr:
    return RoleBegin("assistant")


def assistant_end() -> Expr:
    return RoleEnd("assistant")
