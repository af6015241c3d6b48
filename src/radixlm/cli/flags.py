"""Help under headings: an option says under which it stands. Hints for flags that are not ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click

from radixlm.cli.others import hint_for
from radixlm.core.config import EngineConfig
from radixlm.core.sampling import SamplingParams
from radixlm.server.config.server_config import ServerConfig
from radixlm.text.model_folder import DEMO_NAME


class HeadedOption(click.Option):
    """An option with its heading in the help of a HeadedCommand."""

    def __init__(self, *args: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.heading = heading


class HintingCommand(click.Command):
    """Knows what other engines' flags are called here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [argument.partition("=")[0] for argument in args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # Of `-ngl 9` click has looked for `-n` only.
            likely = [flag for flag in given if flag.startswith(error.option_name)]
            for flag in likely:
                if (hint := hint_for(flag)) is not None:
                    raise click.UsageError(f"There is no option {flag!r}: {hint}.", ctx) from None
            raise


class HeadedCommand(HintingCommand):
    """Lists its options by heading, in the order in which headings and options first come."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                heading = param.heading if isinstance(param, HeadedOption) else "Other"
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def say_loading(model: str | None) -> None:
    """On stderr, as all that is no answer."""
    click.secho(f"Loading {model or DEMO_NAME} ...", dim=True, err=True)


F = TypeVar("F", bound=Callable[..., Any])

# In a config's order of fields, the one at which a heading of the help begins.
_ENGINE_HEADINGS = {"model": "Model", "kv_tokens": "Cache", "schedule_policy": "Scheduler"}
_SERVER_HEADINGS = {
    "host": "Server",
    "api_key": "API keys",
    "max_request_bytes": "Limits",
    "response_store": "Stored responses",
    "kv_events_config": "Routers",
    "disable_access_log": "Logs",
}
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
    return _add_options(command, EngineConfig, _ENGINE_HEADINGS)


def server_options(command: F) -> F:
    """Add an option for each field of ServerConfig, under the field's name."""
    return _add_options(command, ServerConfig, _SERVER_HEADINGS)


def model_path_option(command: F) -> F:
    """The model as an option, for hands that are used to it; the argument is the short way."""
    return click.option(
        "--model-path",
        "--model",
        "model_path",
        cls=HeadedOption,
        heading="Model",
        help="The same as MODEL, as other engines name it.",
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


def flags_of(config: Any) -> list[Field[Any]]:
    """Its fields, without those that follow from others."""
    return [item for item in fields(config) if item.init]


def take_sampling(options: dict[str, Any]) -> SamplingParams:
    """Take what `sampling_options` added out of `options`; the engine's flags remain.

    Raises InvalidRequestError that names the field.
    """
    return SamplingParams(**{name: options.pop(name) for name in (*_SAMPLING_HELP, "stop")})


def _add_options(command: F, config: type, headings: Mapping[str, str]) -> F:
    hints = get_type_hints(config)
    for item, heading in reversed(list(_headed(config, headings))):
        if item.name != "model":  # it is the argument
            command = _option(item, hints[item.name], heading)(command)
    return command


def _headed(config: Any, headings: Mapping[str, str]) -> Iterator[tuple[Field[Any], str]]:
    heading = ""
    for item in flags_of(config):
        heading = headings.get(item.name, heading)
        yield item, heading


def _option(item: Field[Any], hint: Any, heading: str) -> Callable[[F], F]:
    attributes: dict[str, Any] = {"cls": HeadedOption, "heading": heading}
    attributes |= {"default": item.default, "help": item.metadata["help"]}
    choices = item.metadata["choices"]
    if hint is bool:
        attributes |= {"is_flag": True}
    elif get_origin(hint) is tuple:
        attributes |= {"multiple": True, "type": get_args(hint)[0]}
    else:
        attributes |= {
            "type": click.Choice(choices) if choices else _plain_type(hint),
            "show_default": item.default not in (None, ""),
        }
    return click.option(_flag(item.name), **attributes)


def _plain_type(hint: Any) -> Any:
    """`int` of `int | None`: None is what an option is when it is not given."""
    if get_origin(hint) is UnionType:
        [hint] = [member for member in get_args(hint) if member is not type(None)]
    return hint


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
