"""`radixlm serve`: a model over HTTP."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import click

from radixlm.cli.config_file import config_option
from radixlm.cli.later import later
from radixlm.cli.options import (
    HeadedCommand,
    engine_options,
    model_path_option,
    say_loading,
    server_options,
)
from radixlm.core.config import EngineConfig
from radixlm.core.flags import flags_of
from radixlm.server.config.server_config import LogFormat, ServerConfig
from radixlm.server.http.listen import check_certificate, listening
from radixlm.text.model_folder import resolve_folder

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
    settings = ServerConfig(
        **{item.name: flags.pop(item.name) for item, _ in flags_of(ServerConfig)}
    )
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


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time (UTC), level, logger, and the message or its fields."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname,
            "logger": record.name,
        }
        line |= getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
