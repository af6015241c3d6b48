"""`radixlm serve`: a model over HTTP."""

from __future__ import annotations

import logging
from typing import Any

import click

from radixlm.cli_flags import engine_options, model_path_option
from radixlm.core.config import EngineConfig
from radixlm.server.serve import DEFAULT_HOST, DEFAULT_PORT, serve


@click.command("serve")
@click.argument("model", required=False)
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--served-model-name", help="Name that clients ask for. Default: the model folder's name."
)
@model_path_option
@engine_options
def command(
    model: str | None,
    model_path: str | None,
    host: str,
    port: int,
    served_model_name: str | None,
    **flags: Any,
) -> None:
    """Serve MODEL, a folder in Hugging Face format, as OpenAI's API.

    Without MODEL it is the embedded demo model. Ctrl-C ends it.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("radixlm").setLevel(logging.INFO)
    config = EngineConfig.from_flags(model=model or model_path, **flags)
    serve(config, host=host, port=port, served_model_name=served_model_name)
