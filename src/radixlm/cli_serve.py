"""`radixlm serve`: a model over HTTP."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import click

from radixlm.cli_config import config_option
from radixlm.cli_flags import engine_options, flags_of, model_path_option, server_options
from radixlm.cli_help import HeadedCommand
from radixlm.cli_later import later
from radixlm.cli_loading import say_loading
from radixlm.core.config import EngineConfig
from radixlm.server.config import LogFormat, ServerConfig
from radixlm.server.json_log import JsonFormatter
from radixlm.server.listen import check_certificate, listening
from radixlm.text.folder import resolve_folder

serve = later("radixlm.server.serve:serve")


@click.command("serve", cls=HeadedCommand)
@click.argument("model", required=False)
@model_path_option
@engine_options
@server_options
@config_option
def command(model: str | None, model_path: str | None, **flags: Any) -> None:
    """Serve MODEL, a folder in Hugging Face format, as OpenAI's API.

    Without MODEL it is the embedded demo model. Ctrl-C ends it.
    """
    settings = ServerConfig(**{item.name: flags.pop(item.name) for item in flags_of(ServerConfig)})
    config = EngineConfig.from_flags(model=model or model_path, **flags)
    _log_to_stderr(settings.log_format)
    with checked(config, settings) as listener:
        serve(config, settings, listener)


@contextlib.contextmanager
def checked(config: EngineConfig, settings: ServerConfig) -> Iterator[socket.socket]:
    """Where to listen, after a moment's look at what may be wrong: to import torch and to load a
    model takes longer. Raises ModelError, ConfigError.
    """
    resolve_folder(config.model)
    check_certificate(settings)
    with listening(settings) as listener:
        say_loading(config.model)
        yield listener


def _log_to_stderr(log_format: LogFormat) -> None:
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S")
    handler.setFormatter(JsonFormatter() if log_format == "json" else plain)
    logging.basicConfig(handlers=[handler])
    logging.getLogger("radixlm").setLevel(logging.INFO)
