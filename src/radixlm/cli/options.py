"""Options from the fields of configs or from a YAML file, help under headings, hints for flags that
are not ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click
import yaml

from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.core.flags import at_home, flags_of, option_name
from radixlm.core.sampling import SamplingParams
from radixlm.formats.files import read_table
from radixlm.server.config.server_config import ServerConfig
from radixlm.text.hub import fetched
from radixlm.text.model_folder import DEMO_NAME, loadable

F = TypeVar("F", bound=Callable[..., Any])
REPLICAS = click.IntRange(1, 256)

# Those of SamplingParams' fields that are options.
_SAMPLING_HELP = {
    item.name: item.metadata["help"] for item in fields(SamplingParams) if item.metadata.get("help")
}


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
                if (hint := hints().get(flag)) is not None:
                    raise click.UsageError(f"There is no option {flag!r}: {hint}.", ctx) from None
            raise


class HeadedCommand(HintingCommand):
    """Lists its options by heading, in the order in which headings and options first come."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_one_by_one(args, self.params)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        headings = {"model_path": "Model", **_headings(), "config": "Config file"}
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(headings.get(str(param.name), "Other"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _one_by_one(args: Sequence[str], params: Iterable[click.Parameter]) -> Iterator[str]:
    """Yield `MODEL --name a b`, as other engines take it, as `MODEL --name a --name b`: words after
    one that an option takes, where all arguments stand before it.
    """
    options = {name: param for param in params for name in param.opts}
    sizes = [param.nargs for param in params if isinstance(param, click.Argument)]
    left = sum(sizes) if min(sizes, default=1) > 0 else len(args)
    words, several = iter(args), ""
    for word in words:
        if word == "--":
            yield from (word, *words)
        elif word.startswith("-"):
            option, several = options.get(word), ""
            yield word
            if isinstance(option, click.Option) and not option.is_flag:
                several = word if option.multiple else ""
                yield from islice(words, 1)
        elif several and not left:
            yield from (several, word)
        else:
            left, several = max(left - 1, 0), ""
            yield word


@cache
def hints() -> Mapping[str, str]:
    """Hints for another engine's flag.

    >>> hints()["--max-model-len"]
    '--context-length is ours'
    """
    return read_table("radixlm.cli", "other_flags.txt")


def option(
    name: str, text: str, kind: Any = None, default: Any = None, **more: Any
) -> Callable[[F], F]:
    """An option whose help shows its default, unless it may be given several times."""
    more = {"show_default": default is not None and not more.get("multiple")} | more
    return click.option(name, type=kind, default=default, help=text, **more)


def check_ray(command: str) -> None:
    """Raise ConfigError, with what to do, where Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigError(f"{command} needs Ray: pip install 'radixlm[ray]'")


def say_loading(model: str | None) -> None:
    """Say that a model is loaded, on stderr, as everything but answers."""
    click.secho(f"Loading {model or DEMO_NAME} ...", dim=True, err=True)


def engine_options(command: F) -> F:
    """Add an option for each flag of EngineConfig but `model`, which is the argument."""
    return _with_options(command, (each for each in _options(EngineConfig) if each[0] != "model"))


def options_of_engine(*names: str, repeatable: bool = False) -> Callable[[F], F]:
    """Add options for these flags of EngineConfig. repeatable: each may be given several times."""
    known = dict(_options(EngineConfig))
    chosen = {name: dict(known[name]) for name in names}
    if repeatable:
        for attributes in chosen.values():
            attributes |= {"multiple": True, "default": [attributes["default"]]}
    return lambda command: _with_options(command, chosen.items())


def options_of_server(*names: str) -> Callable[[F], F]:
    """Add options for these flags of ServerConfig."""
    known = dict(_options(ServerConfig))
    return lambda command: _with_options(command, [(name, known[name]) for name in names])


def at_hand(model: str | None, revision: str | None) -> str | None:
    """The model's place here: fetched first where it is named as on the Hub, and looked at before
    torch is imported. Raises ModelError.
    """
    place = fetched(model, revision)
    loadable(place)
    return place


def model_path_option(command: F) -> F:
    """The model as an option, for those who are used to it; the argument is the short way."""
    text = "The same as MODEL, as other engines name it."
    return click.option("--model-path", "--model", "model_path", help=text)(command)


def serving_options(command: F) -> F:
    """Add what a server takes: the model, a flag each of EngineConfig and ServerConfig, a file."""
    command = _with_options(_config_option(command), _options(ServerConfig))
    command = model_path_option(engine_options(command))
    return click.argument("model", required=False)(command)


def take_serving(
    model: str | None, model_path: str | None, flags: dict[str, Any]
) -> tuple[EngineConfig, ServerConfig]:
    """Take the flags of `serving_options`. Raises ConfigError."""
    settings = ServerConfig(
        **{item.name: flags.pop(item.name) for item, _ in flags_of(ServerConfig)}
    )
    return EngineConfig.from_flags(model=model or model_path, **flags), settings


def sampling_options(**defaults: Any) -> Callable[[F], F]:
    """Add options for how tokens are chosen; `defaults` replace those of SamplingParams."""
    hinted = get_type_hints(SamplingParams)
    known = {item.name: item.default for item in fields(SamplingParams)} | defaults

    def decorate(command: F) -> F:
        text = "Text that ends the answer; may be given several times."
        command = click.option("--stop", multiple=True, help=text)(command)
        options = (
            (name, {"help": text, "default": known[name], **_typed(hinted[name], known[name], ())})
            for name, text in _SAMPLING_HELP.items()
        )
        return _with_options(command, options)

    return decorate


def take_sampling(options: dict[str, Any]) -> SamplingParams:
    """Take what `sampling_options` added out of `options`; the engine's flags remain.

    Raises InvalidRequestError that names the field.
    """
    return SamplingParams(**{name: options.pop(name) for name in (*_SAMPLING_HELP, "stop")})


def _with_options(command: F, options: Iterable[tuple[str, Mapping[str, Any]]]) -> F:
    for name, attributes in reversed(list(options)):
        names = [option_name(each) for each in (name, *attributes.get("also", ()))]
        given = {key: value for key, value in attributes.items() if key != "also"}
        command = click.option(*names, name, **given)(command)
    return command


def _options(config: type) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each flag's name and what click.option takes for it."""
    hinted = get_type_hints(config)
    for item, flag in flags_of(config):
        choices = () if flag.rule is None else flag.rule.choices
        typed = _typed(hinted[item.name], item.default, choices)
        also = {"also": (flag.also,)} if flag.also else {}
        yield item.name, {"default": item.default, "help": flag.help, **typed, **also}


def _typed(hint: Any, default: object, choices: tuple[str, ...]) -> Mapping[str, Any]:
    if hint is bool:
        return {"is_flag": True}
    if get_origin(hint) is tuple:
        return {"multiple": True, "type": get_args(hint)[0]}
    if get_origin(hint) is UnionType:  # None is what an option is when it is not given
        [hint] = [member for member in get_args(hint) if member is not type(None)]
    kind = click.Choice(choices) if choices else hint
    return {"type": kind, "show_default": default not in (None, "")}


def _headings() -> Mapping[str, str]:
    """The heading of each flag: the last one that began before it."""
    headings: dict[str, str] = {}
    heading = ""
    for config in (EngineConfig, ServerConfig):
        for item, flag in flags_of(config):
            heading = headings[item.name] = flag.heading or heading
    return headings


def _config_option(command: F) -> F:
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
        content = yaml.safe_load(Path(at_home(file, "--config")).read_bytes())
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
    """The value of a text as click reads the command line. Values are not shown: one may be a
    key.
    """
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
