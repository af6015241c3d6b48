"""`--config FILE`: flags from a YAML file; those on the command line win."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from radixlm.cli.flags import HeadedOption
from radixlm.cli.others import hint_for
from radixlm.core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

_NUMBERS = (click.INT, click.FLOAT)


def config_option(command: F) -> F:
    """Add `--config`. It is read before the other options, whose defaults it replaces."""
    return click.option(
        "--config",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_take,
        cls=HeadedOption,
        heading="Config file",
        help="YAML file of flags, as in `kv-tokens: 100000`; the command line wins.",
    )(command)


def read_flags(file: str, command: click.Command) -> dict[str, Any]:
    """The file's values under the names that `command` has for them.

    Keys are long flags without their dashes in front. Null leaves a flag at its default, a list is
    a flag that is given several times. Raises ConfigError that names the file and the key.
    """
    try:
        content = yaml.safe_load(Path(file).read_bytes())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read --config {file!r}: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"--config {file!r} must hold `flag: value` lines, not a {type(content).__name__}"
        )
    known = _known(command)
    values: dict[str, Any] = {}
    for key, value in content.items():
        option = known.get(str(key).replace("_", "-"))
        if option is None or option.name is None:
            raise ConfigError(f"--config {file!r}: {_unknown(str(key), list(known))}")
        if option.name in values:
            raise ConfigError(f"--config {file!r}: {key} is given twice")
        if value is not None:
            values[option.name] = _value(f"--config {file!r}: {key}", option, value)
    return values


def _take(ctx: click.Context, _param: click.Parameter, file: str | None) -> None:
    if file is not None:
        ctx.default_map = {**(ctx.default_map or {}), **read_flags(file, ctx.command)}


def _known(command: click.Command) -> dict[str, click.Option]:
    return {
        flag.removeprefix("--"): param
        for param in command.params
        if isinstance(param, click.Option) and param.expose_value
        for flag in param.opts
        if flag.startswith("--")
    }


def _unknown(key: str, known: list[str]) -> str:
    if (hint := hint_for("--" + key.replace("_", "-").lstrip("-"))) is not None:
        return f"there is no flag {key!r}: {hint}"
    near = difflib.get_close_matches(key.replace("_", "-").strip("-").lower(), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "--help lists the flags"
    return f"there is no flag {key!r}; {hint}"


def _value(where: str, option: click.Option, value: object) -> object:
    """What click reads as it reads the command line. Values are not shown: one may be a key."""
    if option.is_flag:
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{where} must be true or false")
    if option.multiple:
        entries = value if isinstance(value, list) else [value]
        return [_text(where, option, entry) for entry in entries]
    return _text(where, option, value)


def _text(where: str, option: click.Option, value: object) -> str:
    """YAML reads 0123 as 83 and `no` as false; guessing back would get keys and names wrong."""
    if isinstance(value, str):
        return value
    if option.type in _NUMBERS:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        raise ConfigError(f"{where} must be a number, got a {type(value).__name__}")
    raise ConfigError(f"{where} must be text, got a {type(value).__name__}; put it in quotes")
