"""Parameters of sampling, in SGLang's words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

# The end of a number is known by the white space behind it, which is not part of it.
_WHITE = (" ", "\n")
_TYPES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "int": (r"[-+]?[0-9]+[ \n]?", _WHITE),
    "float": (r"[-+]?[0-9]*\.?[0-9]+[ \n]?", _WHITE),
    "bool": (r"(True|False)", ()),
    "str": (r'"[^"\\\n]*"', ()),
}
DTYPES = tuple(_TYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """How one answer is sampled. In a `gen`, None leaves it to what the program is run with.

    stop: the answer ends before any of these. stop_regex: it ends behind what one of these matches,
        as soon as one does.
    n: so many answers; the program goes on with the first.
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
        """These, and where they are left open, the defaults."""
        return replace(defaults, **self.given())

    def given(self) -> dict[str, Any]:
        """What is not left open, by name."""
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
    """Parameters as a program gives them. Raises ValueError that says what is wrong with them.

    dtype: int, float, bool or str, or its name: the answer is one such value as Python writes it.
    """
    constraints = {"dtype": dtype, "regex": regex, "json_schema": json_schema}
    given = [name for name, value in constraints.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"give {given[0]} or {given[1]}, not both")
    stops = _texts("stop", stop)
    patterns = _texts("stop_regex", stop_regex)
    for pattern in patterns or ():
        _check_pattern(pattern)
    if dtype is not None:
        regex, ends = _typed(dtype)
        stops = (*(stops or ()), *ends) or None
    if isinstance(json_schema, Mapping):
        json_schema = json.dumps(json_schema)
    return Params(
        stop=stops,
        stop_token_ids=None if stop_token_ids is None else tuple(stop_token_ids),
        stop_regex=patterns,
        regex=regex,
        json_schema=json_schema,
        **others,
    )


def _texts(name: str, given: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    texts = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{name} is a text, or a list of texts, none of them empty, got {given!r}")
    return texts


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"stop_regex {pattern!r} is no regular expression: {error}") from None


def _typed(dtype: type | str) -> tuple[str, tuple[str, ...]]:
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
    if name not in _TYPES:
        raise ValueError(f"dtype is one of {', '.join(DTYPES)}, got {dtype!r}")
    return _TYPES[name]
