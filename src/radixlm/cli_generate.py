"""`radixlm generate`: prompts in, answers out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from radixlm.cli_flags import engine_options, model_path_option, sampling_options, take_sampling
from radixlm.cli_later import later
from radixlm.core.request import RequestOutput

Engine = later("radixlm.build:Engine")

_FOLDER_MARKS = ("/", "./", "../", "~")


@click.command("generate")
@click.argument("arguments", metavar="[MODEL] [PROMPT]...", nargs=-1)
@model_path_option
@sampling_options()
@engine_options
def command(arguments: tuple[str, ...], model_path: str | None, **options: Any) -> None:
    """Continue each PROMPT and print what MODEL adds.

    MODEL is a folder in Hugging Face format; a first argument that is no folder and does not look
    like one is a prompt for the embedded demo model. Without PROMPT, or where it is -, standard
    input is the prompt.
    """
    params = take_sampling(options)
    model, given = (model_path, arguments) if model_path else _split(arguments)
    prompts = [_read_input() if text == "-" else text for text in given or ("-",)]
    with Engine(model, **options) as engine:
        outputs = engine.generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        if len(prompts) > 1:
            click.secho(f"--- {prompt.strip()[:70]!r}", dim=True, err=True)
        click.echo(output.text)
        click.secho(summary(output), dim=True, err=True)


def summary(output: RequestOutput) -> str:
    """What an answer took, in tokens."""
    return (
        f"[{output.prompt_tokens} prompt tokens, {output.cached_tokens} of them cached; "
        f"{len(output.token_ids)} new, ended by {output.finish_reason}]"
    )


def _split(arguments: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    if not arguments:
        return None, ()
    first = arguments[0]
    # So that a mistyped folder is not taken for a prompt; a text with spaces may begin as one.
    spaced = any(map(str.isspace, first))
    named = "/" in first and len(arguments) > 1
    looks_like_folder = not spaced and (named or first.startswith(_FOLDER_MARKS))
    if looks_like_folder or _is_folder(first):
        return first, arguments[1:]
    return None, arguments


def _is_folder(text: str) -> bool:
    try:
        return bool(text) and Path(text).is_dir()
    except (OSError, ValueError):  # too long, or not possible as a name at all
        return False


def _read_input() -> str:
    if sys.stdin.isatty():
        raise click.UsageError("give a PROMPT, or pipe one into standard input")
    return sys.stdin.read().removesuffix("\n")
