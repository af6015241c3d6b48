"""Flags: a field of a config says its help and what it may hold; checks and options follow."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, NamedTuple

from radixlm.core.errors import ConfigError


class Rule(NamedTuple):
    """A rule for what a flag may hold. text: how errors go on after its name. choices: all, if
    few.
    """

    text: str
    holds: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flag:
    """heading: where a heading of the help begins, its text. secret: never shown in errors. also:
    another name that users know. path: it names a file or a folder, of a tuple each, perhaps as
    NAME=PATH.
    """

    help: str
    rule: Rule | None
    heading: str | None
    secret: bool
    also: str = ""
    path: bool = False


def flag(
    default: Any,
    text: str = "",
    rule: Rule | None = None,
    *,
    heading: str | None = None,
    secret: bool = False,
    also: str = "",
    path: bool = False,
) -> Any:
    """A config's field. rule: of each value where it is a tuple; a default of None is allowed."""
    return field(
        default=default,
        repr=not secret,
        metadata={"flag": Flag(text, rule, heading, secret, also, path)},
    )


def flags_of(config: Any) -> Iterator[tuple[Field[Any], Flag]]:
    """A config's fields that are flags."""
    return ((item, item.metadata["flag"]) for item in fields(config) if "flag" in item.metadata)


def option_name(name: str) -> str:
    """`--kv-tokens` of `kv_tokens`."""
    return "--" + name.replace("_", "-")


def expand_homes(config: Any) -> None:
    """Replace a ~ that a path begins with by a user's home, as shells do on the command line only.
    Raises ConfigError where there is no such user.
    """
    for item, declared in flags_of(config):
        value, name = getattr(config, item.name), option_name(item.name)
        if declared.path and isinstance(value, str):
            object.__setattr__(config, item.name, at_home(value, name))
        elif declared.path and isinstance(value, tuple):
            expanded = tuple(_named_at_home(each, name) for each in value)
            object.__setattr__(config, item.name, expanded)


def _named_at_home(text: object, name: str) -> object:
    """The same of NAME=PATH, or a path alone; what is no text is left to its rule."""
    if not isinstance(text, str):
        return text
    before, equals, path = text.partition("=")
    return f"{before}={at_home(path, name)}" if equals else at_home(text, name)


def at_home(path: str, name: str) -> str:
    """A path with a user's home for ~. name: of what it is given as. Raises ConfigError."""
    expanded = os.path.expanduser(path)
    if path.startswith("~") and expanded == path:
        user = path[1:].partition("/")[0]
        whose = f"user {user!r:.80} has" if user else "you have"
        raise ConfigError(
            f"{name} {path!r:.200}: {whose} no home; write ./~... for a name that begins with ~"
        )
    return expanded


_YES_OR_NO = Rule("is True or False", lambda value: isinstance(value, bool))


def check_flags(config: Any, name_of: Callable[[str], str] = option_name) -> None:
    """Raise ConfigError for the first field that breaks its rule. name_of: as it calls them."""
    for item, declared in flags_of(config):
        value, name = getattr(config, item.name), name_of(item.name)
        rule = _YES_OR_NO if isinstance(item.default, bool) else declared.rule
        if rule is None or value is item.default is None:
            continue
        if not isinstance(item.default, tuple):
            if not rule.holds(value):
                raise ConfigError(f"{name} {rule.text}, got {_shown(value)}")
            continue
        if not isinstance(value, tuple):
            raise ConfigError(f"{item.name} is a tuple, got {type(value).__name__}")
        for place, each in enumerate(value, 1):
            if not rule.holds(each) and declared.secret:
                raise ConfigError(f"{name} number {place} {rule.text}")
            if not rule.holds(each):
                raise ConfigError(f"{name} {rule.text}, got {_shown(each)}")


def _shown(value: object) -> str:
    try:
        return f"{value!r:.200}"
    except ValueError:  # Python writes no integers of more than 4,300 digits
        return "one of too many digits to be written"


def integer(low: int, high: int | None = None) -> Rule:
    """Both ends are allowed."""
    text = f"of at least {low}" if high is None else f"from {low} to {high}"
    most = math.inf if high is None else high
    return Rule(f"is an integer {text}", lambda value: type(value) is int and low <= value <= most)


def number(low: float, high: float, text: str = "") -> Rule:
    """A finite number; both ends are allowed."""
    most = min(high, sys.float_info.max)
    return Rule(
        text or f"is a number from {low:g} to {high:g}",
        lambda value: type(value) in (int, float) and low <= value <= most,
    )


def one_of(choices: tuple[str, ...]) -> Rule:
    return Rule(f"is one of {choices}", lambda value: value in choices, choices)


def written(pattern: str, text: str) -> Rule:
    """Text that matches all of `pattern`, of ASCII characters as \\w."""
    compiled = re.compile(pattern, re.ASCII)
    return Rule(
        text, lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None
    )


SECONDS = number(0, math.inf, "is a number of seconds, 0 for no limit")
