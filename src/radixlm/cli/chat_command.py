"""`radixlm chat`: its flags. The conversation is in terminal_chat."""

from __future__ import annotations

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
from radixlm.text.model_folder import resolve_folder

talk = later("radixlm.cli.terminal_chat:talk")


@click.command("chat", cls=HintingCommand)
@click.argument("model", required=False)
@click.option("--system", help="Instruction that stands in front of the conversation.")
@model_path_option
@sampling_options(max_tokens=512)
@engine_options
def command(model: str | None, model_path: str | None, system: str | None, **options: Any) -> None:
    """Talk to MODEL, a folder in Hugging Face format; without it, to the embedded demo model.

    Each answer is followed by how much of the conversation came from the cache. Ctrl-C stops an
    answer, /clear forgets the conversation, Ctrl-D or /exit leaves.
    """
    params = take_sampling(options)
    resolve_folder(model or model_path)  # a wrong one is an error before torch is imported
    say_loading(model or model_path)
    talk(model or model_path, params, system, **options)
