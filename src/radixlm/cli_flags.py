"""Click options made from the dataclasses they fill, so that no flag is written down twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click

from radixlm.core.config import EngineConfig
from radixlm.core.sampling import SamplingParams

F = TypeVar("F", bound=Callable[..., Any])

_SAMPLING_HELP = {
    "max_tokens": "Longest answer, in tokens.",
    "temperature": "0 always takes the likeliest token; more is more varied.",
    "top_p": "Sample among the likeliest tokens that hold this much probability.",
    "top_k": "Sample among this many of the likeliest tokens; -1 takes all.",
    "min_p": "Leave out tokens less likely than this share of the likeliest one.",
    "repetition_penalty": "More than 1 makes tokens that were there already less likely.",
    "seed": "The same seed gives the same answer.",
}


def engine_options(command: F) -> F:
    """Add an option for each field of EngineConfig but `model`, under the field's name."""
    hints = get_type_hints(EngineConfig)
    for item in reversed(fields(EngineConfig)):
        if item.name != "model":
            command = _engine_option(item, hints[item.name])(command)
    return command


def model_path_option(command: F) -> F:
    """The model as an option, for hands that are used to it; the argument is the short way."""
    return click.option(
        "--model-path", "--model", "model_path", help="The same as MODEL, as other engines name it."
    )(command)


def sampling_options(**defaults: Any) -> Callable[[F], F]:
    """Add options for how tokens are chosen; `defaults` replace those of SamplingParams."""
    hints = get_type_hints(SamplingParams)
    known = {item.name: item.default for item in fields(SamplingParams)} | defaults

    def decorate(command: F) -> F:
        stop = click.option(
            "--stop", multiple=True, help="Text that ends the answer; may be given several times."
        )
        command = stop(command)
        for name, text in reversed(_SAMPLING_HELP.items()):
            command = click.option(
                _flag(name),
                type=_plain_type(hints[name]),
                default=known[name],
                show_default=known[name] is not None,
                help=text,
            )(command)
        return command

    return decorate


def take_sampling(options: dict[str, Any]) -> SamplingParams:
    """Take what `sampling_options` added out of `options`; the engine's flags remain.

    Raises InvalidRequestError that names the field.
    """
    return SamplingParams(**{name: options.pop(name) for name in (*_SAMPLING_HELP, "stop")})


def _engine_option(item: Field[Any], hint: Any) -> Callable[[F], F]:
    text = item.metadata["help"]
    if hint is bool:
        return click.option(_flag(item.name), is_flag=True, default=item.default, help=text)
    choices = item.metadata["choices"]
    return click.option(
        _flag(item.name),
        type=click.Choice(choices) if choices else _plain_type(hint),
        default=item.default,
        show_default=item.default is not None,
        help=text,
    )


def _plain_type(hint: Any) -> Any:
    """`int` of `int | None`: None is what an option is when it is not given."""
    if get_origin(hint) is UnionType:
        [hint] = [member for member in get_args(hint) if member is not type(None)]
    return hint


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
