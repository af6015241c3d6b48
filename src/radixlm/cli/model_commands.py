"""The commands that take a model: serve, deploy, chat, generate, explain."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click

from radixlm.cli.options import (
    REPLICAS,
    HeadedCommand,
    HintingCommand,
    at_hand,
    check_ray,
    engine_options,
    model_path_option,
    option,
    options_of_engine,
    sampling_options,
    say_loading,
    serving_options,
    take_sampling,
    take_serving,
)
from radixlm.cli.start import later
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ModelError, counted
from radixlm.core.request import RequestOutput
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.listen import check_certificate, listening
from radixlm.server.http.logs import log_to_stderr
from radixlm.text.hub import fetch
from radixlm.text.model_folder import DEMO_NAME, hub_model, is_model, loadable, on_hub

compared = later("radixlm.cli.comparison:compared")
deploy_replicas = later("radixlm.ray.deploy:deploy")
run_server = later("radixlm.server.serve:serve")
talk = later("radixlm.cli.terminal_chat:talk")
Engine = later("radixlm.assembly:Engine")

_FOLDER_MARKS = ("/", "./", "../", "~/")
_FILES = (".gguf", ".safetensors")
_LONGEST_PATH = 4096
_JSON_FILE = click.Path(exists=True, dir_okay=False)


@click.command("serve", cls=HeadedCommand)
@serving_options
def serve(model: str | None, model_path: str | None, **flags: Any) -> None:
    """Serve MODEL, a folder in Hugging Face format, a GGUF file, or OWNER/NAME of the Hugging Face
    Hub, which is fetched first, as OpenAI's API.

    Without MODEL it is the embedded demo model. Ctrl-C ends it.
    """
    config, settings = take_serving(model, model_path, flags)
    log_to_stderr(settings.log_format)
    with checked(config, settings) as (config, listener):
        run_server(config, settings, listener)


@contextlib.contextmanager
def checked(
    config: EngineConfig, settings: ServerConfig
) -> Iterator[tuple[EngineConfig, socket.socket]]:
    """Check where to listen, with a moment's look at what may be wrong: to fetch a model, to import
    torch and to load takes longer. Raises ModelError, ConfigError.
    """
    place, named = config.model, on_hub(config.model) is not None
    if not named:
        loadable(place)
    check_certificate(settings)
    with listening(settings) as listener:
        if named:
            place = at_hand(place, config.revision)
        logging.getLogger("radixlm.server").info("Loading %s ...", config.model or DEMO_NAME)
        yield replace(config, model=place), listener


@click.command("deploy", cls=HeadedCommand)
@option("--replicas", "Engines.", REPLICAS, default=2)
@option("--max-replicas", "Add engines up to this many while requests wait.", REPLICAS)
@option(
    "--ray-address",
    "A Ray cluster, as `auto` or ray://HOST:10001; by default one on this machine alone.",
    metavar="ADDRESS",
)
@serving_options
def deploy(
    model: str | None,
    model_path: str | None,
    replicas: int,
    max_replicas: int | None,
    ray_address: str | None,
    **flags: Any,
) -> None:
    """Serve MODEL by several replicas on Ray Serve, routed by what each has cached.

    Without MODEL it is the embedded demo model. Ctrl-C ends it.
    """
    config, settings = take_serving(model, model_path, flags)
    log_to_stderr(settings.log_format)
    # A wrong one is an error before Ray is started.
    config = replace(config, model=at_hand(config.model, config.revision))
    scale = {"replicas": replicas, "max_replicas": max_replicas, "address": ray_address}
    check_ray("radixlm deploy")
    deploy_replicas(config, settings, **scale)


@click.command("pull", cls=HintingCommand)
@click.argument("name")
@options_of_engine("revision")
def pull(name: str, revision: str | None) -> None:
    """Fetch NAME, OWNER/NAME or OWNER/NAME:KIND of GGUF files, from the Hugging Face Hub.

    Into the cache that other tools share (HF_HOME). What broke off goes on. `serve NAME` does the
    same, and serves it.
    """
    if (model := hub_model(name)) is None:
        raise click.UsageError("NAME is OWNER/NAME of the Hub, as in Qwen/Qwen3-0.6B")
    click.echo(fetch(model, revision))


@click.command("chat", cls=HintingCommand)
@click.argument("model", required=False)
@click.option("--system", help="Instruction that stands in front of the conversation.")
@model_path_option
@sampling_options(max_tokens=512)
@engine_options
def chat(model: str | None, model_path: str | None, system: str | None, **options: Any) -> None:
    """Talk to MODEL, a folder in Hugging Face format or a GGUF file; without it, to the embedded
    demo model.

    Each answer is followed by how much of the conversation came from the cache. Ctrl-C stops an
    answer, /clear forgets the conversation, Ctrl-D or /exit leaves.
    """
    params = take_sampling(options)
    place = at_hand(model or model_path, options["revision"])
    say_loading(model or model_path)
    talk(place, params, system, **options)


@click.command("generate", cls=HintingCommand)
@click.argument("arguments", metavar="[MODEL] [PROMPT]...", nargs=-1)
@model_path_option
@sampling_options()
@engine_options
def generate(arguments: tuple[str, ...], model_path: str | None, **options: Any) -> None:
    """Continue each PROMPT and print what MODEL adds.

    MODEL is a folder in Hugging Face format or a GGUF file. A single argument that is neither, and
    a first one with spaces in it, are prompts for the embedded demo model, which has the name
    radixlm-demo, too. Without PROMPT, or where it is -, standard input is the prompt.
    """
    params = take_sampling(options)
    model, given = (model_path, arguments) if model_path else _split(arguments)
    _check(model, given)
    place = at_hand(model, options["revision"])
    prompts = [_read_input() if text == "-" else text for text in given or ("-",)]
    say_loading(model)
    with Engine(place, **options) as engine:
        bar = len(prompts) > 1 and sys.stderr.isatty()
        outputs = engine.generate(prompts, params, progress=bar)
    for prompt, output in zip(prompts, outputs, strict=True):
        if len(prompts) > 1:
            click.secho(f"--- {prompt.strip()[:70]!r}", dim=True, err=True)
        click.echo(output.text)
        click.secho(summary(output), dim=True, err=True)


@click.command("explain")
@click.argument("first", metavar="A.json", type=_JSON_FILE)
@click.argument("second", metavar="B.json", type=_JSON_FILE)
@click.option("--model", help="The model's folder; without it, the embedded demo model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(first: str, second: str, model: str | None, as_json: bool) -> None:
    """Compare two request bodies, of any routes that compute a prompt, each with one prompt.

    Where its fields do not tell whose a body is, the field `route` does, as for /cache/explain.

    Tells up to where the second one's prompt would come from the cache after the first one's: the
    message, the token and the text, and what to do. Only the tokenizer and the chat template are
    loaded; no server is asked.
    """
    result = compared(first, second, model)
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
        return
    click.echo(f"{result['shared_tokens']} of {result['prompt_tokens']} tokens are shared.")
    for name in ("where", "what", "context", "advice"):
        if result[name]:
            click.echo(f"{name:8} {result[name]}")


def summary(output: RequestOutput) -> str:
    return (
        f"[{counted(output.prompt_tokens, 'prompt token')}, {output.cached_tokens} of them cached; "
        f"{len(output.token_ids)} new, ended by {output.finish_reason}]"
    )


def _split(arguments: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    if not arguments:
        return None, ()
    first = arguments[0]
    if is_model(first) or _looks_like_model(first, alone=len(arguments) == 1):
        return first, arguments[1:]
    return None, arguments


def _check(model: str | None, prompts: tuple[str, ...]) -> None:
    """Refuse a first word that can be no model, before prompts. Raises ModelError."""
    word = model is not None and "/" not in model and not model.endswith(_FILES)
    if word and prompts and model != DEMO_NAME and not is_model(model or ""):
        raise ModelError(
            f"there is no folder {model!r}; the first of several arguments is MODEL. Give the path "
            f"of a model's folder, or {DEMO_NAME} for prompts to the embedded demo model",
            commands=(f"radixlm generate {DEMO_NAME} {shlex.join((model or '', *prompts))}",),
        )


def _looks_like_model(text: str, *, alone: bool) -> bool:
    """Guess whether a word is a model, so that a mistyped one is an error and not a prompt; a text
    with spaces is none.

    alone: nothing comes after it; a single word is a prompt then, unless it is a path or a name.
    """
    if not text or any(map(str.isspace, text)) or len(text) > _LONGEST_PATH:
        return False
    if alone:
        marked = text.startswith(_FOLDER_MARKS) or text.endswith(_FILES)
        return marked or text == DEMO_NAME or hub_model(text) is not None
    return text != "-"


def _read_input() -> str:
    if sys.stdin.isatty():
        raise click.UsageError("give a PROMPT, or pipe one into standard input")
    return sys.stdin.read().removesuffix("\n")
