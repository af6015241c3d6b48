"""`--config FILE`: flags from a YAML file; those on the command line win."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from radixlm.cli.options import hints
from radixlm.core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    """Add `--config`. It is read before the other options, whose defaults it replaces."""
    return click.option(
        "--config",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_take,
        help="YAML file of flags, as in `kv-tokens: 100000`; the command line wins.",
    )(command)


def read_flags(file: str, command: click.Command) -> dict[str, Any]:
    """The file's values under the names that `command` has for them.

    Keys are long flags without their dashes in front. Null leaves a flag at its default, a list is
    a flag that is given several times. Raises ConfigError that names the file and the key.
    """
    where = f"--config {file!r}"
    try:
        content = yaml.safe_load(Path(file).read_bytes())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {where}: {error}") from None
    if content is not None and not isinstance(content, dict):
        raise ConfigError(f"{where} must hold `flag: value` lines, not a {type(content).__name__}")
    known = {
        name.removeprefix("--"): param
        for param in command.params
        if isinstance(param, click.Option) and param.expose_value
        for name in param.opts
    }
    values: dict[str, Any] = {}
    for key, value in (content or {}).items():
        option = known.get(str(key).replace("_", "-"))
        if option is None or option.name is None:
            raise ConfigError(f"{where}: {_unknown(str(key), list(known))}")
        if option.name in values:
            raise ConfigError(f"{where}: {key} is given twice")
        if value is not None:
            values[option.name] = _value(f"{where}: {key}", option, value)
    return values


def _take(ctx: click.Context, _param: click.Parameter, file: str | None) -> None:
    if file is not None:
        ctx.default_map = {**(ctx.default_map or {}), **read_flags(file, ctx.command)}


def _unknown(key: str, known: list[str]) -> str:
    name = key.replace("_", "-").lstrip("-")
    if (hint := hints().get("--" + name)) is not None:
        return f"there is no flag {key!r}: {hint}"
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "--help lists the flags"
    return f"there is no flag {key!r}; {hint}"


def _value(where: str, option: click.Option, value: object) -> object:
    """What click reads as it reads the command line. Values are not shown: one may be a key."""
    if not option.is_flag:
        entries = value if option.multiple and isinstance(value, list) else [value]
        texts = [_text(where, option, entry) for entry in entries]
        return texts if option.multiple else texts[0]
    if not isinstance(value, bool):
        raise ConfigError(f"{where} must be true or false")
    return value


def _text(where: str, option: click.Option, value: object) -> str:
    """YAML reads 0123 as 83 and `no` as false; guessing back would get keys and names wrong."""
    if isinstance(value, str):
        return value
    if option.type not in (click.INT, click.FLOAT):
        kind = type(value).__name__
        raise ConfigError(f"{where} must be text, got a {kind}; put it in quotes")
    if type(value) not in (int, float):
        raise ConfigError(f"{where} must be a number, got a {type(value).__name__}")
    return str(value)
