"""`radixlm generate`: prompts in, answers out."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from radixlm.cli.later import later
from radixlm.cli.options import (
    HintingCommand,
    engine_options,
    model_path_option,
    sampling_options,
    say_loading,
    take_sampling,
)
from radixlm.core.errors import ModelError, counted
from radixlm.core.request import RequestOutput
from radixlm.text.model_folder import DEMO_NAME, hub_name, is_folder, resolve_folder

Engine = later("radixlm.build:Engine")

_FOLDER_MARKS = ("/", "./", "../", "~/")
_FILES = (".gguf", ".safetensors")
_LONGEST_PATH = 4096


@click.command("generate", cls=HintingCommand)
@click.argument("arguments", metavar="[MODEL] [PROMPT]...", nargs=-1)
@model_path_option
@sampling_options()
@engine_options
def command(arguments: tuple[str, ...], model_path: str | None, **options: Any) -> None:
    """Continue each PROMPT and print what MODEL adds.

    MODEL is a folder in Hugging Face format. A single argument that is no folder, and a first one
    with spaces in it, are prompts for the embedded demo model, which has the name radixlm-demo,
    too. Without PROMPT, or where it is -, standard input is the prompt.
    """
    params = take_sampling(options)
    model, given = (model_path, arguments) if model_path else _split(arguments)
    _check(model, given)
    prompts = [_read_input() if text == "-" else text for text in given or ("-",)]
    say_loading(model)
    with Engine(model, **options) as engine:
        bar = len(prompts) > 1 and sys.stderr.isatty()
        outputs = engine.generate(prompts, params, progress=bar)
    for prompt, output in zip(prompts, outputs, strict=True):
        if len(prompts) > 1:
            click.secho(f"--- {prompt.strip()[:70]!r}", dim=True, err=True)
        click.echo(output.text)
        click.secho(summary(output), dim=True, err=True)


def summary(output: RequestOutput) -> str:
    """What an answer took, in tokens."""
    return (
        f"[{counted(output.prompt_tokens, 'prompt token')}, {output.cached_tokens} of them cached; "
        f"{len(output.token_ids)} new, ended by {output.finish_reason}]"
    )


def _split(arguments: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    if not arguments:
        return None, ()
    first = arguments[0]
    if is_folder(first) or _looks_like_model(first, alone=len(arguments) == 1):
        return first, arguments[1:]
    return None, arguments


def _check(model: str | None, prompts: tuple[str, ...]) -> None:
    """Refuse a wrong model before torch is imported. Raises ModelError."""
    word = model is not None and "/" not in model and not model.endswith(_FILES)
    if word and prompts and model != DEMO_NAME and not is_folder(model or ""):
        raise ModelError(
            f"there is no folder {model!r}; the first of several arguments is MODEL. Give the path "
            f"of a model's folder, or {DEMO_NAME} for prompts to the embedded demo model",
            commands=(f"radixlm generate {DEMO_NAME} {shlex.join((model or '', *prompts))}",),
        )
    resolve_folder(model)


def _looks_like_model(text: str, *, alone: bool) -> bool:
    """So that a mistyped model is an error and not a prompt; a text with spaces is none.

    alone: nothing comes after it; a single word is a prompt then, unless it is a path or a name.
    """
    if not text or any(map(str.isspace, text)) or len(text) > _LONGEST_PATH:
        return False
    if alone:
        marked = text.startswith(_FOLDER_MARKS) or text.endswith(_FILES)
        return marked or text == DEMO_NAME or hub_name(text) is not None
    return text != "-"


def _read_input() -> str:
    if sys.stdin.isatty():
        raise click.UsageError("give a PROMPT, or pipe one into standard input")
    return sys.stdin.read().removesuffix("\n")
