"""The functions that programs are written with, and the backend they run on if they name none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from radixlm.core.errors import ConfigError
from radixlm.lang.backend import Backend
from radixlm.lang.choices import ChoicesSamplingMethod, token_length_normalized
from radixlm.lang.engine_backend import AnyEngine, EngineBackend
from radixlm.lang.ir import Expr, Gen, RoleBegin, RoleEnd, Select, in_role, make_params, wrong


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

    What is None is as the program is run, see `Params`. dtype, regex, json_schema: what the answer
    must look like, one at most. choices: as `select`. Raises ProgramError.
    """
    given = dict(locals())
    del given["name"], given["choices"], given["choices_method"]
    if choices is not None:
        return select(name, choices, choices_method=choices_method or token_length_normalized)
    given["max_new_tokens"] = given.pop("max_tokens")
    given["min_new_tokens"] = given.pop("min_tokens")
    try:
        return Gen(name, make_params(**given))
    except (TypeError, ValueError, re.error) as error:
        raise wrong(str(error)) from None


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
        raise wrong(str(reason))
    return Select(name, tuple(choices), choices_method)


# Whole messages, such as `user("hi" + gen("a"))`, and their ends.
system, user, assistant = (partial(in_role, role) for role in ("system", "user", "assistant"))
system_begin, system_end = partial(RoleBegin, "system"), partial(RoleEnd, "system")
user_begin, user_end = partial(RoleBegin, "user"), partial(RoleEnd, "user")
assistant_begin, assistant_end = partial(RoleBegin, "assistant"), partial(RoleEnd, "assistant")


class Default:
    backend: Backend | None = None


DEFAULT = Default()


def set_default_backend(backend: Any) -> None:
    """Programs run on it from now on: an Engine, an AsyncEngine, a RuntimeEndpoint, an OpenAI.

    Raises ConfigError for anything else.
    """
    DEFAULT.backend = as_backend(backend)


def flush_cache(backend: Any = None) -> bool:
    """Drop what the backend has cached; whether all of it went."""
    return as_backend(backend).flush_cache()


def as_backend(backend: Any) -> Backend:
    """A backend of what programs can run on; None is the default. Raises ConfigError."""
    if backend is None:
        if DEFAULT.backend is None:
            raise ConfigError(
                "no backend: call set_default_backend(...), or give backend=, with "
                "an Engine, RuntimeEndpoint(url) or OpenAI(model)"
            )
        return DEFAULT.backend
    if isinstance(backend, AnyEngine):
        return EngineBackend(backend)
    if hasattr(backend, "session") and hasattr(backend, "flush_cache"):
        made: Backend = backend
        return made
    raise ConfigError(f"{backend!r:.80} is no backend: give an Engine, RuntimeEndpoint or OpenAI")
